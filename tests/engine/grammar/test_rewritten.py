"""What the compiler does not know is said in what it does, and means the same: compared with a validator."""

import json
from typing import Any

import jsonschema
import pytest
from benchmarks.vocabularies import byte_tokenizer
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.engine.grammar.orders import OrderSearch
from tests.properties import examples

from hotloop.core.errors import RequestError
from hotloop.core.grammar import json_schema
from hotloop.engine.grammar.matcher import Grammars
from hotloop.models.tokenizer import Tokenizer

BYTES = Grammars(Tokenizer(byte_tokenizer()), 258)


def accepts(schema: Any, value: Any) -> bool:
    return OrderSearch(BYTES.matcher(json_schema(schema))).find(value) is not None


def is_valid(schema: Any, value: Any) -> bool:
    return bool(jsonschema.Draft202012Validator(schema).is_valid(value))


RECORD = {
    "type": "object",
    "additionalProperties": False,
    "properties": {"k": {"enum": ["a", "b"]}, "v": {"type": "integer"}, "w": {"type": "string"}},
}
RECORDS: list[Any] = [{}, {"k": "a"}, {"k": "b"}, {"k": "a", "v": 1}, {"k": "b", "v": 1}, {"k": "a", "w": "x"}]
RECORDS += [{"v": 2, "k": "b", "w": "x"}, {"v": 1}, {"w": "x"}, {"v": -3, "w": "y"}]
IS_A = {"properties": {"k": {"const": "a"}}, "required": ["k"]}


@pytest.mark.parametrize(
    "rule",
    [
        {"not": {"required": ["v"]}},
        {"not": {"required": ["v", "w"]}},
        {"not": IS_A},
        {"not": {"properties": {"k": {"const": "a"}}}},
        {"not": {"anyOf": [{"required": ["v"]}, IS_A]}},
        {"not": {"allOf": [{"required": ["v"]}, {"not": IS_A}]}},
        {"if": IS_A, "then": {"required": ["v"]}, "else": {"required": ["w"]}},
        {"if": IS_A, "then": {"required": ["v"]}},
        {"if": IS_A, "else": {"required": ["v"]}},
        {"if": True, "then": {"required": ["v"]}},
        {"then": {"required": ["v"]}},
        {"dependentRequired": {"k": ["v"], "v": ["w"]}},
        {"dependencies": {"k": ["v"], "v": {"required": ["w"]}}, "$schema": "http://json-schema.org/draft-07/schema#"},
        {"dependentSchemas": {"v": {"properties": {"v": {"minimum": 0}}}}},
        {"oneOf": [{"required": ["v"]}, {"required": ["w"]}]},
        {"oneOf": [{"required": ["v"]}, {"required": ["w"]}, {"required": ["k"]}]},
        {"minProperties": 2},
        {"unevaluatedProperties": False},
    ],
    ids=str,
)
def test_rules_between_properties(rule: dict[str, Any]) -> None:
    schema = {**RECORD, **rule}
    kind = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
    expected = [bool(kind(schema).is_valid(value)) for value in RECORDS]
    assert [accepts(schema, value) for value in RECORDS] == expected


PLAIN: list[Any] = [None, True, False, 0, 1, 1.5, 2, 3, -1, "", "a", "ab", "abc", "b", "1", "13", "é", "x y"]
PLAIN += [[], [1], {}, {"a": 1}]


@pytest.mark.parametrize(
    "schema",
    [
        {"not": {"enum": ["1", "abc", ""]}},
        {"type": "string", "not": {"enum": ["1", "abc", "é"]}},
        {"type": ["integer", "string"], "not": {"type": "integer"}},
        {"not": {"type": ["array", "object"]}},
        {"not": {"const": None}},
        {"not": {"enum": [True, 1, "a"]}},
        {"type": "integer", "not": {"enum": [1, 2]}},
        {"type": "integer", "not": {"minimum": 2}},
        {"enum": ["a", 1, None], "not": {"enum": ["a"]}},
        {"type": "string", "oneOf": [{"minLength": 2}, {"maxLength": 2}]},
        {"oneOf": [{"type": "string"}, {"type": ["string", "null"], "minLength": 2}]},
        {"propertyNames": {"enum": ["a", "b"]}},
        {"propertyNames": {"minLength": 2}},
        {"propertyNames": False},
    ],
    ids=str,
)
def test_negations(schema: Any) -> None:
    assert [accepts(schema, value) for value in PLAIN] == [is_valid(schema, value) for value in PLAIN]


