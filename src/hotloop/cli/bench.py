"""`hotloop bench`: what agents feel, what a tool call costs, and what a step costs without a model."""

import asyncio
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import App, Parameter
from cyclopts.types import NonNegativeFloat, PositiveFloat, PositiveInt

from hotloop.cli.bench_agent import agent
from hotloop.cli.bench_cache import cache
from hotloop.cli.bench_output import progress, show
from hotloop.cli.bench_route import route
from hotloop.cli.bench_seeds import seeds
from hotloop.cli.bench_tiers import tiers
from hotloop.cli.settings import ApiKey, Json, Url
from hotloop.core.config import DEFAULT_MODEL, Precision
from hotloop.core.errors import ConfigError

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from hotloop.bench import replay as agents
    from hotloop.bench.client import ChatClient
    from hotloop.bench.questions import Question
    from hotloop.bench.tools import Manner, Measured
    from hotloop.bench.workload import Job

bench = App(name="bench", help="Measure a server as agents feel it, or the engine's own cost.")
bench.command(agent)
bench.command(cache)
bench.command(route)
bench.command(seeds)
bench.command(tiers)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayFlags:
    """What is replayed, and how fast."""

    data: Path | None = None
    """Recorded transcripts, .jsonl or .jsonl.gz; a generated workload if not given."""
    agents: PositiveInt = 4
    """How many jobs run at a time."""
    jobs: PositiveInt = 8
    """How many jobs are run."""
    turns: PositiveInt = 6
    """Most turns of a job."""
    max_out: PositiveInt = 64
    """Most tokens asked for in a turn."""
    gap: NonNegativeFloat = 0.3
    """Seconds between an answer and the next turn, as if a tool ran."""
    skip_chars: PositiveInt = 28_000
    """Leave out transcripts whose last prompt has as many characters."""
    rounds: PositiveInt = 1
    """How often all of it is run; with --compare, both servers in turn, each first as often as the other."""
    model: str | None = None
    """The model to ask for; the first that the server lists if not given."""


@bench.command
def replay(
    *,
    url: Url,
    compare: Annotated[str | None, Parameter(help="A second server, to be measured against the first.")] = None,
    flags: Annotated[ReplayFlags, Parameter(name="*")] = ReplayFlags(),
    api_key: ApiKey = None,
    as_json: Json = False,
) -> None:
    """Replay agents against an OpenAI-compatible server: every turn resends the whole history, as agents do."""
    from hotloop.bench.report import json_of, summarise, table_of
    from hotloop.core.errors import RemoteError

    jobs = _load_jobs(flags)
    urls = [url] if compare is None else [url, compare]
    runs = asyncio.run(_replay_all(urls, jobs, flags, api_key))
    for run in runs:
        if not run.steps:
            raise RemoteError(run.errors[0])
    summaries = [summarise(url, run, jobs) for url, run in zip(urls, runs, strict=True)]
    show(json_of(summaries), table_of(summaries), as_json)


def _load_jobs(flags: ReplayFlags) -> "list[Job]":
    from hotloop.bench.workload import generate_jobs, read_jobs

    if flags.data is None:
        return generate_jobs(num_jobs=flags.jobs, num_turns=flags.turns, num_output=flags.max_out)
    limits = {"max_turns": flags.turns, "max_output": flags.max_out, "max_chars": flags.skip_chars}
    return read_jobs(flags.data, max_jobs=flags.jobs, **limits)


async def _replay_all(
    urls: Sequence[str], jobs: "Sequence[Job]", flags: ReplayFlags, api_key: str | None
) -> "list[agents.Replay]":
    """One run a server, all rounds merged. Who goes first changes each round, so that neither gains by its place."""
    from hotloop.bench import replay as agents
    from hotloop.bench.client import ChatClient

    num_turns = sum(len(job.turns) for job in jobs) * flags.rounds
    with progress() as bar:
        lanes = [(url, agents.Replay(), bar.add_task(url, total=num_turns)) for url in urls]
        for number in range(flags.rounds):
            for url, whole, task in lanes if number % 2 == 0 else reversed(lanes):
                watch = partial(_advance, bar, task)
                async with ChatClient(url, model=flags.model, api_key=api_key) as client:
                    run = await agents.replay(client, jobs, num_agents=flags.agents, gap_s=flags.gap, watch=watch)
                whole.merge(run)
    return [whole for _, whole, _ in lanes]


