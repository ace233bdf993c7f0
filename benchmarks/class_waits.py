"""A user's turns beside agents that are less urgent: the engine's scheduler by steps that take what they are said to.

    step_s  =  base_s  +  row_s x (answers that get a token)  +  token_s x (tokens of prompts)

Nothing is computed and no clock is read, so the same comes of it on every machine: how much longer a turn takes than
alone, and how long requests waited for their turn against their class's maximum. No step is broken off for who comes
while it runs: a request that was late already when that step ended had no room, if it began in the next one.
"""

import heapq
import random
from bisect import bisect_left
from dataclasses import asdict, dataclass, field
from typing import Any

from cyclopts.types import PositiveFloat, PositiveInt
from rich.table import Table

from benchmarks.command import main, show_report
from hotloop.bench.report import figures_table, percentile
from hotloop.cli.settings import Json
from hotloop.core.config import EngineConfig
from hotloop.core.request import FinishReason, Priority, Request, SamplingParams
from hotloop.engine.scheduler.prefill_budget import prefills_of
from hotloop.engine.scheduler.scheduler import Scheduler
from hotloop.engine.step import Step

BOUNDS = (0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 4.0)

_BLOCK_SIZE = 32
_SYSTEM_TOKENS, _NEW_TOKENS = 256, 30
NUM_OUTPUT = 32
_MAX_PROMPT = 1000  # tokens; then a session begins anew
_WARM_TURNS = 2  # of the user, in which it is learnt what steps take


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
        if len(self.token_ids) + _NEW_TOKENS > _MAX_PROMPT:
            self.token_ids = []
        num_new = _NEW_TOKENS if self.token_ids else _SYSTEM_TOKENS
        begin = self.first_id + self.num_turns * _MAX_PROMPT
        self.token_ids += range(begin, begin + num_new)
        self.num_turns += 1
        sampling = SamplingParams(max_tokens=NUM_OUTPUT)
        name = f"{self.name}-{self.num_turns}"
        return Request(name, [*self.token_ids], sampling, priority=self.priority, session_id=self.name, arrived_at=now)


@dataclass(slots=True)
class ClassWaits:
    """Waits for a turn, divided by the maximum of the class."""

    with_room: list[float] = field(default_factory=list)
    without_room: list[float] = field(default_factory=list)
    """Above 1 already when the step ended that ran when they came, in which nobody can begin any more."""


class Simulation:
    """The scheduler, those who ask it, and a clock that goes on by what each step takes."""

    def __init__(self, costs: StepCosts, agents: list[Agent], config: EngineConfig) -> None:
        self.scheduler = Scheduler(config, block_size=_BLOCK_SIZE, num_blocks=4096, max_solo_prefill=16.0)
        self.now = 0.0
        self._rng = random.Random(0)
        self.num_output = 0
        self.turns_s: list[float] = []
        self.waits = {priority: ClassWaits() for priority in Priority}
        self._costs = costs
        self._limits = config.class_limits
        self._agents = {each.name: each for each in agents}
        self._first_steps: dict[str, float] = {}
        self._coming = [(0.001 * i, each.name) for i, each in enumerate(agents)]
        heapq.heapify(self._coming)

    def run(self, num_turns: int) -> None:
        """Until the user has had so many turns that count."""
        while len(self.turns_s) < num_turns + _WARM_TURNS:
            self._arrive()
            step = self.scheduler.schedule(self.now)
            if step.slices:
                self._compute(step)
            else:
                self.now = max(self.now, self._coming[0][0])
        del self.turns_s[:_WARM_TURNS]

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
        if len(self.turns_s) < _WARM_TURNS:
            return
        max_wait_s = self._limits[request.priority].max_wait_s
        wait_s = request.turn_wait_s or 0.0
        waits = self.waits[request.priority]
        is_first = wait_s <= self._first_steps[request.id] - request.arrived_at + 1e-9
        kind = waits.without_room if is_first and wait_s > max_wait_s else waits.with_room
        kind.append(wait_s / max_wait_s)


@dataclass(frozen=True, slots=True)
class Beside:
    """One fleet beside the user: his turns, and how long the others waited."""

    turns_s: list[float]
    tokens_per_s: float
    waits: dict[Priority, ClassWaits]


