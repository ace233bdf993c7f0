"""More agents than the cache has room for, on the real scheduler, with a simulated clock: what retention is worth.

Nothing is timed: a step takes what a simple model says, a tool what a seed says, so every run gives the same figures.
"""

import heapq
import math
import random
import statistics
from array import array
from collections.abc import Callable
from itertools import count

import pytest

from hotloop.core.config import EngineConfig
from hotloop.core.request import FinishReason, Request, SamplingParams
from hotloop.core.retention import Hold, HoldKind
from hotloop.engine.scheduler.scheduler import Scheduler
from hotloop.engine.step import Step
from hotloop.server.holds import ToolGaps

BLOCK_SIZE = 32
PROMPT, ANSWER, RESULT = 3500, 20, 150

ToolTime = Callable[[random.Random], float]


class Agent:
    def __init__(self, name: str, seed: int, num_turns: int) -> None:
        self.name = name
        self.rng = random.Random(f"{seed}/{name}")
        self.num_left = num_turns
        self.tokens = self.words(PROMPT)
        self.ended_at = 0.0

    def words(self, count: int) -> "array[int]":
        return array("i", [self.rng.randrange(1 << 20) for _ in range(count)])


class World:
    """Twelve agents, and room for four at their longest."""

    def __init__(
        self, tool_time: ToolTime, *, is_on: bool, seed: int, num_turns: int = 6, share_lost: float = 0.0
    ) -> None:
        num_tokens = 4 * (PROMPT + num_turns * (ANSWER + RESULT))
        config = EngineConfig(retention=is_on, admission=is_on)
        self.scheduler = Scheduler(config, block_size=BLOCK_SIZE, num_blocks=num_tokens // BLOCK_SIZE)
        self.now = 0.0
        self.gaps = ToolGaps(lambda: self.now)
        self.tool_time = tool_time
        self.share_lost = share_lost
        self.agents = [Agent(f"agent-{i}", seed, num_turns) for i in range(12)]
        self.owners: dict[str, Agent] = {}
        self.numbers = count()
        self.coming = [(0.0, next(self.numbers), agent, "") for agent in self.agents]

    def mean_job_s(self) -> float:
        while self.coming or self.scheduler.has_work:
            self._take_arrivals()
            step = self.scheduler.schedule(self.now)
            if step.slices:
                self._compute(step)
            else:
                self.now = self.coming[0][0]
        self.scheduler.check()
        return statistics.fmean(agent.ended_at for agent in self.agents)

    def _take_arrivals(self) -> None:
        while self.coming and self.coming[0][0] <= self.now:
            at, _, agent, call_id = heapq.heappop(self.coming)
            self.gaps.come_back([call_id])
            request = Request(
                f"{agent.name}/{agent.num_left}", agent.tokens, SamplingParams(), session_id=agent.name, arrived_at=at
            )
            self.owners[request.id] = agent
            self.scheduler.add(request)

    def _compute(self, step: Step) -> None:
        """18 ms per step, 0.3 ms per token of a prompt, 8 ms per token of an answer."""
        sizes = [part.num_tokens for part in step.slices]
        took_s = 0.018 + sum(0.008 if size == 1 else 0.0003 * size for size in sizes)
        self.now += took_s
        self.scheduler.advance(step)
        for part in step.slices:
            if part.wants_token:
                part.request.token_ids.append(part.request.num_tokens)
        self.scheduler.settle(step, self.now, took_s)
        for part in step.slices:
            if part.request.num_output == ANSWER:
                self.scheduler.finish(part.request, FinishReason.STOP)
                self._go_on(self.owners.pop(part.request.id), part.request)

    def _go_on(self, agent: Agent, request: Request) -> None:
        """As the server does with an answer that ends in a call, or ends the run."""
        agent.num_left -= 1
        agent.ended_at = self.now
        if not agent.num_left:
            self.scheduler.sessions.hold(request.token_ids, Hold(HoldKind.FINISHED), "", request.session)
            return
        call_id = f"{agent.name}{agent.num_left}"
        self.gaps.leave(call_id, "tool")
        if patience_s := self.gaps.patience_s(["tool"], self.scheduler.cache_refill_s):
            hold = Hold(HoldKind.TOOL_GAP, self.now + patience_s)
            self.scheduler.sessions.hold(request.token_ids, hold, "", request.session)
        if agent.rng.random() >= self.share_lost:
            agent.tokens = request.token_ids + agent.words(RESULT)
            back_at = self.now + self.tool_time(agent.rng)
            heapq.heappush(self.coming, (back_at, next(self.numbers), agent, call_id))


def lognormal(median_s: float) -> ToolTime:
    return lambda rng: median_s * math.exp(rng.gauss(0, 1))


def gain(tool_time: ToolTime, share_lost: float = 0.0, num_worlds: int = 2) -> float:
    """How many times longer jobs take if the longest unused always goes first: the mean of a few worlds, since whose
    turn it is when in one of them moves its figure by a tenth.
    """
    gains = []
    for seed in range(num_worlds):
        worlds = (World(tool_time, is_on=is_on, seed=seed, share_lost=share_lost) for is_on in (False, True))
        plain, kept = (world.mean_job_s() for world in worlds)
        gains.append(plain / kept)
    return statistics.fmean(gains)


@pytest.mark.long
def test_agents_who_come_back_soon_are_worth_waiting_for() -> None:
    assert gain(lognormal(2.0), num_worlds=4) > 1.2


@pytest.mark.parametrize(
    ("tool_time", "share_lost"),
    [
        pytest.param(lognormal(20.0), 0.0, id="ten times longer than is usual"),
        pytest.param(lambda rng: rng.choice([0.2, 30.0]), 0.0, id="at random", marks=pytest.mark.long),
        pytest.param(lognormal(2.0), 0.3, id="many never come back", marks=pytest.mark.long),
    ],
)
def test_nothing_is_lost_where_tool_times_mislead(tool_time: ToolTime, share_lost: float) -> None:
    assert gain(tool_time, share_lost) > 0.97
