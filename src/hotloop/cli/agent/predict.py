"""`hotloop predict`: what an agent's foresight has learned."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter
from cyclopts.types import PositiveInt

from hotloop.cli.settings import Json

if TYPE_CHECKING:
    from rich.table import Table

    from hotloop.agent.predict.predictor import Pattern

predict = App(name="predict", help="Look at what an agent's foresight has learned.")


@predict.command
def show(
    path: Annotated[Path, Parameter(help="Where it is kept, as given to SpeculativeForesight.")] = Path(
        "foresight.json"
    ),
    *,
    limit: Annotated[PositiveInt, Parameter(help="Most patterns to show.")] = 40,
    as_json: Json = False,
) -> None:
    """List what was learned, the most often right first: after this comes that call, with arguments from there."""
    from rich.console import Console

    from hotloop.agent.predict.predictor import load_predictor

    predictor = load_predictor(path)
    patterns = predictor.patterns()
    if as_json:
        found = {"runs": predictor.num_runs, "patterns": [asdict(pattern) for pattern in patterns[:limit]]}
        print(json.dumps(found))
        return
    console = Console(highlight=False)
    console.print(_table(patterns[:limit]))
    hidden = f", {limit} of them shown" if len(patterns) > limit else ""
    console.print(f"{len(patterns)} patterns from {predictor.num_runs} runs{hidden}", markup=False)


def _table(patterns: "list[Pattern]") -> "Table":
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for title in ("ASKED", "AFTER", "CALL", "ARGUMENTS FROM", "TRIED", "RIGHT"):
        table.add_column(title, justify="right" if title in ("TRIED", "RIGHT") else "left", overflow="fold")
    for pattern in patterns:
        origins = "\n".join(f"{name}: {source}" for name, source in pattern.arguments.items())
        cells = (pattern.question, pattern.after, pattern.tool, origins)
        # What stands in the file may look like markup.
        table.add_row(*map(Text, cells), f"{pattern.num_tries:.0f}", f"{pattern.hit_rate:.0%}")
    return table
