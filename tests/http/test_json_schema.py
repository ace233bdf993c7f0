"""The validator says what the official suite says, and nothing a client sends can hold it up."""

from typing import Any

import pytest

from hotloop.http.json_schema import first_violation

DEEP = {"properties": {"a": {"items": {"properties": {"b": {"maximum": 0}}}}}}
DRAFT_4 = {"$schema": "http://json-schema.org/draft-04/schema#"}


@pytest.mark.parametrize(
    ("value", "schema", "misfit"),
    [
        ({"a": 1}, {"required": ["a"]}, ""),
        ({}, {"required": ["a"]}, 'it breaks required ["a"]'),
        ({"a": [{"b": 1}]}, DEEP, "a[0].b breaks maximum 0"),
        ([1, 1.0], {"uniqueItems": True}, "it breaks uniqueItems true"),
        ([1, True], {"uniqueItems": True}, ""),
        ("b", {"pattern": "^(?=a)"}, 'it breaks pattern "^(?=a)"'),
        ("b", {"oneOf": [{"type": "string"}, {"minLength": 1}]}, "it breaks oneOf"),
        ({"é\n": 1}, {"additionalProperties": {"type": "null"}}, "'\\xe9\\n' breaks type \"null\""),
        (5, {"minimum": 5, "exclusiveMinimum": True, **DRAFT_4}, "it breaks minimum 5"),
        (5, {"$ref": "#/$defs/a", "$defs": {"a": {"type": "string"}}}, 'it breaks type "string"'),
        ([], {"enum": []}, "it breaks enum []"),
        (1, False, "nothing is allowed"),
        (1, True, ""),
    ],
    ids=str,
)
def test_verdicts(value: Any, schema: Any, misfit: str) -> None:
    assert first_violation(value, schema) == misfit


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "cheese"},
        {"minLength": "x"},
        {"$ref": "http://127.0.0.1:9/x"},
        {"$ref": "#/nowhere"},
        {"$ref": "#"},
        {"pattern": "("},
        {"required": 5},
        {"properties": []},
        {"$schema": 5},
        {"$id": "::::"},
    ],
    ids=str,
)
def test_what_cannot_be_told_counts_as_followed(schema: Any) -> None:
    assert first_violation("x", schema) == ""


DOUBLING = {f"d{i}": {"allOf": [{"$ref": f"#/$defs/d{i + 1}"}] * 2} for i in range(40)} | {"d40": {"type": "string"}}
CLOSED = {"additionalProperties": False}
HOSTILE: list[tuple[Any, Any]] = [
    ("a" * 200 + "!", {"pattern": "^(a+)+$"}),
    ("a" * 200 + "!", {"pattern": "^(a|aa){1,60}$"}),
    ("a" * 5000 + "!", {"pattern": "a*a*a*a*b"}),
    ({"a" * 200 + "!": 1}, {"patternProperties": {"^(a+)+$": {}}, "additionalProperties": False}),
    ("x", {"$ref": "#/$defs/d0", "$defs": DOUBLING}),
    ("a" * 40, {"pattern": "a?" * 40 + "a" * 41}),
    ("a" * 40, {"pattern": "(a|aa)" * 40 + "b"}),
    ({f"k{i}": 1 for i in range(5000)}, {"patternProperties": {f"^x{i}a": {} for i in range(300)}} | CLOSED),
    ([{"a": i} for i in range(100_000)], {"uniqueItems": True}),
    ([*range(3000)], {"items": {"enum": [*range(1000, 50_000)]}}),
]


@pytest.mark.parametrize(("value", "schema"), HOSTILE, ids=range(len(HOSTILE)))
def test_what_would_take_too_long_counts_as_followed(value: Any, schema: Any) -> None:
    """Without its bounds each of these takes minutes."""
    assert first_violation(value, schema) == ""
