"""Running what the model will probably ask for, before it does.

    model        ······[prefill]······[{"id": "A7"}]──┐  asks for look(id=A7)
    early call     └─────────look(id=A7)─────────┐    │  began when the turn did, or when the model named the tool
    result                                       └────┘  there already: nobody waits

Only tools that are marked read_only are ever run ahead, and only those without approval and max_concurrency; of those
marked open_world only calls that the model has made before. No argument is a value that only a tool's result has (see
`predict`), unless the tool is trusted. An early call answers exactly one call with the same values. Once the model has
asked for anything that may write, what was read before is stale: it is dropped, and nothing is guessed for the rest of
the turn. What a turn did not ask for is dropped with it, but for what the tool's cache_s keeps: that may answer later.
"""

import asyncio
import json
import logging
import time
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from cachetools import LRUCache

from hotloop.agent.events import CallDispatched, CallFinished, CallSpeculated
from hotloop.agent.events import Event as RunEvent
from hotloop.agent.model import PartialAnswer
from hotloop.agent.predict.history import History, call_key
from hotloop.agent.predict.predictor import Prediction, Predictor, load_predictor, save_predictor
from hotloop.agent.tools.dispatch import EarlyCall, carry_out, stop
from hotloop.agent.tools.outcome import Outcome
from hotloop.agent.tools.results import RunResults
from hotloop.agent.tools.tool import AgentTool, RunContext
from hotloop.core.errors import ConfigError
from hotloop.core.message import Message, ToolCall
from hotloop.core.stream import CallOpened
from hotloop.wire.arguments import read_arguments
from hotloop.wire.event import Event

log = logging.getLogger(__name__)

_FREE_WASTE = 4.0  # wasted calls that are allowed before there is a share to speak of
_FADE = 0.98  # of the budget's memory, a turn
_MAX_KEPT = 256
THRESHOLD = 0.25
WASTED_CALL_S = 0.15
MAX_WASTE = 0.15


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

    def win_back(self, cost: float) -> None:
        """A call that was counted as lost was asked for after all."""
        self._num_wasted = max(0.0, self._num_wasted - 1)
        self._money -= cost

    def end_turn(self, num_called: int) -> None:
        self._num_called = self._num_called * _FADE + num_called
        self._num_wasted *= _FADE


class SpeculativeTools:
    """`speculation=SpeculativeTools(path=...)` of an agent. One serves many runs, in one event loop.

    A call is risked where what it saves, times its confidence, is at least `wasted_call_s`, times the chance that
    nobody asks for it: so the slower the tool and the more the model still has to write, the less sure it need be.
    `threshold` is the least confidence all the same, once the model has named the tool, and `next_threshold` before it
    has said anything: the same if not given. `max_waste` is the share of wasted calls, to calls the model made, beyond
    which none is; `max_concurrent` how many run ahead at once, in a run; `max_money` what wasted calls may cost in all,
    so that by default no tool with a cost runs ahead. `enabled` can be switched off at any time: nothing runs ahead any
    more, and learning goes on. With `path`, what was learned is kept there.
    """

    def __init__(
        self,
        predictor: Predictor | None = None,
        *,
        threshold: float = THRESHOLD,
        next_threshold: float | None = None,
        wasted_call_s: float = WASTED_CALL_S,
        max_waste: float = MAX_WASTE,
        max_concurrent: int = 4,
        max_money: float = 0.0,
        path: Path | str | None = None,
    ) -> None:
        next_threshold = threshold if next_threshold is None else next_threshold
        for name, value in (("threshold", threshold), ("next_threshold", next_threshold)):
            if not 0 < value <= 1:
                raise ConfigError(f"{name} must be above 0 and at most 1, not {value}")
        if not all(value >= 0 for value in (max_waste, max_money, wasted_call_s)) or max_concurrent < 1:
            least = "max_waste, max_money and wasted_call_s must be at least 0"
            raise ConfigError(f"{least}, and max_concurrent at least 1")
        self.enabled = True
        self.threshold = threshold
        self.next_threshold = next_threshold
        self.wasted_call_s = wasted_call_s
        self.max_concurrent = max_concurrent
        self.counts = SpeculationCounts()
        self.path = Path(path) if path else None
        self.predictor = predictor or self._load()
        self.budget = Budget(max_waste, max_money)
        self.kept: LRUCache[Hashable, float] = LRUCache(_MAX_KEPT)
        """What calls cost that no turn has asked for yet, whose results are kept as their tools' `cache_s` says."""

    def open(
        self,
        tools: Mapping[str, AgentTool],
        run_context: RunContext,
        emit: Callable[[CallSpeculated], None],
        results: RunResults,
    ) -> "RunSpeculation":
        return RunSpeculation(self, tools, run_context, emit, results)

    def save(self) -> None:
        """Keep what was learned, if there is a path. A disk that is full ends no run."""
        if self.path:
            try:
                save_predictor(self.predictor, self.path)
            except ConfigError as error:
                log.warning("learned patterns cannot be saved: %s", error)

    def _load(self) -> Predictor:
        if self.path and self.path.exists():
            try:
                return load_predictor(self.path)
            except ConfigError as error:
                log.warning("starting without learned patterns: %s", error)
        return Predictor()


