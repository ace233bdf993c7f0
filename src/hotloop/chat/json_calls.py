"""Calls written as JSON objects: `{"name": ..., "arguments": {...}}`, one or several, between a family's own words; or
with the name among those words, and only the arguments in JSON.

Lenient where no grammar held the model: keys in any order, `parameters` for `arguments`, arguments quoted as a string,
keys nobody asked for, a closing word that never comes, braces doubled as some templates have them. Within the arguments
only strings and brackets are told apart.
"""

import json
import re
from collections.abc import Sequence
from typing import NamedTuple

from hotloop.chat.lark import FENCE
from hotloop.chat.stream import EventCollector, MarkedParser
from hotloop.core.message import Tool
from hotloop.core.nesting import Nesting

_SPACE = " \t\r\n"
_ARGUMENTS = ('"arguments"', '"parameters"')
_HEAD_CHARS = re.compile(r"[\w.:|<>｜▁`\-\[\]\s]{1,256}")


class JsonMarks(NamedTuple):
    """How one family sets calls apart from prose."""

    opening: str
    closing: str = ""
    joiner: str = ""
    """The character between two calls, beside whitespace."""
    is_bare: bool = False
    """Whether an answer that begins with an object may be a call, without the opening."""
    head: re.Pattern[str] | None = None
    """What may stand between the opening and arguments by themselves: the call's `name`, perhaps its `number`."""
    openings: tuple[str, ...] = ()
    """What opens a call as well: its own mark, where the opening is that of all calls."""
    has_fences: bool = False
    """Whether an object that names a tool is a call in a fence, or where the answer begins, without the opening."""


class JsonCallParser(MarkedParser):
    def __init__(self, marks: JsonMarks, tools: Sequence[Tool] = ()) -> None:
        self._names = tuple(json.dumps(tool.name) for tool in tools if marks.has_fences)
        super().__init__(marks.opening, *marks.openings, loose=(FENCE,) if self._names else ())
        self._marks = marks
        self._closing = marks.closing
        self._num_opening = 0  # characters of the opening that was read
        self._must_name: tuple[str, ...] = ()  # the tools of which an object must name one, to be a call
        self._object: _CallObject | None = None
        self._value = Nesting()
        self._tail = ""
        self._is_doubled = False  # whether one brace more may close the call that was read last
        if marks.is_bare or self._names:
            self.state = self._start

    def opened(self, opening: str) -> None:
        is_fenced, self._num_opening = opening == FENCE, len(opening)
        self._closing = FENCE if is_fenced else self._marks.closing
        self._must_name = self._names if is_fenced else ()
        self._tail, self.state = "", self._in_fence if is_fenced else self._before

    def cut(self) -> None:
        if self._object:
            self._object.cut()

    def _start(self, char: str) -> None:
        if char == "{":
            self.raw = char
            if not self._marks.is_bare:
                self._closing, self._must_name = "", self._names
            self._begin_object(is_bare=self._marks.is_bare)
        elif char.isspace():
            self.answer.text(char)
        else:
            self.to_prose()
            self.again(char)

    def _in_fence(self, char: str) -> None:
        """Behind the fence: its label, if it has one, spaces, and the object. `_tail` is the label, or one space."""
        self.raw += char
        is_labelled = self._tail in ("", "json", " ")
        if is_labelled and char == "{":
            self._begin_object()
        elif is_labelled and char in _SPACE:
            self._tail = " "
        elif "json".startswith(self._tail + char):
            self._tail += char
        else:
            self.give_back()

    def _before(self, char: str) -> None:
        self.raw += char
        if char == "{":
            self._begin_object()
        elif self._marks.head and char not in "[ \n":
            self.state = self._head
        elif not char.isspace() and not (char == "[" and self._marks.closing == "]" and "[" not in self._body):
            self.give_back()

    @property
    def _body(self) -> str:
        """What was read since the opening, but for the last character."""
        return self.raw[self._num_opening : -1]

    def _begin_object(self, *, is_bare: bool = False) -> None:
        self._object = _CallObject(self.answer, is_bare=is_bare, names=self._must_name)
        self.state = self._in_object

    def _in_object(self, char: str) -> None:
        assert self._object is not None
        is_taken = self._object.push(char)
        self.raw = "" if self._object.is_called else self.raw + char
        if self._object.is_over:
            self._is_doubled = self._object.is_doubled
            self._object = None
            self._tail, self.state = "", self._after
            if not is_taken:
                self.again(char)
        elif not is_taken:
            self._object = None
            self.give_back()

    def _after(self, char: str) -> None:
        """Behind a call: another one, the closing word, or prose again."""
        if char == "}" and self._is_doubled and not self._tail:
            self._is_doubled = False
            return
        tail = (self._tail + char).lstrip()
        joiner = self._marks.joiner
        if not tail or tail == joiner:
            self._tail = tail
        elif tail.removeprefix(joiner).lstrip() == "{":
            self.raw = tail
            self._begin_object()
        elif tail == self._closing:
            self.to_prose()
        elif self._closing.startswith(tail) or (joiner and self._tail.startswith(joiner) and char.isspace()):
            self._tail = tail
        else:
            self.to_prose()
            self.again(tail)

    def _head(self, char: str) -> None:
        assert self._marks.head
        self.raw += char
        if char == "{" and (match := self._marks.head.fullmatch(self._body)):
            self.raw = ""
            self.answer.open_call(match["name"], match.groupdict().get("number"))
            self._value, self.state = Nesting(), self._bare_arguments
            self._bare_arguments(char)
        elif not _HEAD_CHARS.fullmatch(self._body + char):
            self.give_back()

    def _bare_arguments(self, char: str) -> None:
        self._value.push(char)
        self.answer.arguments(char)
        if not self._value.is_open:
            self.answer.close_call()
            self.to_prose()


