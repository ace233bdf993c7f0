"""Schemas reduced to their shape."""

import json
from typing import Any

import pytest

from hotloop.core.errors import RequestError
from hotloop.core.grammar import MalformedSchema, json_schema, relax, schema_text


def reduced(schema: Any) -> Any:
    text = json.loads(schema_text(schema))
    assert text.pop("x-guidance")["whitespace_flexible"] is False
    return text


def test_words_do_not_make_a_shape():
    plain = {"type": "object", "properties": {"a": {"type": "string"}}}
    wordy = {"title": "T", "description": "d", "examples": [1], "type": "object"}
    wordy["properties"] = {"a": {"type": "string", "default": "x", "$comment": "c", "readOnly": True}}
    assert json_schema(plain) == json_schema(wordy)
    assert hash(json_schema(plain)) == hash(json_schema(wordy))


def test_a_property_may_have_any_name():
    schema = {"properties": {"title": {"type": "string"}, "description": {"default": 1}}, "required": ["title"]}
    assert reduced(schema) == {"properties": {"title": {"type": "string"}, "description": {}}, "required": ["title"]}


def test_values_are_left_as_they_are():
    schema = {"enum": [{"title": "kept"}], "const": {"default": 1}}
    assert reduced(schema) == schema


def test_the_order_of_properties_is_kept():
    assert list(reduced({"properties": {"b": {}, "a": {}}})["properties"]) == ["b", "a"]


def test_the_caller_cannot_choose_the_spacing():
    schema = {"type": "object", "x-guidance": {"whitespace_flexible": True, "lenient": True}}
    assert json.loads(schema_text(schema))["x-guidance"] == {
        "whitespace_flexible": False,
        "item_separator": ", ",
        "key_separator": ": ",
    }


@pytest.mark.parametrize("keyword", ["allOf", "anyOf", "items", "prefixItems"])
def test_lists_of_schemas_are_reduced(keyword: str):
    assert reduced({keyword: [{"title": "x"}, True]}) == {keyword: [{}, True]}


@pytest.mark.parametrize(("name", "is_kept"), [("hostname", True), ("uuid", True), ("int32", False), ("ipv6", False)])
def test_unknown_formats_are_annotations(name: str, is_kept: bool):
    assert ("format" in reduced({"type": "string", "format": name})) == is_kept


@pytest.mark.parametrize(
    ("names", "is_kept"), [({"type": "string"}, False), ({}, False), (True, False), ({"maxLength": 3}, True)]
)
def test_a_name_is_a_string_whether_or_not_the_schema_says_so(names: Any, is_kept: bool):
    assert ("patternProperties" in reduced({"type": "object", "propertyNames": names})) == is_kept


def test_what_is_wrong_is_said_with_its_place():
    with pytest.raises(RequestError, match=r"properties\.a\.items: 'uniqueItems' is not supported"):
        schema_text({"properties": {"a": {"items": {"type": "array", "uniqueItems": True}}}})
    with pytest.raises(MalformedSchema, match=r"properties\.a: 'type' cannot be 'cheese'"):
        schema_text({"properties": {"a": {"type": "cheese"}}})


@pytest.mark.parametrize(
    ("schema", "loose", "dropped"),
    [
        ({"a": 1}, {"a": 1}, ()),
        ({"type": "array", "uniqueItems": True}, {"type": "array"}, ("'uniqueItems'",)),
        (
            {"items": {"pattern": "^(?=a)", "minLength": 1}, "contains": {}},
            {"items": {"minLength": 1}},
            ("items: 'pattern'", "'contains'"),
        ),
        (
            {"oneOf": [{"pattern": "a"}, {"pattern": "b"}], "anyOf": [{}, {"minLength": 2}]},
            {"anyOf": [{}, {"minLength": 2}], "allOf": [{"anyOf": [{"pattern": "a"}, {"pattern": "b"}]}]},
            ("'oneOf'",),
        ),
        ({"if": {"pattern": "a"}, "then": {"minLength": 2}}, {"then": {"minLength": 2}}, ("'if'",)),
        ({"anyOf": [{"not": {"format": "uuid"}}]}, {"anyOf": [{}]}, ("anyOf.0: 'not'",)),
    ],
)
def test_what_cannot_be_kept_to_is_dropped(schema: Any, loose: Any, dropped: tuple[str, ...]):
    assert relax(schema) == (loose, dropped)
    schema_text(loose)


def test_an_id_within_the_document_is_no_name_of_its_own():
    part = {"id": "#/definitions/a", "type": "string"}
    schema = {"definitions": {"a": part}, "oneOf": [{"$ref": "#/definitions/a"}, {"type": "null"}]}
    assert "anyOf" in reduced(schema)
    with pytest.raises(RequestError, match="'oneOf'"):
        reduced({**schema, "definitions": {"a": {**part, "id": "http://x/a"}}})


