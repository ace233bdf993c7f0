"""A user's turns beside agents that are less urgent, by steps that take what they are said to.

    step_s  =  base_s  +  row_s x (answers that get a token)  +  token_s x (tokens of prompts)

Nothing is computed and no clock is read, so the same comes of it on every machine: how much longer a turn takes than
alone, and how long requests waited for their turn against their class's maximum. No step is broken off for who comes
while it runs: a request that was late already when that step ended had no room, if it began in the next one.
"""

import heapq
import itertools
import random
from dataclasses import dataclass, field

import pytest

from hotloop.bench.report import percentile
from hotloop.core.config import EngineConfig
from hotloop.core.request import FinishReason, Priority, Request, SamplingParams
from hotloop.engine.scheduler.prefill_budget import prefills_of
from hotloop.engine.scheduler.scheduler import Scheduler
from hotloop.engine.step import Step

BLOCK_SIZE = 32
SYSTEM_TOKENS, NEW_TOKENS, NUM_OUTPUT = 256, 30, 32
MAX_PROMPT = 1000  # tokens; then a session begins anew
WARM_TURNS = 2  # of the user, in which it is learnt what steps take


@dataclass(frozen=True, slots=True)
class StepCosts:
    base_s: float
    row_s: float
    token_s: float

    def of(self, step: Step) -> float:
        num_prompt = sum(part.num_tokens for part in prefills_of(step.slices))
        return self.base_s + self.row_s * (step.num_tokens - num_prompt) + self.token_s * num_prompt


@dataclass(slots=True)
class Agent:
    """Asks again `gap_s` after each answer, with all that was said and some tokens more."""

    name: str
    priority: Priority
    gap_s: float
    first_id: int
    token_ids: list[int] = field(default_factory=list)
    num_turns: int = 0

    def ask(self, now: float) -> Request:
        if len(self.token_ids) + NEW_TOKENS > MAX_PROMPT:
            self.token_ids = []
        num_new = NEW_TOKENS if self.token_ids else SYSTEM_TOKENS
        begin = self.first_id + self.num_turns * MAX_PROMPT
        self.token_ids += range(begin, begin + num_new)
        self.num_turns += 1
        sampling = SamplingParams(max_tokens=NUM_OUTPUT)
        name = f"{self.name}-{self.num_turns}"
        return Request(name, [*self.token_ids], sampling, priority=self.priority, session_id=self.name, arrived_at=now)


class Simulation:
    """The scheduler, those who ask it, and a clock that goes on by what each step takes. `waits` for a turn are divided
    by the maximum of the class; those are left out that were late before anybody could begin."""

    def __init__(self, costs: StepCosts, agents: list[Agent], config: EngineConfig) -> None:
        self.scheduler = Scheduler(config, block_size=BLOCK_SIZE, num_blocks=4096, max_solo_prefill=16.0)
        self.now = 0.0
        self._rng = random.Random(0)
        self.num_output = 0
        self.turns_s: list[float] = []
        self.waits: dict[Priority, list[float]] = {priority: [] for priority in Priority}
        self._costs = costs
        self._limits = config.class_limits
        self._agents = {each.name: each for each in agents}
        self._first_steps: dict[str, float] = {}
        self._coming = [(0.001 * i, each.name) for i, each in enumerate(agents)]
        heapq.heapify(self._coming)

    def run(self, num_turns: int) -> None:
        """Until the user has had so many turns that count."""
        while len(self.turns_s) < num_turns + WARM_TURNS:
            self._arrive()
            step = self.scheduler.schedule(self.now)
            if step.slices:
                self._compute(step)
            else:
                self.now = max(self.now, self._coming[0][0])
        del self.turns_s[:WARM_TURNS]

    def _arrive(self) -> None:
        while self._coming and self._coming[0][0] <= self.now:
            came_at, name = heapq.heappop(self._coming)
            request = self._agents[name].ask(came_at)
            self._first_steps[request.id] = self.now
            self.scheduler.add(request)

    def _compute(self, step: Step) -> None:
        took_s = self._costs.of(step)
        self.now += took_s
        self.scheduler.advance(step)
        for part in step.slices:
            if part.wants_token:
                part.request.token_ids.append(part.request.num_tokens)
                self.num_output += 1
        self.scheduler.settle(step, self.now, took_s)
        for part in step.slices:
            if part.request.num_output == NUM_OUTPUT:
                self._end(part.request)

    def _end(self, request: Request) -> None:
        agent = self._agents[request.session_id]
        self.scheduler.finish(request, FinishReason.LENGTH)
        self._note_wait(request)
        agent.token_ids += request.output_ids
        if request.priority == Priority.INTERACTIVE:
            self.turns_s.append(self.now - request.arrived_at)
        gap_s = agent.gap_s * (1 if agent.priority == Priority.INTERACTIVE else self._rng.expovariate(1.0))
        heapq.heappush(self._coming, (self.now + gap_s, agent.name))

    def _note_wait(self, request: Request) -> None:
        if len(self.turns_s) < WARM_TURNS:
            return
        max_wait_s = self._limits[request.priority].max_wait_s
        wait_s = request.turn_wait_s or 0.0
        is_first = wait_s <= self._first_steps[request.id] - request.arrived_at + 1e-9
        if not is_first or wait_s <= max_wait_s:
            self.waits[request.priority].append(wait_s / max_wait_s)


AVX2, VNNI = StepCosts(0.015, 0.0047, 0.0047), StepCosts(0.0127, 0.0023, 0.001)
FLEET = [Priority.BACKGROUND] * 6 + [Priority.WORKFLOW] * 4


def beside(classes: list[Priority], costs: StepCosts, *, gap_s: float = 1.0) -> Simulation:
    """A user, and an agent of each of these classes."""
    user = Agent("user", Priority.INTERACTIVE, gap_s, 0)
    agents = [Agent(f"agent {i}", each, 0.2, 1_000_000 * i) for i, each in enumerate(classes, 1)]
    simulation = Simulation(costs, [user, *agents], EngineConfig())
    simulation.run(60)
    return simulation


@pytest.mark.sampled(3)
@pytest.mark.parametrize("gap_s", [0.05, 1.0])
@pytest.mark.parametrize("costs", [AVX2, VNNI, StepCosts(0.008, 0.0007, 0.001), StepCosts(0.012, 0.0014, 0.006)])
def test_no_wait_is_longer_than_its_class_may_while_there_was_room(costs: StepCosts, gap_s: float) -> None:
    """Though steps are not all as long as the ones before them."""
    waits = beside(FLEET, costs, gap_s=gap_s).waits
    assert 0 < max(itertools.chain(waits[Priority.WORKFLOW], waits[Priority.BACKGROUND])) <= 1.01, "it is learnt"


@pytest.mark.sampled(2)
@pytest.mark.parametrize("costs", [AVX2, VNNI])
def test_a_users_turn_takes_little_longer_than_alone(costs: StepCosts) -> None:
    alone, fleet, one_class = (beside(classes, costs) for classes in ([], FLEET, [Priority.INTERACTIVE] * len(FLEET)))
    for share in (0.5, 0.95):
        turn_s, beside_fleet_s, beside_equals_s = (
            percentile(each.turns_s, share) for each in (alone, fleet, one_class)
        )
        assert 1 <= beside_fleet_s / turn_s <= 1.25
        assert beside_equals_s / turn_s > 2
    assert fleet.num_output / fleet.now > alone.num_output / alone.now
