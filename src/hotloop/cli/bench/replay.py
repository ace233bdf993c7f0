"""`hotloop bench replay`: what agents feel of a server."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from cyclopts.types import NonNegativeFloat, PositiveInt

from hotloop.cli.output import advance_by_turn, progress, show
from hotloop.cli.settings import ApiKey, Json, Url
from hotloop.core.errors import RemoteError

if TYPE_CHECKING:
    from hotloop.bench import replay as agents
    from hotloop.bench.workload import AgentJob


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
    from hotloop.bench.workload import load_jobs

    jobs = load_jobs(
        flags.data, max_jobs=flags.jobs, max_turns=flags.turns, max_output=flags.max_out, max_chars=flags.skip_chars
    )
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
