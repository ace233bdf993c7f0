"""The claims, as they were published, and who made them. Nothing here was measured by us.

`times` is what a claim comes to as a factor, at least and at most, for the plot; None where it names no figure.
"""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Claim:
    text: str
    times: tuple[float, float] | None = None
    source: str = ""


LOOP, PREFIX, TOOLS, STREAM = "loop tokens", "static prefix", "parallel tools", "streaming"
PRIORITY, BATCHING, CALLS = "priority batching", "continuous batching", "tool calls"
FORESIGHT, TIERS, TOGETHER = "speculative execution", "tiers", "all together"

CLAIMS: Mapping[str, Claim] = {
    LOOP: Claim(
        "5 steps of 200 + 300 tokens: 4,000 read naively, 1,400 with reuse", (4000 / 1400, 4000 / 1400), "arithmetic"
    ),
    PREFIX: Claim("prefill cut by 30% to 50% by caching the static prefix alone", (1 / 0.7, 2.0)),
    TOOLS: Claim("three tools of 2 s: 2 s, not 6", (3.0, 3.0), "arithmetic"),
    STREAM: Claim("the first word instead of the whole answer"),
    PRIORITY: Claim("more work at the same interactive latency"),
    BATCHING: Claim("up to 23 times the throughput of static batching", (1.0, 23.0), "Anyscale, with vLLM"),
    CALLS: Claim("2 to 3 times from drafts", (2.0, 3.0)),
    FORESIGHT: Claim(
        "20% to 45% of a task's time hidden", (1 / 0.8, 1 / 0.55), "published systems, the simplest and the best"
    ),
    TIERS: Claim("60% to 80% cheaper", (2.5, 5.0)),
    TOGETHER: Claim("4 to 5 times the throughput of a naive loop, p95 halved", (4.0, 5.0)),
}
