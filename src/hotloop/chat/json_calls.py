"""Calls written as JSON objects: `{"name": ..., "arguments": {...}}`, one or several, between a family's own words.

Lenient where no grammar held the model: keys in any order, `parameters` for `arguments`, arguments quoted as a string,
keys nobody asked for, a closing word that never comes. Within the arguments only strings and brackets are told apart.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass

from hotloop.chat.openings import FENCE, CallOpening
from hotloop.chat.stream import EventCollector, MarkedParser
from hotloop.core.message import Tool

_ARGUMENTS = ("arguments", "parameters")
# A name as Mistral's newer models write it: [TOOL_CALLS]name[CALL_ID]123[ARGS]{...}
_BARE_NAME = re.compile(r"\s*([\w.-]{1,64})(?:\[CALL_ID\]\w{0,64})?(?:\[ARGS\])?\s*")
_BARE_NAME_CHARS = re.compile(r"[\w.\-\[\]\s]{1,200}")


@dataclass(frozen=True, slots=True)
class JsonMarks:
    """How one family sets calls apart from prose."""

    opening: str
    closing: str = ""
    joiner: str = ""
    """The character between two calls, beside whitespace."""
    is_bare: bool = False
    """Whether an answer that begins with an object may be a call, without the opening."""
    has_names: bool = False
    """Whether the opening may be followed by the name itself, and the arguments by themselves."""
    has_fences: bool = False
    """Whether an object that names a tool is a call in a fence, or where the answer begins, without the opening."""


class JsonCallParser(MarkedParser):
    """Prose, and calls that are JSON objects."""

    def __init__(self, marks: JsonMarks, tools: Sequence[Tool] = ()) -> None:
        self._names = [tool.name for tool in tools if marks.has_fences]
        super().__init__(marks.opening, *([FENCE] if self._names else []))
        self._marks = marks
        self._closing = marks.closing
        self._opening: CallOpening | None = None
        self._object: _CallObject | None = None
        self._value: _Value | None = None
        self._tail = ""
        if marks.is_bare or self._names:
            self.state = self._start

    def opened(self, opening: str) -> None:
        is_fenced = opening == FENCE
        self._closing = FENCE if is_fenced else self._marks.closing
        self._opening = CallOpening(self._names, is_fenced=True) if is_fenced else None
        self.state = self._in_opening if is_fenced else self._before

    def cut(self) -> None:
        if self._object:
            self._object.cut()

    def _start(self, char: str) -> None:
        if char == "{" and self._marks.is_bare:
            self.raw = char
            self._begin_object(is_bare=True)
        elif char == "{":
            self.raw, self._closing = char, ""
            self._begin_opening()
        elif char.isspace():
            self.answer.text(char)
        else:
            self.to_prose()
            self.again(char)

    def _begin_opening(self) -> None:
        self._opening = CallOpening(self._names, is_fenced=False)
        self._opening.push("{")
        self.state = self._in_opening

    def _in_opening(self, char: str) -> None:
        """In an object that is a call if it names a tool."""
        assert self._opening is not None
        self.raw += char
        if not self._opening.push(char):
            self.give_back()
        elif self._opening.is_whole:
            self._begin_object()
            for known in self.raw[self.raw.index("{") + 1 :]:
                self._in_object(known)

    def _before(self, char: str) -> None:
        self.raw += char
        if char == "{":
            self._begin_object()
        elif self._marks.has_names and char not in "[ \n":
            self.state = self._bare_name
        elif not char.isspace() and not (char == "[" and self._marks.closing == "]" and "[" not in self._body):
            self.give_back()

    @property
    def _body(self) -> str:
        """What was read since the opening, but for the last character."""
        return self.raw[len(self._marks.opening) : -1]

    def _begin_object(self, *, is_bare: bool = False) -> None:
        self._object = _CallObject(self.answer, is_bare=is_bare)
        self.state = self._in_object

    def _in_object(self, char: str) -> None:
        assert self._object is not None
        is_taken = self._object.push(char)
        if self._object.is_called:
            self.raw = ""
        else:
            self.raw += char
        if self._object.is_over:
            self._object = None
            self._tail, self.state = "", self._after
            if not is_taken:
                self.again(char)
        elif not is_taken:
            self._object = None
            self.give_back()

    def _after(self, char: str) -> None:
        """Behind a call: another one, the closing word, or prose again."""
        tail = (self._tail + char).lstrip()
        if not tail or tail == self._marks.joiner:
            self._tail = tail
        elif tail.removeprefix(self._marks.joiner).lstrip() == "{":
            self._begin_next(tail)
        elif tail == self._closing:
            self.to_prose()
        elif self._closing.startswith(tail) or (self._is_joined and char.isspace()):
            self._tail = tail
        else:
            self.to_prose()
            self.again(tail)

    def _begin_next(self, tail: str) -> None:
        self.raw = tail
        if self._opening is None:
            self._begin_object()
        else:
            self._begin_opening()

    @property
    def _is_joined(self) -> bool:
        return bool(self._marks.joiner) and self._tail.startswith(self._marks.joiner)

    def _bare_name(self, char: str) -> None:
        self.raw += char
        if char == "{" and (match := _BARE_NAME.fullmatch(self._body)):
            self.raw = ""
            self.answer.open_call(match[1])
            self._value = _Value(char)
            self.answer.arguments(char)
            self.state = self._bare_arguments
        elif not _BARE_NAME_CHARS.fullmatch(self._body + char):
            self.give_back()

    def _bare_arguments(self, char: str) -> None:
        assert self._value is not None
        self._value.push(char)
        self.answer.arguments(char)
        if self._value.is_over:
            self.answer.close_call()
            self.to_prose()


class _Value:
    """Where a JSON value ends. `is_over` once its last character was pushed; a number ends before the next one."""

    __slots__ = ("_depth", "_is_escaped", "_is_string", "is_over", "kind")

    def __init__(self, first: str) -> None:
        self.kind = {"{": "object", "[": "array", '"': "string"}.get(first, "scalar")
        self.is_over = False
        self._depth = int(first in "{[")
        self._is_string = first == '"'
        self._is_escaped = False

    def push(self, char: str) -> bool:
        """False if the value had ended before this character."""
        if self._is_string:
            self._in_string(char)
        elif self.kind == "scalar":
            return char not in ',}]:"[{' and not char.isspace()
        elif char == '"':
            self._is_string = True
        elif char in "{[":
            self._depth += 1
        elif char in "}]":
            self._depth -= 1
            self.is_over = self._depth == 0
        return True

    def _in_string(self, char: str) -> None:
        if self._is_escaped:
            self._is_escaped = False
        elif char == "\\":
            self._is_escaped = True
        elif char == '"':
            self._is_string = False
            self.is_over = self._depth == 0


class _CallObject:
    """One call's object, from behind its first brace. It is called once its name is known and its arguments began."""

    def __init__(self, answer: EventCollector, *, is_bare: bool) -> None:
        self.is_called = False
        self.is_over = False
        self._answer = answer
        self._is_bare = is_bare
        self._state = self._key
        self._key_text: str | None = None
        self._num_keys = 0
        self._value: _Value | None = None
        self._text = ""  # of the key or the value being read
        self._name: str | None = None
        self._arguments: str | None = None  # read before the name was
        self._is_streaming = False

    def push(self, char: str) -> bool:
        """False if this character cannot come here: the object is over, or was never a call."""
        is_taken = self._state(char)
        if not is_taken and self.is_called:
            self.cut()
            self.is_over = True
        return is_taken

    def cut(self) -> None:
        """Nothing follows: a call whose arguments are whole is a call."""
        if not self._answer.is_calling:
            return
        if self._is_streaming:
            self._answer.cut_call()
        else:
            self._answer.close_call()

    def _key(self, char: str) -> bool:
        if char == "}":
            return self._end()
        if char == '"':
            self._text, self._state, self._value = "", self._in_key, _Value(char)
        return char == '"' or char.isspace()

    def _in_key(self, char: str) -> bool:
        assert self._value is not None
        self._value.push(char)
        if not self._value.is_over:
            self._text += char
            return True
        self._key_text, self._state = self._text, self._colon
        self._num_keys += 1
        return not self._is_bare or self._num_keys > 1 or self._text in ("name", "type")

    def _colon(self, char: str) -> bool:
        if char == ":":
            self._state = self._before_value
        return char == ":" or char.isspace()

    def _before_value(self, char: str) -> bool:
        if char.isspace():
            return True
        self._value, self._text, self._state = _Value(char), char, self._in_value
        if self._value.kind == "object" and self._is_arguments and self._name is not None:
            self._call("{")
            self._is_streaming = True
        return char not in ",:}]"

    @property
    def _is_arguments(self) -> bool:
        return self._key_text in _ARGUMENTS and not self.is_called and self._arguments is None

    def _in_value(self, char: str) -> bool:
        assert self._value is not None
        if not self._value.push(char):
            self._state = self._after_value
            return self._keep_value() and self._after_value(char)
        if self._is_streaming:
            self._answer.arguments(char)
        else:
            self._text += char
        if self._value.is_over:
            self._state = self._after_value
            return self._keep_value()
        return True

    def _after_value(self, char: str) -> bool:
        if char == "}":
            return self._end()
        if char == ",":
            self._state = self._key
        return char == "," or char.isspace()

    def _keep_value(self) -> bool:
        """Make what it can of a whole value; False if it shows that this is no call."""
        if self._is_streaming:
            self._is_streaming = False
        elif self._key_text == "name" and self._name is None:
            self._name = _string(self._text)
            if self._name is not None and self._arguments is not None:
                self._call(self._arguments)
            return bool(self._name)
        elif self._is_arguments:
            self._arguments = _arguments(self._text)
            if self._arguments is not None and self._name is not None:
                self._call(self._arguments)
            return self._arguments is not None
        elif self._is_bare and self._num_keys == 1:
            return self._text == '"function"'
        return True

    def _call(self, arguments: str) -> None:
        assert self._name is not None
        self.is_called = True
        self._answer.open_call(self._name)
        self._answer.arguments(arguments)

    def _end(self) -> bool:
        if not self.is_called and self._name is not None and not self._is_bare:
            self._call("{}")
        if not self.is_called:
            return False
        self._answer.close_call()
        self.is_over = True
        return True


def _string(text: str) -> str | None:
    try:
        value = json.loads(text, strict=False)
    except ValueError:
        return None
    return value if isinstance(value, str) else None


def _arguments(text: str) -> str | None:
    """The object that stands for a call's arguments; None if that cannot be one."""
    if text.startswith("{"):
        return text
    inner = (_string(text) if text.startswith('"') else text) or ""
    if inner in ("", "null"):
        return "{}"
    return inner if text.startswith('"') and inner.lstrip().startswith("{") else None
