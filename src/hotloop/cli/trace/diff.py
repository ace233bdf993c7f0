"""What changed from one run to another: turn by turn, why tokens were recomputed, and where the time went.

Turns are paired in order. Pure: two ledgers in, a value or a table out.
"""

from collections.abc import Callable, Iterator, Mapping
from itertools import zip_longest
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from hotloop.cli.output import make_table, shorten
from hotloop.cli.trace.view import ID_CHARS, PART_WORDS, compact, money
from hotloop.cli.trace.waterfall import duration
from hotloop.trace.ledger import RunLedger, TurnLedger
from hotloop.trace.sweep import TimePart

_FIGURES: Mapping[str, Callable[[float], str]] = {
    **dict.fromkeys(("prompt", "cached", "recomputed", "output"), compact),
    "wall_s": duration,
}
"""How each is written."""
_REASON_CHARS = 20
_MIN_CHANGE_S = 0.00005
_IS_GOOD = {"cached": True, "recomputed": False, "wall_s": False}
"""What is better or worse for being more; the rest is neither."""


def compare(old: RunLedger, new: RunLedger) -> dict[str, Any]:
    """For a program: for each figure what it was and what it is, null where there was no such turn."""
    return {
        "runs": [old.trace_id, new.trace_id],
        "turns": [
            {"turn": number, **_pair(one, other)}
            for number, (one, other) in enumerate(zip_longest(old.turns, new.turns), start=1)
        ],
        "totals": {**_pair(old, new), "money": [old.money, new.money], "turns": [len(old.turns), len(new.turns)]},
        "parts": {str(part): list(times) for part, times in _paired_parts(old, new).items()},
    }


def show_diff(old: RunLedger, new: RunLedger) -> Group:
    title = Text(f"from run {old.trace_id[:ID_CHARS]} to run {new.trace_id[:ID_CHARS]}", style="bold")
    reasons = list(_describe_causes(old, new))
    recomputed = [Text("\nrecomputed", style="bold"), *reasons] if reasons else []
    return Group(title, "", _turn_table(old, new), *recomputed, "", _part_table(old, new))


def _pair(old: RunLedger | TurnLedger | None, new: RunLedger | TurnLedger | None) -> dict[str, list[Any]]:
    pairs = {name: [_figure(old, name), _figure(new, name)] for name in _FIGURES}
    return {**pairs, "causes": [dict(each.tokens.causes) if each else None for each in (old, new)]}


def _figure(ledger: RunLedger | TurnLedger | None, name: str) -> float | None:
    if ledger is None:
        return None
    figure: float = ledger.wall_s if name == "wall_s" else getattr(ledger.tokens, name)
    return figure


def _turn_table(old: RunLedger, new: RunLedger) -> Table:
    table = make_table("TURN", *(name.removesuffix("_s").upper() for name in _FIGURES), words=())
    for number, (one, other) in enumerate(zip_longest(old.turns, new.turns), start=1):
        note = "gone" if other is None else "new" if one is None else ""
        table.add_row(Text.assemble((f"{note} ", "dim"), str(number)), *_cells(one, other))
    table.add_row("all", *_cells(old, new), style="bold")
    return table


def _cells(old: RunLedger | TurnLedger | None, new: RunLedger | TurnLedger | None) -> Iterator[Text]:
    for name, words in _FIGURES.items():
        yield _cell(_figure(old, name), _figure(new, name), name, words)


def _cell(old: float | None, new: float | None, name: str, words: Callable[[float], str]) -> Text:
    """What it is and by how much that is more; of what is in one run only, what it is there."""
    if old is None or new is None:
        return Text(words((old if new is None else new) or 0), style="dim")
    more = new - old
    change = f"{'+' if more > 0 else '-'}{words(abs(more))}" if more else ""
    style = "" if name not in _IS_GOOD else "green" if (more > 0) == _IS_GOOD[name] else "red"
    return Text.assemble(words(new), (f" {change}" if change else "", style))


def _describe_causes(old: RunLedger, new: RunLedger) -> Iterator[Text]:
    for number, (one, other) in enumerate(zip_longest(old.turns, new.turns), start=1):
        before, after = (dict(turn.tokens.causes) if turn else {} for turn in (one, other))
        for reason in dict.fromkeys((*before, *after)):
            was, now = before.get(reason, 0), after.get(reason, 0)
            if was != now and reason != "cold":
                yield Text(f"turn {number}  {shorten(reason, _REASON_CHARS)}: {was:,} → {now:,} tokens")


def _part_table(old: RunLedger, new: RunLedger) -> Table:
    title = "WHERE THE TIME WENT"
    table = make_table(title, "WAS", "IS", "CHANGE", words=(title,))
    for part, (was, now) in _paired_parts(old, new).items():
        table.add_row(PART_WORDS[part][0], duration(was), duration(now), _signed(now - was))
    table.add_row("all", duration(old.wall_s), duration(new.wall_s), _signed(new.wall_s - old.wall_s), style="bold")
    if old.money or new.money:
        table.add_row("money", money(old.money), money(new.money), f"{new.money - old.money:+.4f}")
    return table


def _paired_parts(old: RunLedger, new: RunLedger) -> Mapping[TimePart, tuple[float, float]]:
    """What changed most comes first."""
    found = [part for part in TimePart if part in old.parts or part in new.parts]
    pairs = {part: (old.parts.get(part, 0.0), new.parts.get(part, 0.0)) for part in found}
    return dict(sorted(pairs.items(), key=lambda item: -abs(item[1][1] - item[1][0])))


def _signed(seconds: float) -> str:
    if abs(seconds) < _MIN_CHANGE_S:
        return ""
    return f"{'-' if seconds < 0 else '+'}{duration(abs(seconds))}"
