"""How one tool is called: where its arguments come from, the recipes of its calls, and how often they were right.

A constant is kept only if nothing said before explains it, it does not look like somebody's (an id, a date, an address,
an amount), and `MIN_RUNS` runs have used it. Until then there is but a mark of it, too short to tell which of many
values it was. Somebody who comes often would else be written down by name.
"""

import hashlib
import itertools
import json
import re
from collections.abc import Iterable, Iterator
from typing import Annotated, Any, Literal, NamedTuple

import msgspec

from hotloop.agent.predict.history import History, PastCall, Tokens, call_key, canonical, shape_of
from hotloop.core.structs import compiled

MAX_RECIPES = 12
MIN_RUNS = 3
_MAX_CANDIDATES = 8  # calls one recipe proposes at a time
_MAX_ARGUMENTS = 16
_MAX_SOURCES = 24
_MAX_CHOICES = 3  # sources of an argument that are tried in a new recipe, the usual ones first
_MAX_MIXES = 27
_MAX_NEW = 2
_MAX_CONTEXTS = 96
_MAX_MARKS = 32
_MARK_BYTES = 3
_MAX_CONSTANT = 1000
_CONSTANT_WORD = re.compile(r"[^\W\d_][^\W\d]{0,31}")
_FADE = 0.985  # what is left of a count when the next one comes: the last 65 or so weigh most
_PRIOR_TRIES = 2.0  # how many tries of a narrow context outweigh what the wider one says

_Count = Annotated[float, msgspec.Meta(ge=0, le=1e9)]
Number = Annotated[int, msgspec.Meta(ge=0)]
Seconds = Annotated[float, msgspec.Meta(ge=0, le=1e6)]

_MAX_EXPLANATIONS = 8
_MAX_SAID = 20  # messages of the user that are looked through


class Source(msgspec.Struct, frozen=True, array_like=True):
    """The `result` of the tool `where`, at the path `what`; its `argument` `what`; a token of the shape `what` in the
    `user`'s latest message, in one `earlier`, or in the `model`'s; or the `constant` `what`, as JSON."""

    kind: Literal["result", "argument", "user", "earlier", "model", "constant"]
    where: str = ""
    what: str = ""

    def __post_init__(self) -> None:
        if self.kind == "constant":
            json.loads(self.what)  # a file that is damaged is refused when it is read

    def __str__(self) -> str:
        match self.kind:
            case "result":
                return f"{self.where} → {self.what or 'the result'}"
            case "argument":
                return f"{self.where}({self.what})"
            case "constant":
                return f"always {self.what}"
        return {"user": "the user", "earlier": "the user, earlier", "model": "the model"}[self.kind] + f": {self.what}"


class Tally(msgspec.Struct, array_like=True):
    """How often something happened of the times it could have, lately."""

    hits: _Count = 0.0
    tries: _Count = 0.0

    def add(self, is_hit: bool) -> None:
        self.hits = self.hits * _FADE + is_hit
        self.tries = self.tries * _FADE + 1

    def rate(self, prior: float, prior_tries: float) -> float:
        """The mean of a Beta posterior, whose prior is a few tries that went as `prior` says."""
        return (self.hits + prior_tries * prior) / (self.tries + prior_tries)


class Candidate(NamedTuple):
    """A call that may come next. `rank` counts those of its recipe that were not made yet; None: it was.

    `is_safe` if no argument is a value that only a tool's result has: whoever writes a web page or a file that a tool
    reads must not choose what is called next. Results of tools that are trusted may be used.
    """

    name: str
    arguments: dict[str, Any]
    key: str
    rank: int | None
    is_safe: bool


