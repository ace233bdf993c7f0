"""Learns from runs which calls a model will probably make, each with a confidence; deterministic, and bounded.

A recipe that can be followed has been tried, and has hit when the model then makes just that call: a rate is directly
the chance that this very call comes, arguments and all. Two questions are learned apart: what comes `next`, before the
model has said anything; and, once it has `named` a tool, with what arguments.

On disk it is one JSON file: names of tools, arguments and fields, shapes of ids (`a_a_9`), counts, and the few values
that several runs had in common (see `habits`). What was said, and what tools answered, is not in it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import msgspec

from hotloop.agent.predict.habits import Candidate, Habits, Number, Recipe, Seconds, Tally
from hotloop.agent.predict.history import History, PastCall
from hotloop.core.errors import ConfigError
from hotloop.core.files import named_errors, write_private
from hotloop.core.message import Message, ToolCall
from hotloop.core.structs import compiled

_VERSION = 1
_MAX_BYTES = 64 << 20
MAX_TOOLS = 64
_NUM_BUCKETS = 10
_CAUTION = 0.9  # what a promise is worth while there is no experience with it
_PRIOR_TRIES = 8.0
_MAX_NAME_CHARS = 128
_WEIGHT = 0.2  # of the last time that was taken, beside those before
_MAX_S = 1e6
_ORDER = 3  # how many of the last events a context has at most
_MAX_RANK = 3  # later items of a list are alike

Question = Literal["next", "named"]
_PRIORS: dict[Question, float] = {"next": 0.1, "named": 0.3}


class Prediction(NamedTuple):
    """A call, and the chance that it is the next. `expected` is that chance before it was calibrated; `hidden_s` what
    is saved if it comes: what the tool takes, as far as the model is still writing meanwhile."""

    name: str
    arguments: dict[str, Any]
    key: str
    expected: float
    confidence: float
    hidden_s: float

    def is_worth(self, wasted_call_s: float) -> bool:
        """Whether it may be expected to save more than it costs, if a call for nothing costs as much as this."""
        return self.confidence * self.hidden_s >= (1 - self.confidence) * wasted_call_s


@dataclass(frozen=True, slots=True)
class Pattern:
    """For people: after this comes that, with arguments from there."""

    question: str
    after: str
    tool: str
    arguments: dict[str, str]
    num_tries: float
    hit_rate: float


class _Guess(NamedTuple):
    candidate: Candidate
    recipe: Recipe
    contexts: tuple[str, ...]
    expected: float


_Buckets = Annotated[list[Tally], msgspec.Meta(min_length=_NUM_BUCKETS, max_length=_NUM_BUCKETS)]


@compiled
class Calibrations(msgspec.Struct, forbid_unknown_fields=True):
    """What expectations have been worth so far: of the calls expected at about this rate, how many came?

    Whoever picks the best of many guesses picks the luckiest too, so rates promise too much. Each is therefore held
    against what then happened, before anything is learned from it.
    """

    next: _Buckets
    named: _Buckets

    def bucket(self, question: Question, expected: float) -> Tally:
        buckets = self.next if question == "next" else self.named
        return buckets[min(int(expected * _NUM_BUCKETS), _NUM_BUCKETS - 1)]

    def confidence(self, question: Question, expected: float) -> float:
        return self.bucket(question, expected).rate(expected * _CAUTION, _PRIOR_TRIES)


@compiled
class Pace(msgspec.Struct, forbid_unknown_fields=True):
    """How fast the model is, lately: from a turn's beginning to its first call's name, and for a character after it."""

    first_s: Seconds = 0.4
    char_s: Seconds = 1 / 240


@compiled
class Predictor(msgspec.Struct, forbid_unknown_fields=True):
    """One for all runs of an agent. `learn` from whole runs, or turn by turn while they run."""

    version: int = _VERSION
    num_runs: Number = 0
    calibrations: Calibrations = msgspec.field(
        default_factory=lambda: Calibrations(*([Tally() for _ in range(_NUM_BUCKETS)] for _ in range(2)))
    )
    pace: Pace = msgspec.field(default_factory=Pace)
    tools: dict[str, Habits] = {}

    def learn(self, messages: Sequence[Message]) -> None:
        run = self.open_run()
        history = History()
        for index, message in enumerate(messages):
            if message.role == "assistant":
                history.follow(messages[:index])
                self.learn_turn(history, message.tool_calls, run)

    def open_run(self) -> int:
        """A number for a new run, so that its turns can be told from those of others."""
        self.num_runs += 1
        return self.num_runs

    def predict(self, history: History, named: str | None = None) -> list[Prediction]:
        """The safe calls that may come next, likeliest first; only of one tool, if the model has `named` it."""
        question: Question = "named" if named else "next"
        return self._judge(question, self._guess(question, history, [named] if named else list(self.tools)))

    def learn_turn(self, history: History, calls: Sequence[ToolCall], run: int) -> None:
        """After `history` the model answered with these calls, or with none."""
        self._score("next", history, list(self.tools), {PastCall(call).key for call in calls})
        for call in calls:
            past = PastCall(call)
            self._score("named", history, [call.name], {past.key})
            self._learn_call(past, history, run)
            history = history.after(call)

    def learn_pace(self, first_s: float | None, num_chars: int, written_s: float) -> None:
        """A call's arguments were written in `written_s`, `first_s` after its turn began if it was the first."""
        if first_s is not None:
            self.pace.first_s = _blend(self.pace.first_s, first_s)
        if num_chars:
            self.pace.char_s = _blend(self.pace.char_s, written_s / num_chars)

    def learn_time(self, name: str, took_s: float) -> None:
        """A call of a tool took as long."""
        if habits := self.tools.get(name):
            habits.took_s = _blend(habits.took_s, took_s)

    def patterns(self) -> list[Pattern]:
        """All that was learned, the most often right first."""
        found = []
        for tool, habits in self.tools.items():
            for recipe in habits.recipes:
                arguments = {name: str(source) for name, source in recipe.sources}
                for context, tally in recipe.tallies.items():
                    question, _, after = context.partition(" ")
                    rate = tally.hits / tally.tries if tally.tries else 0.0
                    found.append(Pattern(question, after, tool, arguments, tally.tries, rate))
        return sorted(found, key=lambda pattern: -pattern.num_tries * pattern.hit_rate)

    def _guess(self, question: Question, history: History, names: Iterable[str]) -> list[_Guess]:
        guesses = []
        for name in names:
            for recipe in self.tools[name].recipes if name in self.tools else ():
                for candidate in recipe.candidates(name, history):
                    contexts = _contexts(question, candidate, history)
                    expected = recipe.rate(contexts, _PRIORS[question])
                    guesses.append(_Guess(candidate, recipe, contexts, expected))
        return guesses

    def _judge(self, question: Question, guesses: Iterable[_Guess]) -> list[Prediction]:
        """One prediction a safe call: where several recipes make it, the one that promises most speaks for it."""
        best: dict[str, _Guess] = {}
        for guess in (each for each in guesses if each.candidate.is_safe):
            known = best.setdefault(guess.candidate.key, guess)
            if known.expected < guess.expected:
                best[guess.candidate.key] = guess
        found = []
        for key, guess in best.items():
            name, arguments = guess.candidate.name, guess.candidate.arguments
            confidence = self.calibrations.confidence(question, guess.expected)
            hidden_s = self._hidden_s(question, name, len(key) - len(name))
            found.append(Prediction(name, arguments, key, guess.expected, confidence, hidden_s))
        return sorted(found, key=lambda prediction: -prediction.confidence)

    def _hidden_s(self, question: Question, name: str, num_chars: int) -> float:
        """What a hit saves. A tool that was never timed is taken to be slow: then its first call tells."""
        writes_s = num_chars * self.pace.char_s + (self.pace.first_s if question == "next" else 0.0)
        took_s = self.tools[name].took_s
        return writes_s if took_s is None else min(took_s, writes_s)

    def _score(self, question: Question, history: History, names: Iterable[str], came: set[str | None]) -> None:
        guesses = self._guess(question, history, names)
        for prediction in self._judge(question, guesses):
            self.calibrations.bucket(question, prediction.expected).add(prediction.key in came)
        for guess in guesses:
            guess.recipe.add(guess.contexts, guess.candidate.key in came)

    def _learn_call(self, call: PastCall, history: History, run: int) -> None:
        if len(call.name) > _MAX_NAME_CHARS:
            return
        habits = self.tools.pop(call.name, None) or Habits()
        self.tools[call.name] = habits  # the last in the order is the last that was called
        for recipe, candidate in habits.learn(call, history, run):
            # It was found because it fits. That says something of where arguments come from, nothing of when.
            recipe.add(_contexts("named", candidate, history), is_hit=True)
        while len(self.tools) > MAX_TOOLS:
            self.tools.pop(next(iter(self.tools)))


