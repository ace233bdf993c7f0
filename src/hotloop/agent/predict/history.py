"""A conversation as a predictor sees it: what was called and what came of it, what was said, and the values in both.

Everything read here is not to be trusted (results may be megabytes, or nested without end), so that all of it is
bounded: what lies beyond the bounds is not seen.
"""

import itertools
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from hotloop.core.message import Message, ToolCall
from hotloop.wire.arguments import read_arguments

MAX_MESSAGES = 200
"""How far back a predictor looks."""

Tokens = tuple[tuple[str, str], ...]
MAX_RESULT_CHARS = 100_000
MAX_TEXT_CHARS = 8_000
MAX_DEPTH = 8
MAX_LEAVES = 2_000
MAX_VALUE_CHARS = 128
_MAX_SHAPES = 3
_MANY_KEYS = 24  # an object with more is a map from data, not a record with names

Leaves = dict[str, list[Any]]
"""The values of a result by their path, in order; `orders[*].id` are the ids of all orders."""

_WORD = re.compile(r"""[^\s"'`“”‘’,;()\[\]{}<>|*]+""")
_QUOTED = re.compile(r"""(?<!\w)(?:'([^'\n]{1,80})'|"([^"\n]{1,80})"|‘([^’\n]{1,80})’|“([^”\n]{1,80})”)(?!\w)""")
_FIELD = re.compile(r"[A-Za-z][A-Za-z_-]{0,31}")


class PastCall:
    """A call that was made. `result` is empty until it is known."""

    def __init__(self, call: ToolCall) -> None:
        self.id = call.id
        self.name = call.name
        self.arguments = read_arguments(call.arguments)
        self.key = call_key(call.name, self.arguments)
        self.result = ""

    @cached_property
    def given(self) -> frozenset[str]:
        """The values of its arguments, as text."""
        leaves = itertools.islice(_walk(self.arguments or {}, "", 0), MAX_LEAVES)
        return frozenset(str(value) for _, value in leaves)

    @cached_property
    def leaves(self) -> Leaves:
        return {} if self.is_error else leaves_of(self.result)

    @property
    def is_error(self) -> bool:
        return self.result.startswith("Error")


@dataclass(slots=True)
class History:
    """All that was said so far, in order."""

    calls: list[PastCall] = field(default_factory=list)
    said: list[Tokens] = field(default_factory=list)
    """By the user, message by message."""
    answered: Tokens = ()
    """By the model, when it last said something."""
    words: list[frozenset[str]] = field(default_factory=list)
    """Of the user and of the model, message by message: single ones, and what stands in quotes."""
    trail: list[str] = field(default_factory=list)
    """What happened, without its values: `user`, the name of a tool, or `name!` where the tool failed."""
    trusted: frozenset[str] = frozenset()
    """Tools of whose results any value may be an argument of a call that nobody has asked for."""
    _messages: list[Message] = field(default_factory=list)

    def follow(self, messages: Sequence[Message]) -> "History":
        """Read what is new; everything, if the past was rewritten."""
        known = len(self._messages)
        if known > len(messages) or any(a is not b for a, b in zip(self._messages, messages, strict=False)):
            self.__init__(trusted=self.trusted)  # type: ignore[misc]
            known = 0
        for message in messages[max(known, len(messages) - MAX_MESSAGES) :]:
            self._read(message)
        self._messages = list(messages)
        return self

    def after(self, call: ToolCall) -> "History":
        """This history and one more call, whose result is not known yet."""
        calls = [*self.calls, PastCall(call)]
        return History(calls, self.said, self.answered, self.words, self.trail, self.trusted)

    def has_used(self, value: Any) -> bool:
        """Whether the user or the model has said a value, or the model has given it to a tool."""
        text = str(value)
        return any(text in words for words in self.words) or any(text in call.given for call in self.calls)

    @property
    def unused_shapes(self) -> list[str]:
        """What the values look like that the user has just given and no call has had yet."""
        tokens = self.said[-1] if self.said else ()
        given = set().union(*(call.given for call in self.calls)) if tokens else set()
        return sorted({shape for shape, token in tokens if shape != "quoted" and token not in given})[:_MAX_SHAPES]

    def latest(self, name: str) -> PastCall | None:
        return next((call for call in reversed(self.calls) if call.name == name and not call.is_error), None)

    def value_of(self, name: str, argument: str) -> Any:
        """What the latest call of a tool had as an argument; None if there was none."""
        for call in reversed(self.calls):
            if call.name == name and call.arguments and argument in call.arguments:
                return call.arguments[argument]
        return None

    def _read(self, message: Message) -> None:
        if message.role in ("user", "assistant"):
            self.words.append(frozenset(words_of(message.content)))
        if message.role == "user":
            self.said.append(tuple(tokens_of(message.content)))
            self.trail.append("user")
        elif message.role == "assistant":
            if message.content:
                self.answered = tuple(tokens_of(message.content))
            self.calls += [PastCall(call) for call in message.tool_calls]
        elif message.role == "tool":
            self._read_result(message)

    def _read_result(self, message: Message) -> None:
        for call in reversed(self.calls):
            if call.id == message.tool_call_id:
                call.result = message.content
                self.trail.append(f"{call.name}!" if call.is_error else call.name)
                return


