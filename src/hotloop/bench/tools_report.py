"""Figures of tool calls with and without shortcuts, and how they are shown."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.table import Table

from hotloop.bench.questions import ToolQuestion, is_right, is_well_formed
from hotloop.bench.report import figure, figures_table, percentile, rounded
from hotloop.bench.tools import Measured
from hotloop.core.message import ToolCall
from hotloop.core.request import Usage

TOTAL = "total"

CallCheck = Callable[[ToolQuestion, ToolCall], bool]
"""Whether a call is valid."""

_MAX_SHOWN = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolFigures:
    """One category in figures. Fast is with shortcuts, slow without; answers and calls are those of both.

    Speed is all output tokens over the time of all rounds, and `ratio` how many times faster the fast ones came. The
    other ratios are of single questions, by the seconds a token took.
    """

    label: str
    num_questions: int = figure("questions")
    num_errors: int = figure("errors")
    num_answers: int = figure("answers")
    num_without_call: int = figure("  without a call")
    num_cut: int = figure("  cut by the limit")
    """Answers that ended at the limit of tokens."""
    num_calls: int = figure("calls")
    num_valid: int = figure("  valid")
    invalid: tuple[str, ...]
    """The first few that are not, and what their answers ended with."""
    num_identical: int = figure("identical with and without")
    """Questions whose answers are the same, however they were asked."""
    num_right: int = figure("right")
    """Questions that the fast answer got right, by the key."""
    num_slow_right: int
    num_output_tokens: int = figure("output tokens")
    forced_share: float = figure("  forced", "{:.1%}")
    num_drafted: int = figure("drafted tokens")
    num_accepted: int
    acceptance: float = figure("  accepted", "{:.1%}")
    tokens_per_step: float = figure("tokens a step", "{:.2f}")
    slow_tokens_per_step: float = figure("  without shortcuts", "{:.2f}")
    wall_s: float
    slow_wall_s: float
    tokens_per_s: float = figure("output tokens/s", "{:.1f}")
    slow_tokens_per_s: float = figure("  without shortcuts", "{:.1f}")
    ratio: float = figure("times faster", "{:.2f}x")
    ratio_p10: float = figure("  a question, p10", "{:.2f}x")
    ratio_p50: float = figure("  a question, median", "{:.2f}x")
    ratio_p90: float = figure("  a question, p90", "{:.2f}x")

    def to_json(self) -> dict[str, Any]:
        return rounded(asdict(self))


def figures_of(label: str, measured: Measured, is_valid: CallCheck = is_well_formed) -> ToolFigures:
    pairs = measured.pairs
    judged = [(pair.question, answer) for pair in pairs for answer in pair.answers]
    calls = [(question, call, answer) for question, answer in judged for call in answer.calls]
    invalid = [
        f"{question.id}: {call.name} {call.arguments} ({answer.end})"
        for question, call, answer in calls
        if not is_valid(question, call)
    ]
    fast = _total([pair.fast.answer.usage for pair in pairs])
    slow = _total([pair.slow.answer.usage for pair in pairs])
    speed, slow_speed = _share(fast.num_output, measured.fast_s), _share(slow.num_output, measured.slow_s)
    ratios = [pair.ratio for pair in pairs]
    return ToolFigures(
        label=label,
        num_questions=len(pairs),
        num_errors=len(measured.errors),
        num_answers=len(judged),
        num_without_call=sum(not answer.calls for _, answer in judged),
        num_cut=sum(answer.end == "length" for _, answer in judged),
        num_calls=len(calls),
        num_valid=len(calls) - len(invalid),
        invalid=tuple(invalid[:_MAX_SHOWN]),
        num_identical=sum(pair.is_identical for pair in pairs),
        num_right=sum(is_right(pair.question, pair.fast.answer.calls) for pair in pairs),
        num_slow_right=sum(is_right(pair.question, pair.slow.answer.calls) for pair in pairs),
        num_output_tokens=fast.num_output,
        forced_share=_share(fast.num_forced, fast.num_output),
        num_drafted=fast.num_drafted,
        num_accepted=fast.num_accepted,
        acceptance=_share(fast.num_accepted, fast.num_drafted),
        tokens_per_step=_share(fast.num_output, fast.num_steps),
        slow_tokens_per_step=_share(slow.num_output, slow.num_steps),
        wall_s=measured.fast_s,
        slow_wall_s=measured.slow_s,
        tokens_per_s=speed,
        slow_tokens_per_s=slow_speed,
        ratio=_share(speed, slow_speed),
        ratio_p10=percentile(ratios, 0.1),
        ratio_p50=percentile(ratios, 0.5),
        ratio_p90=percentile(ratios, 0.9),
    )


def figures_of_all(parts: dict[str, Measured], is_valid: CallCheck) -> list[ToolFigures]:
    """A column a category and, if there are several, one for all of them."""
    columns = [figures_of(label, measured, is_valid) for label, measured in parts.items()]
    if len(parts) > 1:
        whole = Measured()
        for measured in parts.values():
            whole.merge(measured)
        columns.append(figures_of(TOTAL, whole, is_valid))
    return columns


def _total(usages: Sequence[Usage]) -> Usage:
    return Usage(*map(sum, zip(*usages, strict=True))) if usages else Usage(0, 0, 0)


def _share(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


def tools_json(columns: Sequence[ToolFigures]) -> dict[str, Any]:
    return {"categories": [figures.to_json() for figures in columns]}


def shortcuts_table(figures: ToolFigures) -> Table:
    table = figures_table("", ("one by one", "shortcuts", "times better"))
    slow_s, fast_s = figures.slow_wall_s, figures.wall_s
    table.add_row("tokens forced by the grammar", "0.0%", f"{figures.forced_share:.1%}")
    table.add_row("tokens drafted and accepted", "0", f"{figures.num_accepted:,d} of {figures.num_drafted:,d}")
    steps = (figures.slow_tokens_per_step, figures.tokens_per_step)
    table.add_row("tokens a step", *(f"{value:.2f}" for value in steps), f"{_share(steps[1], steps[0]):.2f}x")
    table.add_row("wall time", f"{slow_s:.1f} s", f"{fast_s:.1f} s", f"{_share(slow_s, fast_s):.2f}x")
    return table
