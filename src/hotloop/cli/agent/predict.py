"""`hotloop predict`: what an agent's speculation has learned."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from cyclopts.types import PositiveInt
from rich.console import Group
from rich.table import Table
from rich.text import Text

from hotloop.cli import output
from hotloop.cli.command_line import CommandLine
from hotloop.cli.settings import JsonOutput

if TYPE_CHECKING:
    from hotloop.agent.predict.predictor import Pattern

predict = CommandLine(name="predict", help="Inspect what speculative tool execution has learned.")

StorePath = Annotated[Path, Parameter(help="File given to SpeculativeTools.")]


@predict.command
def show(
    path: StorePath = Path("speculation.json"),
    *,
    limit: Annotated[PositiveInt, Parameter(help="Maximum patterns to show.")] = 40,
    as_json: JsonOutput = False,
) -> None:
    """List learned patterns, the most often right first: the call that follows, and where its arguments come from."""
    from hotloop.agent.predict.predictor import load_predictor

    predictor = load_predictor(path)
    patterns, num_runs = predictor.patterns(), predictor.num_runs
    hidden = f", {limit} of them shown" if len(patterns) > limit else ""
    shown = Group(_table(patterns[:limit]), Text(f"{len(patterns)} patterns from {num_runs} runs{hidden}"))
    output.show({"runs": num_runs, "patterns": [asdict(each) for each in patterns[:limit]]}, shown, as_json)


def _table(patterns: "list[Pattern]") -> Table:
    words = ("ASKED", "AFTER", "CALL", "ARGUMENTS FROM")
    table = output.make_table(*words, "TRIED", "RIGHT", words=words, folds=True)
    for pattern in patterns:
        origins = "\n".join(f"{name}: {source}" for name, source in pattern.arguments.items())
        cells = (pattern.question, pattern.after, pattern.tool, origins)
        # What stands in the file may look like markup.
        table.add_row(*map(Text, cells), f"{pattern.num_tries:.0f}", f"{pattern.hit_rate:.0%}")
    return table
