"""A trace as Chrome's trace events, which ui.perfetto.dev and chrome://tracing open.

    process   a service: agent, router, server:tiny@8701
    thread    a lane of it; spans of one lane follow or enclose each other and never merely overlap, so that slices nest
    arrow     from a span to its child in another process

Times are whole microseconds since the trace began, rounded down alike everywhere: what nests still does.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hotloop.trace import names
from hotloop.trace.span import Span
from hotloop.trace.tree import as_of_now

_GROUPS = {
    names.RUN: "run",
    names.TURN: "run",
    names.CHAT: "run",
    names.TOOL: "tools",
    names.SPECULATIVE: "speculative",
}
_OTHER_GROUP = "requests"
_DETAILS = (names.AGENT, names.TOOL_NAME, names.REPLICA, names.INDEX)  # what tells spans of a name apart


@dataclass(slots=True)
class _Lane:
    pid: int
    tid: int
    group: str = ""
    open_until: list[int] = field(default_factory=list)  # ends of the spans around now, the innermost last

    def take(self, span: Span) -> bool:
        """Takes spans in the order of their starts; False if this one would stick out of the one it begins in."""
        while self.open_until and self.open_until[-1] <= span.start_ns:
            self.open_until.pop()
        if self.open_until and self.open_until[-1] < span.end_ns:
            return False
        self.open_until.append(span.end_ns)
        return True

    def event(self, phase: str, name: str, **more: Any) -> dict[str, Any]:
        return {"ph": phase, "name": name, "pid": self.pid, "tid": self.tid, **more}


def render_perfetto(spans: Iterable[Span]) -> dict[str, Any]:
    ordered = sorted(as_of_now(spans), key=lambda span: (span.start_ns, -span.end_ns))
    zero_ns = ordered[0].start_ns if ordered else 0
    services = dict.fromkeys(span.service for span in ordered)
    pids = {service: pid for pid, service in enumerate(services, 1)}
    lanes: list[_Lane] = []
    places = {span.span_id: _find_lane(span, pids[span.service], lanes) for span in ordered}
    events = list(_titles(pids, lanes))
    events += [_slice(span, places[span.span_id], zero_ns) for span in ordered]
    events += _arrows(ordered, places, zero_ns)
    return {"displayTimeUnit": "ms", "otherData": {"start_unix_ns": str(zero_ns)}, "traceEvents": events}


def _find_lane(span: Span, pid: int, lanes: list[_Lane]) -> _Lane:
    group = _GROUPS.get(span.name, _OTHER_GROUP)
    for lane in lanes:
        if (lane.group, lane.pid) == (group, pid) and lane.take(span):
            return lane
    lanes.append(_Lane(pid, len(lanes) + 1, group, [span.end_ns]))
    return lanes[-1]


def _titles(pids: Mapping[str, int], lanes: Sequence[_Lane]) -> Iterator[dict[str, Any]]:
    for service, pid in pids.items():
        process = _Lane(pid, 0)
        yield process.event("M", "process_name", args={"name": service})
        yield process.event("M", "process_sort_index", args={"sort_index": pid})
    seen = Counter[tuple[int, str]]()
    order = list(dict.fromkeys([*_GROUPS.values(), _OTHER_GROUP]))
    for lane in lanes:
        seen[lane.pid, lane.group] += 1
        number = seen[lane.pid, lane.group]
        title = lane.group if number == 1 else f"{lane.group} {number}"
        yield lane.event("M", "thread_name", args={"name": title})
        yield lane.event("M", "thread_sort_index", args={"sort_index": order.index(lane.group) * len(lanes) + number})


def _slice(span: Span, lane: _Lane, zero_ns: int) -> dict[str, Any]:
    detail = next((str(span.attributes[key]) for key in _DETAILS if span.attributes.get(key)), "")
    more = {"session": span.session, "error": span.error}
    args = {**span.attributes, "trace_id": span.trace_id, "span_id": span.span_id}
    args |= {name: value for name, value in more.items() if value}
    start_us, end_us = (span.start_ns - zero_ns) // 1000, (span.end_ns - zero_ns) // 1000
    title = f"{span.name} {detail}".strip()
    return lane.event("X", title, cat=span.name, ts=start_us, dur=max(end_us - start_us, 0), args=args)


def _arrows(ordered: Sequence[Span], places: Mapping[str, _Lane], zero_ns: int) -> Iterator[dict[str, Any]]:
    by_id = {span.span_id: span for span in ordered}
    for number, span in enumerate(ordered, 1):
        parent = by_id.get(span.parent_id or "")
        if parent is None or parent.service == span.service:
            continue
        if not parent.start_ns <= span.start_ns <= parent.end_ns:
            continue  # their clocks disagree: an arrow would point back in time
        arrow = {"cat": "arrow", "id": number}
        begin_us, end_us = (parent.start_ns - zero_ns) // 1000, (span.start_ns - zero_ns) // 1000
        yield places[parent.span_id].event("s", "asks", **arrow, ts=begin_us)
        yield places[span.span_id].event("f", "asks", **arrow, ts=end_us, bp="e")
