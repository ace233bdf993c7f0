"""The claims, as they were published, and who made them. Nothing here was measured by us.

`times` is what the claim comes to as a factor, for the plot; None where it names no figure, or a range.
"""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Claim:
    text: str
    times: float | None = None
    source: str = ""


LOOP, PREFIX, TOOLS, STREAM = "loop tokens", "static prefix", "parallel tools", "streaming"
PRIORITY, BATCHING, CALLS = "priority batching", "continuous batching", "tool calls"
FORESIGHT, TIERS, TOGETHER = "speculative execution", "tiers", "all together"

CLAIMS: Mapping[str, Claim] = {
    LOOP: Claim("5 steps of 200 + 300 tokens: 4,000 read naively, 1,400 with reuse", 4000 / 1400, "arithmetic"),
    PREFIX: Claim("5 to 100 times sooner to the first token", None, "reports of agent users"),
    TOOLS: Claim("three tools of 2 s: 2 s, not 6", 3.0, "arithmetic"),
    STREAM: Claim("the first word instead of the whole answer"),
    PRIORITY: Claim("more work at the same interactive latency"),
    BATCHING: Claim("up to 23 times the throughput of static batching", 23.0, "Anyscale, with vLLM"),
    CALLS: Claim("latency up to 2 times lower where a grammar leaves no choice", 2.0, "LMSYS, compressed FSM"),
    FORESIGHT: Claim("20% to 45% of the time hidden", None, "published systems, simplest and best"),
    TIERS: Claim("cost up to 85% lower", 1 / 0.15, "RouteLLM, on MT-Bench"),
    TOGETHER: Claim("no figure for all of it at once"),
}
