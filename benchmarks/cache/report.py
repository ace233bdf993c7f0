"""Figures of conversations, and how they are shown: what was recomputed, and how soon answers came."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.table import Table

from benchmarks.cache.run import Held
from hotloop.bench.report import figures_table, percentile, rounded


@dataclass(frozen=True, slots=True)
class Figures:
    """One run in figures, all of turns after the first of a conversation.

    Tokens "recomputed" were computed before, by the server's own account, without those of a last, partly filled block.
    "Lost" is counted without its help, and is more: see `Taken.num_lost`.
    """

    num_conversations: int
    num_turns: int
    num_errors: int
    num_prompt: int
    num_prefilled: int
    num_recomputed: int
    num_lost: int
    recomputed_share: float
    """Of the prompt tokens."""
    lost_share: float
    num_exact: int
    """Turns in whose prompt the answer before stands in the very tokens it was generated as."""
    ttft_p50_s: float
    ttft_p95_s: float
    causes: Mapping[str, int]
    """Tokens recomputed, by cause."""

    def to_json(self) -> dict[str, Any]:
        return rounded(asdict(self), 5)


def figures_of(held: Held) -> Figures:
    later = [taken for taken in held.taken if taken.number]
    ttfts = [taken.ttft_s for taken in later]
    num_prompt = sum(taken.said.num_prompt for taken in later)
    num_recomputed = sum(taken.explanation.num_recomputed for taken in later)
    num_lost = sum(taken.num_lost for taken in later)
    causes: Counter[str] = Counter()
    for cause in (cause for taken in later for cause in taken.explanation.causes):
        causes[cause.cause] += cause.tokens
    return Figures(
        num_conversations=len(held.taken) - len(later),
        num_turns=len(later),
        num_errors=len(held.errors),
        num_prompt=num_prompt,
        num_prefilled=num_prompt - sum(taken.said.num_cached for taken in later),
        num_recomputed=num_recomputed,
        num_lost=num_lost,
        recomputed_share=num_recomputed / num_prompt if num_prompt else 0.0,
        lost_share=num_lost / num_prompt if num_prompt else 0.0,
        num_exact=sum(taken.is_exact for taken in later),
        ttft_p50_s=percentile(ttfts, 0.5),
        ttft_p95_s=percentile(ttfts, 0.95),
        causes=dict(causes),
    )


def cache_json(held: Mapping[str, Mapping[str, Held]]) -> dict[str, Any]:
    """By setting of the server, then by breaker."""
    return {
        setting: {name: figures.to_json() for name, figures in _figures_by_name(by_name).items()}
        for setting, by_name in held.items()
    }


def _figures_by_name(by_name: Mapping[str, Held]) -> dict[str, Figures]:
    return {name: figures_of(held) for name, held in by_name.items()}


def cache_table(held: Mapping[str, Mapping[str, Held]]) -> Table:
    """Breakers down, and across the figures of each setting of the server."""
    broken = {setting: _figures_by_name(by_name) for setting, by_name in held.items()}
    titles = ("cached", "recomputed", "cause", "TTFT")
    table = figures_table("breaker", (each for setting in broken for each in (f"{setting}: prefilled", *titles)))
    for name in next(iter(broken.values())):
        table.add_row(name, *(cell for by_name in broken.values() for cell in _cells(by_name[name])))
    return table


def _cells(figures: Figures) -> Sequence[str]:
    cause = max(figures.causes, key=lambda name: figures.causes[name], default="")
    cached = f"{1 - figures.num_prefilled / max(1, figures.num_prompt):.1%}"
    return (
        *(f"{figures.num_prefilled:,d}", cached, f"{figures.recomputed_share:.2%}"),
        *(cause, f"{figures.ttft_p50_s:.3f} s"),
    )
