"""Calls written as tags: `<tool_call> <function=name> <parameter=key> value </parameter> </function> </tool_call>`.

Strings are written as they are, everything else as JSON; which one its schema tells, to the grammar and to the parser
alike. What tags cannot say is refused by name. The arguments are made into JSON as they come, strings character by
character. A value ends at its closing tag and nowhere else, so code that speaks of these tags can be an argument; what
stands between two parameters is ignored.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from hotloop.chat import lark
from hotloop.chat.stream import MarkedParser
from hotloop.core.errors import RequestError
from hotloop.core.message import Tool

ValueKind = Literal["raw", "nullable", "choice", "json"]
"""How a value is written: a string as it is, the same but for `null`, one of some strings, or JSON."""

CALL, FUNCTION, PARAMETER = "<tool_call>", "<function=", "<parameter="
END_CALL, END_FUNCTION, END_PARAMETER = "</tool_call>", "</function>", "</parameter>"

_MAX_NAME = 256
_ESCAPED = re.compile(r"\\.")
_NULLS = ("null", "None")
_DEFINITIONS = ("$defs", "definitions")
_LISTS = {"enum", "const"}
_LIMITS = {"pattern", "minLength", "maxLength", "allOf", "anyOf", "oneOf", "not", "if", "$ref"}
_ALIASES = {"True": "true", "False": "false", "None": "null"}  # as templates print what they were given
_TYPE_NAMES: dict[type, str] = {
    str: "string",
    bool: "boolean",
    int: "integer",
    float: "number",
    list: "array",
    dict: "object",
    type(None): "null",
}
_MAX_REFS = 8
RAW_RULES = (
    f"raw[lazy]: {lark.ANYTHING} {lark.literal(END_PARAMETER)}",
    f'anything: {lark.literal(PARAMETER)} /[^<>\\n]+/ ">\\n" raw "\\n"',
)
_UNSAYABLE = {"allOf", "anyOf", "oneOf", "not", "if", "enum", "const", "$ref", "$dynamicRef", "propertyNames"} | {
    *("minProperties", "maxProperties", "patternProperties", "unevaluatedProperties"),
    *("dependencies", "dependentRequired", "dependentSchemas"),
}


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
        self._kind: ValueKind = value_kind(self._schema)
        if self._kind == "choice":
            self._kind = "raw"
        self._text = ""
        self._is_begun = False

    @property
    def is_quoting(self) -> bool:
        """Whether a JSON string is open, which a tag does not end."""
        return self._is_known and self._kind == "json" and _ESCAPED.sub("", self._text).count('"') % 2 == 1

    def push(self, char: str) -> str:
        self._text += char
        if self._kind == "json":
            return ""
        if self._kind == "nullable" and any(null.startswith(self._text) for null in _NULLS):
            return ""
        self._kind = "raw"
        text, self._text = self._text, ""
        quote = "" if self._is_begun else '"'
        self._is_begun = True
        return quote + json.dumps(text, ensure_ascii=False)[1:-1]

    def end(self) -> str:
        if self._kind == "json":
            return to_json(self._text, types_of(self._schema))
        if self._kind == "nullable" and self._text in _NULLS:
            return "null"
        return json.dumps(self._text, ensure_ascii=False)[0 if not self._is_begun else 1 :]


def function_rules(rule: str, tool: Tool) -> list[str]:
    """What follows `<function=`: the name, the parameters in their order, the closing tag."""
    begin, end = lark.literal(f"{tool.name}>\n"), lark.literal(END_FUNCTION)
    if not tool.is_strict:
        return [f"{rule}: {begin} anything* {end}"]
    _check_sayable(tool)
    schema = lark.parameters(tool)
    required = schema.get("required", [])
    properties = dict(schema["properties"]) | {key: True for key in required if key not in schema["properties"]}
    rules = {key: f"{rule}p{i}" for i, key in enumerate(properties)}
    sequence = " ".join(name + ("" if key in required else "?") for key, name in rules.items())
    return [
        f"{rule}: {begin} {sequence} {end}",
        *(f"{rules[key]}: {_parameter(key, part, schema)}" for key, part in properties.items()),
    ]


def _parameter(key: str, part: Any, root: Mapping[str, Any]) -> str:
    begin, end = lark.literal(f"{PARAMETER}{key}>\n"), lark.literal(f"\n{END_PARAMETER}\n")
    schema = resolve(part, root)
    kind = value_kind(schema)
    if kind == "choice":
        return f"{begin} {lark.either(map(lark.literal, choices(schema)))} {end}"
    if kind == "json":
        return f"{begin} {lark.embed(schema)} {end}"
    return f'{begin} raw "\\n"'


def _check_sayable(tool: Tool) -> None:
    unsayable = tool.parameters.keys() & _UNSAYABLE
    if unsayable:
        reason = f"{min(unsayable)!r} beside its properties, which this model's tool calls cannot say"
        raise RequestError(f"the tool {tool.name!r} has {reason}: use strict: false", param="tools")
    for key in (*tool.parameters.get("properties", {}), *tool.parameters.get("required", [])):
        if not key.strip() or set(key) & set("<>\n") or key != key.strip():
            reason = f"a parameter {key!r:.100}, which this model's tool calls cannot name"
            raise RequestError(f"the tool {tool.name!r} has {reason}", param="tools")


def value_kind(schema: Any) -> ValueKind:
    if not isinstance(schema, Mapping):
        return "json"
    if choices(schema):
        return "choice"
    types = _free_types(schema)
    if types == {"string"}:
        return "raw"
    return "nullable" if types == {"string", "null"} else "json"


def choices(schema: Mapping[str, Any]) -> list[str]:
    """The strings to choose from, where a schema lists nothing but strings that can stand between tags."""
    if len(schema.keys() & _LISTS) != 1 or schema.keys() & _LIMITS or schema.get("type", "string") != "string":
        return []
    listed = schema["enum"] if "enum" in schema else [schema["const"]]
    is_sayable = all(isinstance(choice, str) and "</parameter>" not in choice for choice in listed)
    return listed if is_sayable else []


def resolve(schema: Any, root: Mapping[str, Any]) -> Any:
    """The definition a schema refers to, if that is all it does; else itself, with the definitions it may need."""
    for _ in range(_MAX_REFS):
        if not (isinstance(schema, Mapping) and isinstance(schema.get("$ref"), str)):
            break
        places = schema["$ref"].split("/")
        definitions = root.get(places[1]) if len(places) == 3 and places[1] in (*_DEFINITIONS, "properties") else None
        if places[0] != "#" or not isinstance(definitions, Mapping) or places[2] not in definitions:
            break
        schema = definitions[places[2]]
    if not isinstance(schema, Mapping):
        return schema
    return {**schema, **{key: root[key] for key in _DEFINITIONS if key in root}}


def types_of(schema: Any) -> set[str] | None:
    """The types a value may have; None if the schema does not say."""
    if not isinstance(schema, Mapping):
        return None
    if types := _named_types(schema):
        return types
    if isinstance(schema.get("enum"), list):
        return {_TYPE_NAMES[type(value)] for value in schema["enum"]}
    if "const" in schema:
        return {_TYPE_NAMES[type(schema["const"])]}
    branches = schema.get("anyOf", schema.get("oneOf"))
    found = [types_of(branch) for branch in branches] if isinstance(branches, list) else [None]
    return set().union(*(types for types in found if types)) if all(found) else None


def to_json(text: str, types: set[str] | None) -> str:
    """A written value as JSON: the JSON it already is, or else a string."""
    stripped = text.strip()
    try:
        name = _TYPE_NAMES[type(json.loads(stripped, parse_constant=_refuse))]
    except (ValueError, RecursionError):
        alias = _ALIASES.get(stripped)
        is_alias = alias and types and types & {"boolean" if alias != "null" else "null"}
        return alias if alias and is_alias else json.dumps(text, ensure_ascii=False)
    if types and "string" in types and name not in types and not (name == "integer" and "number" in types):
        return json.dumps(text, ensure_ascii=False)
    return stripped


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


def _free_types(schema: Any) -> set[str]:
    """The types of a schema that asks for nothing but types, or one of some such; empty if it asks for more."""
    if not isinstance(schema, Mapping):
        return set()
    limits = schema.keys() & (_LIMITS | _LISTS)
    if limits in ({"anyOf"}, {"oneOf"}) and isinstance(branches := schema[min(limits)], list):
        found = [_free_types(branch) for branch in branches]
        return set().union(*found) if all(found) else set()
    return set() if limits else _named_types(schema)


def _named_types(schema: Mapping[str, Any]) -> set[str]:
    named = schema.get("type")
    return {name for name in (named if isinstance(named, list) else [named]) if isinstance(name, str)}
