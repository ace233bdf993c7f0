"""What was seen of each client, and the tables of it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

WAYS = ("direct", "routed")
MODELS = ("plain", "reasoning")


@dataclass
class Row:
    client: str
    way: str
    """Direct, or through a router."""
    model: str
    """Plain, or one that reasons."""
    late: str = ""
    """How tools came on a later turn, if they did."""
    works: bool = False
    num_prompt: int = 0
    """Of the longest prompt."""
    cached: float | None = None
    """Of the prompt of a turn after the first, as the engine counts: the lowest of such turns."""
    num_recomputed: int = 0
    refusals: str = ""
    """Which statuses of 400 and above the server answered with, and how often."""

    @property
    def cell(self) -> str:
        if not self.works:
            return "**no**"
        share = "one turn" if self.cached is None else f"{self.cached:.1%}"
        return f"{share} ({self.num_recomputed:,})" if self.late else share


ROWS: list[Row] = []
RECOVERIES: list[tuple[str, ...]] = []
"""Of conversations that outgrew the context; see `RECOVERY_HEAD`."""
RECOVERY_HEAD = ("client", "the window", "way", "was refused", "compacted", "went on")


def render_tables(rows: Sequence[Row], recoveries: Sequence[tuple[str, ...]]) -> Iterator[str]:
    columns = [(way, model) for model in MODELS for way in WAYS]
    heads = [f"{model}, {way}" for way, model in columns]
    usual = [row for row in rows if not row.late]
    late = [row for row in rows if row.late]
    if usual:
        yield from _render_head("client", "prompt", *heads, "refusals")
        yield from (_render(_line(rows, columns)) for rows in _group(usual))
    if late:
        yield ""
        yield from _render_head("client", "tools come late by", *heads, "refusals")
        yield from (_render(_line(rows, columns)) for rows in _group(late))
    if recoveries:
        yield ""
        yield from _render_head(*RECOVERY_HEAD)
        yield from (_render(each) for each in recoveries)


def _group(rows: Sequence[Row]) -> list[list[Row]]:
    keys = dict.fromkeys((row.client, row.late) for row in rows)
    return [[row for row in rows if (row.client, row.late) == key] for key in keys]


def _line(rows: Sequence[Row], columns: Sequence[tuple[str, str]]) -> list[str]:
    cells = {(row.way, row.model): row.cell for row in rows}
    size = f"{max(row.num_prompt for row in rows):,}"
    refusals = ", ".join(dict.fromkeys(row.refusals for row in rows if row.refusals))
    first = rows[0]
    return [first.client, first.late or size, *(cells.get(column, "not run") for column in columns), refusals or "none"]


def _render_head(*heads: str) -> Iterator[str]:
    yield _render(heads)
    yield "|---" * len(heads) + "|"


def _render(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