LISTED: list[Any] = [{"a": 1}, {"a": True}, {"a": 1.0, "b": "x"}, {"ab": "x"}, {}, [1, 1], [2, "x"], "ab", 3, None]


@pytest.mark.parametrize(
    "rule",
    [
        {"not": {"enum": [{"a": True}, 3, [1, 1.0]]}},
        {"not": {"type": ["integer", "string"]}},
        {"not": {"additionalProperties": False, "patternProperties": {"^a$": {}}, "properties": {"b": {}}}},
        {"not": {"not": {"patternProperties": {"a*": {"type": "integer"}, "b*": {"maximum": 20}}}}},
        {"allOf": [{"not": {"uniqueItems": True}}, {"type": "array"}]},
        {"oneOf": [{"properties": {"a": {"type": "integer"}}}, {"properties": {"b": {"type": "string"}}}]},
        {"anyOf": [{"pattern": "^a"}, {"minimum": 3}], "type": ["string", "number"]},
        {"if": {"required": ["a"]}, "then": {"minProperties": 2}, "else": {"not": {"type": "object"}}},
        {"propertyNames": {"pattern": "^a"}, "dependentRequired": {"a": ["b"]}, "maxProperties": 1},
        {"not": {"items": {"type": "integer", "exclusiveMinimum": 1}}},
        {"not": {"$ref": "#/$defs/a"}, "$defs": {"a": {"required": ["a"]}}},
        {"allOf": [{"type": "object", "const": {"a": 1}}, {"not": {"minProperties": 2}}]},
    ],
    ids=str,
)
def test_listed_values_are_looked_at_one_by_one(rule: dict[str, Any]) -> None:
    schema = {"enum": LISTED, **rule}
    assert [accepts(schema, value) for value in LISTED] == [is_valid(schema, value) for value in LISTED]
    assert not accepts(schema, {"c": 1})


@pytest.mark.parametrize("rule", [{"not": {"format": "date"}}, {"not": {"pattern": "(a+)+b"}}])
def test_what_cannot_be_told_of_a_value_is_refused(rule: dict[str, Any]) -> None:
    with pytest.raises(RequestError):
        BYTES.prepare(json_schema({"enum": [{"a": 1}, "a" * 60], **rule}))


@pytest.mark.parametrize("schema", [{"enum": [1], "allOf": [{"minimum": "1"}]}, {"const": 1, "not": {"type": "one"}}])
def test_a_malformed_schema_beside_listed_values_is_refused(schema: Any) -> None:
    with pytest.raises(RequestError, match="cannot be"):
        json_schema(schema)


@pytest.mark.parametrize("bounds", [[{}, {}], [{"minItems": 1}, {}], [{"minItems": 2}, {"minItems": 1}]])
def test_only_the_empty_list_is_of_both_kinds(bounds: list[dict[str, Any]]) -> None:
    kinds = [{"type": "array", "items": {"type": kind}} for kind in ("number", "string")]
    schema = {"oneOf": [{"type": "null"}, *({**kind, **each} for kind, each in zip(kinds, bounds, strict=True))]}
    values: list[Any] = [[], [1], ["a"], [1, 2], ["a", "b"], [1, "a"], None, 1]
    assert [accepts(schema, value) for value in values] == [is_valid(schema, value) for value in values]


@pytest.mark.parametrize(
    ("address", "is_email"),
    [
        ("joe.doe+x@example.com", True),
        ('"joe doe"@example.com', True),
        ('"a\\"b@c"@example.com', True),
        ("joe@[127.0.0.1]", True),
        ("joe@[IPv6:::1]", True),
        ("joe@[IPv6:2001:db8::7]", True),
        ("joe@[IPv6:1:2:3:4:5:6:7:8]", True),
        ("joe@[IPv6:1:2:3:4:5:6:7:8:9]", False),
        ("joe@[IPv6:1::2::3]", False),
        ("joe@[127.0.0.300]", False),
        ("joe doe@example.com", False),
        ("joe..doe@example.com", False),
        (".joe@example.com", False),
        ("joe@-example.com", False),
        ("joe", False),
    ],
)
def test_addresses(address: str, is_email: bool) -> None:
    assert accepts({"type": "string", "format": "email"}, address) == is_email


