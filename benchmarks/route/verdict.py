"""What became of requests while replicas failed, counted from what the client saw.

A request is *lost* if it got no byte of an answer, or an error although some replica was well all the time; a 503 while
nobody was well is *refused*. A stream that began must end with its last event or with an error event, else it is *cut*.

A request is *disturbed* if it did not get its whole answer, or got it late. Recovery is the time from a trouble's
beginning, or end, to the moment the last disturbed request before the next change was sent: after it, all was as usual.
"""

import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from rich.table import Table

from benchmarks.route.load import Exchange
from benchmarks.route.troubles import Trouble, TroubleKind, is_anybody_well
from hotloop.bench.report import figures_table, percentile
from hotloop.wire.sse import EventReader

End = Literal["done", "error event", "cut stream", "cut answer", "refused", "lost"]

LATE_S = 2.0
"""A first byte later than this counts as disturbed; a slow stub's comes sooner."""
MAX_RECOVERY_S = 5.0

_SAME_S = 1.0
"""Changes that are nearer than this are one."""

_NAME = re.compile(rb'"id": ?"(?:chatcmpl-|msg_)([\w-]+)\.')


@dataclass(frozen=True, slots=True)
class Seen:
    """One request as it is judged: times in seconds since the beginning."""

    end: End
    asked_s: float
    ended_s: float
    first_byte_s: float
    """How long it took to come."""
    replica: str = ""
    """Who answered, where anybody did."""
    detail: str = ""

    @property
    def is_disturbed(self) -> bool:
        return self.end != "done" or self.first_byte_s > LATE_S


@dataclass(frozen=True, slots=True)
class Recovery:
    """After one trouble began, and after it was over; `back_s`: until its replica answered a request again."""

    kind: TroubleKind
    replica: str
    begins_s: float
    begin_recovery_s: float
    end_recovery_s: float
    back_s: float | None


@dataclass(frozen=True, slots=True)
class ChaosReport:
    """The verdict. `recovery` is over both changes of a trouble, whichever took longer."""

    seed: int
    duration_s: float
    num_asked: int
    ends: dict[str, int]
    num_lost: int
    num_refused: int
    num_cut_streams: int
    recovery_p50_s: float
    recovery_p95_s: float
    recovery_max_s: float
    back_p95_s: float
    num_never_back: int
    recoveries: tuple[Recovery, ...]
    details: tuple[str, ...]

    @property
    def is_good(self) -> bool:
        """Nothing lost, nothing cut, and all well again soon."""
        return not self.num_lost and not self.num_cut_streams and self.recovery_p95_s <= MAX_RECOVERY_S

    def to_json(self) -> dict[str, Any]:
        return {"is_good": self.is_good, **asdict(self)}

    def to_table(self) -> Table:
        table = figures_table("trouble", ("times", "recovery p50", "max", "back p50", "max"))
        for kind in sorted({each.kind for each in self.recoveries}):
            own = [each for each in self.recoveries if each.kind == kind]
            times = [max(each.begin_recovery_s, each.end_recovery_s) for each in own]
            back = [each.back_s for each in own if each.back_s is not None]
            cells = (percentile(times, 0.5), max(times), percentile(back, 0.5), max(back, default=0.0))
            table.add_row(kind, str(len(own)), *(f"{value:.1f} s" for value in cells))
        ends = ", ".join(f"{count:,} {end}" for end, count in self.ends.items())
        table.caption = (
            f"{self.duration_s:.0f} s, {self.num_asked:,} requests: {ends}\n"
            f"lost {self.num_lost}, streams cut {self.num_cut_streams}, refused with nobody well {self.num_refused}\n"
            f"recovery p95 {self.recovery_p95_s:.1f} s, back p95 {self.back_p95_s:.1f} s"
        )
        table.caption_justify = "left"
        return table


def see(exchange: Exchange, began_at: float) -> Seen:
    body = exchange.body
    found = _NAME.search(body)
    end, detail = _judge(exchange, body)
    return Seen(
        end=end,
        asked_s=exchange.asked_at - began_at,
        ended_s=exchange.ended_at - began_at,
        first_byte_s=exchange.ttfb_s,
        replica=found[1].decode() if found else "",
        detail=detail,
    )


def _judge(exchange: Exchange, body: bytes) -> tuple[End, str]:
    if not exchange.status:
        return "lost", exchange.broken
    if exchange.status != 200:
        is_refusal = exchange.status in (429, 503) and exchange.is_whole and _is_error(body)
        return "refused" if is_refusal else "lost", f"{exchange.status}: {body[:200].decode(errors='replace')}"
    if b"text/event-stream" in exchange.headers.get(b"content-type", b""):
        return _judge_stream(exchange, body)
    if exchange.is_whole and _parse(body) is not None:
        return "done", ""
    return "cut answer", exchange.broken or body[-200:].decode(errors="replace")


