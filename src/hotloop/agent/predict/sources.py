"""Where an argument's value came from: a place in an earlier result, an earlier argument, somebody's words, or nowhere
(a constant). A recipe names a source for every argument of a call, and gives the calls it would make now.
"""

import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from hotloop.agent.predict.history import History, Tokens
from hotloop.agent.predict.values import call_key, canonical, shape_of

Kind = Literal["result", "argument", "user", "earlier", "model", "constant"]

MAX_CANDIDATES = 8
"""Most calls one recipe proposes at a time."""
_MAX_EXPLANATIONS = 8
_MAX_SAID = 20  # messages of the user that are looked through


@dataclass(frozen=True, slots=True, order=True)
class Source:
    """The `result` of the tool `where`, at the path `what`; its `argument` `what`; a token of the shape `what` in the
    `user`'s latest message, in one `earlier`, or in the `model`'s; or the `constant` `what`, as JSON."""

    kind: Kind
    where: str = ""
    what: str = ""

    def __str__(self) -> str:
        match self.kind:
            case "result":
                return f"{self.where} → {self.what or 'the result'}"
            case "argument":
                return f"{self.where}({self.what})"
            case "constant":
                return f"always {self.what}"
        return {"user": "the user", "earlier": "the user, earlier", "model": "the model"}[self.kind] + f": {self.what}"


@dataclass(frozen=True, slots=True)
class Candidate:
    """A call that may come next. `rank` counts those of its recipe that were not made yet; None: it was."""

    name: str
    arguments: dict[str, Any]
    key: str
    rank: int | None


@dataclass(frozen=True, slots=True)
class Recipe:
    """How to make a call of a tool from what was said before."""

    tool: str
    sources: tuple[tuple[str, Source], ...]

    def candidates(self, history: History) -> list[Candidate]:
        """The calls it proposes, likeliest first: the items of a list in turn, those already asked for left out."""
        columns = self._columns(history)
        if columns is None:
            return []
        fresh: list[Candidate] = []
        made: list[Candidate] = []
        for row in range(max((len(column) for column in columns.values()), default=1)):
            arguments = {name: column[min(row, len(column) - 1)] for name, column in columns.items()}
            key = call_key(self.tool, arguments)
            if key is None or any(key == each.key for each in (*fresh, *made)):
                continue
            if history.has_made(key):
                made.append(Candidate(self.tool, arguments, key, None))
            else:
                fresh.append(Candidate(self.tool, arguments, key, len(fresh)))
            if len(fresh) == MAX_CANDIDATES:
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

    def __str__(self) -> str:
        return f"{self.tool}({', '.join(f'{name}: {source}' for name, source in self.sources)})"


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
        yield from (
            source
            for source in (Source("user", what=what), Source("earlier", what=what), Source("model", what=what))
            if value in values_of(source, history)
        )
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
        found: list[Any] = [
            int(token) for _, token in tokens if token.isascii() and token.isdigit() and len(token) < 16
        ]
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