@pytest.mark.parametrize(
    "bounds", [{}, {"minItems": 1}, {"maxItems": 2}, {"minItems": 2, "maxItems": 2}, {"maxItems": 1}]
)
@pytest.mark.parametrize("items", [{"enum": ["a", "b", "c"]}, {"type": "boolean"}, {"$ref": "#/$defs/x"}], ids=str)
def test_lists_without_repetitions(items: Any, bounds: dict[str, int]) -> None:
    schema = {"type": "array", "items": items, "uniqueItems": True, **bounds, "$defs": {"x": {"enum": ["a", None]}}}
    lists = [[], ["a"], ["a", "a"], ["b", "a"], ["c", "a", "b"], ["a", "b", "a"], [True, False], [True, True]]
    assert [accepts(schema, value) for value in lists] == [is_valid(schema, value) for value in lists]


@pytest.mark.parametrize(
    ("name", "text", "is_one"),
    [
        ("date", "2024-02-29", True),
        ("date", "2023-02-29", False),
        ("date", "1900-02-29", False),
        ("date", "2000-02-29", True),
        ("date", "2023-04-31", False),
        ("time", "12:30:00", False),
        ("time", "12:30:00.5+01:30", True),
        ("time", "23:59:60Z", True),
        ("time", "22:59:60Z", False),
        ("time", "01:29:60+01:30", True),
        ("time", "24:00:00Z", False),
        ("date-time", "2023-02-28T23:59:59Z", True),
        ("date-time", "2023-02-29T23:59:59Z", False),
    ],
)
def test_dates_and_times_exist(name: str, text: str, is_one: bool) -> None:
    assert accepts({"type": "string", "format": name}, text) == is_one
    assert accepts({"type": "string", "format": name, "pattern": "^2"}, text) == (is_one and text[0] == "2")


LEAVES = st.sampled_from(
    [
        True,
        {"type": "string"},
        {"type": "integer"},
        {"const": "a"},
        {"enum": ["a", 1, None]},
        {"required": ["a"]},
        {"type": "object", "required": ["b"]},
        {"minimum": 1},
        {"maxLength": 1},
        {"properties": {"a": {"const": "a"}}},
        {"type": ["object", "null"], "properties": {"a": {"type": "integer"}, "b": {"enum": ["a", "b"]}}},
    ]
)


def deeper(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    few = st.lists(inner, min_size=1, max_size=3)
    rules: dict[str, Any] = {"not": inner, "if": inner, "then": inner, "else": inner, "oneOf": few, "anyOf": few}
    rules |= {"allOf": few, "dependentSchemas": st.fixed_dictionaries({"a": inner})}
    rules |= {"properties": st.fixed_dictionaries({"a": inner}), "enum": st.just(["a", "b", 1, None, {"a": "a"}])}
    return st.fixed_dictionaries({}, optional=rules)


SCHEMAS = st.recursive(LEAVES, deeper, max_leaves=6)
VALUES: list[Any] = [None, True, 0, 1, 2, "a", "b", "ab", {}, {"a": "a"}, {"a": 1}, {"b": "a"}, {"a": "a", "b": "b"}]


@settings(max_examples=examples(200))
@given(SCHEMAS)
def test_whatever_is_accepted_means_the_same(schema: Any) -> None:
    try:
        grammar = json_schema(schema)
        BYTES.matcher(grammar)
    except RequestError as error:
        if "no value" in str(error) or "no answer" in str(error):
            assert not any(is_valid(schema, value) for value in VALUES)
        return
    for value in VALUES:
        found = OrderSearch(BYTES.matcher(grammar)).find(value)
        assert (found is not None) == is_valid(schema, value), (json.dumps(value), grammar.text)
