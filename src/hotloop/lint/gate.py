"""Whether a change made agents dearer: recorded requests before it beside those after it, in figures. Values only.

Where answers report usage it is counted, else it is estimated from what a cache that never forgets would find.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from hotloop.lint.engine import PriceOf, count_reported
from hotloop.lint.run import LintedRun, LintedStep


@dataclass(frozen=True, slots=True)
class Figures:
    """What all runs of a recording took."""

    steps: int = 0
    prompt: int = 0
    recomputed: int = 0
    money: float | None = None
    """None where a model's prices are not known."""


@dataclass(frozen=True, slots=True)
class FigureChange:
    name: str
    before: float
    after: float
    is_worse: bool

    @property
    def more(self) -> float:
        return self.after - self.before


def measure(runs: Sequence[LintedRun], price_of: PriceOf) -> Figures:
    steps = [step for run in runs for step in run.steps]
    costs = [_cost(step, price_of) for step in steps]
    known = [cost for cost in costs if cost is not None]
    return Figures(
        steps=len(steps),
        prompt=sum(_prompt(step) for step in steps),
        recomputed=sum(_recomputed(step) for step in steps),
        money=sum(known) if len(known) == len(costs) else None,
    )


def compare(before: Figures, after: Figures, tolerance: float) -> tuple[FigureChange, ...]:
    """Worse is what grew by more than that share. Prompt tokens are told, and are no reason to fail."""

    def change(name: str, old: float, new: float, *, counts: bool = True) -> FigureChange:
        return FigureChange(name, old, new, counts and new > old * (1 + tolerance))

    changes = [
        change("steps", before.steps, after.steps),
        change("prompt tokens", before.prompt, after.prompt, counts=False),
        change("tokens recomputed", before.recomputed, after.recomputed),
    ]
    if before.money is not None and after.money is not None:
        changes.append(change("cost", before.money, after.money))
    return tuple(changes)


def render_markdown(changes: Sequence[FigureChange]) -> str:
    """A summary for a pull request."""
    worse = [each.name for each in changes if each.is_worse]
    title = f"**Worse: {', '.join(worse)}**" if worse else "**No worse than the baseline**"
    rows = [
        f"| {each.name} | {_figure(each.before, each)} | {_figure(each.after, each)} | {_more(each)} |"
        for each in changes
    ]
    return "\n".join(["### hotloop check", title, "", "| | baseline | now | change |", "|---|---|---|---|", *rows])


def _figure(value: float, change: FigureChange) -> str:
    return f"${value:,.4f}" if change.name == "cost" else f"{value:,.0f}"


def _more(change: FigureChange) -> str:
    share = f" ({change.more / change.before:+.0%})" if change.before else ""
    sign = "-" if change.more < 0 else "+"
    return f"{sign}{_figure(abs(change.more), change)}{share}{' ❌' if change.is_worse else ''}"


def _prompt(step: LintedStep) -> int:
    usage = step.request.answer.usage
    return usage.num_prompt if usage else step.scale.total(step.request.parts)


def _recomputed(step: LintedStep) -> int:
    reported = None if step.is_first else count_reported(step)
    return step.num_lost if reported is None else reported


def _cost(step: LintedStep, price_of: PriceOf) -> float | None:
    prices = price_of(step.request.model)
    if prices is None:
        return None
    usage, num_prompt = step.request.answer.usage, _prompt(step)
    if usage and usage.num_cached is not None:
        return prices.cost(num_prompt, usage.num_cached, usage.num_output)
    before = step.before
    num_known = step.scale.total((*before.parts, *before.answer.parts)) if before and not step.is_first else 0
    num_cached = max(0, min(num_known, num_prompt) - step.num_lost)
    num_output = usage.num_output if usage else step.scale.total(step.request.answer.parts)
    return prices.cost(num_prompt, num_cached, num_output)