class _CallObject:
    """One call's object, from behind its first brace. It is called once its name is known and its arguments began.
    A second brace behind its first one, or behind that of its arguments, is passed over.

    Read token by token: a string, a value in brackets, a bare value, or one of `,:}]`. With `is_bare` the first key
    must be `name`, or `type` with the value `function`; with `names` it must be `name`, with one of these as its value,
    and the arguments follow.
    """

    def __init__(self, answer: EventCollector, *, is_bare: bool, names: Sequence[str]) -> None:
        self.is_called = False
        self.is_over = False
        self.is_doubled = False  # whether its braces are
        self._may_double = True  # whether the brace of an object was the last to come
        self._is_second_due = False  # whether the arguments have a second brace to close
        self._answer = answer
        self._is_bare = is_bare
        self._names = names
        self._nesting = Nesting()
        self._text = ""  # of the token being read
        self._member: list[str] = []  # key, colon, value
        self._num_members = 0
        self._name: str | None = None
        self._arguments: str | None = None  # read before the name was
        self._is_streaming = False

    def push(self, char: str) -> bool:
        """False if this character cannot come here: the object is over, or was never a call."""
        is_taken = self._read(char)
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

    def _read(self, char: str) -> bool:
        if self._passes_over(char):
            return True
        was_open = self._nesting.is_open
        if not was_open and char in _SPACE + ",:}]":
            return self._end_token() and (char in _SPACE or self._take(char))
        if not was_open and not self._can_go_on(char):
            return False
        self._nesting.push(char)
        if self._is_streaming:
            self._answer.arguments(char)
        else:
            self._text += char
        if char == "{" and not was_open and self._is_arguments:
            self._may_double = True
            if self._name is not None:
                self._is_streaming = True
                self._call("{")
        if was_open and not self._nesting.is_open:
            return self._end_token()
        options = self._options
        return options is None or any(option.startswith(self._text) for option in options)

    def _passes_over(self, char: str) -> bool:
        """Whether this is the second of two braces that stand for one."""
        if char in _SPACE:
            return False
        may_double, self._may_double = self._may_double, False
        if may_double and char == "{":
            self._is_second_due, self.is_doubled = bool(self._member), self.is_doubled or not self._member
            return True
        is_due = self._is_second_due and not self._nesting.is_open
        self._is_second_due = self._is_second_due and not is_due
        return is_due and char == "}"

    def _can_go_on(self, char: str) -> bool:
        """Whether a token may begin, or a bare value go on, with this character."""
        if self._text:
            return char not in '"[{'
        return char == '"' if not self._member else len(self._member) == 2

    @property
    def _options(self) -> Sequence[str] | None:
        """What the token being read must be, where there is no choice."""
        match self._num_members, self._member:
            case 0, [] if self._names:
                return ('"name"',)
            case 0, [] if self._is_bare:
                return ('"name"', '"type"')
            case 0, ['"type"', _] if self._is_bare:
                return ('"function"',)
            case 0, [_, _] if self._names:
                return self._names
            case 1, [] if self._names:
                return _ARGUMENTS
            case 1, [_, _] if self._names:
                return ("{",) if not self.is_called else None
        return None

    @property
    def _is_arguments(self) -> bool:
        is_value = len(self._member) == 2 and self._member[0] in _ARGUMENTS
        return is_value and not self.is_called and self._arguments is None

    def _end_token(self) -> bool:
        text, self._text = self._text, ""
        return not text or self._take(text)

    def _take(self, token: str) -> bool:
        """False if this token cannot come here, or shows that this is no call."""
        is_mark = token in (",", ":", "}", "]")
        match self._member:
            case [] | [_, _, _] if token == "}":
                return self._end()
            case []:
                is_taken = not is_mark
            case [_]:
                is_taken = token == ":"
            case [_, _]:
                is_taken = not is_mark and self._take_value(token)
            case _:
                self._member, self._num_members = [], self._num_members + 1
                return token == ","
        self._member.append(token)
        return is_taken

    def _take_value(self, token: str) -> bool:
        if self._is_streaming:
            self._is_streaming = False
        elif self._member[0] == '"name"' and self._name is None:
            self._name = _string(token)
            if self._name is not None and self._arguments is not None:
                self._call(self._arguments)
            return bool(self._name)
        elif self._is_arguments:
            self._arguments = _arguments(token)
            if self._arguments is not None and self._name is not None:
                self._call(self._arguments)
            return self._arguments is not None
        return True

    def _call(self, arguments: str) -> None:
        assert self._name is not None
        self.is_called = True
        self._answer.open_call(self._name)
        self._answer.arguments(arguments)

    def _end(self) -> bool:
        if not self.is_called and self._name is not None and not (self._is_bare or self._names):
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
