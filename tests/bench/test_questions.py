"""Whether calls are valid and right."""

import json
from typing import Any

import pytest

from hotloop.bench.questions import ToolQuestion, follows_schema, is_right, is_well_formed
from hotloop.core.message import ToolCall

PARAMETERS = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["city"],
}
TOOL = {"type": "function", "function": {"name": "weather.get", "parameters": PARAMETERS}}


def question(*expected: dict[str, Any]) -> ToolQuestion:
    return ToolQuestion("q", "simple", ({"role": "user", "content": "Hi"},), (TOOL,), expected)


def call(arguments: Any, name: str = "weather.get") -> ToolCall:
    return ToolCall("call_0", name, arguments if isinstance(arguments, str) else json.dumps(arguments))


@pytest.mark.parametrize(
    ("arguments", "is_valid", "is_formed"),
    [
        ({"city": "Turin"}, True, True),
        ({"city": "Turin", "days": 3}, True, True),
        ({"city": "Turin", "days": "3"}, False, True),
        ({"days": 3}, False, True),
        ('{"city": "Turin"', False, False),
        ('{"city": "Turin", "city": "Turin"}', False, False),
        ('{"city": NaN}', False, False),
        ('"Turin"', False, False),
        ("[" * 100_000, False, False),
    ],
)
def test_a_call_is_valid_if_its_schema_says_so(arguments: Any, is_valid: bool, is_formed: bool):
    assert follows_schema(question(), call(arguments)) == is_valid
    assert is_well_formed(question(), call(arguments)) == is_formed


def test_a_call_of_a_tool_that_was_not_offered_is_not_valid():
    assert not follows_schema(question(), call({"city": "Turin"}, "weather_get"))


KEY = {"weather.get": {"city": ["New York", "NYC"], "days": [3, ""]}}


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"city": "New York", "days": 3}, True),
        ({"city": "new-york"}, True),
        ({"city": "NYC", "days": 3.0}, True),
        ({"city": "NYC", "days": 4}, False),
        ({"city": "NYC", "days": True}, False),
        ({"city": "NYC", "hours": 3}, False),
        ({"city": 3}, False),
        ({"days": 3}, False),
        ("{", False),
    ],
)
def test_a_right_call_has_possible_values_and_leaves_out_what_may_be(arguments: Any, expected: bool):
    assert is_right(question(KEY), [call(arguments)]) == expected


@pytest.mark.parametrize(
    ("value", "options", "expected"),
    [
        ([1, 2], [[1, 2], [2, 1]], True),
        ([2, 1, 1], [[1, 2], [2, 1]], False),
        (["A b"], [["ab"]], True),
        ({"min": 3}, [{"min": [2, 3], "max": [9, ""]}], True),
        ({"max": 9}, [{"min": [2, 3], "max": [9, ""]}], False),
        ([{"field": "age"}], [[{"field": ["age"]}]], True),
        (None, [None], True),
        (1, [True], False),
    ],
)
def test_lists_and_objects_are_looked_into(value: Any, options: list[Any], expected: bool):
    assert is_right(question({"weather.get": {"city": options}}), [call({"city": value})]) == expected


def test_several_calls_may_come_in_any_order_but_each_once():
    key = [{"weather.get": {"city": [city]}} for city in ("Turin", "Graz")]
    turin, graz = call({"city": "Turin"}), call({"city": "Graz"})
    assert is_right(question(*key), [graz, turin])
    assert not is_right(question(*key), [graz, graz])
    assert not is_right(question(*key), [graz])
    assert not is_right(question(*key), [graz, turin, turin])
