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
from contextlib import aclosing, contextmanager
from dataclasses import replace
from itertools import islice

from benchmarks.agent.fleet import NAIVE_LOOP, FleetRun, Patterns, Work
from benchmarks.agent.recorded import AgentJob, Episode, read_agent_jobs
from benchmarks.agent.speculation import read_runs
from benchmarks.claims.bench import Bench
from benchmarks.claims.published import COMBINED, TOGETHER, UNOPTIMISED
from benchmarks.claims.result import Figure, Result, Unit
from hotloop.agent.model import Ask, WrappedModel
from hotloop.agent.predict.predictor import Predictor
from hotloop.agent.speculation import SpeculativeTools
from hotloop.agent.wire.openai import OpenAIModel
from hotloop.bench.client import ChatClient
from hotloop.bench.serving import NAIVE, ChildServer
from hotloop.core.errors import ConfigError, RemoteError
from hotloop.wire.event import Event

_NUM_LESSONS = 12  # runs that are learned from, each of another workflow
_EVERY = 4  # of so many agents one has a user who waits
_LEAST_TURNS, _MAX_RUN_S = 3, 60.0  # of a job in the naive loop
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


async def run_whole(
    url: str, jobs: Sequence[AgentJob], max_tokens: int, speculation: SpeculativeTools, salt: str = ""
) -> FleetRun:
    """What was read with another salt is not found."""
    salted = {"cache_salt": salt} if salt else {}
    return await Work(jobs=jobs, max_tokens=max_tokens).run(
        url,
        Patterns(label="everything", num_agents=len(jobs)),
        speculation,
        model="auto",
        wrap=lambda server, job: HintedModel(server, job.num_calls),
        options=lambda number: {**salted, "priority": "background" if number % _EVERY else "interactive"},
    )


def measure_together(bench: Bench, max_tokens: int = 16) -> list[Result]:
    """Each repeat has other runs of the same workflows and finds nothing in a cache; speculation has seen some. Jobs
    have as many turns as let the naive loop end: one of the first repeat is tried beforehand."""
    models = _models(bench)
    small, large = models.values()
    lessons = read_runs(bench.workflows)[:_NUM_LESSONS]
    read = read_agent_jobs(bench.workflows, max_chars=100_000, skip=_NUM_LESSONS)
    num_jobs = bench.scale.num_jobs
    whole_rounds = [[*map(_trimmed, islice(read, num_jobs))] for _ in range(bench.scale.repeats)]
    naive_url, *urls = bench.servers.urls([(*bench.own_flags(large), *NAIVE), *map(bench.own_flags, (small, large))])

    def take_whole(url: str, jobs: Sequence[AgentJob], salt: str) -> FleetRun:
        predictor = Predictor()
        for lesson in lessons:
            predictor.learn(lesson)
        return asyncio.run(run_whole(url, jobs, max_tokens, SpeculativeTools(predictor), salt))

    def take_naive(jobs: Sequence[AgentJob]) -> FleetRun:
        return asyncio.run(run_naive(naive_url, jobs, max_tokens))

    tried = shortened(whole_rounds[0][0], _LEAST_TURNS)
    num_turns = fitting_turns(take_naive([tried]).mean_run_s)
    rounds = [[shortened(job, num_turns) for job in jobs] for jobs in whole_rounds]
    with _routed(bench, dict(zip(models, urls, strict=True))) as url:
        taken = [
            (take_naive(jobs), take_whole(url, jobs, f"repeat {i}"), take_whole(url, jobs[:1], f"alone {i}"))
            for i, jobs in enumerate(rounds)
        ]
    agents = f"{num_jobs} agents of {rounds[0][0].num_turns} turns, all there at once, tools of 0.4 s"
    sizes = [bench.size_of(model) for model in (small, large)]
    tiers = f"turns that only call go to the small tier ({sizes[0]}), others to {sizes[1]}"
    return results_of(taken, f"{agents}; one user of {_EVERY} waits; {tiers}")


def fitting_turns(least_s: float) -> int:
    """How many turns a job may have, by what the fewest took; prompts grow, so that it may take a little longer. Raises
    ConfigError where the fewest are too many."""
    if least_s > _MAX_RUN_S:
        raise ConfigError(
            f"{_LEAST_TURNS} turns of a naive loop take {least_s:.0f} s here: --large wants a smaller model"
        )
    return max(_LEAST_TURNS, int(_LEAST_TURNS * _MAX_RUN_S / least_s)) if least_s else _LEAST_TURNS


def shortened(job: AgentJob, num_turns: int) -> AgentJob:
    """The first calls of each episode, and its answer."""

    def cut(episode: Episode) -> Episode:
        *calls, answer = episode.answers
        return replace(episode, answers=(*calls[: num_turns - 1], answer))

    return job._replace(episodes=tuple(map(cut, job.episodes)))


def _models(bench: Bench) -> dict[str, str]:
    """What is said is recorded, so that on a card shapes with random weights will do."""
    small, large = bench.supplies.small, bench.supplies.large
    if bench.device == "cuda":
        small, large = small or bench.shaped("llama-1b"), large or bench.standing
    if not small or not large:
        raise ConfigError("everything together needs two models, --small and --large")
    return {"small": small, "large": large}


def results_of(taken: Sequence[tuple[FleetRun, FleetRun, FleetRun]], what: str) -> list[Result]:
    """Of each repeat the naive loop, everything, and everything with the first agent alone; all do the same work.
    Raises RemoteError where a job failed: then they did not."""
    if failures := [failure for runs in taken for run in runs for failure in run.failures]:
        raise RemoteError(failures[0])
    naive, whole, alone = zip(*taken, strict=True)

    def figure(name: str, unit: Unit, of: Callable[[FleetRun], float]) -> Figure:
        return Figure(name, unit, *([of(run) for run in each] for each in (whole, naive)))

    throughput = figure("throughput", "jobs/min", lambda run: run.jobs_per_min)
    p95 = figure("p95 of a job", "s", lambda run: run.p95_s)
    mean = figure("mean job", "s", lambda run: statistics.fmean(run.job_times_s))
    one = Figure("one agent", "s", *([run.run_times_s[0] for run in each] for each in (alone, naive)))
    return [
        Result(claim=TOGETHER, what=what, figures=[throughput, p95]),
        Result(
            claim=COMBINED,
            what=f"{what}; an agent with nobody beside it; of all, the mean from when a job is given until it is done",
            figures=[one, mean],
        ),
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
def _routed(bench: Bench, urls: Mapping[str, str]) -> Iterator[str]:
    """The address of a router over a server of each tier."""
    config = bench.folder / "replicas.toml"
    config.write_text(_TIERS.format(**{name: asyncio.run(_name(url)) for name, url in urls.items()}))
    replicas = [flag for url in urls.values() for flag in ("--replica", url)]
    with ChildServer(replicas, command="route", config=str(config)) as router:
        yield router.url


async def _name(url: str) -> str:
    async with ChatClient(url) as client:
        return await client.find_model()