class Recipe(msgspec.Struct, forbid_unknown_fields=True):
    """How to make a call of a tool from what was said before, and how often that was right after what."""

    sources: tuple[tuple[str, Source], ...]
    tallies: dict[str, Tally] = {}
    """By context. A narrow context is believed as far as it has been seen; beyond that, the wider one is."""

    def candidates(self, tool: str, history: History) -> list[Candidate]:
        """The calls it proposes, likeliest first: the items of a list in turn, those already asked for left out."""
        columns = self._columns(history)
        if columns is None:
            return []
        fresh: list[Candidate] = []
        made: list[Candidate] = []
        for row in range(max((len(column) for column in columns.values()), default=1)):
            arguments = {name: column[min(row, len(column) - 1)] for name, column in columns.items()}
            key = call_key(tool, arguments)
            if key is None or any(key == each.key for each in (*fresh, *made)):
                continue
            if any(call.key == key for call in history.calls):
                made.append(Candidate(tool, arguments, key, None, is_safe=True))
            else:
                found = [(source, arguments[name]) for name, source in self.sources if source.kind == "result"]
                is_safe = all(source.where in history.trusted or history.has_used(value) for source, value in found)
                fresh.append(Candidate(tool, arguments, key, len(fresh), is_safe))
            if len(fresh) == _MAX_CANDIDATES:
                break
        return fresh or made[-1:]

    def _columns(self, history: History) -> dict[str, list[Any]] | None:
        """The values of each argument. Arguments with one source between them take turns: from, to, from, to."""
        shared = [source for _, source in self.sources]
        columns = {}
        for index, (name, source) in enumerate(self.sources):
            turn, stride = shared[:index].count(source), shared.count(source)
            values = values_of(source, history)
            column = values if source.kind in ("argument", "constant") else values[turn::stride]
            if not column:
                return None
            columns[name] = column
        return columns

    def rate(self, contexts: Iterable[str], prior: float) -> float:
        """What to expect, given the contexts from the widest to the narrowest."""
        for context in contexts:
            if tally := self.tallies.get(context):
                prior = tally.rate(prior, _PRIOR_TRIES)
        return prior

    def add(self, contexts: Iterable[str], is_hit: bool) -> None:
        for context in contexts:
            self.tallies.setdefault(context, Tally()).add(is_hit)
        if len(self.tallies) > _MAX_CONTEXTS:  # forget the rarest, several at once: so a new one has time
            usual = sorted(self.tallies.items(), key=lambda item: -item[1].tries)
            self.tallies = dict(usual[: _MAX_CONTEXTS * 3 // 4])

    @property
    def num_hits(self) -> float:
        return max((tally.hits for tally in self.tallies.values()), default=0.0)


class _CountedSource(msgspec.Struct, array_like=True):
    source: Source
    count: Number = 0


class _Seen(msgspec.Struct, array_like=True):
    """How many runs have used a constant, and the last that did."""

    num_runs: Number = 0
    last_run: Number = 0


@compiled
class Argument(msgspec.Struct, forbid_unknown_fields=True):
    """Where the values of an argument came from, with counts, and the marks of those that may be constants."""

    sources: list[_CountedSource] = []
    constants: dict[str, _Seen] = {}

    def trace(self, value: Any, history: History, run: int) -> list[Source]:
        """Where this value may have come from, the usual sources first."""
        found = explain(value, history)
        if not found and may_be_constant(value) and (text := canonical(value)) and self._is_usual(text, run):
            found.append(Source("constant", what=text))
        usual = sorted(map(self._count, found), key=lambda each: -each.count)
        while len(self.sources) > _MAX_SOURCES:
            self.sources.remove(min(self.sources, key=lambda each: each.count))
        return [each.source for each in usual]

    def _count(self, source: Source) -> _CountedSource:
        counted = next((each for each in self.sources if each.source == source), None)
        if counted is None:
            counted = _CountedSource(source)
            self.sources.append(counted)
        counted.count += 1
        return counted

    def _is_usual(self, value: str, run: int) -> bool:
        """Note that a run uses a value (as JSON); whether that is usual by now."""
        mark = hashlib.blake2s(value.encode("utf-8", "replace"), digest_size=_MARK_BYTES).hexdigest()
        seen = self.constants.setdefault(mark, _Seen())
        if seen.last_run != run:
            seen.num_runs += 1
            seen.last_run = run
        while len(self.constants) > _MAX_MARKS:
            rarest = min(self.constants.items(), key=lambda item: (item[1].num_runs, item[1].last_run))
            self.constants.pop(rarest[0])
        return seen.num_runs >= MIN_RUNS


@compiled
class Habits(msgspec.Struct, forbid_unknown_fields=True):
    recipes: list[Recipe] = []
    arguments: dict[str, Argument] = {}
    took_s: Seconds | None = None
    """What a call of it takes, lately."""

    def learn(self, call: PastCall, history: History, run: int) -> list[tuple[Recipe, Candidate]]:
        """Find how this call could have been made from what was said before; the recipes that are new."""
        if call.arguments is None or len(call.arguments) > _MAX_ARGUMENTS:
            return []
        choices = []
        for name, value in call.arguments.items():
            if name not in self.arguments and len(self.arguments) >= _MAX_ARGUMENTS:
                return []
            sources = self.arguments.setdefault(name, Argument()).trace(value, history, run)
            choices.append([(name, source) for source in sources[:_MAX_CHOICES]])
        known = [recipe.sources for recipe in self.recipes]
        found = itertools.islice(_fitting(call, choices, history), _MAX_NEW)
        new = [(recipe, candidate) for recipe, candidate in found if recipe.sources not in known]
        for recipe, _ in new:
            while len(self.recipes) >= MAX_RECIPES:
                self.recipes.remove(min(self.recipes, key=lambda recipe: recipe.num_hits))
            self.recipes.append(recipe)
        return [(recipe, candidate) for recipe, candidate in new if recipe in self.recipes]


def _fitting(
    call: PastCall, choices: list[list[tuple[str, Source]]], history: History
) -> Iterator[tuple[Recipe, Candidate]]:
    for mix in itertools.islice(itertools.product(*choices), _MAX_MIXES):
        recipe = Recipe(mix)
        for candidate in recipe.candidates(call.name, history):
            if candidate.key == call.key:
                yield recipe, candidate


def may_be_constant(value: Any) -> bool:
    """Whether a value may be written down: yes, no, a small number, or words without digits and signs."""
    if isinstance(value, str):
        return _CONSTANT_WORD.fullmatch(value) is not None
    return isinstance(value, int) and abs(value) < _MAX_CONSTANT


def values_of(source: Source, history: History) -> list[Any]:
    match source.kind:
        case "result":
            call = history.latest(source.where)
            return call.leaves.get(source.what, []) if call else []
        case "argument":
            value = history.value_of(source.where, source.what)
            return [] if value is None else [value]
        case "user":
            return _pick(source.what, history.said[-1]) if history.said else []
        case "earlier":
            return [value for tokens in reversed(history.said[-_MAX_SAID:-1]) for value in _pick(source.what, tokens)]
        case "model":
            return _pick(source.what, history.answered)
        case "constant":
            return [json.loads(source.what)]


def explain(value: Any, history: History) -> list[Source]:
    """The sources in what was said before that would have given this value."""
    return list(itertools.islice(_explanations(value, history), _MAX_EXPLANATIONS))


def _explanations(value: Any, history: History) -> Iterator[Source]:
    text = canonical(value)
    if text is None:
        return
    names = dict.fromkeys(call.name for call in reversed(history.calls))
    for what in _looks(value):
        sources = (Source("user", what=what), Source("earlier", what=what), Source("model", what=what))
        yield from (source for source in sources if value in values_of(source, history))
    for name in names:
        call = history.latest(name)
        for path, values in (call.leaves if call else {}).items():
            if value in values:
                yield Source("result", name, path)
    for name in names:
        past = next(call for call in reversed(history.calls) if call.name == name)
        for other, earlier in (past.arguments or {}).items():
            if canonical(earlier) == text:
                yield Source("argument", name, other)


def _looks(value: Any) -> list[str]:
    if isinstance(value, bool):
        return []
    if isinstance(value, int):
        return ["integer"]
    if isinstance(value, float):
        return ["number"]
    if not isinstance(value, str):
        return []
    shape = shape_of(value)
    return ([shape] if shape else []) + ["quoted"]


def _pick(what: str, tokens: Tokens) -> list[Any]:
    """The tokens of one look, each once, as the type it stands for."""
    if what == "integer":
        numbers = (token for _, token in tokens if token.isascii() and token.isdigit() and len(token) < 16)
        found: list[Any] = [int(token) for token in numbers]
    elif what == "number":
        found = [value for _, token in tokens if (value := _number(token)) is not None]
    else:
        found = [token for shape, token in tokens if shape == what]
    return list(dict.fromkeys(found))


def _number(token: str) -> float | None:
    try:
        return float(token.lstrip("$€£")) if len(token) < 24 else None
    except ValueError:
        return None