def test_before_2019_a_reference_stands_alone():
    schema = {"$ref": "#/definitions/a", "maxItems": 2}
    root = {"$schema": "http://json-schema.org/draft-07/schema#", "definitions": {"a": {}}}
    assert reduced(root | schema) == root | {"$ref": "#/definitions/a"}
    old = root | {"properties": {"p": schema}}
    assert reduced(old)["properties"]["p"] == {"$ref": "#/definitions/a"}
    assert reduced({"properties": {"p": schema}})["properties"]["p"] == schema


def test_whole_counts_are_integers():
    assert schema_text({"maxItems": 2.0}).startswith('{"maxItems":2,')


def test_a_space_is_what_javascript_calls_one():
    assert reduced({"pattern": r"\s[\s]\S\\s"})["pattern"] == "[\\s\ufeff][\\s\ufeff][^\\s\ufeff]\\\\s"


def deep(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for _ in range(levels):
        schema = {"items": schema}
    return schema


@pytest.mark.parametrize(
    "schema",
    [
        None,
        [],
        "string",
        5,
        False,
        {"items": 5},
        {"properties": [1]},
        {"anyOf": {"a": 1}},
        {"pattern": 5},
        {"minimum": float("nan")},
        {"const": object()},
        deep(100),
        {"anyOf": [{}] * 30_000},
    ],
)
def test_a_malformed_schema_is_refused_in_one_line(schema: Any):
    with pytest.raises(RequestError) as raised:
        json_schema(schema)
    assert raised.value.param == "grammar"
    assert "\n" not in str(raised.value)


ODD = {"type": "array", "uniqueItems": True}


def test_definitions_that_nothing_leads_to_do_not_count():
    definitions = {
        "a": {"items": {"$ref": "#/$defs/b"}},
        "b": {"type": "string"},
        "odd": ODD,
        "c": {"$ref": "#/$defs/odd"},
    }
    schema = {"properties": {"x": {"$ref": "#/$defs/a"}}, "$defs": definitions}
    assert [*reduced(schema)["$defs"]] == ["a", "b"]
    assert relax(schema)[1] == ()
    assert relax({**schema, "items": {"$ref": "#/$defs/c"}})[1] == ("$defs.odd: 'uniqueItems'",)
    assert relax({**schema, "items": {"$ref": "#named"}})[1] == ("$defs.odd: 'uniqueItems'",)


WIDE = {f"p{i}": {"type": "array", "uniqueItems": True} for i in range(15_000)}
HOSTILE = [
    {"type": "object", "properties": WIDE},
    {"enum": [*range(20_000)], "not": {"enum": [*range(20_000)]}},
    {"oneOf": [{"enum": [f"{i}-{j}" for j in range(500)]} for i in range(60)]},
    {"properties": {f"x{i}": True for i in range(30)}, "minProperties": 15, "additionalProperties": False},
    {"type": "array", "uniqueItems": True, "items": {"enum": [f"v{i}" for i in range(20_000)]}},
    {"propertyNames": {"enum": [f"v{i}" for i in range(15_000)]}, "properties": {f"w{i}": {} for i in range(15_000)}},
    {"pattern": "[" * 50_000},
    {"pattern": "[" * 50_000 + "\\"},
]


NUM_DROPPED = [15_000, 0, 1, 1, 1, 0, 0, 0]


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("schema", "num_dropped"), [*zip(HOSTILE, NUM_DROPPED, strict=True)], ids=range(len(HOSTILE)))
def test_a_hostile_schema_is_loosened_and_does_not_grow(schema: Any, num_dropped: int):
    """Without its bounds each of these takes minutes, or all memory."""
    loose, dropped = relax(schema)
    assert len(dropped) == num_dropped
    assert len(json.dumps(loose)) <= len(json.dumps(schema))


def test_cases_that_cannot_be_confused_may_be_many():
    cases = [{"type": "object", "properties": {"kind": {"const": i}}, "required": ["kind"]} for i in range(60)]
    assert schema_text({"oneOf": cases}) == schema_text({"anyOf": cases})


def test_values_are_told_apart_as_json_has_them():
    schema = {"enum": [1, 1.5, True, [1], {"a": 1}], "not": {"enum": [1.0, [True], {"a": 1.0}]}}
    assert json.loads(schema_text(schema))["enum"] == [1.5, True, [1]]


def test_what_a_draft_does_not_know_decides_nothing_about_listed_values():
    schema = {"enum": [{"a": 1}, {"b": 1}], "propertyNames": {"const": "a"}}
    old = {"$schema": "http://json-schema.org/draft-04/schema#", **schema}
    assert reduced(schema)["enum"] == [{"a": 1}]
    assert reduced(old)["enum"] == schema["enum"]


def test_many_listed_values_do_not_use_up_what_a_schema_may_have():
    words = [f"w{i}" for i in range(200)]
    schema = {"enum": words, "anyOf": [{"const": word} for word in words]}
    json_schema({"anyOf": [schema] * 20})
