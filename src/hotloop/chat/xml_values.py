"""How a parameter is written between tags: strings as they are, everything else as JSON. Which one its schema tells.

The grammar and the parser both ask here, so that what one lets pass the other reads back as the same value.
"""

import json
from collections.abc import Mapping
from enum import Enum, auto
from typing import Any

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


class ValueKind(Enum):
    """How a value is written."""

    RAW = auto()
    """A string, as it is."""
    NULLABLE = auto()
    """A string as it is; `null` is no string but null."""
    CHOICE = auto()
    """One of some strings, as they are."""
    JSON = auto()


def value_kind(schema: Any) -> ValueKind:
    if not isinstance(schema, Mapping):
        return ValueKind.JSON
    if choices(schema):
        return ValueKind.CHOICE
    if _is_free(schema, "string"):
        return ValueKind.RAW
    branches = schema.get("anyOf", schema.get("oneOf"))
    if isinstance(branches, list):
        is_nullable = len(branches) == 2 and {_free_type(branch) for branch in branches} == {"string", "null"}
    else:
        is_nullable = _named_types(schema) == {"string", "null"} and not schema.keys() & (_LIMITS | _LISTS)
    return ValueKind.NULLABLE if is_nullable else ValueKind.JSON


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
        definitions = root.get(places[1]) if len(places) == 3 and places[1] in _DEFINITIONS else None
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


def _is_free(schema: Any, name: str) -> bool:
    return isinstance(schema, Mapping) and _named_types(schema) == {name} and not schema.keys() & (_LIMITS | _LISTS)


def _named_types(schema: Mapping[str, Any]) -> set[str]:
    named = schema.get("type")
    return {name for name in (named if isinstance(named, list) else [named]) if isinstance(name, str)}


def _free_type(schema: Any) -> str | None:
    """The type of a branch that asks for nothing but a type."""
    return next((name for name in ("string", "null") if _is_free(schema, name)), None)
