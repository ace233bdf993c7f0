"""Where an argument's value came from: a place in an earlier result, an earlier argument, somebody's words, or nowhere
(a constant).
"""

import itertools
import json
from collections.abc import Iterator
from typing import Any, Literal

import msgspec

from hotloop.agent.predict.history import History, Tokens
from hotloop.agent.predict.values import canonical, shape_of

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
