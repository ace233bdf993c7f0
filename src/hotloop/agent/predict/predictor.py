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

from hotloop.agent.predict.habits import Candidate, Habits, Number, Recipe, Tally
from hotloop.agent.predict.history import History, PastCall
from hotloop.core.errors import ConfigError
from hotloop.core.files import named_errors, write_private
from hotloop.core.message import Message, ToolCall

_VERSION = 1
_MAX_BYTES = 64 << 20
MAX_TOOLS = 64
_NUM_BUCKETS = 10
_CAUTION = 0.9  # what a promise is worth while there is no experience with it
_PRIOR_TRIES = 8.0
_MAX_NAME_CHARS = 128
_ORDER = 3  # how many of the last events a context has at most
_MAX_RANK = 3  # later items of a list are alike

Question = Literal["next", "named"]
_PRIORS: dict[Question, float] = {"next": 0.1, "named": 0.3}


class Prediction(NamedTuple):
    """A call, and the chance that it is the next. `expected` is that chance before it was calibrated."""

    name: str
    arguments: dict[str, Any]
    key: str
    expected: float
    confidence: float


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


class Predictor(msgspec.Struct, forbid_unknown_fields=True):
    """One for all runs of an agent. `learn` from whole runs, or turn by turn while they run."""

    version: int = _VERSION
    num_runs: Number = 0
    calibrations: Calibrations = msgspec.field(
        default_factory=lambda: Calibrations(*([Tally() for _ in range(_NUM_BUCKETS)] for _ in range(2)))
    )
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
            confidence = self.calibrations.confidence(question, guess.expected)
            found.append(Prediction(guess.candidate.name, guess.candidate.arguments, key, guess.expected, confidence))
        return sorted(found, key=lambda prediction: -prediction.confidence)

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


def _contexts(question: Question, candidate: Candidate, history: History) -> tuple[str, ...]:
    """From the widest to the narrowest: which item of a list it is, and what happened last."""
    item = "again" if candidate.rank is None else f"#{min(candidate.rank, _MAX_RANK) + 1}"
    trail = ["start", *history.trail][-_ORDER:]
    tails = [" → ".join(trail[-length:]) for length in range(1, len(trail) + 1)]
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
        raise ConfigError(f"{path} is not what a predictor has written: {error}") from error
    return predictor
