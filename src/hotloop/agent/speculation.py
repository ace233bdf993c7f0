"""Running what the model will probably ask for, before it does.

    model        ······[prefill]······[{"id": "A7"}]──┐  asks for look(id=A7)
    early call     └─────────look(id=A7)─────────┐    │  began when the turn did, or when the model named the tool
    result                                       └────┘  there already: nobody waits

Only tools that are marked read_only are ever run ahead, and only those without approval and max_concurrency; of those
marked open_world only calls that the model has made before. No argument is a value that only a tool's result has (see
`predict`). An early call answers exactly one call with the same values. Once the model has asked for anything that may
write, what was read before is stale: it is dropped, and nothing is guessed for the rest of the turn.
"""

import asyncio
import json
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hotloop.agent.events import CallSpeculated
from hotloop.agent.model import PartialAnswer
from hotloop.agent.predict.history import History, call_key
from hotloop.agent.predict.predictor import Prediction, Predictor, load_predictor, save_predictor
from hotloop.agent.tools.dispatch import EarlyCall, carry_out, stop
from hotloop.agent.tools.outcome import Outcome
from hotloop.agent.tools.tool import AgentTool, RunContext
from hotloop.core.errors import ConfigError
from hotloop.core.message import Message, ToolCall
from hotloop.core.stream import CallOpened
from hotloop.wire.arguments import read_arguments
from hotloop.wire.event import Event

log = logging.getLogger(__name__)

_FREE_WASTE = 4.0  # wasted calls that are allowed before there is a share to speak of
_FADE = 0.98  # of the budget's memory, a turn


@dataclass(slots=True)
class SpeculationCounts:
    """What came of guessing, in all runs so far."""

    num_started: int = 0
    num_hits: int = 0
    num_wasted: int = 0
    wasted_money: float = 0.0


class Budget:
    """Holds wasted calls to a share of the calls that were asked for, lately."""

    def __init__(self, max_share: float, max_money: float) -> None:
        self._max_share = max_share
        self._max_money = max_money
        self._num_called = 0.0
        self._num_wasted = 0.0
        self._num_open = 0
        self._money = 0.0

    def take(self, cost: float) -> bool:
        """Whether one more call may be risked; it is then counted as lost until `give_back` or `lose`."""
        room = self._max_share * self._num_called + _FREE_WASTE
        if self._num_wasted + self._num_open + 1 > room or self._money + cost > self._max_money:
            return False
        self._num_open += 1
        self._money += cost
        return True

    def give_back(self, cost: float) -> None:
        self._num_open -= 1
        self._money -= cost

    def lose(self) -> None:
        self._num_open -= 1
        self._num_wasted += 1

    def end_turn(self, num_called: int) -> None:
        self._num_called = self._num_called * _FADE + num_called
        self._num_wasted *= _FADE


class SpeculativeTools:
    """`speculation=SpeculativeTools(path=...)` of an agent. One serves many runs, in one event loop.

    `threshold` is the least confidence at which a call is risked once the model has named the tool; `next_threshold`
    the least before it has said anything, when a hit hides more: the same if not given. `max_waste` is the share of
    wasted calls, to calls the model made, beyond which none is; `max_concurrent` how many run ahead at once, in a run;
    `max_money` what wasted calls may cost in all, so that by default no tool with a cost runs ahead. `enabled` can be
    switched off at any time: nothing runs ahead any more, and learning goes on. With `path`, what was learned is kept
    there.
    """

    def __init__(
        self,
        predictor: Predictor | None = None,
        *,
        threshold: float = 0.8,
        next_threshold: float | None = None,
        max_waste: float = 0.25,
        max_concurrent: int = 4,
        max_money: float = 0.0,
        path: Path | str | None = None,
    ) -> None:
        next_threshold = threshold if next_threshold is None else next_threshold
        for name, value in (("threshold", threshold), ("next_threshold", next_threshold)):
            if not 0 < value <= 1:
                raise ConfigError(f"{name} must be above 0 and at most 1, not {value}")
        if max_waste < 0 or max_concurrent < 1 or max_money < 0:
            raise ConfigError("max_waste and max_money must be at least 0, and max_concurrent at least 1")
        self.enabled = True
        self.threshold = threshold
        self.next_threshold = next_threshold
        self.max_concurrent = max_concurrent
        self.counts = SpeculationCounts()
        self.path = Path(path) if path else None
        self.predictor = predictor or self._load()
        self.budget = Budget(max_waste, max_money)

    def open(
        self, tools: Mapping[str, AgentTool], run_context: RunContext, emit: Callable[[CallSpeculated], None]
    ) -> "RunSpeculation":
        return RunSpeculation(self, tools, run_context, emit)

    def save(self) -> None:
        """Keep what was learned, if there is a path. A disk that is full ends no run."""
        if self.path:
            try:
                save_predictor(self.predictor, self.path)
            except ConfigError as error:
                log.warning("what was learned is not kept: %s", error)

    def _load(self) -> Predictor:
        if self.path and self.path.exists():
            try:
                return load_predictor(self.path)
            except ConfigError as error:
                log.warning("learning starts anew: %s", error)
        return Predictor()


