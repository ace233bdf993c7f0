"""Calls written as tags: `<tool_call> <function=name> <parameter=key> value </parameter> </function> </tool_call>`.

The arguments are made into JSON as they come, strings character by character. A value ends at its closing tag and
nowhere else, so code that speaks of these tags can be an argument; what stands between two parameters is ignored.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hotloop.chat.stream import MarkedParser
from hotloop.chat.xml_values import ValueKind, resolve, to_json, types_of, value_kind
from hotloop.core.message import Tool

CALL, FUNCTION, PARAMETER = "<tool_call>", "<function=", "<parameter="
END_CALL, END_FUNCTION, END_PARAMETER = "</tool_call>", "</function>", "</parameter>"

_MAX_NAME = 256
_ESCAPED = re.compile(r"\\.")
_NULLS = ("null", "None")


class XmlCallParser(MarkedParser):
    """Prose, and calls that are tags. Some models forget the outer tag: a function opens a call by itself."""

    def __init__(self, tools: Sequence[Tool] = ()) -> None:
        super().__init__(CALL, FUNCTION)
        self._schemas = {tool.name: tool.parameters for tool in tools}
        self._name = ""
        self._num_parameters = 0
        self._value = _Written()
        self._tags: dict[str, Callable[[], None]] = {}
        self._tail = ""

    def opened(self, opening: str) -> None:
        if opening == FUNCTION:
            self._begin_name()
        else:
            self._expect({FUNCTION: self._begin_name})

    def cut(self) -> None:
        if self.answer.is_calling:
            self.answer.cut_call()
            self.raw = ""
        elif self.state == self._after:
            self.raw = ""

    def _expect(self, tags: dict[str, Callable[[], None]]) -> None:
        self._tags, self._tail, self.state = tags, "", self._tag

    def _tag(self, char: str) -> None:
        self.raw += char
        self._tail = (self._tail + char).lstrip()
        if self._tail in self._tags:
            self._tags[self._tail]()
        elif self._tail and not any(tag.startswith(self._tail) for tag in self._tags):
            if self.answer.is_calling:
                self._tail = self._tail[1:]
            else:
                self.give_back()

    def _begin_name(self) -> None:
        self._name, self.state = "", self._in_name

    def _in_name(self, char: str) -> None:
        self.raw += char
        if char == ">" and self._name.strip():
            self._name, self._num_parameters = self._name.strip(), 0
            self._expect({PARAMETER: self._begin_key, END_FUNCTION: self._end_function})
            return
        self._name += char
        if char in "<>\n" or len(self._name) > _MAX_NAME:
            self.give_back()

    def _begin_key(self) -> None:
        self._tail, self.state = "", self._in_key

    def _in_key(self, char: str) -> None:
        self.raw += char
        if char == ">":
            self._begin_value(self._tail.strip())
            return
        self._tail += char
        if char in "<\n":
            if self.answer.is_calling:
                self._expect(self._tags)
            else:
                self.give_back()

    def _begin_value(self, key: str) -> None:
        if not self.answer.is_calling:
            self.answer.open_call(self._name)
        self.raw = ""
        self.answer.arguments(("{" if self._num_parameters == 0 else ", ") + json.dumps(key, ensure_ascii=False) + ": ")
        self._num_parameters += 1
        self._value = _Written(self._schemas.get(self._name, {}), key)
        self._tail, self.state = "", self._first_of_value

    def _first_of_value(self, char: str) -> None:
        self.state = self._in_value
        if char != "\n":
            self.again(char)

    def _in_value(self, char: str) -> None:
        self._tail += char
        while (
            self._tail
            and not ("\n" + END_PARAMETER).startswith(self._tail)
            and not END_PARAMETER.startswith(self._tail)
        ):
            self.answer.arguments(self._value.push(self._tail[0]))
            self._tail = self._tail[1:]
        if not self._tail.endswith(END_PARAMETER):
            return
        if self._tail == END_PARAMETER and self._value.is_quoting:
            self.answer.arguments("".join(map(self._value.push, self._tail)))
            self._tail = ""
            return
        self.answer.arguments(self._value.end())
        self._expect({PARAMETER: self._begin_key, END_FUNCTION: self._end_function})

    def _end_function(self) -> None:
        if not self.answer.is_calling:
            self.answer.open_call(self._name)
        self.answer.arguments("}" if self._num_parameters else "{}")
        self.answer.close_call()
        self.raw, self.state = "", self._after

    def _after(self, char: str) -> None:
        self.raw = (self.raw + char).lstrip()
        if self.raw == END_CALL:
            self.to_prose()
        elif not END_CALL.startswith(self.raw):
            self.give_back()


class _Written:
    """One value on its way to JSON. What `push` and `end` return is the JSON so far, never taken back."""

    def __init__(self, parameters: Mapping[str, Any] | None = None, key: str = "") -> None:
        properties = (parameters or {}).get("properties", {})
        self._is_known = key in properties
        self._schema = resolve(properties[key], parameters or {}) if self._is_known else None
        self._kind = value_kind(self._schema)
        if self._kind is ValueKind.CHOICE:
            self._kind = ValueKind.RAW
        self._text = ""
        self._is_begun = False

    @property
    def is_quoting(self) -> bool:
        """Whether a JSON string is open, which a tag does not end."""
        return self._is_known and self._kind is ValueKind.JSON and _ESCAPED.sub("", self._text).count('"') % 2 == 1

    def push(self, char: str) -> str:
        self._text += char
        if self._kind is ValueKind.JSON:
            return ""
        if self._kind is ValueKind.NULLABLE and any(null.startswith(self._text) for null in _NULLS):
            return ""
        self._kind = ValueKind.RAW
        text, self._text = self._text, ""
        quote = "" if self._is_begun else '"'
        self._is_begun = True
        return quote + json.dumps(text, ensure_ascii=False)[1:-1]

    def end(self) -> str:
        if self._kind is ValueKind.JSON:
            return to_json(self._text, types_of(self._schema))
        if self._kind is ValueKind.NULLABLE and self._text in _NULLS:
            return "null"
        return json.dumps(self._text, ensure_ascii=False)[0 if not self._is_begun else 1 :]
