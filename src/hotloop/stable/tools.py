"""Tools in one form, however a client happens to send them.

Of tools only what has no meaning is reordered: they are sorted by name, and a schema's keywords stand in the order in
which most schemas have them. Properties keep their order, and so do the values of an `enum`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from hotloop.core.message import Tool

_KEYWORDS = ("type", "title", "description", "enum", "const", "properties", "items", "required", "additionalProperties")
_RANKS = {keyword: rank for rank, keyword in enumerate(_KEYWORDS)}
_SCHEMAS_BY_NAME = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_VALUES = ("enum", "const", "default", "examples")


def canonical_tools(tools: Sequence[Tool]) -> tuple[Tool, ...]:
    return tuple(
        replace(tool, parameters=canonical_schema(tool.parameters))
        for tool in sorted(tools, key=lambda tool: tool.name)
    )


def canonical_schema(schema: Any) -> Any:
    if isinstance(schema, list):
        return [canonical_schema(part) for part in schema]
    if not isinstance(schema, Mapping):
        return schema
    keywords = sorted(schema, key=lambda keyword: (_RANKS.get(keyword, len(_RANKS)), keyword))
    return {keyword: _canonical_part(keyword, schema) for keyword in keywords}


def _canonical_part(keyword: str, schema: Mapping[str, Any]) -> Any:
    part = schema[keyword]
    if keyword in _SCHEMAS_BY_NAME and isinstance(part, Mapping):
        return {name: canonical_schema(inner) for name, inner in part.items()}
    if keyword == "required" and isinstance(part, list):
        return _in_order(part, schema.get("properties"))
    return part if keyword in _VALUES else canonical_schema(part)


def _in_order(required: list[Any], properties: Any) -> list[Any]:
    """The names as the properties have them, then those that are none."""
    ranks = {name: rank for rank, name in enumerate(properties)} if isinstance(properties, Mapping) else {}
    return sorted(
        required, key=lambda name: (ranks.get(name, len(ranks)), name) if isinstance(name, str) else (1e9, "")
    )
