"""Values between tags: strings are written as they are, everything else as JSON.

Which one its schema tells, to the grammar and to the parser alike. A value becomes JSON as it comes, strings character
by character.
"""

import json
import re
from collections.abc import Mapping
from typing import Any, Literal

ValueKind = Literal["raw", "nullable", "choice", "json"]
"""How a value is written: a string as it is, the same but for `null`, one of some strings, or JSON."""

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
# Where a value ends in one family or another.
_ENDS = ("</parameter>", "</arg_value>", "</｜DSML｜parameter>")


class WrittenValue:
    """One value on its way to JSON. What `push` and `end` return is the JSON so far, never taken back."""

    def __init__(
        self, parameters: Mapping[str, Any] | None = None, key: str = "", kind: ValueKind | None = None
    ) -> None:
        properties = (parameters or {}).get("properties", {})
        self._is_known = key in properties
        self._schema = resolve(properties[key], parameters or {}) if self._is_known else None
        self._kind: ValueKind = kind or value_kind(self._schema)
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
    is_sayable = all(isinstance(choice, str) and not any(end in choice for end in _ENDS) for choice in listed)
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
