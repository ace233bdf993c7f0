"""Schemas are closed where that cannot contradict them, and markers are tokens where the vocabulary has them."""

from typing import Any

import pytest
from tests.chat.speaking import HERMES, PLAIN, QWEN

from hotloop.chat.lark import marker, parameters
from hotloop.core.message import Tool

INNER = {"properties": {"x": {"type": "null"}}}
CLOSED = {**INNER, "additionalProperties": False}


def closed(schema: dict[str, Any]) -> dict[str, Any]:
    result = parameters(Tool("f", parameters=schema))
    assert result.pop("type") == "object"
    return result


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ({}, {"properties": {}, "additionalProperties": False}),
        (INNER, CLOSED),
        ({"properties": {"a": INNER}}, {"properties": {"a": CLOSED}, "additionalProperties": False}),
        ({**INNER, "items": {"anyOf": [INNER, True]}}, {**CLOSED, "items": {"anyOf": [CLOSED, True]}}),
        ({"$ref": "#/$defs/A", "$defs": {"A": INNER}}, {"properties": {}, "$ref": "#/$defs/A", "$defs": {"A": CLOSED}}),
        ({"properties": {"properties": {"type": "null"}}}, None),
        ({**INNER, "additionalProperties": INNER}, {**INNER, "additionalProperties": CLOSED}),
    ],
)
def test_a_schema_is_closed(schema: dict[str, Any], expected: dict[str, Any] | None) -> None:
    assert closed(schema) == (expected or {**schema, "additionalProperties": False})


@pytest.mark.parametrize(
    "schema",
    [
        {**INNER, "additionalProperties": True},
        {**INNER, "patternProperties": {"^y": True}},
        {**INNER, "allOf": [INNER]},
        {**INNER, "anyOf": [{"required": ["x"]}]},
        {"properties": {"a": {"allOf": [{"$ref": "#/$defs/A"}, INNER]}}, "$defs": {"A": INNER}},
        {"properties": {"a": {"$ref": "#/$defs/A", **INNER}}, "$defs": {"A": INNER}},
    ],
)
def test_a_schema_that_says_otherwise_is_left_as_it_is(schema: dict[str, Any]) -> None:
    assert closed(schema) == schema


def test_a_marker_is_a_token_only_where_text_cannot_spell_it() -> None:
    assert [marker("<tool_call>", tokenizer) for tokenizer in (PLAIN, QWEN)] == ['"<tool_call>"'] * 2
    assert marker("<tool_call>", HERMES) == f"<[{HERMES.encode('<tool_call>')[0]}]>"
