"""The claims as they were published, the baseline each names, and what must come out for one to hold here.

Nothing here was measured by us. `reasons` say why a claim does not hold on a kind of machine; they are shown only if
the figures there say that it does not.
"""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from benchmarks.claims.result import Figure, Result

Device = Literal["cpu", "cuda"]

MIN_REPEATS, MAX_SPREAD = 3, 0.3


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

    def spread(self, result: Result) -> float:
        """Of what is compared with the bound: the figure's own values, or its factors against the baseline."""
        figure = result.figure(self.figure)
        return replace(figure, baseline=()).spread if self.measure in ("least", "most") else figure.spread

    def __str__(self) -> str:
        """What is enough."""
        match self.measure:
            case "times":
                return f"{self.figure} {self.bound:.3g}×"
            case "saved":
                return f"{self.figure} {self.bound:.0%} less"
        return f"{self.figure} at {self.measure} {self.bound:,g}"


@dataclass(frozen=True, slots=True)
class Claim:
    published: str
    baseline: str
    needs: Sequence[Need]
    reasons: Mapping[Device, str] = field(default_factory=dict)
    absent: Mapping[Device, str] = field(default_factory=dict)
    """Why it is not measured on such a machine; shown only if it was not."""

    @property
    def wanted(self) -> str:
        return ", ".join(map(str, self.needs))

    def needed(self, result: Result) -> list[Figure]:
        """The figures that decide, or all where there is no bound; none where the row had others when it was taken."""
        names = {need.figure for need in self.needs} or set(result.by_name)
        return (
            [figure for name, figure in result.by_name.items() if name in names] if names <= {*result.by_name} else []
        )

    def spread(self, result: Result) -> float:
        """The largest of what decides."""
        if not self.needs or not self.needed(result):
            return max(figure.spread for figure in result.figures)
        return max(need.spread(result) for need in self.needs)

    def doubt(self, result: Result) -> str:
        """Why the figures are too few or too far apart for a verdict; empty if they will do."""
        needed = self.needed(result)
        if not needed:
            return "taken against another baseline, to be taken again"
        repeats = min(figure.num_repeats for figure in needed)
        spread = self.spread(result)
        few = f"{repeats} repeats" if repeats < MIN_REPEATS else ""
        apart = f"{spread:.0%} between repeats" if spread > MAX_SPREAD else ""
        return ", ".join(filter(None, (few, apart)))

    def holds(self, result: Result) -> bool:
        return not self.doubt(result) and all(need.is_met(result) for need in self.needs)

    def verdict(self, result: Result, device: Device) -> str:
        if doubt := self.doubt(result):
            return f"not measured well enough ({doubt})"
        if not self.needs:
            return "no bound is published"
        if self.holds(result):
            return "holds"
        missed = [str(need) for need in self.needs if not need.is_met(result)]
        reason = self.reasons.get(device, "")
        return f"does not hold ({', '.join(missed)} wanted)" + (f": {reason}" if reason else "")


def says_more(new: Result, kept: Result) -> bool:
    """Figures that are measured well enough give no way to others that are not."""
    claim = CLAIMS[new.claim]
    return not claim.doubt(new) or bool(claim.doubt(kept))


TOKENS, TEN, SAVED = "loop: tokens", "loop: ten steps to 10k", "prefix of ten calls"
FLAT, SHARE, RECOMPUTED = "loop: flat steps", "loop: share of prefill", "loop: recomputed prefix"
PREFIX, ALONE, FIRST = "static prefix", "prefix caching alone", "first token"
TOOLS, LINEAR = "parallel tools", "parallel tools by number"
COMPILER, GATHER = "parallel calls (LLMCompiler)", "independent gathering"
SPECULATION = "speculative execution"
STATIC, DYNAMIC, CONTINUOUS = "static batching", "dynamic batching", "continuous batching"
UTILISATION = "device utilisation"
PRIORITY, DRAFT, ACCEPTED = "priority batching", "draft model", "drafts by kind"
TIERS, THREE, BY_TASK, CLASSIFIER = "tiers", "three tiers", "latency by task", "classifier"
SERVING, TOGETHER, COMBINED, UNOPTIMISED = "serving", "all together", "latency combined", "unoptimised agents"

