"""What guessing calls is worth, on recorded runs: a simulation on a clock of its own, the same on every machine.

    turn      |···first token···|··text··|··name··|··arguments··|······ tool ······|
    next      |═══════════ runs ahead from here ════════════════|hidden, the rest is waited for
    named                                         |═ from here ═|

Nothing runs: the record says what the model asked for and wrote, and every call of a tool gets a duration by lot. What
is measured is the predictor, and how much of the tools' time it would have hidden behind the model's.
"""

import math
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from benchmarks.agent.recorded import message_of
from hotloop.agent.predict.history import History
from hotloop.agent.predict.predictor import Prediction, Predictor
from hotloop.agent.speculation import Budget, SpeculationCounts
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

    @property
    def waste(self) -> float:
        """Calls nobody asked for, a call that was made."""
        return (self.guesses.num_started - self.guesses.num_hits) / self.num_calls if self.num_calls else 0.0


def measure_predictions(
    runs: Sequence[Sequence[Message]],
    *,
    num_learn: int,
    learns_on: bool = False,
    threshold: float = 0.8,
    next_threshold: float | None = None,
    max_waste: float = 0.25,
    pace: Pace | None = None,
) -> Figures:
    """Learn from the first `num_learn` runs and predict the others; `learns_on` goes on learning, turn by turn."""
    next_threshold = threshold if next_threshold is None else next_threshold
    table = _Table(Predictor(), threshold, next_threshold, Budget(max_waste, 0.0), pace or Pace())
    for index, messages in enumerate(runs):
        is_test = index >= num_learn
        table.play(messages, f"run {index}", is_test=is_test, learns=learns_on or not is_test)
    return table.figures


@dataclass(slots=True)
class _Table:
    predictor: Predictor
    threshold: float
    next_threshold: float
    budget: Budget
    pace: Pace
    figures: Figures = field(default_factory=Figures)

    def play(self, messages: Sequence[Message], seed: str, *, is_test: bool, learns: bool) -> None:
        run = self.predictor.open_run()
        history = History()
        self.figures.num_runs += is_test
        for index, message in enumerate(messages):
            if message.role != "assistant":
                continue
            history.follow(messages[:index])
            if is_test:
                self._take_turn(history, message, f"{seed} message {index}")
            if learns:
                self.predictor.learn_turn(history, message.tool_calls, run)

    def _take_turn(self, history: History, message: Message, seed: str) -> None:
        started: dict[str, float] = {}
        self._start(self.predictor.predict(history), 0.0, started, self.next_threshold)
        now_s = self.pace.first_token_s + self.pace.write_s(message.content)
        may_look = True
        for number, call in enumerate(message.tool_calls):
            now_s += self.pace.write_s(call.name)
            if may_look and is_read_only(call.name):
                self._start(self.predictor.predict(history, named=call.name)[:1], now_s, started, self.threshold)
            now_s += self.pace.write_s(call.arguments)
            may_look = may_look and is_read_only(call.name)
            if not may_look:
                self._drop(started)
            history = history.after(call)
            self._call(call, history.calls[-1].key, now_s, started, f"{seed} call {number}")
        self._drop(started)
        self.budget.end_turn(len(message.tool_calls))

    def _start(
        self, predictions: Iterable[Prediction], now_s: float, started: dict[str, float], threshold: float
    ) -> None:
        for prediction in predictions:
            wanted = prediction.confidence >= threshold and is_read_only(prediction.name)
            if wanted and prediction.key not in started and self.budget.take(0.0):
                started[prediction.key] = now_s
                self.figures.guesses.num_started += 1

    def _call(self, call: ToolCall, key: str | None, now_s: float, started: dict[str, float], seed: str) -> None:
        tool_s = self.pace.tool_s(seed)
        self.figures.num_calls += 1
        self.figures.tool_s += tool_s
        if not is_read_only(call.name):
            return
        self.figures.num_read_only += 1
        if key in started:
            self.figures.guesses.num_hits += 1
            self.figures.hidden_s += min(tool_s, now_s - started.pop(key))
            self.budget.give_back(0.0)

    def _drop(self, started: dict[str, float]) -> None:
        for _ in started:
            self.budget.lose()
        started.clear()


def is_read_only(name: str) -> bool:
    return name.split("_")[0] in READ_ONLY_WORDS


def read_runs(path: Path) -> list[list[Message]]:
    """The runs of a transcript file, without what nobody knows."""
    return [[message_of(each) for each in row.messages if each.role in _ROLES] for row in read_transcripts(path)]


_ROLES = ("system", "user", "assistant", "tool")


def speculation_row(path: Path, num_learn: int = 30) -> dict[str, float]:
    """One row for a report: how right, how much speculative, how much hidden and wasted, at the default threshold."""
    figures = measure_predictions(read_runs(path), num_learn=num_learn)
    return {
        "calls": figures.num_calls,
        "speculative": figures.guesses.num_hits,
        "precision": round(figures.precision, 3),
        "coverage": round(figures.coverage, 3),
        "hidden_share": round(figures.hidden, 3),
        "wasted_share": round(figures.waste, 3),
    }
