"""A trace as Chrome's trace events, which ui.perfetto.dev and chrome://tracing open.

    process   a service: agent, router, server:tiny@8701
    thread    a lane of it; spans of one lane follow or enclose each other and never merely overlap, so that slices nest
    arrow     from a span to its child in another process

Times are whole microseconds since the trace began, rounded down alike everywhere: what nests still does. Knows nothing
of stores or files.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from hotloop.trace import names
from hotloop.trace.span import Span
from hotloop.trace.tree import as_of_now

_GROUPS = {
    names.RUN: "run",
    names.TURN: "run",
    names.CHAT: "run",
    names.TOOL: "tools",
    names.FORESEEN: "foreseen",
}
_OTHER_GROUP = "requests"
_DETAILS = (names.AGENT, names.TOOL_NAME, names.REPLICA, names.INDEX)
"""What tells spans of a name apart, the first that a span has."""


@dataclass(frozen=True, slots=True)
class Track:
    """Where a span is drawn."""

    pid: int
    tid: int

    def as_event(self, phase: str, name: str, **more: Any) -> dict[str, Any]:
        return {"ph": phase, "name": name, "pid": self.pid, "tid": self.tid, **more}


@dataclass(slots=True)
class _Lane:
    group: str
    place: Track
    open_until: list[int] = field(default_factory=list)
    """Ends of the spans that enclose the present, the innermost last."""

    def take(self, span: Span) -> bool:
        """Takes spans in the order of their starts; False if this one would stick out of the one it begins in."""
        while self.open_until and self.open_until[-1] <= span.start_ns:
            self.open_until.pop()
        if self.open_until and self.open_until[-1] < span.end_ns:
            return False
        self.open_until.append(span.end_ns)
        return True


def render_perfetto(spans: Iterable[Span]) -> dict[str, Any]:
    """The spans of one trace, or of several, as one JSON document."""
    ordered = sorted(_as_of_now(spans), key=lambda span: (span.start_ns, -span.end_ns))
    zero_ns = ordered[0].start_ns if ordered else 0
    lanes: list[_Lane] = []
    places = {_key(span): place for span, place in _place(ordered, lanes)}
    events = list(_name_lanes(ordered, lanes))
    events += [_slice(span, places[_key(span)], zero_ns) for span in ordered]
    events += _arrows(ordered, places, zero_ns)
    return {"displayTimeUnit": "ms", "otherData": {"start_unix_ns": str(zero_ns)}, "traceEvents": events}


def _as_of_now(spans: Iterable[Span]) -> Iterator[Span]:
    traces: dict[str, list[Span]] = {}
    for span in spans:
        traces.setdefault(span.trace_id, []).append(span)
    return chain.from_iterable(map(as_of_now, traces.values()))


def _place(ordered: Sequence[Span], lanes: list[_Lane]) -> Iterator[tuple[Span, Track]]:
    pids = {service: pid for pid, service in enumerate(_services(ordered), 1)}
    for span in ordered:
        group, pid = _GROUPS.get(span.name, _OTHER_GROUP), pids[span.service]
        for lane in lanes:
            if (lane.group, lane.place.pid) == (group, pid) and lane.take(span):
                break
        else:
            lane = _Lane(group, Track(pid, len(lanes) + 1))
            lane.take(span)
            lanes.append(lane)
        yield span, lane.place


def _name_lanes(ordered: Sequence[Span], lanes: Sequence[_Lane]) -> Iterator[dict[str, Any]]:
    for pid, service in enumerate(_services(ordered), 1):
        process = Track(pid, 0)
        yield process.as_event("M", "process_name", args={"name": service})
        yield process.as_event("M", "process_sort_index", args={"sort_index": pid})
    seen: dict[tuple[int, str], int] = {}
    order = list(dict.fromkeys([*_GROUPS.values(), _OTHER_GROUP]))
    for lane in lanes:
        number = seen[lane.place.pid, lane.group] = seen.get((lane.place.pid, lane.group), 0) + 1
        title = lane.group if number == 1 else f"{lane.group} {number}"
        rank = order.index(lane.group) * len(lanes) + number
        yield lane.place.as_event("M", "thread_name", args={"name": title})
        yield lane.place.as_event("M", "thread_sort_index", args={"sort_index": rank})


def _services(ordered: Sequence[Span]) -> list[str]:
    """In the order they enter the story, which is that of their floors."""
    return list(dict.fromkeys(span.service for span in ordered))


def _slice(span: Span, place: Track, zero_ns: int) -> dict[str, Any]:
    detail = next((str(span.attributes[key]) for key in _DETAILS if span.attributes.get(key)), "")
    args = {**span.attributes, "trace_id": span.trace_id, "span_id": span.span_id}
    if span.session:
        args["session"] = span.session
    if span.error:
        args["error"] = span.error
    start_us, end_us = (span.start_ns - zero_ns) // 1000, (span.end_ns - zero_ns) // 1000
    title = f"{span.name} {detail}".strip()
    return place.as_event("X", title, cat=span.name, ts=start_us, dur=max(end_us - start_us, 0), args=args)


def _arrows(ordered: Sequence[Span], places: dict[tuple[str, str], Track], zero_ns: int) -> Iterator[dict[str, Any]]:
    by_key = {_key(span): span for span in ordered}
    for number, span in enumerate(ordered, 1):
        parent = by_key.get((span.trace_id, span.parent_id or ""))
        if parent is None or parent.service == span.service:
            continue
        if not parent.start_ns <= span.start_ns <= parent.end_ns:
            continue  # their clocks disagree: an arrow would point back in time
        arrow = {"cat": "arrow", "id": number}
        begin_us, end_us = (parent.start_ns - zero_ns) // 1000, (span.start_ns - zero_ns) // 1000
        yield places[_key(parent)].as_event("s", "asks", **arrow, ts=begin_us)
        yield places[_key(span)].as_event("f", "asks", **arrow, ts=end_us, bp="e")


def _key(span: Span) -> tuple[str, str]:
    return span.trace_id, span.span_id
