"""`hotloop bench tools`: what a tool call costs, and whether it is valid."""

import asyncio
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter
from cyclopts.types import NonNegativeFloat, PositiveInt

from hotloop.cli.loading import lend_server
from hotloop.cli.output import progress, show
from hotloop.cli.settings import ApiKey, Json, pick_names
from hotloop.core.config import Precision

if TYPE_CHECKING:
    from hotloop.bench.client import ChatClient
    from hotloop.bench.questions import ToolQuestion
    from hotloop.bench.tools import Manner, Measured


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolsFlags:
    """What is asked, and how."""

    data: Path | None = None
    """A folder of questions such as simple_python.jsonl.gz, or one such file; downloaded if not given."""
    category: str = "simple,multiple,parallel,parallel_multiple"
    """Which categories, separated by commas."""
    repeat_workload: Annotated[bool, Parameter(negative="", show_default=False)] = False
    """Not these questions, but generated workflows: once to learn, then with new values, which is measured."""
    questions: PositiveInt | None = None
    """Most questions of a category, or most workflows; all if not given."""
    agents: PositiveInt = 1
    """How many questions are asked at a time."""
    temperature: NonNegativeFloat = 0.0
    """0 always takes the likeliest token."""
    seed: int = 0
    """Makes sampling, and generated workflows, reproducible."""
    delivery: Literal["streamed", "whole", "both"] = "streamed"
    """How answers come; both: streamed, then whole as well, which is checked but not timed."""
    tool_choice: Literal["required", "auto"] = "required"
    """Whether a tool must be called."""
    strict: bool | None = None
    """Whether calls must follow their schema; what the server does by itself if not given."""
    max_tokens: PositiveInt = 512
    """Most tokens of an answer."""
    model: str | None = None
    """The model to ask for or, without --url, to serve."""
    precision: Precision = "fast"
    """Without --url: how the server computes; `exact` makes answers comparable token for token."""

    def manner(self) -> "Manner":
        from hotloop.bench.tools import Manner

        return Manner(
            num_agents=self.agents,
            temperature=self.temperature,
            seed=self.seed,
            max_tokens=self.max_tokens,
            tool_choice=self.tool_choice,
            delivery=self.delivery,
            is_strict=self.strict,
        )


def tools(
    *,
    url: Annotated[str | None, Parameter(help="A running server; without it one is started.")] = None,
    flags: Annotated[ToolsFlags, Parameter(name="*")] = ToolsFlags(),
    api_key: ApiKey = None,
    as_json: Json = False,
) -> None:
    """Ask for tool calls, each with and without forced tokens and drafts: are they valid, the same, and how fast?"""
    from hotloop.bench.client import ChatClient
    from hotloop.bench.questions import SchemaCheck
    from hotloop.bench.tools_report import figures_of_all, tools_json, tools_table

    is_valid = SchemaCheck()
    lessons, parts = _load_questions(flags)
    with lend_server(url, flags.model, ("--precision", flags.precision)) as address:
        # A model that we serve may be a file, and its name on the server another.
        client = ChatClient(address, model=flags.model if url else None, api_key=api_key)
        measured = asyncio.run(_measure_tools(client, lessons, parts, flags.manner()))
    columns = figures_of_all(measured, is_valid)
    errors = [error for part in measured.values() for error in part.errors]
    show(tools_json(columns), tools_table(columns), as_json, errors)


def _load_questions(flags: ToolsFlags) -> "tuple[list[ToolQuestion], dict[str, list[ToolQuestion]]]":
    """What is asked first and not measured, and then the questions of each category."""
    from hotloop.bench.bfcl import CATEGORIES, fetch_questions, read_questions
    from hotloop.bench.workflows import CATEGORY, generate_workflows

    if flags.repeat_workload:
        lessons, measured = (generate_workflows(flags.seed + turn, flags.questions) for turn in (1, 2))
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
    client: "ChatClient", lessons: "list[ToolQuestion]", parts: "dict[str, list[ToolQuestion]]", manner: "Manner"
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
