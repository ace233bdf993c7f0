"""What a chat says about tools, read from the wire."""

from typing import Any

import pytest

from hotloop.chat.tools import ToolChoice
from hotloop.core.errors import RequestError
from hotloop.core.message import Tool
from hotloop.server.calling import Calling, parse_calling
from hotloop.wire.chat.parse import parse_request
from hotloop.wire.policy import Notes

TOOLS = (Tool("f"), Tool("g"))
NAMED = {"type": "function", "function": {"name": "f"}}


def calling(choice: Any, tools: tuple[Tool, ...] = TOOLS, **fields: Any) -> Calling:
    given = [{"type": "function", "function": {"name": tool.name}} for tool in tools]
    about = {
        "model": "m",
        "messages": [{"role": "user", "content": "x"}],
        "tools": given,
        "tool_choice": choice,
        **fields,
    }
    return parse_calling(parse_request(about, Notes()), is_strict=True)


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
    assert (parsed.tools, parsed.allowed, parsed.choice) == (TOOLS, TOOLS, expected)
    assert parsed.is_possible == (choice != "none")
    assert parsed.is_required == (expected.mode == "required")
    assert not calling(choice, parallel_tool_calls=False).choice.is_parallel


def test_allowed_tools_are_shown_with_the_others() -> None:
    parsed = calling(allowed("auto", "g"))
    assert (parsed.tools, parsed.allowed) == (TOOLS, TOOLS[1:])


def test_without_tools_nothing_is_called() -> None:
    assert not calling(None, ()).is_possible


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
        parsed = parse_calling(request, is_strict=is_strict).tools
        assert [tool.is_strict for tool in parsed] == [is_strict, True, False]
