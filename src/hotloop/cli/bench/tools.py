"""`hotloop bench tools`: what a tool call costs, and whether it is valid."""

import asyncio
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from cyclopts.types import PositiveInt

from hotloop.bench.questions import AskOptions, SchemaCheck, ToolQuestion
from hotloop.bench.workflows import CATEGORY, generate_workflows
from hotloop.cli.loading import lend_server
from hotloop.cli.output import progress, show
from hotloop.cli.settings import ApiKey, Json, pick_names
from hotloop.core.config import Precision

if TYPE_CHECKING:
    from hotloop.bench.client import ChatClient
    from hotloop.bench.tools import Measured


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolsFlags:
    """What is asked, and of whom."""

    data: Path | None = None
    """A folder of questions such as simple_python.jsonl.gz, or one such file; downloaded if not given."""
    category: str = "simple,multiple,parallel,parallel_multiple"
    """Which categories, separated by commas."""
    repeat_workload: Annotated[bool, Parameter(negative="", show_default=False)] = False
    """Not these questions, but generated workflows: once to learn, then with new values, which is measured."""
    questions: PositiveInt | None = None
    """Most questions of a category, or most workflows; all if not given."""
    model: str | None = None
    """The model to ask for or, without --url, to serve."""
    precision: Precision = "fast"
    """Without --url: how the server computes; `exact` makes answers comparable token for token."""


def tools(
    *,
    url: Annotated[str | None, Parameter(help="A running server; without it one is started.")] = None,
    flags: Annotated[ToolsFlags, Parameter(name="*")] = ToolsFlags(),
    manner: Annotated[AskOptions, Parameter(name="*")] = AskOptions(),
    api_key: ApiKey = None,
    as_json: Json = False,
) -> None:
    """Ask for tool calls, each with and without forced tokens and drafts: are they valid, the same, and how fast?"""
    from hotloop.bench.client import ChatClient
    from hotloop.bench.tools_report import figures_of_all, tools_json, tools_table

    is_valid = SchemaCheck()
    lessons, parts = _load_questions(flags, manner.seed)
    with lend_server(url, flags.model, ("--precision", flags.precision)) as address:
        # A model that we serve may be a file, and its name on the server another.
        client = ChatClient(address, model=flags.model if url else None, api_key=api_key)
        measured = asyncio.run(_measure_tools(client, lessons, parts, manner))
    columns = figures_of_all(measured, is_valid)
    errors = [error for part in measured.values() for error in part.errors]
    show(tools_json(columns), tools_table(columns), as_json, errors)


def _load_questions(flags: ToolsFlags, seed: int) -> tuple[list[ToolQuestion], dict[str, list[ToolQuestion]]]:
    """What is asked first and not measured, and then the questions of each category."""
    from hotloop.bench.bfcl import CATEGORIES, fetch_questions, read_questions

    if flags.repeat_workload:
        lessons, measured = (generate_workflows(seed + turn, flags.questions) for turn in (1, 2))
        return lessons, {CATEGORY: measured}
    categories = pick_names(flags.category, CATEGORIES, "category")
    if flags.data is None:
        questions = fetch_questions(categories, flags.questions)
    else:
        questions = read_questions(flags.data, categories, flags.questions)
    parts: dict[str, list[ToolQuestion]] = {}
    for question in questions:
        parts.setdefault(question.category, []).append(question)
    return [], parts


async def _measure_tools(
    client: "ChatClient", lessons: list[ToolQuestion], parts: dict[str, list[ToolQuestion]], manner: AskOptions
) -> "dict[str, Measured]":
    from hotloop.bench.tools import learn, measure

    measured: dict[str, Measured] = {}
    async with client:
        await learn(client, lessons, manner)
        with progress() as bar:
            tasks = {name: bar.add_task(name, total=len(questions)) for name, questions in parts.items()}
            for name, questions in parts.items():
                measured[name] = await measure(client, questions, manner, partial(bar.advance, tasks[name]))
    return measured
