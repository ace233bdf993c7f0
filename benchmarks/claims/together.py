"""Everything at once against the loop everybody starts with: a fleet of agents, some of whose users wait.

naive      one server with the large model, one agent and one request at a time, nothing reused, guessed or run early
hotloop    a router over both models: turns that only call a tool go to the small tier, the others to the large; users
           who wait go first; prefixes are reused, requests batched, calls run early and ahead of time

What agents say is recorded, at the pace of the model that answers; what their tools give is recorded too, and takes
its time.
"""

import asyncio
import statistics
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, aclosing, contextmanager
from dataclasses import replace
from itertools import islice

from benchmarks.agent.fleet import NAIVE_LOOP, FleetRun, Patterns, Work
from benchmarks.agent.recorded import AgentJob, read_agent_jobs
from benchmarks.agent.speculation import read_runs
from benchmarks.claims.bench import Bench
from benchmarks.claims.published import COMBINED, TOGETHER, UNOPTIMISED
from benchmarks.claims.result import Figure, Result, Unit, size_of
from hotloop.agent.model import Ask, WrappedModel
from hotloop.agent.predict.predictor import Predictor
from hotloop.agent.speculation import SpeculativeTools
from hotloop.agent.wire.openai import OpenAIModel
from hotloop.bench.client import ChatClient
from hotloop.bench.serving import NAIVE, ChildServer
from hotloop.core.errors import ConfigError
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


def measure_together(bench: Bench, max_tokens: int = 16) -> list[Result]:
    """Servers are new for each repeat: nothing is cached, and speculation has seen other runs of the same workflows."""
    small, large = bench.supplies.small, bench.supplies.large
    if not small or not large:
        raise ConfigError("everything together needs two models, --small and --large")
    lessons = read_runs(bench.workflows)[:_NUM_LESSONS]
    read = read_agent_jobs(bench.workflows, max_chars=100_000, skip=_NUM_LESSONS)
    jobs = [*map(_trimmed, islice(read, bench.scale.num_jobs))]

    def take_naive() -> FleetRun:
        with bench.child("--model", large, *NAIVE) as server:
            return asyncio.run(run_naive(server.url, jobs, max_tokens))

    def take_whole() -> FleetRun:
        predictor = Predictor()
        for lesson in lessons:
            predictor.learn(lesson)
        with _routed(bench, {"small": small, "large": large}) as url:
            return asyncio.run(run_whole(url, jobs, max_tokens, SpeculativeTools(predictor)))

    pairs = [(take_naive(), take_whole()) for _ in range(bench.scale.repeats)]
    agents = f"{len(jobs)} agents of {jobs[0].num_turns} turns, all there at once, tools of 0.4 s"
    tiers = f"turns that only call go to the small tier ({size_of(small)}), others to {size_of(large)}"
    return results_of(pairs, f"{agents}; one user of {_EVERY} waits; {tiers}")


def results_of(pairs: Sequence[tuple[FleetRun, FleetRun]], what: str) -> list[Result]:
    """Of each repeat the naive loop, and everything; all of them do the same work."""
    naive, whole = zip(*pairs, strict=True)

    def figure(name: str, unit: Unit, of: Callable[[FleetRun], float]) -> Figure:
        return Figure(name, unit, *([of(run) for run in each] for each in (whole, naive)))

    throughput = figure("throughput", "jobs/min", lambda run: run.jobs_per_min)
    p95 = figure("p95 of a job", "s", lambda run: run.p95_s)
    mean = figure("mean job", "s", lambda run: statistics.fmean(run.job_times_s))
    return [
        Result(claim=TOGETHER, what=what, figures=[throughput, p95]),
        Result(claim=COMBINED, what=f"{what}; from when a job is given until it is done", figures=[mean]),
        Result(
            claim=UNOPTIMISED,
            what=f"{what}; the naive loop alone, a job from when it is begun",
            figures=[Figure("naive run", "s", [run.mean_run_s for run in naive])],
        ),
    ]


def _trimmed(job: AgentJob) -> AgentJob:
    """With the tools alone that it calls: a large model on a CPU takes minutes for more."""
    called = {call.name for episode in job.episodes for answer in episode.answers for call in answer.tool_calls}
    return job._replace(tools=tuple(tool for tool in job.tools if tool.name in called))


@contextmanager
def _routed(bench: Bench, models: Mapping[str, str]) -> Iterator[str]:
    """The address of a router over a server of each tier."""
    with ExitStack() as stack:
        servers = {name: stack.enter_context(bench.child("--model", model)) for name, model in models.items()}
        names = {name: asyncio.run(_name(server.url)) for name, server in servers.items()}
        config = bench.folder / "replicas.toml"
        config.write_text(_TIERS.format(**names))
        replicas = [flag for server in servers.values() for flag in ("--replica", server.url)]
        yield stack.enter_context(ChildServer(replicas, command="route", config=str(config))).url


async def _name(url: str) -> str:
    async with ChatClient(url) as client:
        return await client.find_model()
