"""Does a router forget? Its memory over very many requests, after as many as fill what it remembers by design."""

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.table import Table

from benchmarks.route.load import LeanClient, ask_in_turn
from hotloop.bench.report import figures_table

NUM_SAMPLES = 50

_NUM_AT_ONCE = 16


@dataclass(frozen=True, slots=True)
class Sample:
    num_requests: int
    rss_bytes: int


@dataclass(frozen=True, slots=True)
class MemoryReport:
    """`slope` is of the line through all samples, in bytes for a thousand requests."""

    num_requests: int
    num_failed: int
    before_bytes: int
    first_bytes: int
    last_bytes: int
    slope_bytes: float
    samples: tuple[Sample, ...]

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"slope_bytes": round(self.slope_bytes, 1)}

    def to_table(self) -> Table:
        table = figures_table("memory", ("", "requests", "failed"))
        counts = (f"{self.num_requests:,}", f"{self.num_failed:,}")
        table.add_row("before the warm-up", f"{1e-6 * self.before_bytes:.1f} MB")
        table.add_row("first quarter", f"{1e-6 * self.first_bytes:.1f} MB", *counts)
        table.add_row("last quarter", f"{1e-6 * self.last_bytes:.1f} MB")
        table.add_row("a thousand requests", f"{1e-3 * self.slope_bytes:+.1f} kB")
        return table


async def measure_memory(
    url: str,
    read_rss: Callable[[], int],
    requests: Iterator[bytes],
    *,
    count: int,
    warm_up: int,
    num_samples: int = NUM_SAMPLES,
    on_sample: Callable[[], None] = lambda: None,
) -> MemoryReport:
    client = LeanClient(url)
    before = read_rss()
    await ask_in_turn(client, requests, num_at_once=_NUM_AT_ONCE, count=warm_up)
    samples: list[Sample] = []
    num_failed = 0
    for number in range(1, num_samples + 1):
        num_done = count * number // num_samples
        num_before = samples[-1].num_requests if samples else 0
        num_failed += await ask_in_turn(client, requests, num_at_once=_NUM_AT_ONCE, count=num_done - num_before)
        samples.append(Sample(num_done, read_rss()))
        on_sample()
    await client.close()
    return report_memory(samples, before, num_failed)


def report_memory(samples: Sequence[Sample], before_bytes: int, num_failed: int) -> MemoryReport:
    quarter = max(1, len(samples) // 4)
    slope, _ = statistics.linear_regression(
        [sample.num_requests / 1000 for sample in samples], [sample.rss_bytes for sample in samples]
    )
    return MemoryReport(
        num_requests=samples[-1].num_requests,
        num_failed=num_failed,
        before_bytes=before_bytes,
        first_bytes=round(statistics.fmean(sample.rss_bytes for sample in samples[:quarter])),
        last_bytes=round(statistics.fmean(sample.rss_bytes for sample in samples[-quarter:])),
        slope_bytes=slope,
        samples=tuple(samples),
    )
