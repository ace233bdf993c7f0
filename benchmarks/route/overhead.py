"""What a router adds to the time to the first byte: one stub, asked directly and through each router, in turn.

The lanes are measured in short rounds, each round in another order, so that a busy moment of the machine is nobody's
alone. What is added is the difference of two percentiles of different requests, not a percentile of differences.
"""

import gc
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

from rich.table import Table

from benchmarks.route.load import Exchange, LeanClient, ask_steadily
from hotloop.bench.report import figure, percentile, table_of_figures
from hotloop.core.errors import RemoteError

DIRECT = "direct"

_NUM_CONNECTIONS = 32
_MAX_ANSWER_S = 20.0


class Timing(NamedTuple):
    """What counts of one request."""

    is_good: bool
    late_ms: float
    ttfb_ms: float
    whole_ms: float


@dataclass(slots=True)
class Lane:
    """One way to the stub, and what was seen there."""

    label: str
    url: str
    read_cpu_s: Callable[[], float] = lambda: 0.0
    """Processor time that whoever answers there has had."""
    rounds: list[list[Timing]] = field(default_factory=list)
    cpu_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneFigures:
    """Times in milliseconds. `late` is how much later than due requests were sent: the load's own jitter."""

    label: str
    num_asked: int = figure("requests")
    num_failed: int = figure("failed")
    ttfb_p50_ms: float = figure("first byte p50", "{:.2f} ms")
    ttfb_p99_ms: float = figure("first byte p99", "{:.2f} ms")
    added_p50_ms: float = figure("added p50", "{:.2f} ms")
    added_p99_ms: float = figure("added p99", "{:.2f} ms")
    whole_p50_ms: float = figure("whole answer p50", "{:.2f} ms")
    cpu_ms: float = figure("processor time a request", "{:.2f} ms")
    """Processor time that whoever answers spends on one request."""
    late_p50_ms: float = figure("sent late p50, by the load itself", "{:.2f} ms")
    late_p99_ms: float = figure("sent late p99, by the load itself", "{:.2f} ms")
    round_p99_ms: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class OverheadReport:
    """The first lane is the one that the others are compared with."""

    rate: float
    duration_s: float
    lanes: tuple[LaneFigures, ...]

    def to_json(self) -> dict[str, Any]:
        lanes = [{name: _round(value) for name, value in asdict(lane).items()} for lane in self.lanes]
        return {"rate": self.rate, "duration_s": self.duration_s, "lanes": lanes}

    def to_table(self) -> Table:
        table = table_of_figures(self.lanes)
        table.caption = f"{self.rate:g} requests/s, {self.duration_s:g} s each way"
        table.caption_justify = "left"
        return table


async def measure_overhead(
    lanes: Sequence[Lane],
    make_requests: Callable[[], Iterator[bytes]],
    *,
    rate: float,
    round_s: float,
    num_rounds: int,
    warm_up_s: float = 1.0,
    on_round: Callable[[], None] = lambda: None,
) -> OverheadReport:
    """Every lane is asked the same requests, first those that warm it up and do not count."""
    for number in range(num_rounds):
        start = number % len(lanes)
        for lane in [*lanes[start:], *lanes[:start]]:
            await _measure(lane, make_requests(), rate, warm_up_s, round_s)
            on_round()
    return report_overhead(lanes, rate, round_s * num_rounds)


async def _measure(lane: Lane, requests: Iterator[bytes], rate: float, warm_up_s: float, round_s: float) -> None:
    client = LeanClient(lane.url, timeout_s=_MAX_ANSWER_S)
    try:
        await client.open(_NUM_CONNECTIONS)
    except OSError as error:
        await client.close()
        raise RemoteError(f"{lane.label} at {lane.url} takes no connection: {error.strerror or error}") from None
    await ask_steadily(client, requests, rate=rate, duration_s=warm_up_s)
    gc.collect()
    gc.disable()  # a pause of ours would be somebody's slowest request
    began_s = lane.read_cpu_s()
    seen: list[Timing] = []
    lane.rounds.append(seen)
    try:
        await ask_steadily(
            client, requests, rate=rate, duration_s=round_s, on_end=lambda each: seen.append(take_time(each))
        )
        lane.cpu_s += lane.read_cpu_s() - began_s
    finally:
        gc.enable()
        await client.close()


def take_time(exchange: Exchange) -> Timing:
    return Timing(
        is_good=exchange.status == 200 and exchange.is_whole,
        late_ms=1000 * exchange.late_s,
        ttfb_ms=1000 * exchange.ttfb_s,
        whole_ms=1000 * (exchange.ended_at - exchange.asked_at),
    )


def report_overhead(lanes: Sequence[Lane], rate: float, duration_s: float) -> OverheadReport:
    direct = [each.ttfb_ms for each in _good(lanes[0].rounds)]
    return OverheadReport(rate, duration_s, tuple(_figures(lane, direct) for lane in lanes))


def _figures(lane: Lane, direct: Sequence[float]) -> LaneFigures:
    late = [each.late_ms for part in lane.rounds for each in part]
    good = _good(lane.rounds)
    ttfbs = [each.ttfb_ms for each in good]
    p50, p99 = percentile(ttfbs, 0.5), percentile(ttfbs, 0.99)
    return LaneFigures(
        label=lane.label,
        num_asked=len(late),
        num_failed=len(late) - len(good),
        ttfb_p50_ms=p50,
        ttfb_p99_ms=p99,
        whole_p50_ms=percentile([each.whole_ms for each in good], 0.5),
        added_p50_ms=p50 - percentile(direct, 0.5),
        added_p99_ms=p99 - percentile(direct, 0.99),
        round_p99_ms=tuple(percentile([each.ttfb_ms for each in _good([part])], 0.99) for part in lane.rounds),
        cpu_ms=1000 * lane.cpu_s / max(1, len(late)),
        late_p50_ms=percentile(late, 0.5),
        late_p99_ms=percentile(late, 0.99),
    )


def _good(rounds: Sequence[Sequence[Timing]]) -> list[Timing]:
    return [each for part in rounds for each in part if each.is_good]


def _round(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_round(each) for each in value]
    return round(value, 3) if isinstance(value, float) else value
