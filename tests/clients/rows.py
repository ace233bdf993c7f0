"""What was seen of each client, and the table of it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

HEAD = ("client", "works", "tool loop", "cached on turn 2+", "through `route`")


@dataclass
class Row:
    client: str
    way: str
    """Straight, or through a router."""
    has_tools: bool
    works: bool = False
    cached: float | None = None
    """Of the prompts after the first that are its continuations, as the engine counts them."""


ROWS: list[Row] = []


def render_table(rows: Sequence[Row]) -> Iterator[str]:
    yield f"| {' | '.join(HEAD)} |"
    yield "|---" * len(HEAD) + "|"
    for client in dict.fromkeys(row.client for row in rows):
        ways = {row.way: row for row in rows if row.client == client}
        works, routed = (way in ways and ways[way].works for way in ("direct", "routed"))
        has_loop = next(iter(ways.values())).has_tools
        shares = [row.cached for row in ways.values() if row.cached is not None]
        cached = f"{min(shares):.1%}" if shares else "one turn"
        cells = (client, yes(works), yes(works) if has_loop else "has none", cached, yes(routed))
        yield f"| {' | '.join(cells)} |"


def yes(is_true: bool) -> str:
    return "yes" if is_true else "no"
