"""A fleet of agents with everything on, and as the loop everybody starts with.

All jobs are there from the beginning; a job's time runs from then until its last answer, since that is what whoever
gave it waits for. The model is a real server that is started for each of them.
"""

import asyncio
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.agent.recorded import AgentJob, Latency, RecordedTool
from benchmarks.agent.replayed import ReplayedModel
from hotloop.agent.agent import Agent
from hotloop.agent.conversation import Conversation
from hotloop.agent.limits import Limits
from hotloop.agent.model import Model
from hotloop.agent.speculation import SpeculativeTools
from hotloop.agent.wire.openai import OpenAIModel
from hotloop.core.errors import HotloopError
from hotloop.trace.tracer import NullTracer
from hotloop.wire.usage import ApiUsage


@dataclass(frozen=True, slots=True, kw_only=True)
class Patterns:
    """What is done to be fast, by the runtime and by its server."""

    label: str
    num_agents: int
    """How many jobs run at a time."""
    is_early: bool = True
    is_parallel: bool = True
    has_speculation: bool = True
    can_prefill_ahead: bool = True


NAIVE_LOOP = Patterns(
    label="naive loop",
    num_agents=1,
    is_early=False,
    is_parallel=False,
    has_speculation=False,
    can_prefill_ahead=False,
)


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


Wrap = Callable[[OpenAIModel, AgentJob], Model]
"""What stands between a job and the server's model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What is done, whatever the patterns."""

    jobs: Sequence[AgentJob]
    latency: Latency = field(default_factory=Latency)
    max_tokens: int = 64
    on_job: Callable[[], None] = lambda: None

    async def run(
        self,
        url: str,
        patterns: Patterns,
        speculation: SpeculativeTools | None = None,
        *,
        model: str | None = None,
        wrap: Wrap = lambda server, _: server,
        options: Callable[[int], Mapping[str, Any]] = lambda number: {},
    ) -> FleetRun:
        """All jobs, by agents of the server there; `options` are those of each job's requests."""
        result = FleetRun(patterns.label)
        server = OpenAIModel(f"{url}/v1", model)
        places = asyncio.Semaphore(patterns.num_agents)
        began_at = time.monotonic()

        async def take(number: int, job: AgentJob) -> None:
            async with places:
                taken_at = time.monotonic()
                try:
                    agent = self._hire(job, wrap(server, job), patterns, speculation, options(number))
                    usage = await _run_job(agent, job)
                except HotloopError as error:  # a job that fails is counted, and the others go on
                    result.failures.append(f"{job.id}: {error}")
                else:
                    result.usage += usage
                    result.job_times_s.append(time.monotonic() - began_at)
                    result.run_times_s.append(time.monotonic() - taken_at)
                self.on_job()

        async with asyncio.TaskGroup() as group:
            for number, job in enumerate(self.jobs):
                group.create_task(take(number, job))
        result.wall_s = time.monotonic() - began_at
        await server.close()
        return result

    def _hire(
        self,
        job: AgentJob,
        server: Model,
        patterns: Patterns,
        speculation: SpeculativeTools | None,
        extra: Mapping[str, Any],
    ) -> Agent[str]:
        answers = [answer for episode in job.episodes for answer in episode.answers]
        return Agent(
            ReplayedModel(server, answers, max_tokens=self.max_tokens, is_late=not patterns.is_early),
            [RecordedTool(job, spec, self.latency) for spec in job.tools],
            job.system,
            speculation=speculation if patterns.has_speculation else None,
            can_prefill_ahead=patterns.can_prefill_ahead,
            limits=Limits(turns=100, concurrency=16 if patterns.is_parallel else 1),
            temperature=0.0,
            extra=extra,
            tracer=NullTracer(),
        )


async def _run_job(agent: Agent[str], job: AgentJob) -> ApiUsage:
    conversation, usage = Conversation(), ApiUsage()
    for episode in job.episodes:
        usage += (await agent.run(episode.prompt, conversation=conversation)).spent.usage
    return usage
