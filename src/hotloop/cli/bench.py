"""`hotloop bench`: how fast a server is for agents, what a tool call costs there, and whether it is valid."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from cyclopts.types import NonNegativeFloat, PositiveInt

from hotloop.bench.questions import AskOptions, ToolQuestion, follows_schema
from hotloop.bench.workflows import CATEGORY, generate_workflows
from hotloop.cli.command_line import CommandLine
from hotloop.cli.loading import lend_server
from hotloop.cli.output import advance_by_turn, progress, show
from hotloop.cli.settings import ApiKey, JsonOutput, Url, pick_names
from hotloop.core.config import Precision
from hotloop.core.errors import RemoteError

if TYPE_CHECKING:
    from hotloop.bench import replay as agents
    from hotloop.bench.client import ChatClient
    from hotloop.bench.tools import Measured
    from hotloop.bench.workload import AgentJob

bench = CommandLine(name="bench", help="Benchmark a server with agent workloads.")


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadFlags:
    """Whose conversations are held, how long they are, and with which model."""

    data: Path | None = None
    """Recorded transcripts, .jsonl or .jsonl.gz; a generated workload if not given."""
    agents: PositiveInt = 4
    """Number of concurrent jobs."""
    turns: PositiveInt = 6
    """Maximum turns per job."""
    max_out: PositiveInt = 64
    """Maximum output tokens per turn."""
    skip_chars: PositiveInt = 28_000
    """Skip transcripts whose last prompt is longer than this many characters."""
    model: str | None = None
    """Model to request; the first that the server lists if not given."""

    def load_jobs(self, max_jobs: int) -> "list[AgentJob]":
        from hotloop.bench.workload import load_jobs

        limits = {"max_turns": self.turns, "max_output": self.max_out, "max_chars": self.skip_chars}
        return load_jobs(self.data, max_jobs=max_jobs, **limits)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayFlags(WorkloadFlags):
    """What is replayed, and how fast."""

    jobs: PositiveInt = 8
    """Number of jobs."""
    gap: NonNegativeFloat = 0.3
    """Seconds between an answer and the next turn, as if a tool ran."""
    rounds: PositiveInt = 1
    """Number of rounds. With --compare, the servers alternate and take turns going first."""


@bench.command
def replay(
    *,
    url: Url,
    compare: Annotated[str | None, Parameter(help="A second server to compare with the first.")] = None,
    flags: Annotated[ReplayFlags, Parameter(name="*")] = ReplayFlags(),
    api_key: ApiKey = None,
    as_json: JsonOutput = False,
) -> None:
    """Replay agents against an OpenAI-compatible server: every turn resends the whole history, as agents do."""
    from hotloop.bench.report import json_of, summarise, table_of

    jobs = flags.load_jobs(flags.jobs)
    urls = [url] if compare is None else [url, compare]
    runs = asyncio.run(_replay_all(urls, jobs, flags, api_key))
    for run in runs:
        if not run.steps:
            raise RemoteError(run.errors[0])
    summaries = [summarise(url, run, jobs) for url, run in zip(urls, runs, strict=True)]
    show(json_of(summaries), table_of(summaries), as_json)


async def _replay_all(
    urls: Sequence[str], jobs: "Sequence[AgentJob]", flags: ReplayFlags, api_key: str | None
) -> "list[agents.Replay]":
    """One run a server, all rounds merged. Who goes first changes each round, so that neither gains by its place."""
    from hotloop.bench import replay as agents
    from hotloop.bench.client import ChatClient

    num_turns = sum(len(job.turns) for job in jobs) * flags.rounds
    with progress() as bar:
        lanes = [(url, agents.Replay(), bar.add_task(url, total=num_turns)) for url in urls]
        for number in range(flags.rounds):
            for url, whole, task in lanes if number % 2 == 0 else reversed(lanes):
                watch = advance_by_turn(bar, task)
                async with ChatClient(url, model=flags.model, api_key=api_key) as client:
                    run = await agents.replay(client, jobs, num_agents=flags.agents, gap_s=flags.gap, watch=watch)
                whole.merge(run)
    return [whole for _, whole, _ in lanes]


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolsFlags:
    """What is asked, and of whom."""

    data: Path | None = None
    """A folder of questions such as simple_python.jsonl.gz, or one such file; downloaded if not given."""
    category: str = "simple,multiple,parallel,parallel_multiple"
    """Question categories, separated by commas."""
    repeat_workload: Annotated[bool, Parameter(negative="", show_default=False)] = False
    """Ask generated workflows instead: a first pass to learn from, then a measured one with new values."""
    questions: PositiveInt | None = None
    """Maximum questions per category, or maximum workflows; all if not given."""
    model: str | None = None
    """Model to request or, without --url, to serve."""
    precision: Precision = "fast"
    """Precision of the server that is started; `exact` makes answers comparable token for token."""


@bench.command
def tools(
    *,
    url: Annotated[str | None, Parameter(help="Address of a running server; one is started if not given.")] = None,
    flags: Annotated[ToolsFlags, Parameter(name="*")] = ToolsFlags(),
    options: Annotated[AskOptions, Parameter(name="*")] = AskOptions(),
    api_key: ApiKey = None,
    as_json: JsonOutput = False,
) -> None:
    """Ask for tool calls, each with and without forced tokens and drafts: are they valid, the same, and how fast?"""
    from hotloop.bench.client import ChatClient
    from hotloop.bench.report import table_of_figures
    from hotloop.bench.tools_report import figures_of_all, tools_json

    lessons, parts = _load_questions(flags, options.seed)
    with lend_server(url, flags.model, ("--precision", flags.precision)) as address:
        # A model that we serve may be a file, and its name on the server another.
        client = ChatClient(address, model=flags.model if url else None, api_key=api_key)
        measured = asyncio.run(_measure_tools(client, lessons, parts, options))
    columns = figures_of_all(measured, follows_schema)
    errors = [error for part in measured.values() for error in part.errors]
    show(tools_json(columns), table_of_figures(columns), as_json, errors)


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
    client: "ChatClient", lessons: list[ToolQuestion], parts: dict[str, list[ToolQuestion]], options: AskOptions
) -> "dict[str, Measured]":
    from hotloop.bench.tools import learn, measure

    measured: dict[str, Measured] = {}
    async with client:
        await learn(client, lessons, options)
        with progress() as bar:
            tasks = {name: bar.add_task(name, total=len(questions)) for name, questions in parts.items()}
            for name, questions in parts.items():
                measured[name] = await measure(client, questions, options, partial(bar.advance, tasks[name]))
    return measured
