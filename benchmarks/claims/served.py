"""What was served one way: how many tokens in what time, and how long each request took."""

from dataclasses import dataclass, field

from hotloop.bench.report import percentile


@dataclass(slots=True)
class Served:
    """A latency runs from arrival to the last token."""

    wall_s: float = 0.0
    num_tokens: int = 0
    latencies_s: list[float] = field(default_factory=list)

    @property
    def tokens_per_s(self) -> float:
        return self.num_tokens / self.wall_s if self.wall_s else 0.0

    @property
    def latency_s(self) -> float:
        return percentile(self.latencies_s, 0.5)