_NAIVE = "the same loop without a prefix cache"
_UNBATCHED = "the same server, one request at a time"
_ARITHMETIC: Mapping[Device, str] = {
    "cpu": "few cores are busy with arithmetic by a few rows, so that more gain little"
}
_COUNTED: Mapping[Device, str] = {"cuda": "tokens are counted, and are the same on every machine"}
_RUNTIME: Mapping[Device, str] = {"cuda": "no device takes part: calls are by script, or on a simulated clock"}
_LARGE = "always the large model"
_LOOP = "the naive loop: nothing reused, batched or tiered, one request at a time"

CLAIMS: Mapping[str, Claim] = {
    TOKENS: Claim(
        "5 steps of 200 + 300 tokens: 4,000 tokens prefilled naively, 1,400 with reuse; tokens grow linearly",
        _NAIVE,
        [Need("prefilled", "times", 2.7)],
        absent=_COUNTED,
    ),
    TEN: Claim(
        "10 steps to a context of 10k tokens: 50k+ tokens of prefill",
        "–",
        [Need("prefilled naively", "least", 50_000)],
        absent=_COUNTED,
    ),
    SAVED: Claim(
        "ten calls with 2,000 tokens in common: 20,000 saved (18,000: the first call has nothing to find)",
        "the same calls without a prefix cache",
        [Need("saved", "least", 0.99 * 18_000)],
        absent=_COUNTED,
    ),
    FLAT: Claim(
        "latency of a step stays flat with reuse, and grows without (5 steps)",
        _NAIVE,
        [Need("step 5 over step 2", "most", 1.25)],
        reasons={"cpu": "attention over what is cached grows with it, and shows where cores are few or busy"},
    ),
    SHARE: Claim(
        "prefill often takes more than 90% of inference time for long prompts",
        "the time of the naive loop, of which it is a share",
        [Need("prefill", "least", 0.9)],
    ),
    RECOMPUTED: Claim(
        "half of an agent's wall clock can be reprocessing",
        "the time of the naive loop, of which it is a share",
        [Need("recomputed", "least", 0.5)],
    ),
    PREFIX: Claim(
        "prefill 30 to 50% less by the static prefix alone",
        "the same prompts without a prefix cache",
        [Need("first token", "saved", 0.3)],
    ),
    ALONE: Claim(
        "30 to 50% less inference time by prefix caching alone",
        "the same prompts and answers without a prefix cache",
        [Need("whole answer", "saved", 0.3)],
    ),
    FIRST: Claim(
        "first token after 200 to 500 ms, instead of 3 to 10 s for the whole answer",
        "the same answers, waited for whole",
        [Need("first token", "most", 0.5), Need("first token", "times", 6.0)],
        reasons={"cpu": "what a turn adds to its prompt takes this CPU longer than that to prefill"},
    ),
    TOOLS: Claim(
        "3 tools of 2 s in 2 s, not 6",
        "the same calls, one after the other",
        [Need("tools", "times", 2.9)],
    ),
    LINEAR: Claim(
        "gains linear in the number of tools",
        "the same calls, one after the other",
        [Need("8 tools", "times", 0.8 * 8), Need("4 tools", "times", 0.8 * 4), Need("2 tools", "times", 0.8 * 2)],
        absent=_RUNTIME,
    ),
    COMPILER: Claim(
        "more than 20% off the time of a task (LLMCompiler: all calls planned in one answer)",
        "a call a turn, reasoned about after each",
        [Need("task", "saved", 0.2), Need("plans carried out", "least", 1.0)],
        reasons={"cpu": "what the model takes itself is most of the task there, and a plan takes it longer than calls"},
    ),
    GATHER: Claim(
        "40 to 60% off end to end where information is gathered independently (six operations in two)",
        "a call a turn, reasoned about after each",
        [Need("task", "saved", 0.4)],
    ),
    SPECULATION: Claim(
        "calls predicted with more than 80% accuracy, 200 to 500 ms off each step, in well-defined workflows",
        "the same runs without speculation",
        [Need("workflows: predicted right", "least", 0.8), Need("workflows: off a predicted step", "least", 0.2)],
        reasons={
            "cpu": "nearly all hits are arguments of a tool that is named already, so only their writing is hidden"
        },
        absent=_RUNTIME,
    ),
    STATIC: Claim("2 to 4 times", _UNBATCHED, [Need("throughput", "times", 2.0)], reasons=_ARITHMETIC),
    DYNAMIC: Claim(
        "2 to 3 times (configurable maximum wait; here 50 ms, and 10 and 500)",
        _UNBATCHED,
        [Need("throughput", "times", 2.0)],
        reasons=_ARITHMETIC,
    ),
    CONTINUOUS: Claim(
        "3 to 5 times with little latency impact",
        _UNBATCHED,
        [Need("throughput", "times", 3.0)],
        reasons=_ARITHMETIC,
    ),
    PRIORITY: Claim(
        "2 to 3 times the throughput of unbatched processing with interactive latency kept; waits of 10, 50 and 500 ms "
        "(here nobody waits for a batch: a request joins the next step)",
        "the same user and fleet, one request at a time; and the machine kept free for the user",
        [Need("throughput", "times", 2.0), Need("interactive turn", "times", 1 / 1.25)],
        reasons={
            "cpu": "each row makes a step longer there: beside an interactive request others have a tenth of the time "
            "by default (`--interactive-share`), and this user never pauses"
        },
    ),
    UTILISATION: Claim(
        "no figure: how busy a device is with four shapes of work", "–, by what `hotloop_device_utilization` says", []
    ),
    DRAFT: Claim(
        "2 to 3 times on autoregressive generation, same output",
        "the same model without a draft model",
        [Need("prose", "times", 2.0), Need("same output", "least", 1.0)],
        reasons={"cpu": "verifying several rows takes a CPU longer than one, and the draft model is not free"},
    ),
    ACCEPTED: Claim(
        "acceptance on tool calls above prose",
        "prose of the same models",
        [Need("accepted", "times", 1.0)],
        reasons={"cpu": "calls keep to a grammar, which so small a model would not have kept to by itself"},
    ),
    TIERS: Claim(
        "cost 60 to 80% less, latency 40 to 50% less",
        _LARGE,
        [Need("cost", "saved", 0.6), Need("latency", "saved", 0.4)],
        reasons={"cpu": "the small model is a third of the large one, and a cascade asks twice where it doubts"},
    ),
    THREE: Claim(
        "the same, of small, medium and large at 0.0001, 0.001 and 0.01 a unit, 50, 200 and 800 ms",
        _LARGE,
        [Need("cost", "saved", 0.6), Need("latency", "saved", 0.4)],
        reasons={"cpu": "a cascade asks twice where it doubts"},
    ),
    BY_TASK: Claim(
        "intent 10 to 50 ms … reasoning 2 to 8 s",
        "–",
        [Need("intent", "most", 0.05), Need("reasoning", "most", 8.0)],
        reasons={"cpu": "a prompt of some hundred tokens takes longer than that to prefill"},
    ),
    CLASSIFIER: Claim("accurate classification is the key", "the task each question is known to be", []),
    SERVING: Claim(
        "A100, Llama-8B class: 15–20 tokens/s and 800–1,200 ms to the first token naively; TGI 35–45, 300–500; vLLM "
        "55–65, 200–400; SGLang 60–70, 180–350; TensorRT-LLM 70–90, 150–300",
        "transformers, where it was run",
        [],
        absent={"cpu": "published of a card; beside vLLM and llama.cpp a CPU stands in [CPU](cpu.md)"},
    ),
    TOGETHER: Claim(
        "4 to 5 times the throughput, p95 halved",
        _LOOP,
        [Need("throughput", "times", 4.0), Need("p95 of a job", "saved", 0.5)],
    ),
    COMBINED: Claim("50 to 80% lower latency", _LOOP, [Need("one agent", "saved", 0.5)]),
    UNOPTIMISED: Claim(
        "unoptimised agents take 15 to 40 s (3 to 8 calls of 1 to 5 s)",
        "–",
        [Need("naive run", "least", 15.0), Need("naive run", "most", 40.0)],
    ),
}
