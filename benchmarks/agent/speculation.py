"""What guessing calls is worth, on recorded runs: a simulation on a clock of its own, the same on every machine.

    turn      |···first token···|··text··|··name··|··arguments··|······ tool ······|
    next      |═══════════ runs ahead from here ════════════════|hidden, the rest is waited for
    named                                         |═ from here ═|

What nobody asked for in its turn is dropped.

Nothing runs: the record says what the model asked for and wrote, and every call of a tool gets a duration by lot. What
is measured is the predictor, and how much of the tools' time it would have hidden behind the model's.
"""

import math
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from benchmarks.agent.recorded import message_of
from hotloop.agent.predict.history import History
from hotloop.agent.predict.predictor import Prediction, Predictor
from hotloop.agent.speculation import MAX_WASTE, THRESHOLD, WASTED_CALL_S, Budget, SpeculationCounts
from hotloop.bench.workload import read_transcripts
from hotloop.core.message import Message, ToolCall

READ_ONLY_WORDS = frozenset([
    "calculate", "cat", "check", "diff", "display", "du", "estimate", "find", "get", "grep", "list", "ls", "lookup",
    "pwd", "search", "sort", "tail", "think", "view", "wc",
])  # fmt: skip
"""A recorded tool counts as read-only if its name begins with one of these; records do not say."""


class Pace(NamedTuple):
    """How fast the model of the record is taken to be, and its tools."""

    first_token_s: float = 0.3
    tokens_per_s: float = 60.0
    chars_per_token: float = 4.0
    tool_median_s: float = 0.4
    tool_sigma: float = 0.5

    def write_s(self, text: str) -> float:
        return len(text) / self.chars_per_token / self.tokens_per_s

    def tool_s(self, seed: str) -> float:
        return random.Random(seed).lognormvariate(math.log(self.tool_median_s), self.tool_sigma)


@dataclass(slots=True)
class Figures:
    """What came of it."""

    num_runs: int = 0
    num_calls: int = 0
    num_read_only: int = 0
    guesses: SpeculationCounts = field(default_factory=SpeculationCounts)
    tool_s: float = 0.0
    hidden_s: float = 0.0

    @property
    def precision(self) -> float:
        return self.guesses.num_hits / self.guesses.num_started if self.guesses.num_started else 0.0

    @property
    def coverage(self) -> float:
        """The share of the read-only calls that were speculative."""
        return self.guesses.num_hits / self.num_read_only if self.num_read_only else 0.0

    @property
    def hidden(self) -> float:
        """The share of all tools' time that passed while the model wrote."""
        return self.hidden_s / self.tool_s if self.tool_s else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """How the tools are marked that are taken to read only, and how they are run ahead."""

    threshold: float = THRESHOLD
    trusted: bool = False


def measure_predictions(
    runs: Sequence[Sequence[Message]],
    *,
    num_learn: int,
    taken: Taken | None = None,
    pace: Pace | None = None,
) -> Figures:
    """Learn from the first `num_learn` runs and predict the others."""
    taken = taken or Taken()
    table = _Table(Predictor(), taken, Budget(MAX_WASTE, 0.0), pace or Pace())
    for index, messages in enumerate(runs):
        table.play(messages, f"run {index}", is_test=index >= num_learn)
    return table.figures


@dataclass(slots=True)
class _Table:
    predictor: Predictor
    taken: Taken
    budget: Budget
    pace: Pace
    figures: Figures = field(default_factory=Figures)
    now_s: float = 0.0
    early: dict[str, float] = field(default_factory=dict)
    """When each call that nobody has asked for yet was begun."""

    def play(self, messages: Sequence[Message], seed: str, *, is_test: bool) -> None:
        run = self.predictor.open_run()
        history = History(trusted=frozenset(_read_only_tools(messages)) if self.taken.trusted else frozenset())
        self.figures.num_runs += is_test
        self.early.clear()
        for index, message in enumerate(messages):
            if message.role != "assistant":
                continue
            history.follow(messages[:index])
            if is_test:
                self._take_turn(history, message, f"{seed} message {index}")
            else:
                self.predictor.learn_turn(history, message.tool_calls, run)

    def _take_turn(self, history: History, message: Message, seed: str) -> None:
        self._start(self.predictor.predict(history))
        first_s = self.pace.first_token_s + self.pace.write_s(message.content)
        self.now_s += first_s
        may_look = True
        for number, call in enumerate(message.tool_calls):
            self.now_s += self.pace.write_s(call.name)
            if may_look and is_read_only(call.name):
                self._start(self.predictor.predict(history, named=call.name)[:1])
            written_s = self.pace.write_s(call.arguments)
            self.predictor.learn_pace(None if number else first_s, len(call.arguments), written_s)
            self.now_s += written_s
            may_look = may_look and is_read_only(call.name)
            if not may_look:
                self._end_turn()  # something is written
            history = history.after(call)
            self._call(call, history.calls[-1].key, f"{seed} call {number}")
        self._end_turn()
        self.budget.end_turn(len(message.tool_calls))

    def _start(self, predictions: Iterable[Prediction]) -> None:
        for prediction in predictions:
            is_wanted = prediction.confidence >= self.taken.threshold and prediction.is_worth(WASTED_CALL_S)
            if not is_wanted or not is_read_only(prediction.name) or prediction.key in self.early:
                continue
            if self.budget.take(0.0):
                self.early[prediction.key] = self.now_s
                self.figures.guesses.num_started += 1

    def _call(self, call: ToolCall, key: str | None, seed: str) -> None:
        tool_s, hidden_s = self.pace.tool_s(seed), 0.0
        self.figures.num_calls += 1
        self.figures.tool_s += tool_s
        self.predictor.learn_time(call.name, tool_s)
        if is_read_only(call.name):
            self.figures.num_read_only += 1
            if key in self.early:
                self.figures.guesses.num_hits += 1
                hidden_s = min(tool_s, self.now_s - self.early.pop(key))
                self.budget.give_back(0.0)
        self.figures.hidden_s += hidden_s
        self.now_s += tool_s - hidden_s

    def _end_turn(self) -> None:
        for _ in self.early:
            self.budget.lose()
        self.early.clear()


def _read_only_tools(messages: Sequence[Message]) -> Iterator[str]:
    return (call.name for message in messages for call in message.tool_calls if is_read_only(call.name))


def is_read_only(name: str) -> bool:
    return name.split("_")[0] in READ_ONLY_WORDS


def read_runs(path: Path) -> list[list[Message]]:
    """The runs of a transcript file, without what nobody knows."""
    return [[message_of(each) for each in row.messages if each.role in _ROLES] for row in read_transcripts(path)]


_ROLES = ("system", "user", "assistant", "tool")