class RunSpeculation:
    def __init__(
        self,
        speculation: SpeculativeTools,
        tools: Mapping[str, AgentTool],
        run_context: RunContext,
        emit: Callable[[CallSpeculated], None],
        results: RunResults,
    ) -> None:
        self._speculation = speculation
        self._predictor = speculation.predictor
        self._tools = tools
        self._run_context = run_context
        self._emit = emit
        self._results = results
        self._run = speculation.predictor.open_run()
        self._history = History(trusted=frozenset(name for name, tool in tools.items() if tool.options.trusted))
        self._num_known = 0
        self._answer = PartialAnswer()
        self._called = self._history  # with the calls of this turn
        self._has_written = False
        self._early: list[EarlyCall] = []
        self._running: set[asyncio.Task[Outcome]] = set()
        self._began_at: float | None = None  # the turn, until a call is named in it
        self._opened_at: float | None = None
        self._timed: set[str] = set()  # calls under way that did not run ahead

    def begin_turn(self, messages: Sequence[Message], turn: int) -> None:
        """The model is about to answer these messages: start what it will probably ask for."""
        self._history.follow(messages)
        self._num_known = len(messages)
        self._called, self._answer, self._has_written = self._history, PartialAnswer(), False
        self._began_at, self._opened_at = time.monotonic(), None
        if self._speculation.enabled:
            self._start(self._predictor.predict(self._history), turn, self._speculation.next_threshold)

    def hear(self, event: Event, turn: int) -> None:
        """The model says more; once it has named a tool, its arguments may be easy to predict."""
        if call := self._answer.push(event):
            self._time_writing(call)
            self._called = self._called.after(call)
            self._has_written |= not self._is_read_only(call.name)
        elif isinstance(event, CallOpened):
            self._opened_at = time.monotonic()
            if self._speculation.enabled and self._may_run(event.name):
                predictions = self._predictor.predict(self._called, named=event.name)[:1]
                self._start(predictions, turn, self._speculation.threshold)

    def listen(self, event: RunEvent) -> None:
        """What the run tells of its calls: how long those took that did not run ahead."""
        match event:
            case CallDispatched(was_speculative=False, reused=""):
                self._timed.add(event.call_id)
            case CallFinished() if event.call_id in self._timed:
                self._timed.discard(event.call_id)
                if not event.is_error:
                    self._predictor.learn_time(event.name, event.duration_s)

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
        else:
            self._win_back(call)
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

    def _win_back(self, call: ToolCall) -> None:
        """The result of an early call that an earlier turn did not ask for may answer this one: count it as a hit."""
        where = self._results.key(self._tools[call.name], call.arguments, self._run_context)
        cost = self._speculation.kept.pop(where, None)
        if cost is not None and self._results.find(self._tools[call.name], call.arguments, self._run_context):
            counts = self._speculation.counts
            counts.num_hits += 1
            counts.num_wasted -= 1
            counts.wasted_money -= cost
            self._speculation.budget.win_back(cost)

    def _time_writing(self, call: ToolCall) -> None:
        opened_at = self._opened_at
        if opened_at is not None:
            first_s = None if self._began_at is None else opened_at - self._began_at
            self._predictor.learn_pace(first_s, len(call.arguments), time.monotonic() - opened_at)
        self._began_at = self._opened_at = None

    def _is_read_only(self, name: str) -> bool:
        return name in self._tools and self._tools[name].options.read_only

    def _may_run(self, name: str) -> bool:
        """Whether a tool may run ahead: it changes nothing, asks nobody, and does not count how many of it run."""
        if self._has_written or not self._is_read_only(name):
            return False
        options = self._tools[name].options
        return not options.needs_approval and options.max_concurrency is None

    def _may_send(self, prediction: Prediction) -> bool:
        """Whether the arguments stay here, or have gone the same way before because the model wanted it."""
        is_open = self._tools[prediction.name].options.open_world
        return not is_open or any(call.key == prediction.key for call in self._called.calls)

    def _start(self, predictions: Iterable[Prediction], turn: int, threshold: float) -> None:
        for prediction in predictions:  # the likeliest come first
            if prediction.confidence < threshold or self._num_early >= self._speculation.max_concurrent:
                return
            is_new = not any(each.key == prediction.key for each in self._early)
            is_worth = is_new and prediction.is_worth(self._speculation.wasted_call_s)
            if is_worth and self._may_run(prediction.name) and self._may_send(prediction):
                self._run_ahead(prediction, turn)

    @property
    def _num_early(self) -> int:
        """Calls that run ahead, and those of this turn that are done."""
        return len(self._running.union(early.task for early in self._early))

    def _run_ahead(self, prediction: Prediction, turn: int) -> None:
        tool = self._tools[prediction.name]
        assert tool.options.read_only, f"{prediction.name} is not marked read_only"
        arguments = json.dumps(prediction.arguments)
        if self._results.find(tool, arguments, self._run_context):
            return  # it is there already, or on its way
        if not self._speculation.budget.take(tool.options.cost):
            return
        run = partial(carry_out, tool, arguments, self._run_context)
        work = self._results.fetch(tool, arguments, self._run_context, run)
        task = asyncio.create_task(work, name=f"tool {prediction.name} (speculative)")
        self._running.add(task)
        where = self._results.key(tool, arguments, self._run_context) if tool.options.cache_s else None
        early = EarlyCall(prediction.key, tool.options.cost, task, where)
        task.add_done_callback(partial(self._finish, prediction.name, early.began_at))
        self._early.append(early)
        self._speculation.counts.num_started += 1
        self._emit(CallSpeculated(turn, prediction.name, arguments, prediction.confidence))

    def _finish(self, name: str, began_at: float, task: "asyncio.Task[Outcome]") -> None:
        self._running.discard(task)
        if not task.cancelled() and not task.exception() and not task.result().is_error:
            self._predictor.learn_time(name, time.monotonic() - began_at)

    def _drop(self) -> None:
        """Stop what nobody has asked for, but what is kept; nobody will see it."""
        for early in self._early:
            if early.where is None:
                early.task.cancel()
            else:
                self._speculation.kept[early.where] = early.cost
            self._speculation.budget.lose()
            self._speculation.counts.num_wasted += 1
            self._speculation.counts.wasted_money += early.cost
        self._early.clear()
