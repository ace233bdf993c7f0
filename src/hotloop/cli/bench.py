"""`hotloop bench`: what agents feel, and what a step costs without a model."""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter
from cyclopts.types import NonNegativeFloat, PositiveFloat, PositiveInt

from hotloop.cli.settings import ApiKey, Json, Url

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from hotloop.bench import replay as agents
    from hotloop.bench.workload import Job

bench = App(name="bench", help="Measure a server as agents feel it, or the engine's own cost.")


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
    from hotloop.bench.client import ServerFailed
    from hotloop.bench.report import json_of, summarise, table_of

    jobs = _load_jobs(flags)
    urls = [url] if compare is None else [url, compare]
    runs = asyncio.run(_replay_all(urls, jobs, flags, api_key))
    for run in runs:
        if not run.steps:
            raise ServerFailed(run.errors[0])
    summaries = [summarise(url, run, jobs) for url, run in zip(urls, runs, strict=True)]
    _show(json_of(summaries), table_of(summaries), as_json)


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
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from hotloop.bench import replay as agents
    from hotloop.bench.client import ChatClient
    from hotloop.cli.loading import console

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    num_turns = sum(len(job.turns) for job in jobs) * flags.rounds
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
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


def _show(values: dict[str, Any], table: Any, as_json: bool) -> None:
    from rich.console import Console

    if as_json:
        print(json.dumps(values))
    else:
        Console(highlight=False, soft_wrap=True).print(table)


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
    _show(report.to_json(), report.to_table(), as_json)


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
    _show(report.to_json(), report.to_table(), as_json)
