"""Tools that cannot be offered, and choices they cannot meet, are refused in one line."""

from typing import Any

import pytest

from hotloop.chat.tools import ToolChoice, check_tools
from hotloop.core.errors import RequestError
from hotloop.core.message import Tool


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for _ in range(depth):
        schema = {"items": schema}
    return schema


A, B = Tool("a"), Tool("b", is_strict=False)


@pytest.mark.parametrize("name", ["f", "get_weather", "a.b-c", "x" * 64, "4"])
def test_names_that_every_format_can_write(name: str) -> None:
    check_tools([Tool(name)], ToolChoice("required", name))


@pytest.mark.parametrize("name", ["", "x" * 65, "a b", 'a"', "a\n", "a%", "</tool_call>", "naïve", "a\\"])
def test_other_names_are_refused(name: str) -> None:
    with pytest.raises(RequestError, match="tools\\[1\\]: the name") as caught:
        check_tools([A, Tool(name)], ToolChoice())
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("tools", "choice", "complaint"),
    [
        ([A, A], ToolChoice(), "another tool named 'a'"),
        ([], ToolChoice("required"), "no tools"),
        ([A], ToolChoice("required", "c"), "names 'c'"),
        ([Tool("a", parameters={"type": "string"})], ToolChoice(), "must be 'object', not 'string'"),
        ([Tool("a", parameters={"properties": {"x": nested(5000)}})], ToolChoice(), "nested more than 128 levels"),
        ([Tool("a", parameters={"properties": []})], ToolChoice(), "'properties' must be an object"),
        ([Tool("a", parameters={"required": "x"})], ToolChoice(), "'required' must be a list"),
    ],
)
def test_what_contradicts_itself_is_refused(tools: list[Tool], choice: ToolChoice, complaint: str) -> None:
    with pytest.raises(RequestError, match=complaint):
        check_tools(tools, choice)


@pytest.mark.parametrize(
    ("tools", "choice", "is_binding"),
    [
        ([], ToolChoice(), False),
        ([A], ToolChoice("none"), False),
        ([B], ToolChoice(), True),
        ([A, B], ToolChoice(), True),
        ([B], ToolChoice("required"), True),
    ],
)
def test_when_an_answer_is_bound(tools: list[Tool], choice: ToolChoice, is_binding: bool) -> None:
    assert choice.is_binding(tools) is is_binding
    assert ToolChoice("required", "b").select([A, B]) == (B,)