def _advance(bar: "Progress", task: "TaskID", progress: "agents.Progress") -> None:
    if progress.step or progress.error:
        bar.advance(task)


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


@bench.command
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
    with _server(url, flags) as address:
        # A model that we serve may be a file, and its name on the server another.
        client = ChatClient(address, model=flags.model if url else None, api_key=api_key)
        measured = asyncio.run(_measure_tools(client, lessons, parts, flags.manner()))
    columns = figures_of_all(measured, is_valid)
    show(tools_json(columns), tools_table(columns), as_json)
    for error in [error for part in measured.values() for error in part.errors][:3]:
        print(f"hotloop: {error}", file=sys.stderr)


def _load_questions(flags: ToolsFlags) -> "tuple[list[Question], dict[str, list[Question]]]":
    """What is asked first and not measured, and then the questions of each category."""
    from hotloop.bench.bfcl import CATEGORIES, fetch_questions, read_questions
    from hotloop.bench.workflows import CATEGORY, generate_workflows

    if flags.repeat_workload:
        lessons, measured = (generate_workflows(flags.seed + turn, flags.questions) for turn in (1, 2))
        return lessons, {CATEGORY: measured}
    categories = [name.strip() for name in flags.category.split(",") if name.strip()]
    for name in categories or [""]:
        if name not in CATEGORIES:
            raise ConfigError(f"there is no category {name!r}; there are {', '.join(CATEGORIES)}")
    if flags.data is None:
        questions = fetch_questions(categories, flags.questions)
    else:
        questions = read_questions(flags.data, categories, flags.questions)
    parts: dict[str, list[Question]] = {}
    for question in questions:
        parts.setdefault(question.category, []).append(question)
    return [], parts


@contextmanager
def _server(url: str | None, flags: ToolsFlags) -> Iterator[str]:
    """The address of the server given, or of one that lives as long as the context."""
    if url is not None:
        yield url
        return
    from hotloop.bench.serving import ChildServer, exit_on_sigterm
    from hotloop.cli.loading import console, pull_model

    exit_on_sigterm()
    model = flags.model or DEFAULT_MODEL
    pull_model(model)
    with ExitStack() as stack:
        with console.status(f"loading {model} ..."):
            server = stack.enter_context(ChildServer(("--model", model, "--precision", flags.precision)))
        yield server.url


async def _measure_tools(
    client: "ChatClient", lessons: "list[Question]", parts: "dict[str, list[Question]]", manner: "Manner"
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


@bench.command
def overhead(*, vocab: PositiveInt = 49_152, as_json: Json = False) -> None:
    """Measure what a step costs beside the model: scheduler, radix tree and sampler, with the null backend.

    Parameters
    ----------
    vocab
        Tokens in the vocabulary, over which the sampler looks.
    """
    from hotloop.bench.overhead import measure_overhead

    report = measure_overhead(vocab_size=vocab)
    show(report.to_json(), report.to_table(), as_json)


@bench.command
def soak(*, minutes: PositiveFloat = 20.0, seed: int = 0, as_json: Json = False) -> None:
    """Run the engine on the null backend under random load, and see whether memory and step time stay flat.

    Parameters
    ----------
    minutes
        How long.
    seed
        Which random load.
    """
    from hotloop.bench.soak import run_soak
    from hotloop.cli.loading import console

    with console.status(f"soaking for {minutes:g} minutes ..."):
        report = run_soak(minutes * 60, seed)
    show(report.to_json(), report.to_table(), as_json)