def canonical(value: Any) -> str | None:
    """The one text of a JSON value; None for what JSON has no word for."""
    try:
        return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    except (ValueError, TypeError, RecursionError):
        return None


def call_key(name: str, arguments: dict[str, Any] | None) -> str | None:
    """What two calls have in common if and only if they are the same call."""
    text = None if arguments is None else canonical(arguments)
    return None if text is None else f"{name}{text}"


def shape_of(token: str) -> str | None:
    """What a token looks like, such as `a_a_9` or `9999-99-99`; None for a mere word, which looks like any other."""
    if not 1 <= len(token) <= MAX_VALUE_CHARS:
        return None
    if re.fullmatch(r"[A-Z0-9]{3,12}", token) and not token.isdigit():
        return f"X{len(token)}"
    if not re.search(r"[A-Za-z]", token):
        return re.sub(r"\d", "9", token)[:32] if re.search(r"\d", token) else None
    if not re.search(r"[0-9_@/.\\]|\w-\w", token):
        return None
    return re.sub(r"\d+", "9", re.sub(r"[^\W\d_]+", "a", token))[:32]


def tokens_of(text: str) -> Iterator[tuple[str, str]]:
    """(shape, token) for what in a text may be a value: ids, numbers, dates, addresses, and what stands in quotes."""
    text = text[-MAX_TEXT_CHARS:]
    yield from (("quoted", token) for token in _quoted(text))
    for token in _single(text):
        if shape := shape_of(token):
            yield shape, token


def words_of(text: str) -> Iterator[str]:
    text = text[-MAX_TEXT_CHARS:]
    yield from _quoted(text)
    yield from _single(text)


def _quoted(text: str) -> Iterator[str]:
    return (next(group for group in match.groups() if group) for match in _QUOTED.finditer(text))


def _single(text: str) -> Iterator[str]:
    return (match.group().strip(".:!?#$\\").removesuffix("'s") for match in _WORD.finditer(text))


def leaves_of(text: str) -> Leaves:
    """What a result holds, by path, each value once. A result that is not JSON holds its tokens, by shape."""
    try:
        value = json.loads(text) if len(text) <= MAX_RESULT_CHARS else None
    except (ValueError, RecursionError):
        value = None
    if isinstance(value, dict | list):
        found = _walk(value, "", 0)
    else:
        found = itertools.chain([("", value)], ((f"~{shape}", token) for shape, token in tokens_of(text)))
    leaves: dict[str, dict[Any, None]] = {}
    for path, leaf in itertools.islice(found, MAX_LEAVES):
        is_prose = isinstance(leaf, str) and len(leaf) > MAX_VALUE_CHARS
        if leaf is not None and not isinstance(leaf, bool) and not is_prose:
            leaves.setdefault(path, {})[leaf] = None
    return {path: list(values) for path, values in leaves.items()}


def _walk(value: Any, path: str, depth: int) -> Iterator[tuple[str, Any]]:
    if depth > MAX_DEPTH:
        return
    if isinstance(value, dict):
        is_map = _is_map(value)
        for key, item in value.items():
            if is_map:
                yield f"{path}{{*}}", key
            yield from _walk(item, f"{path}.*" if is_map else f"{path}.{key}" if path else key, depth + 1)
    elif isinstance(value, list):
        for item in value:
            yield from _walk(item, f"{path}[*]", depth + 1)
    else:
        yield path, value


def _is_map(value: dict[str, Any]) -> bool:
    """Whether the keys are data, not names of fields: such keys are wild in a path, and so never kept."""
    if len(value) > _MANY_KEYS or not all(_FIELD.fullmatch(key) for key in value):
        return True
    items = list(value.values())
    return len(items) > 1 and all(isinstance(each, dict) and each.keys() == items[0].keys() for each in items)
