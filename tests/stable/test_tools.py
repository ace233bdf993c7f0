"""However tools are listed, the model reads the same."""

import json
import random
from typing import Any

from hotloop.core.message import Tool
from hotloop.stable.tools import canonical_schema, canonical_tools

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "b": {"type": "string", "description": "B.", "enum": ["z", "a"]},
        "a": {"anyOf": [{"type": "integer", "minimum": 1}, {"type": "null"}], "default": {"y": 1, "x": 2}},
    },
    "required": ["b", "a"],
    "additionalProperties": False,
}
TOOLS = [Tool(name, f"Does {name}.", SCHEMA) for name in ("write", "read", "list")]


def shuffled(value: Any, chance: random.Random, *, keep: bool = False) -> Any:
    """The same schema, with its keywords and required names in another order."""
    if not isinstance(value, dict):
        return value
    keys = list(value)
    if not keep:
        chance.shuffle(keys)
    mixed = {key: shuffled(value[key], chance, keep=key in ("properties", "default")) for key in keys}
    if "required" in mixed:
        mixed["required"] = chance.sample(mixed["required"], len(mixed["required"]))
    return mixed


def test_shuffled_tools_are_the_same_tools() -> None:
    usual = repr(canonical_tools(TOOLS))
    for seed in range(20):
        chance = random.Random(seed)
        tools = [Tool(tool.name, tool.description, shuffled(tool.parameters, chance)) for tool in TOOLS]
        chance.shuffle(tools)
        assert repr(canonical_tools(tools)) == usual
    assert [tool.name for tool in canonical_tools(TOOLS)] == ["list", "read", "write"]


def test_a_schema_as_most_write_it_stays_as_it_is() -> None:
    assert json.dumps(canonical_schema(SCHEMA)) == json.dumps(SCHEMA)


def test_what_has_a_meaning_keeps_its_order() -> None:
    schema = {
        "x-b": 1,
        "$defs": {"z": True, "y": {"const": {"b": 1, "a": 2}, "type": "object"}},
        "required": ["q", "p"],
    }
    assert json.dumps(canonical_schema(schema)) == (
        '{"required": ["p", "q"], "$defs": {"z": true, "y": {"type": "object", "const": {"b": 1, "a": 2}}}, "x-b": 1}'
    )


def test_a_property_may_have_the_name_of_a_keyword() -> None:
    properties = {"required": {"type": "string"}, "enum": {"title": "x", "type": "array"}, "default": {}}
    assert list(canonical_schema({"properties": properties})["properties"]) == ["required", "enum", "default"]
    assert (
        json.dumps(canonical_schema({"required": "odd", "properties": []})) == '{"properties": [], "required": "odd"}'
    )