@dataclass(frozen=True, slots=True)
class ClassWaitsReport:
    costs: StepCosts
    alone: Beside
    classes: Beside
    one_class: Beside

    def slowdown(self, beside: Beside, share: float) -> float:
        return percentile(beside.turns_s, share) / percentile(self.alone.turns_s, share)

    def to_json(self) -> dict[str, Any]:
        ways = {"alone": self.alone, "classes": self.classes, "one class": self.one_class}
        return {
            "costs": asdict(self.costs),
            "ways": {
                name: {
                    "turn_p50": self.slowdown(each, 0.5),
                    "turn_p95": self.slowdown(each, 0.95),
                    "tokens_per_s": each.tokens_per_s,
                }
                for name, each in ways.items()
            },
            "waits": {
                priority.name.lower(): {
                    "bounds": BOUNDS,
                    "with_room": histogram(waits.with_room),
                    "without_room": histogram(waits.without_room),
                    "most": max(waits.with_room + waits.without_room, default=0.0),
                }
                for priority, waits in self.classes.waits.items()
            },
        }

    def to_table(self) -> Table:
        table = figures_table("beside the user", ("turn p50", "turn p95", "tokens/s"))
        for name, each in (
            ("nobody", self.alone),
            ("the fleet", self.classes),
            ("the same, of one class", self.one_class),
        ):
            slowdowns = (f"{self.slowdown(each, share):.2f}" for share in (0.5, 0.95))
            table.add_row(name, *slowdowns, f"{each.tokens_per_s:.0f}")
        table.add_section()
        table.add_row("waits / maximum of the class", "room", "no room", "")
        for priority, waits in self.classes.waits.items():
            counts = zip(histogram(waits.with_room), histogram(waits.without_room), strict=True)
            for bound, (num_with, num_without) in zip((*BOUNDS, None), counts, strict=True):
                if num_with or num_without:
                    name = f"{priority.name.lower()}, " + (f"at most {bound:g}" if bound else f"above {BOUNDS[-1]:g}")
                    table.add_row(name, str(num_with), str(num_without), "")
        return table


def histogram(ratios: list[float]) -> list[int]:
    """How many are at most each bound and above the one before it; the last above all."""
    places = [bisect_left(BOUNDS, each) for each in ratios]
    return [places.count(i) for i in range(len(BOUNDS) + 1)]


def measure(
    costs: StepCosts, num_turns: int, gap_s: float, agent_gap_s: float, num_background: int, num_sub_agents: int
) -> ClassWaitsReport:
    def beside(classes: list[Priority]) -> Beside:
        users = [Agent("user", Priority.INTERACTIVE, gap_s, 0)]
        fleet = [Agent(f"agent {i}", each, agent_gap_s, 1_000_000 * i) for i, each in enumerate(classes, 1)]
        simulation = Simulation(costs, users + fleet, EngineConfig())
        simulation.run(num_turns)
        return Beside(simulation.turns_s, simulation.num_output / simulation.now, simulation.waits)

    classes = [Priority.BACKGROUND] * num_background + [Priority.WORKFLOW] * num_sub_agents
    return ClassWaitsReport(costs, beside([]), beside(classes), beside([Priority.INTERACTIVE] * len(classes)))


def class_waits(
    *,
    base_ms: PositiveFloat = 15,
    row_ms: PositiveFloat = 4.7,
    token_ms: PositiveFloat = 4.7,
    turns: PositiveInt = 60,
    gap_s: float = 1.0,
    agent_gap_s: float = 0.2,
    background: int = 6,
    sub_agents: int = 4,
    json: Json = False,
) -> None:
    """A user's turns beside agents of less urgent classes, by steps of given costs.

    Parameters
    ----------
    base_ms
        What a step takes with no token in it.
    row_ms
        What each answer adds that gets a token; as given here, 135M on two cores with AVX2. With VNNI 12.7 and 2.3.
    token_ms
        What each token of a prompt adds.
    turns
        Turns of the user that count.
    gap_s
        From an answer to the user's next turn.
    agent_gap_s
        The same of the others, on average.
    background
        Agents of background class.
    sub_agents
        The same of workflow class.
    """
    costs = StepCosts(base_ms / 1000, row_ms / 1000, token_ms / 1000)
    show_report(measure(costs, turns, gap_s, agent_gap_s, background, sub_agents), json)


if __name__ == "__main__":
    main(class_waits)