def _judge_stream(exchange: Exchange, body: bytes) -> tuple[End, str]:
    """Well ended by its last event, if all of that came."""
    is_whole = exchange.is_whole and body.endswith(b"\n\n")
    events = [*EventReader().push(body)]
    error = next((event.data for event in events if _is_error(event.data)), b"")
    is_ended = is_whole and bool(events) and (events[-1].data == b"[DONE]" or events[-1].name == "message_stop")
    if error and (is_ended or (is_whole and events[-1].data == error)):
        return "error event", error.decode(errors="replace")
    if is_ended:
        return "done", ""
    if not body:
        return "lost", f"no byte of a stream: {exchange.broken}"
    return "cut stream", f"{exchange.broken} after {body[-100:].decode(errors='replace')}"


def _is_error(body: bytes) -> bool:
    """Both APIs have the words at `error.message`."""
    parsed = _parse(body)
    error = parsed.get("error") if parsed else None
    return isinstance(error, dict) and bool(error.get("message"))


def _parse(body: bytes) -> dict[str, Any] | None:
    try:
        parsed = json.loads(body)
    except ValueError:
        return None
    return parsed if isinstance(parsed, dict) else None


def judge(
    seen: Sequence[Seen], troubles: Sequence[Trouble], replicas: Sequence[str], *, seed: int, duration_s: float
) -> ChaosReport:
    """The whole run. `troubles` are as they happened, which may be later than planned."""
    refused = [each for each in seen if each.end == "refused"]
    num_excused = sum(not _was_anybody_well(each, replicas, troubles) for each in refused)
    num_lost = sum(each.end == "lost" for each in seen) + len(refused) - num_excused
    recoveries = tuple(measure_recoveries(seen, troubles, duration_s))
    times = [max(each.begin_recovery_s, each.end_recovery_s) for each in recoveries]
    back = [each.back_s for each in recoveries if each.back_s is not None]
    return ChaosReport(
        seed=seed,
        duration_s=duration_s,
        num_asked=len(seen),
        ends=dict(Counter(each.end for each in seen).most_common()),
        num_lost=num_lost,
        num_refused=num_excused,
        num_cut_streams=sum(each.end == "cut stream" for each in seen),
        recovery_p50_s=percentile(times, 0.5),
        recovery_p95_s=percentile(times, 0.95),
        recovery_max_s=max(times, default=0.0),
        back_p95_s=percentile(back, 0.95),
        num_never_back=len(recoveries) - len(back),
        recoveries=recoveries,
        details=_examples(seen),
    )


def _was_anybody_well(seen: Seen, replicas: Sequence[str], troubles: Sequence[Trouble]) -> bool:
    """A router may take a moment to see that somebody is well again."""
    return is_anybody_well(replicas, troubles, max(0.0, seen.asked_s - MAX_RECOVERY_S), seen.ended_s)


def measure_recoveries(seen: Sequence[Seen], troubles: Sequence[Trouble], duration_s: float) -> Iterable[Recovery]:
    changes = sorted({*(each.begins_s for each in troubles), *(each.ends_s for each in troubles)})
    disturbed = [each.asked_s for each in seen if each.is_disturbed]

    def recovery_s(change_s: float) -> float:
        until_s = next((each for each in changes if each > change_s + _SAME_S), duration_s)
        return max((asked_s - change_s for asked_s in disturbed if change_s <= asked_s < until_s), default=0.0)

    for trouble in troubles:
        begin_s, end_s = recovery_s(trouble.begins_s), recovery_s(trouble.ends_s)
        yield Recovery(
            trouble.kind, trouble.replica, trouble.begins_s, begin_s, end_s, _back_s(trouble, seen, troubles)
        )


def _back_s(trouble: Trouble, seen: Sequence[Seen], troubles: Sequence[Trouble]) -> float | None:
    """None if it answered nothing before it was in trouble again, or at all."""
    later = [each.begins_s for each in troubles if each.replica == trouble.replica and each.begins_s > trouble.begins_s]
    until_s = min(later, default=float("inf"))
    answered = [
        each.asked_s - trouble.ends_s
        for each in seen
        if each.replica == trouble.replica and trouble.ends_s <= each.asked_s < until_s
    ]
    return min(answered, default=None)


def _examples(seen: Sequence[Seen], most: int = 5) -> tuple[str, ...]:
    """Of what should not happen."""
    bad = [each for each in seen if each.end in ("lost", "refused", "cut stream", "cut answer")]
    return tuple(f"{each.asked_s:.1f} s: {each.end}: {each.detail}" for each in bad[:most])
