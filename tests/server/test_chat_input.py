"""What a chat says about tools, read from the wire; tools that cannot be offered are refused in one line."""

from typing import Any

import pytest

from hotloop.chat.tools import ToolChoice
from hotloop.core.errors import RequestError
from hotloop.core.message import Tool
from hotloop.server.chat_input import ChatTools, check_tool, parse_tools
from hotloop.wire.chat.parse import parse_request
from hotloop.wire.policy import Notes
from hotloop.wire.responses.parse import parse_request as parse_response

TOOLS = (Tool("f"), Tool("g"))
NAMED = {"type": "function", "function": {"name": "f"}}


def calling(choice: Any, tools: tuple[Tool, ...] = TOOLS, **fields: Any) -> ChatTools:
    given = [{"type": "function", "function": {"name": tool.name}} for tool in tools]
    about = {
        "model": "m",
        "messages": [{"role": "user", "content": "x"}],
        "tools": given,
        "tool_choice": choice,
        **fields,
    }
    return parse_tools(parse_request(about, Notes()), is_strict=True)


def allowed(mode: str, *names: str) -> dict[str, Any]:
    tools = [{"type": "function", "function": {"name": name}} for name in names]
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        (None, ToolChoice("auto")),
        ("auto", ToolChoice("auto")),
        ("none", ToolChoice("none")),
        ("required", ToolChoice("required")),
        (NAMED, ToolChoice("required", "f", is_parallel=False)),
        (allowed("auto", "f", "g"), ToolChoice("auto")),
        (allowed("required", "f", "g"), ToolChoice("required")),
    ],
    ids=str,
)
def test_choices(choice: Any, expected: ToolChoice) -> None:
    parsed = calling(choice)
    assert (parsed.head, parsed.calling.allowed, parsed.calling.choice) == (TOOLS, TOOLS, expected)
    assert parsed.calling.is_possible == (choice != "none")
    assert parsed.calling.is_required == (expected.mode == "required")
    assert not calling(choice, parallel_tool_calls=False).calling.choice.is_parallel


def test_allowed_tools_are_shown_with_the_others() -> None:
    parsed = calling(allowed("auto", "g"))
    assert (parsed.head, parsed.calling.allowed) == (TOOLS, TOOLS[1:])


def test_without_tools_nothing_is_called() -> None:
    assert not calling(None, ()).calling.is_possible


@pytest.mark.parametrize(
    ("choice", "tools"),
    [("required", ()), (NAMED, ()), (NAMED, TOOLS[1:]), (allowed("auto", "h"), TOOLS), (allowed("auto"), TOOLS)],
    ids=str,
)
def test_choices_that_cannot_be_met(choice: Any, tools: tuple[Tool, ...]) -> None:
    with pytest.raises(RequestError, match="tool_choice") as caught:
        calling(choice, tools)
    assert caught.value.param == "tool_choice"


def test_a_tool_says_itself_whether_it_is_strict_or_the_server_does() -> None:
    functions = [{"name": "a"}, {"name": "b", "strict": True}, {"name": "c", "strict": False}]
    tools = [{"type": "function", "function": function} for function in functions]
    request = parse_request({"model": "m", "messages": [{"role": "user", "content": "x"}], "tools": tools}, Notes())
    for is_strict in (True, False):
        parsed = parse_tools(request, is_strict=is_strict).head
        assert [tool.is_strict for tool in parsed] == [is_strict, True, False]


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for _ in range(depth):
        schema = {"items": schema}
    return schema


@pytest.mark.parametrize("name", ["f", "get_weather", "a.b-c", "x" * 64, "4"])
def test_names_that_every_format_can_write(name: str) -> None:
    check_tool(Tool(name), "tools[1]")


@pytest.mark.parametrize("name", ["", "x" * 65, "a b", 'a"', "a\n", "a%", "</tool_call>", "naïve", "a\\"])
def test_other_names_are_refused(name: str) -> None:
    with pytest.raises(RequestError, match="tools\\[1\\]: the name") as caught:
        check_tool(Tool(name), "tools[1]")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("parameters", "complaint"),
    [
        ({"type": "string"}, "must be 'object', not 'string'"),
        ({"properties": {"x": nested(5000)}}, "nested more than 128 levels"),
        ({"properties": []}, "'properties' must be an object"),
        ({"required": "x"}, "'required' must be a list"),
    ],
)
def test_parameters_that_are_none_are_refused(parameters: dict[str, Any], complaint: str) -> None:
    with pytest.raises(RequestError, match=complaint):
        check_tool(Tool("a", parameters=parameters), "tools[0]")


def test_listed_tools_have_names_of_their_own() -> None:
    with pytest.raises(RequestError, match="another tool named 'f'") as caught:
        calling(None, (Tool("g"), Tool("f"), Tool("f")))
    assert caught.value.param == "tools[2]"


def test_a_tool_is_named_by_its_place_behind_those_that_are_left_out() -> None:
    tools = [{"type": "web_search"}, {"type": "function", "name": "a b", "parameters": {}}]
    request = parse_response({"model": "m", "input": "hi", "tools": tools}, Notes())
    with pytest.raises(RequestError, match=r"tools\[1\]: the name 'a b'") as caught:
        parse_tools(request, is_strict=True)
    assert caught.value.param == "tools[1]"
