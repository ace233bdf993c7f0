"""What commands that measure show: progress on stderr while they run, a table or JSON on stdout when they are done."""

import json
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from hotloop.cli.exits import complain

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from hotloop.bench.replay import Progress as TurnProgress

_MAX_ERRORS = 3  # that are shown: the others are alike


class Report(Protocol):
    """Figures that can be shown either way."""

    def to_json(self) -> dict[str, Any]: ...

    def to_table(self) -> Any: ...


def progress() -> "Progress":
    """A bar a task, where there is a terminal."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from hotloop.cli.loading import console

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, console=console, disable=not console.is_terminal)


def advance_by_turn(bar: "Progress", task: "TaskID") -> "Callable[[TurnProgress], None]":
    """A watch for a replay: the bar moves when a turn is over, well or not."""

    def watch(seen: "TurnProgress") -> None:
        if seen.step or seen.error:
            bar.advance(task)

    return watch


def show(values: dict[str, Any], table: Any, as_json: bool, errors: Sequence[str] = ()) -> None:
    from rich.console import Console

    if as_json:
        print(json.dumps(values))
    else:
        Console(highlight=False, soft_wrap=True).print(table)
    complain(*errors[:_MAX_ERRORS])


def show_report(report: Report, as_json: bool) -> None:
    show(report.to_json(), report.to_table(), as_json)
