"""A fleet of agents with everything on, with one pattern off at a time, and as the loop everybody starts with.

All jobs are there from the beginning; a job's time runs from then until its last answer, since that is what whoever
gave it waits for. The model is a real server that is started for each row with the row's flags.
"""

import asyncio
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from benchmarks.agent.recorded import AgentJob, Latency, RecordedTool
from benchmarks.agent.replayed import ReplayedModel
from hotloop.agent.agent import Agent
from hotloop.agent.conversation import Conversation
from hotloop.agent.limits import Limits
from hotloop.agent.speculation import SpeculativeForesight
from hotloop.agent.wire.openai import OpenAIModel
from hotloop.bench.serving import NAIVE, ChildServer
from hotloop.core.errors import HotloopError
from hotloop.wire.usage import ApiUsage


@dataclass(frozen=True, slots=True, kw_only=True)
class Patterns:
    """What is done to be fast, by the runtime and by its server."""

    label: str
    num_agents: int
    """How many jobs run at a time."""
    is_early: bool = True
    is_parallel: bool = True
    has_foresight: bool = True
    can_prefill_ahead: bool = True
    flags: tuple[str, ...] = ()
    """Of the server."""


def ablation(num_agents: int) -> list[Patterns]:
    """Everything, everything but one, nothing."""
    whole = Patterns(label="everything", num_agents=num_agents)
    return [
        whole,
        replace(whole, label="without prefix reuse", flags=("--no-prefix-cache",)),
        replace(whole, label="one agent at a time", num_agents=1),
        replace(whole, label="without early dispatch", is_early=False),
        replace(whole, label="without parallel tools", is_parallel=False),
        replace(whole, label="without foresight", has_foresight=False),
        replace(whole, label="without prefill-ahead", can_prefill_ahead=False),
        replace(whole, label="without drafts", flags=("--no-drafts",)),
        Patterns(
            label="naive loop",
            num_agents=1,
            is_early=False,
            is_parallel=False,
            has_foresight=False,
            can_prefill_ahead=False,
            flags=NAIVE,
        ),
    ]


@dataclass(slots=True)
class FleetRun:
    """What came of one row."""

    label: str
    wall_s: float = 0.0
    job_times_s: list[float] = field(default_factory=list)
    """From the beginning of it all to the end of each job."""
    run_times_s: list[float] = field(default_factory=list)
    """From a job's own beginning."""
    usage: ApiUsage = field(default_factory=ApiUsage)
    failures: list[str] = field(default_factory=list)

    @property
    def jobs_per_min(self) -> float:
        return 60 * len(self.job_times_s) / self.wall_s if self.wall_s else 0.0

    @property
    def p95_s(self) -> float:
        times = sorted(self.job_times_s)
        return times[max(0, round(0.95 * len(times)) - 1)] if times else 0.0

    @property
    def mean_run_s(self) -> float:
        return statistics.fmean(self.run_times_s) if self.run_times_s else 0.0


def run_fleet(
    jobs: Sequence[AgentJob],
    patterns: Patterns,
    *,
    make_foresight: Callable[[], SpeculativeForesight],
    latency: Latency,
    max_tokens: int = 64,
    on_job: Callable[[], None] = lambda: None,
) -> FleetRun:
    """Start a server, run all jobs against it, stop it."""
    foresight = make_foresight() if patterns.has_foresight else None
    with ChildServer(patterns.flags) as server:
        fleet = _Fleet(jobs, patterns, foresight, latency, max_tokens, on_job)
        return asyncio.run(fleet.run(f"{server.url}/v1"))


@dataclass(slots=True)
class _Fleet:
    jobs: Sequence[AgentJob]
    patterns: Patterns
    foresight: SpeculativeForesight | None
    latency: Latency
    max_tokens: int
    on_job: Callable[[], None]

    async def run(self, url: str) -> FleetRun:
        result = FleetRun(self.patterns.label)
        model = OpenAIModel(url)
        places = asyncio.Semaphore(self.patterns.num_agents)
        began_at = time.monotonic()

        async def take(job: AgentJob) -> None:
            async with places:
                taken_at = time.monotonic()
                try:
                    usage = await self._run_job(job, model)
                except HotloopError as error:  # a job that fails is counted, and the others go on
                    result.failures.append(f"{job.id}: {error}")
                else:
                    result.usage += usage
                    result.job_times_s.append(time.monotonic() - began_at)
                    result.run_times_s.append(time.monotonic() - taken_at)
                self.on_job()

        async with asyncio.TaskGroup() as group:
            for job in self.jobs:
                group.create_task(take(job))
        result.wall_s = time.monotonic() - began_at
        await model.close()
        return result

    async def _run_job(self, job: AgentJob, server: OpenAIModel) -> ApiUsage:
        answers = [answer for episode in job.episodes for answer in episode.answers]
        agent = Agent(
            ReplayedModel(server, answers, max_tokens=self.max_tokens, is_late=not self.patterns.is_early),
            [RecordedTool(job, spec, self.latency) for spec in job.tools],
            job.system,
            foresight=self.foresight,
            can_prefill_ahead=self.patterns.can_prefill_ahead,
            limits=Limits(turns=100, concurrency=16 if self.patterns.is_parallel else 1),
            temperature=0.0,
        )
        conversation = Conversation()
        usage = ApiUsage()
        for episode in job.episodes:
            usage += (await agent.run(episode.prompt, conversation=conversation)).spent.usage
        return usage