def _blend(known: float | None, seen: float) -> float:
    seen = min(max(seen, 0.0), _MAX_S)
    return seen if known is None else known + _WEIGHT * (seen - known)


def _contexts(question: Question, candidate: Candidate, history: History) -> tuple[str, ...]:
    """From the widest to the narrowest: which item of a list it is, what happened last, and what the user has given."""
    item = "again" if candidate.rank is None else f"#{min(candidate.rank, _MAX_RANK) + 1}"
    trail = ["start", *history.trail][-_ORDER:]
    tails = [" → ".join(trail[-length:]) for length in range(1, len(trail) + 1)]
    if trail[-1] == "user":
        tails.append(f"{tails[-1]} with {'+'.join(history.unused_shapes)}")
    return (f"{question} {item}", *(f"{question} {item} after {tail}" for tail in tails))


def save_predictor(predictor: Predictor, path: Path) -> None:
    """Raises ConfigError where the file cannot be written; what was there is then still there."""
    with named_errors("write", path):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_private(path, msgspec.json.encode(predictor))


def load_predictor(path: Path) -> Predictor:
    """Raises ConfigError where there is no such file, or one that is damaged."""
    with named_errors("read", path), path.open("rb") as file:
        data = file.read(_MAX_BYTES)
    try:
        predictor = msgspec.json.decode(data, type=Predictor)
        if predictor.version != _VERSION:
            raise ValueError(f"its version is {predictor.version}, and this program reads {_VERSION}")
    except ValueError as error:
        raise ConfigError(f"{path} is not a predictor's file: {error}") from error
    return predictor
