"""Figures of each way to ask, against always asking the large model, and how they are shown."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.table import Table

from benchmarks.tiers.run import LARGE, Asked, Measured
from hotloop.bench.report import figures_table, rounded


@dataclass(frozen=True, slots=True)
class WayFigures:
    """One way in figures; `saved` and `faster` are shares of what always-large took."""

    label: str
    num_questions: int
    num_right: int
    right_by_kind: Mapping[str, tuple[int, int]]
    """How many of how many."""
    cost: float
    """Of all questions, with what was thrown away, at prices per million tokens."""
    large_cost: float
    """What of it the large model took: with that, other prices can be thought through."""
    saved: float
    latency_mean_s: float
    latency_p50_s: float
    faster: float
    large_share: float
    """Of the questions, those that the large model answered in the end."""
    num_discarded: int
    """Answers of the small model that the cascade did not take."""

    @property
    def quality(self) -> float:
        return self.num_right / self.num_questions if self.num_questions else 0.0

    def to_json(self) -> dict[str, Any]:
        return rounded({**asdict(self), "quality": self.quality}, 6)


def figures_of(measured: Measured) -> list[WayFigures]:
    return [_figures(way, asked, measured.asked[LARGE]) for way, asked in measured.asked.items()]


def tiers_json(figures: Sequence[WayFigures], errors: Sequence[str] = ()) -> dict[str, Any]:
    return {"ways": [each.to_json() for each in figures], "errors": list(errors)}


def tiers_table(figures: Sequence[WayFigures]) -> Table:
    """Figures down, ways across."""
    table = figures_table("", (each.label for each in figures))
    table.add_row("questions", *(f"{each.num_questions:,d}" for each in figures))
    table.add_row("right", *(f"{each.quality:.1%}" for each in figures))
    for kind in figures[0].right_by_kind if figures else ():
        table.add_row(f"  {kind}", *("{} of {}".format(*each.right_by_kind[kind]) for each in figures))
    table.add_row("by the large model", *(f"{each.large_share:.0%}" for each in figures))
    table.add_row("thrown away", *(f"{each.num_discarded:,d}" for each in figures))
    table.add_row("cost of 1,000", *(f"{_per_thousand(each):.3f}" for each in figures))
    table.add_row("  of it the large", *(f"{each.large_cost / each.cost:.0%}" if each.cost else "" for each in figures))
    table.add_row("  saved", *(f"{each.saved:.0%}" for each in figures))
    table.add_row("latency, mean", *(f"{each.latency_mean_s:.2f} s" for each in figures))
    table.add_row("  saved", *(f"{each.faster:.0%}" for each in figures))
    table.add_row("latency, median", *(f"{each.latency_p50_s:.2f} s" for each in figures))
    return table


def _per_thousand(figures: WayFigures) -> float:
    return 1000 * figures.cost / max(1, figures.num_questions)


def _figures(way: str, asked: Sequence[Asked], base: Sequence[Asked]) -> WayFigures:
    latencies = [each.latency_s for each in asked] or [0.0]
    cost, base_cost = (sum(each.cost for each in some) for some in (asked, base))
    base_s = sum(each.latency_s for each in base)
    kinds = sorted({each.question.kind for each in asked})
    by_kind = {kind: [each.is_right for each in asked if each.question.kind == kind] for kind in kinds}
    return WayFigures(
        label=way,
        num_questions=len(asked),
        num_right=sum(each.is_right for each in asked),
        right_by_kind={kind: (sum(right), len(right)) for kind, right in by_kind.items()},
        cost=cost,
        large_cost=sum(tier.cost(tokens) for each in asked for tier, tokens in each.spent if tier.name == "large"),
        saved=1 - cost / base_cost if base_cost else 0.0,
        latency_mean_s=statistics.fmean(latencies),
        latency_p50_s=statistics.median(latencies),
        faster=1 - sum(latencies) / base_s if base_s else 0.0,
        large_share=sum(each.choice.tier == "large" for each in asked) / max(1, len(asked)),
        num_discarded=sum(len(each.spent) - 1 for each in asked),
    )
