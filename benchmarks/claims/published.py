"""The claims as they were published, the baseline each names, and what must come out for one to hold here.

Nothing here was measured by us. `reasons` say why a claim does not hold on a kind of machine; they are shown only if
the figures there say that it does not.
"""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from benchmarks.claims.result import Result

Device = Literal["cpu", "gpu"]


@dataclass(frozen=True, slots=True)
class Need:
    """A bound that the median of a figure's repeats must keep: of times or saved against the baseline, or as it is."""

    figure: str
    measure: Literal["times", "saved", "least", "most"]
    bound: float

    def is_met(self, result: Result) -> bool:
        figure = result.figure(self.figure)
        match self.measure:
            case "least":
                return figure.value >= self.bound
            case "most":
                return figure.value <= self.bound
        return statistics.median(figure.times if self.measure == "times" else figure.saved) >= self.bound

    def __str__(self) -> str:
        """What would have been enough."""
        match self.measure:
            case "times":
                return f"{self.figure} {self.bound:.3g}× wanted"
            case "saved":
                return f"{self.figure} {self.bound:.0%} less wanted"
        return f"{self.figure} at {self.measure} {self.bound:g} wanted"


@dataclass(frozen=True, slots=True)
class Claim:
    published: str
    baseline: str
    needs: Sequence[Need]
    on_gpu: bool = False
    bars: tuple[float, float] | None = None
    """What it comes to as a factor, for the plot; None where it names none."""
    off_gpu: str = "–"
    """What stands for a figure of a card where there is none to be had."""
    reasons: Mapping[Device, str] = field(default_factory=dict)

    def holds(self, result: Result) -> bool:
        return bool(result.figures) and all(need.is_met(result) for need in self.needs)

    def times(self, result: Result) -> list[float]:
        """How many times better the first figure is that it needs."""
        return result.figure(self.needs[0].figure).times if result.figures else []


TOKENS, FLAT, RECOMPUTED = "loop: tokens", "loop: flat steps", "loop: recomputed prefix"
PREFIX, FIRST = "static prefix", "first token"
TOOLS, COMPILER, GATHER = "parallel tools", "parallel calls (LLMCompiler)", "independent gathering"
SPECULATION = "speculative execution"
STATIC, DYNAMIC, CONTINUOUS = "static batching", "dynamic batching", "continuous batching"
PRIORITY, DRAFT, TIERS, SERVING, TOGETHER = "priority batching", "draft model", "tiers", "serving", "all together"

_UNBATCHED = "the same server, one request at a time"
_ARITHMETIC: Mapping[Device, str] = {
    "cpu": "few cores are busy with arithmetic by a few rows, so that more gain little"
}

CLAIMS: Mapping[str, Claim] = {
    TOKENS: Claim(
        "5 steps of 200 + 300 tokens: 4,000 tokens prefilled naively, 1,400 with reuse",
        "the same loop without a prefix cache",
        [Need("prefilled", "times", 2.7)],
        bars=(4000 / 1400, 4000 / 1400),
    ),
    FLAT: Claim(
        "latency of a step stays flat with reuse, and grows without",
        "the same loop without a prefix cache",
        [Need("last step over second", "most", 1.25)],
        reasons={"cpu": "attention over what is cached grows with it, and shows where cores are few or busy"},
    ),
    RECOMPUTED: Claim(
        "recomputing the prefix takes more than 90% of inference time in long loops",
        "the naive loop, of which the share is taken",
        [Need("recomputed", "least", 0.9)],
        reasons={"cpu": "the loop is too short: the recomputed share grows with every step"},
    ),
    PREFIX: Claim(
        "prefill 30 to 50% less by the static prefix alone",
        "the same prompts without a prefix cache",
        [Need("first token", "saved", 0.3)],
        on_gpu=True,
        bars=(1 / 0.7, 2.0),
    ),
    FIRST: Claim(
        "first token after 200 to 500 ms, instead of 3 to 10 s for the whole answer",
        "the same answers, waited for whole",
        [Need("first token", "most", 0.5), Need("first token", "times", 6.0)],
        on_gpu=True,
        bars=(6.0, 50.0),
        reasons={"cpu": "what a turn adds to its prompt takes this CPU longer than that to prefill"},
    ),
    TOOLS: Claim(
        "3 tools of 2 s in 2 s, not 6",
        "the same calls, one after the other",
        [Need("tools", "times", 2.5)],
        bars=(3.0, 3.0),
    ),
    COMPILER: Claim(
        "more than 20% off the time of a task (LLMCompiler)",
        "a call a turn",
        [Need("task", "saved", 0.2)],
        bars=(1.25, 1.25),
    ),
    GATHER: Claim(
        "40 to 60% off end to end where information is gathered independently",
        "the same calls, one after the other",
        [Need("task", "saved", 0.4)],
        bars=(1 / 0.6, 2.5),
        reasons={"cpu": "much of the task is the model's own writing, which tools at once do not shorten"},
    ),
    SPECULATION: Claim(
        "calls predicted with more than 80% accuracy, 200 to 500 ms a step off the critical path",
        "the same runs without speculation",
        [Need("predicted right", "least", 0.8), Need("off a step", "least", 0.2)],
        reasons={
            "cpu": "nearly all hits are arguments of a tool that is named already, so only their writing is hidden"
        },
    ),
    STATIC: Claim(
        "2 to 4 times",
        _UNBATCHED,
        [Need("throughput", "times", 2.0)],
        on_gpu=True,
        bars=(2.0, 4.0),
        reasons=_ARITHMETIC,
    ),
    DYNAMIC: Claim(
        "2 to 3 times",
        _UNBATCHED,
        [Need("throughput", "times", 2.0)],
        on_gpu=True,
        bars=(2.0, 3.0),
        reasons=_ARITHMETIC,
    ),
    CONTINUOUS: Claim(
        "3 to 5 times",
        _UNBATCHED,
        [Need("throughput", "times", 3.0)],
        on_gpu=True,
        bars=(3.0, 5.0),
        reasons=_ARITHMETIC,
    ),
    PRIORITY: Claim(
        "2 to 3 times the throughput with interactive latency kept",
        "the machine kept free for the interactive user",
        [Need("throughput", "times", 2.0), Need("interactive turn", "times", 1 / 1.25)],
        bars=(2.0, 3.0),
        reasons={"cpu": "a step takes longer the more rows it has, and on a CPU each row counts"},
    ),
    DRAFT: Claim(
        "2 to 3 times on autoregressive generation, same output",
        "the same model without a draft model",
        [Need("prose", "times", 2.0), Need("same output", "least", 1.0)],
        bars=(2.0, 3.0),
        reasons={
            "cpu": "the draft model is a third of the model's size, and on a CPU verifying more rows takes longer"
        },
        off_gpu="not to be shown: random weights accept no guess, and give other tokens in another batch",
    ),
    TIERS: Claim(
        "cost 60 to 80% less, latency 40 to 50% less",
        "always the large model",
        [Need("cost", "saved", 0.6), Need("latency", "saved", 0.4)],
        bars=(2.5, 5.0),
        reasons={
            "cpu": "the small model is a third of the large one, and a cascade asks twice where it doubts; "
            "by rules alone more is saved, and less is right"
        },
    ),
    SERVING: Claim("", "", [], on_gpu=True),
    TOGETHER: Claim(
        "4 to 5 times the throughput, p95 halved",
        "the naive loop: nothing reused, batched or tiered, one request at a time",
        [Need("throughput", "times", 4.0), Need("p95 of a job", "saved", 0.5)],
        bars=(4.0, 5.0),
    ),
}
