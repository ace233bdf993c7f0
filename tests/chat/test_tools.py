"""Whether an answer may hold calls, and of which tools."""

import pytest

from hotloop.chat.tools import Calling, ToolChoice
from hotloop.core.message import Tool

A, B = Tool("a"), Tool("b", is_strict=False)


@pytest.mark.parametrize(
    ("tools", "choice", "is_possible"),
    [
        ((), ToolChoice(), False),
        ((A,), ToolChoice("none"), False),
        ((B,), ToolChoice(), True),
        ((A, B), ToolChoice(), True),
        ((B,), ToolChoice("required"), True),
    ],
)
def test_when_an_answer_may_hold_calls(tools: tuple[Tool, ...], choice: ToolChoice, is_possible: bool) -> None:
    assert Calling(tools, choice).is_possible is is_possible


def test_one_tool_that_must_be_called_is_selected() -> None:
    assert ToolChoice("required", "b").select([A, B]) == (B,)
