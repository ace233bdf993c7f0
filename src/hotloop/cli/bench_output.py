"""What every benchmark shows while it runs and when it is done: progress on stderr, a table or JSON on stdout."""

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.progress import Progress


def progress() -> "Progress":
    """A bar a task, where there is a terminal."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from hotloop.cli.loading import console

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, console=console, disable=not console.is_terminal)


def show(values: dict[str, Any], table: Any, as_json: bool) -> None:
    from rich.console import Console

    if as_json:
        print(json.dumps(values))
    else:
        Console(highlight=False, soft_wrap=True).print(table)
