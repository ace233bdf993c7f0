"""What commands show: progress on stderr while they run, a table or JSON on stdout when they are done.

Text for a terminal is on one line, no longer than there is room, and has nothing that moves the cursor.
"""

import json
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from hotloop.cli.exits import complain

if TYPE_CHECKING:
    from hotloop.bench.replay import Progress as TurnProgress

console = Console(stderr=True, highlight=False, soft_wrap=True)
_MAX_ERRORS = 3  # that are shown: the others are alike


def progress() -> Progress:
    """A bar a task, where there is a terminal."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, console=console, disable=not console.is_terminal)


def advance_by_turn(bar: Progress, task: TaskID) -> "Callable[[TurnProgress], None]":
    """A watch for a replay: the bar moves when a turn is over, well or not."""
    return lambda seen: bar.advance(task, bool(seen.step or seen.error))


def show(values: Any, table: Any, as_json: bool, errors: Sequence[str] = ()) -> None:
    if as_json:
        print(json.dumps(values))
    else:
        Console(highlight=False, markup=False, soft_wrap=True).print(table)
    complain(*errors[:_MAX_ERRORS])


def make_table(*titles: str, words: Collection[str], width: int | None = None, folds: bool = False) -> Table:
    """Columns of numbers, and some of words; with a width, those take what the others leave."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), width=width)
    for title in titles:
        is_words = title in words
        table.add_column(
            title,
            justify="left" if is_words else "right",
            no_wrap=not folds,
            overflow="fold" if folds else "ellipsis",
            ratio=1 if is_words and width else None,
        )
    return table


class Bar(NamedTuple):
    """A stretch of time, and the character and style it is drawn with."""

    begin: float
    end: float
    glyph: tuple[str, str]


def draw_bar(bars: Iterable[Bar], begin: float, end: float, num_cells: int) -> Text:
    """Bars over one another, the last on top; each takes a cell at least."""
    cells = [(" ", "")] * num_cells
    scale = num_cells / max(end - begin, 1e-6)
    for bar in bars:
        left = min(max(int((bar.begin - begin) * scale), 0), num_cells - 1)
        right = max(left + 1, min(round((bar.end - begin) * scale), num_cells))
        cells[left:right] = [bar.glyph] * (right - left)
    return Text.assemble(*cells)


def count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def shorten(text: str, max_chars: int, *, tail: bool = False) -> str:
    """On one line, and no longer than this; what would move the cursor is a question mark."""
    words = (text[-4 * max_chars :] if tail else text[: 4 * max_chars]).split()
    line = "".join(char if char.isprintable() else "?" for char in " ".join(words))
    if len(line) <= max_chars:
        return line
    return f"...{line[3 - max_chars :]}" if tail else f"{line[: max_chars - 3]}..."
