"""Everything at once against the loop everybody starts with: a fleet of agents, some of whose users wait.

naive      one server with the large model, one agent and one request at a time, nothing reused, guessed or run early
hotloop    a router over both models: turns that only call a tool go to the small tier, the others to the large; users
           who wait go first; prefixes are reused, requests batched, calls run early and ahead of time

What agents say is recorded, at the pace of the model that answers; what their tools give is recorded too, and takes
its time.
"""

import asyncio
import tempfile
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import ExitStack, aclosing, contextmanager
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

from benchmarks.agent.fleet import NAIVE_LOOP, FleetRun, Patterns, Work
from benchmarks.agent.recorded import AgentJob, read_agent_jobs
from benchmarks.agent.speculation import read_runs
from benchmarks.claims.published import TOGETHER
from benchmarks.claims.result import Figure, Result, size_of
from benchmarks.claims.workflows import write_workflows
from hotloop.agent.model import Ask, WrappedModel
from hotloop.agent.predict.predictor import Predictor
from hotloop.agent.speculation import SpeculativeTools
from hotloop.agent.wire.openai import OpenAIModel
from hotloop.bench.client import ChatClient
from hotloop.bench.serving import NAIVE, ChildServer
from hotloop.core.errors import RemoteError
from hotloop.wire.event import Event

_NUM_LESSONS = 12  # runs that are learned from, each of another workflow
_EVERY = 4  # of so many agents one has a user who waits
_TIERS = """
[[tiers]]
name = "small"
model = "{small}"

[[tiers]]
name = "large"
model = "{large}"

[[routes]]
name = "auto"
sticky_s = 0

[[routes.rules]]
tier = "small"
tasks = ["extraction"]
"""


class HintedModel(WrappedModel):
    """Says of each turn what it is: one more call, or the answer in the end."""

    def __init__(self, model: OpenAIModel, num_calls: int) -> None:
        super().__init__(model)
        self._num_calls = num_calls

    def _hinted(self, ask: Ask) -> Ask:
        is_over = sum(message.role == "tool" for message in ask.messages) >= self._num_calls
        return replace(ask, extra={**ask.extra, "metadata": {"task": "summary" if is_over else "extraction"}})

    async def stream(self, ask: Ask) -> AsyncGenerator[Event, None]:
        async with aclosing(self._model.stream(self._hinted(ask))) as events:
            async for event in events:
                yield event

    async def prefill(self, ask: Ask) -> None:
        await self._model.prefill(self._hinted(ask))


async def run_naive(url: str, jobs: Sequence[AgentJob], max_tokens: int) -> FleetRun:
    return await Work(jobs=jobs, max_tokens=max_tokens).run(url, NAIVE_LOOP)


async def run_whole(url: str, jobs: Sequence[AgentJob], max_tokens: int, speculation: SpeculativeTools) -> FleetRun:
    return await Work(jobs=jobs, max_tokens=max_tokens).run(
        url,
        Patterns(label="everything", num_agents=len(jobs)),
        speculation,
        model="auto",
        wrap=lambda server, job: HintedModel(server, job.num_calls),
        options=lambda number: {"priority": "background" if number % _EVERY else "interactive"},
    )


def measure_together(small: str, large: str, num_jobs: int, num_repeats: int, max_tokens: int = 16) -> Result:
    """Servers are new for each repeat: nothing is cached, and speculation has seen other runs of the same workflows."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "workflows.jsonl"
        write_workflows(path)
        lessons = read_runs(path)[:_NUM_LESSONS]
        jobs = [*map(_trimmed, islice(read_agent_jobs(path, max_chars=100_000, skip=_NUM_LESSONS), num_jobs))]
    pairs = [
        (_take_naive(large, jobs, max_tokens), _take_whole(small, large, jobs, max_tokens, lessons))
        for _ in range(num_repeats)
    ]
    agents = f"{len(jobs)} agents of {jobs[0].num_turns} turns, all there at once, tools of 0.4 s"
    tiers = f"turns that only call go to the small tier ({size_of(small)}), others to {size_of(large)}"
    return result_of(pairs, f"{agents}; one user of {_EVERY} waits; {tiers}")


def result_of(pairs: Sequence[tuple[FleetRun, FleetRun]], what: str) -> Result:
    """Of each repeat the naive loop, and everything; all of them do the same work."""
    naive, whole = zip(*pairs, strict=True)
    return Result(
        claim=TOGETHER,
        what=what,
        figures=[
            Figure("throughput", "jobs/min", *([run.jobs_per_min for run in each] for each in (whole, naive))),
            Figure("p95 of a job", "s", *([run.p95_s for run in each] for each in (whole, naive))),
        ],
    )


def _trimmed(job: AgentJob) -> AgentJob:
    """With the tools alone that it calls: a large model on a CPU takes minutes for more."""
    called = {call.name for episode in job.episodes for answer in episode.answers for call in answer.tool_calls}
    return job._replace(tools=tuple(tool for tool in job.tools if tool.name in called))


def _take_naive(large: str, jobs: Sequence[AgentJob], max_tokens: int) -> FleetRun:
    with ChildServer(("--model", large, *NAIVE)) as server:
        return asyncio.run(run_naive(server.url, jobs, max_tokens))


def _take_whole(small: str, large: str, jobs: Sequence[AgentJob], max_tokens: int, lessons: Sequence[Any]) -> FleetRun:
    predictor = Predictor()
    for lesson in lessons:
        predictor.learn(lesson)
    with _routed({"small": small, "large": large}) as url:
        return asyncio.run(run_whole(url, jobs, max_tokens, SpeculativeTools(predictor)))


@contextmanager
def _routed(models: Mapping[str, str]) -> Iterator[str]:
    """The address of a router over a server of each tier."""
    with ExitStack() as stack:
        servers = {name: stack.enter_context(ChildServer(("--model", model))) for name, model in models.items()}
        names = {name: asyncio.run(_name(server.url)) for name, server in servers.items()}
        config = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "replicas.toml"
        config.write_text(_TIERS.format(**names))
        replicas = [flag for server in servers.values() for flag in ("--replica", server.url)]
        yield stack.enter_context(ChildServer(replicas, command="route", config=str(config))).url


async def _name(url: str) -> str:
    async with ChatClient(url) as client:
        name = await client.find_model()
    if not name:
        raise RemoteError(f"{url} names no model")
    return name
