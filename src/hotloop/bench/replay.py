"""Agents at work: jobs run turn by turn against a server, several at a time, timed as their user feels it.

Words are thrown away: the next turn's history is the workload's, so two servers are asked exactly the same.
A turn that fails is counted and its job goes on; a job with a failed turn has no completion time.
"""

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, fields
from typing import NamedTuple, Self, TypeVar

from hotloop.bench.client import ChatClient
from hotloop.bench.workload import AgentJob, WorkloadTurn
from hotloop.core.errors import RemoteError
from hotloop.core.request import Usage

Item = TypeVar("Item")


class ReplayedTurn(NamedTuple):
    job_id: str
    turn: int
    ttft_s: float
    latency_s: float
    usage: Usage


class Progress(NamedTuple):
    """What happened just now: a turn began (no text yet), wrote `text`, ended in `step`, or failed with `error`."""

    job_id: str
    turn: int
    text: str = ""
    step: ReplayedTurn | None = None
    error: str = ""


class Rounds:
    """What a dataclass of lists and times has gathered so far."""

    __slots__ = ()

    def merge(self, other: Self) -> None:
        """Add a later round, as if both were one run."""
        for each in fields(self):  # type: ignore[arg-type]
            setattr(self, each.name, getattr(self, each.name) + getattr(other, each.name))


@dataclass(slots=True)
class Replay(Rounds):
    steps: list[ReplayedTurn] = field(default_factory=list)
    job_times_s: list[float] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    wall_s: float = 0.0


async def replay(
    client: ChatClient,
    jobs: Sequence[AgentJob],
    *,
    num_agents: int,
    gap_s: float = 0.0,
    watch: Callable[[Progress], None] = lambda _: None,
) -> Replay:
    """Run all jobs, `num_agents` at a time; each waits `gap_s` after a turn, as if a tool ran."""
    await client.find_model()
    run, began_at = _Run(client, gap_s, watch), time.perf_counter()
    await work_off(jobs, run.work, num_workers=num_agents)
    run.result.wall_s = time.perf_counter() - began_at
    return run.result


async def work_off(items: Sequence[Item], act: Callable[[Item], Awaitable[None]], *, num_workers: int) -> None:
    queue = deque(items)

    async def worker() -> None:
        while queue:
            await act(queue.popleft())

    async with asyncio.TaskGroup() as group:
        for _ in range(min(num_workers, len(items))):
            group.create_task(worker())


@dataclass(slots=True)
class _Run:
    client: ChatClient
    gap_s: float
    watch: Callable[[Progress], None]
    result: Replay = field(default_factory=Replay)

    async def work(self, job: AgentJob) -> None:
        began_at, num_errors = time.perf_counter(), 0
        for number, turn in enumerate(job.turns):
            try:
                step = await self._take(job.id, number, turn)
            except RemoteError as error:
                num_errors += 1
                self.result.errors.append(str(error))
                self.watch(Progress(job.id, number, error=str(error)))
            else:
                self.result.steps.append(step)
                self.watch(Progress(job.id, number, step=step))
            await asyncio.sleep(self.gap_s)
        if not num_errors:
            self.result.job_times_s.append(time.perf_counter() - began_at)

    async def _take(self, job_id: str, number: int, turn: WorkloadTurn) -> ReplayedTurn:
        self.watch(Progress(job_id, number))
        began_at = time.perf_counter()
        first_at: float | None = None
        usage = Usage(0, 0, 0)
        async for delta in self.client.stream(
            turn.messages, session_id=job_id, max_tokens=turn.num_output, temperature=0, ignore_eos=True
        ):
            if delta.text:
                first_at = first_at or time.perf_counter()
                self.watch(Progress(job_id, number, delta.text))
            usage = delta.usage or usage
        ended_at = time.perf_counter()
        ttft_s = (first_at or ended_at) - began_at
        return ReplayedTurn(job_id, number, ttft_s, ended_at - began_at, usage)