class RunSpeculation:
    def __init__(
        self,
        speculation: SpeculativeTools,
        tools: Mapping[str, AgentTool],
        run_context: RunContext,
        emit: Callable[[CallSpeculated], None],
    ) -> None:
        self._speculation = speculation
        self._predictor = speculation.predictor
        self._tools = tools
        self._run_context = run_context
        self._emit = emit
        self._run = speculation.predictor.open_run()
        self._history = History()
        self._num_known = 0
        self._answer = PartialAnswer()
        self._called = self._history  # with the calls of this turn
        self._has_written = False
        self._early: list[EarlyCall] = []
        self._running: set[asyncio.Task[Outcome]] = set()

    def begin_turn(self, messages: Sequence[Message], turn: int) -> None:
        """The model is about to answer these messages: start what it will probably ask for."""
        self._history.follow(messages)
        self._num_known = len(messages)
        self._called, self._answer, self._has_written = self._history, PartialAnswer(), False
        if self._speculation.enabled:
            self._start(self._predictor.predict(self._history), turn, self._speculation.next_threshold)

    def hear(self, event: Event, turn: int) -> None:
        """The model says more; once it has named a tool, its arguments may be easy to predict."""
        if call := self._answer.push(event):
            self._called = self._called.after(call)
            self._has_written |= not self._is_read_only(call.name)
        elif isinstance(event, CallOpened) and self._speculation.enabled and self._may_run(event.name):
            self._start(self._predictor.predict(self._called, named=event.name)[:1], turn, self._speculation.threshold)

    def claim(self, call: ToolCall) -> EarlyCall | None:
        """The model asked for this. If it runs already, its outcome is the answer; it is given out once."""
        if not self._is_read_only(call.name):
            self._has_written = True
            self._drop()
            return None
        key = call_key(call.name, read_arguments(call.arguments))
        found = next((early for early in self._early if early.key == key), None)
        if found:
            self._early.remove(found)
            self._speculation.counts.num_hits += 1
            self._speculation.budget.give_back(found.cost)
        return found

    def end_turn(self, messages: Sequence[Message]) -> None:
        """The turn is over, and this is all that was said: learn from it, and drop what nobody asked for."""
        self._drop()
        answer = next((each for each in messages[self._num_known :] if each.role == "assistant"), None)
        if answer:
            self._predictor.learn_turn(self._history, answer.tool_calls, self._run)
            self._speculation.budget.end_turn(len(answer.tool_calls))

    async def close(self) -> None:
        """The run is over: stop what still runs."""
        self._drop()
        await stop(self._running)
        self._speculation.save()

    def _is_read_only(self, name: str) -> bool:
        return name in self._tools and self._tools[name].traits.read_only

    def _may_run(self, name: str) -> bool:
        """Whether a tool may run ahead: it changes nothing, asks nobody, and does not count how many of it run."""
        if self._has_written or not self._is_read_only(name):
            return False
        traits = self._tools[name].traits
        return not traits.needs_approval and traits.max_concurrency is None

    def _may_send(self, prediction: Prediction) -> bool:
        """Whether the arguments stay here, or have gone the same way before because the model wanted it."""
        is_open = self._tools[prediction.name].traits.open_world
        return not is_open or any(call.key == prediction.key for call in self._called.calls)

    def _start(self, predictions: Iterable[Prediction], turn: int, threshold: float) -> None:
        for prediction in predictions:  # the likeliest come first
            is_likely = prediction.confidence >= threshold
            if not is_likely or len(self._early) >= self._speculation.max_concurrent:
                return
            is_new = not any(each.key == prediction.key for each in self._early)
            if is_new and self._may_run(prediction.name) and self._may_send(prediction):
                self._run_ahead(prediction, turn)

    def _run_ahead(self, prediction: Prediction, turn: int) -> None:
        tool = self._tools[prediction.name]
        assert tool.traits.read_only, f"{prediction.name} is not marked read_only"
        if not self._speculation.budget.take(tool.traits.cost):
            return
        arguments = json.dumps(prediction.arguments)
        work = carry_out(tool, arguments, self._run_context)
        task = asyncio.create_task(work, name=f"tool {prediction.name} (speculative)")
        self._running.add(task)
        task.add_done_callback(self._finish)
        self._early.append(EarlyCall(prediction.key, tool.traits.cost, task))
        self._speculation.counts.num_started += 1
        self._emit(CallSpeculated(turn, prediction.name, arguments, prediction.confidence))

    def _finish(self, task: "asyncio.Task[Outcome]") -> None:
        self._running.discard(task)
        if not task.cancelled():
            task.exception()  # nobody else may ever ask for it

    def _drop(self) -> None:
        """Stop what nobody has asked for; nobody will see it."""
        for early in self._early:
            early.task.cancel()
            self._speculation.budget.lose()
            self._speculation.counts.num_wasted += 1
            self._speculation.counts.wasted_money += early.cost
        self._early.clear()
