"""Figures of conversations, and how they are shown: what was recomputed, how soon answers came, what was explained."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from rich.console import Group
from rich.table import Table

from benchmarks.cache.gaps import GapReport
from benchmarks.cache.run import Held
from hotloop.bench.report import figures_table, percentile, rounded


@dataclass(frozen=True, slots=True)
class Figures:
    """One run in figures. All are of turns after the first of a conversation, but for `num_first_prefilled`.

    Tokens "recomputed" were computed before, by the server's own account; those of a last, partly filled block apart.
    "Lost" is counted without its help, and is more: see `Taken.num_lost`.
    """

    num_conversations: int
    num_turns: int
    num_errors: int
    num_first_prefilled: int
    """Prompt tokens computed in the first turns of conversations."""
    num_prompt: int
    num_prefilled: int
    num_recomputed: int
    num_block: int
    num_lost: int
    recomputed_share: float
    """Of the prompt tokens."""
    lost_share: float
    num_exact: int
    """Turns in whose prompt the answer before stands in the very tokens it was generated as."""
    num_cases: int
    """Turns that recomputed something, or whose request is not the one before continued."""
    num_explained: int
    """Those of them whose cause, place and words were named rightly."""
    ttft_p50_s: float
    ttft_p95_s: float
    causes: Mapping[str, int]
    """Tokens recomputed, by cause."""

    def to_json(self) -> dict[str, Any]:
        return rounded(asdict(self), 5)


@dataclass(slots=True)
class Measured:
    """Figures by API, and by the name of the breaker."""

    trips: dict[str, Figures] = field(default_factory=dict)
    broken: dict[str, Figures] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)


def figures_of(held: Held) -> Figures:
    later = [taken for taken in held.taken if taken.number]
    first = [taken for taken in held.taken if not taken.number]
    ttfts = [taken.ttft_s for taken in later]
    num_prompt = sum(taken.said.num_prompt for taken in later)
    num_recomputed = sum(taken.explanation.num_recomputed for taken in later)
    num_lost = sum(taken.num_lost for taken in later)
    judged = [taken.is_explained for taken in later if taken.is_explained is not None]
    causes: Counter[str] = Counter()
    for cause in (cause for taken in later for cause in taken.explanation.causes):
        causes[cause.cause] += cause.tokens
    return Figures(
        num_conversations=len(first),
        num_turns=len(later),
        num_errors=len(held.errors),
        num_first_prefilled=sum(taken.said.num_prompt - taken.said.num_cached for taken in first),
        num_prompt=num_prompt,
        num_prefilled=num_prompt - sum(taken.said.num_cached for taken in later),
        num_recomputed=num_recomputed,
        num_block=sum(taken.explanation.block_tokens for taken in later),
        num_lost=num_lost,
        recomputed_share=num_recomputed / num_prompt if num_prompt else 0.0,
        lost_share=num_lost / num_prompt if num_prompt else 0.0,
        num_exact=sum(taken.is_exact for taken in later),
        num_cases=len(judged),
        num_explained=sum(judged),
        ttft_p50_s=percentile(ttfts, 0.5),
        ttft_p95_s=percentile(ttfts, 0.95),
        causes=dict(causes),
    )


_ROWS = (
    ("conversations", "num_conversations", "{:,d}"),
    ("turns after the first", "num_turns", "{:,d}"),
    ("errors", "num_errors", "{:,d}"),
    ("prompt tokens", "num_prompt", "{:,d}"),
    ("  prefilled", "num_prefilled", "{:,d}"),
    ("  recomputed", "num_recomputed", "{:,d}"),
    ("  recomputed, share", "recomputed_share", "{:.2%}"),
    ("  of a last block", "num_block", "{:,d}"),
    ("  lost, share at most", "lost_share", "{:.2%}"),
    ("answers back in their own tokens", "num_exact", "{:,d}"),
    ("TTFT p50", "ttft_p50_s", "{:.3f} s"),
    ("TTFT p95", "ttft_p95_s", "{:.3f} s"),
)


def cache_tables(measured: Mapping[str, Measured], gaps: Sequence[GapReport] = ()) -> Group:
    """Round trips by every setting of the server, the breakers with all settings side by side, and tool gaps."""
    trips = [_trips_table(setting, part.trips) for setting, part in measured.items() if part.trips]
    broken = {setting: part.broken for setting, part in measured.items() if part.broken}
    tables = trips + ([_breakers_table(broken)] if broken else []) + ([_gaps_table(gaps)] if gaps else [])
    return Group(*(line for table in tables for line in (table, "")))


def cache_json(measured: Mapping[str, Measured], gaps: Sequence[GapReport] = ()) -> dict[str, Any]:
    """By setting of the server, then by API or breaker."""
    settings: dict[str, Any] = {
        setting: {"round_trips": _json_of(part.trips), "breakers": _json_of(part.broken), "errors": part.errors}
        for setting, part in measured.items()
    }
    return settings | ({"gaps": [gap.to_json() for gap in gaps]} if gaps else {})


def _trips_table(setting: str, trips: Mapping[str, Figures]) -> Table:
    """Figures down, APIs across."""
    table = figures_table(f"round trips, {setting}", trips)
    for title, name, form in _ROWS:
        table.add_row(title, *(form.format(getattr(figures, name)) for figures in trips.values()))
    return table


def _breakers_table(broken: Mapping[str, Mapping[str, Figures]]) -> Table:
    """Breakers down; for each setting across what was prefilled, recomputed, waited for and explained."""
    table = figures_table(
        "breaker", (title for setting in broken for title in (f"{setting}: prefilled", "recomputed", "TTFT", "named"))
    )
    for name in next(iter(broken.values())):
        table.add_row(name, *(cell for by_name in broken.values() for cell in _cells(by_name[name])))
    return table


def _gaps_table(gaps: Sequence[GapReport]) -> Table:
    """Figures down, settings across."""
    table = figures_table("tool gaps", (gap.label for gap in gaps))
    table.add_row("jobs", *(f"{len(gap.job_times_s):,d}" for gap in gaps))
    table.add_row("job mean", *(f"{gap.job_mean_s:.1f} s" for gap in gaps))
    table.add_row("job p95", *(f"{gap.job_p95_s:.1f} s" for gap in gaps))
    table.add_row("prompt tokens", *(f"{gap.num_prompt_tokens:,d}" for gap in gaps))
    table.add_row("  recomputed", *(f"{gap.num_recomputed_tokens:,d}" for gap in gaps))
    return table


def _cells(figures: Figures) -> Sequence[str]:
    explained = f"{figures.num_explained} of {figures.num_cases}" if figures.num_cases else ""
    return f"{figures.num_prefilled:,d}", f"{figures.recomputed_share:.2%}", f"{figures.ttft_p50_s:.3f} s", explained


def _json_of(figures: Mapping[str, Figures]) -> dict[str, Any]:
    return {name: value.to_json() for name, value in figures.items()}
