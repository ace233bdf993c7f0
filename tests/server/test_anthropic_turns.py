"""Content blocks become turns, and `cache_control` breakpoints between them."""

from typing import Any

import pytest

from hotloop.chat.prompt import CacheBreakpoint
from hotloop.core.message import Message, ToolCall
from hotloop.server.turns import Transcript, parse_transcript
from hotloop.wire.messages.parse import parse_request
from hotloop.wire.policy import Notes

FIVE: dict[str, Any] = {"cache_control": {"type": "ephemeral"}}
HOUR: dict[str, Any] = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}


def text(text: str, **fields: Any) -> dict[str, Any]:
    return {"type": "text", "text": text, **fields}


def result(call_id: str, content: Any = None, **fields: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": call_id, "content": content, **fields}


def parse(*messages: tuple[str, Any], **fields: Any) -> Transcript:
    turns = [{"role": role, "content": content} for role, content in messages]
    return parse_transcript(parse_request({"model": "m", "max_tokens": 1, "messages": turns, **fields}, Notes()))


def test_texts_are_joined() -> None:
    turns = parse(("user", [text("a"), text("b")]), ("assistant", [text("c"), text("d")]), ("user", "e"))
    assert turns.messages == (Message("user", "a\nb"), Message("assistant", "cd"), Message("user", "e"))
    assert not turns.breakpoints


def test_turns_of_one_role_are_one() -> None:
    assert parse(("user", "a"), ("user", [text("b")]), ("user", "")).messages == (Message("user", "a\nb"),)


def test_the_system_prompt_is_the_first_message() -> None:
    for system in ("a\nb", [text("a"), text("b")]):
        assert parse(("user", "c"), system=system).messages == (Message("system", "a\nb"), Message("user", "c"))
    for system in ("", [], None):
        assert parse(("user", "c"), system=system).messages == (Message("user", "c"),)


def test_a_late_system_turn_stays_where_it_is() -> None:
    roles = [message.role for message in parse(("user", "a"), ("system", "b"), ("user", "c"), system="s").messages]
    assert roles == ["system", "user", "system", "user"]


def test_calls_and_results() -> None:
    call = {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {"b": 1, "a": "é"}}
    turns = parse(
        ("user", "go"),
        ("assistant", [text("I look."), call, {**call, "id": "toolu_2", "input": {}}]),
        ("user", [result("toolu_1", "one"), result("toolu_2", [text("two"), text("lines")]), text("and?")]),
    )
    assert turns.messages[1:] == (
        Message(
            "assistant",
            "I look.",
            tool_calls=(ToolCall("toolu_1", "f", '{"b": 1, "a": "é"}'), ToolCall("toolu_2", "f", "{}")),
        ),
        Message("tool", "one", tool_call_id="toolu_1"),
        Message("tool", "two\nlines", tool_call_id="toolu_2"),
        Message("user", "and?"),
    )


@pytest.mark.parametrize(
    ("content", "is_error", "expected"),
    [
        ("boom", True, "Error: boom"),
        ("boom", False, "boom"),
        ("boom", None, "boom"),
        ([text("boom")], True, "Error: boom"),
        ("Error: boom", True, "Error: boom"),
        ("<tool_use_error>boom</tool_use_error>", True, "<tool_use_error>boom</tool_use_error>"),
        (None, True, "Error: "),
        (None, None, ""),
    ],
)
def test_a_result_that_is_an_error_says_so(content: Any, is_error: bool | None, expected: str) -> None:
    assert parse(("user", [result("t", content, is_error=is_error)])).messages == (
        Message("tool", expected, tool_call_id="t"),
    )


def test_thinking_is_dropped_and_its_turn_is_not() -> None:
    thought = [{"type": "thinking", "thinking": "Hm.", "signature": "x"}, {"type": "redacted_thinking", "data": "x"}]
    turns = parse(("user", "a"), ("assistant", thought), ("user", "b"), ("assistant", [*thought, text("c")]))
    assert [message.content for message in turns.messages] == ["a", "", "b", "c"]


def test_breakpoints_know_where_they_are() -> None:
    tools = [{"name": name, "input_schema": {}} for name in "fgh"]
    tools[1] |= HOUR
    tools.insert(0, {"type": "web_search_20250305", "name": "s"})
    turns = parse(
        ("user", [text("one", **FIVE), text("two")]),
        ("assistant", [text("three"), {"type": "tool_use", "id": "t", "name": "f", "input": {}, **FIVE}]),
        ("user", [result("t", "four"), text("five", **HOUR)]),
        system=[text("six", **HOUR), text("seven", **FIVE)],
        tools=tools,
        cache_control={"type": "ephemeral", "ttl": "5m"},
    )
    assert turns.breakpoints == [
        CacheBreakpoint(1, None, 3600),
        CacheBreakpoint(0, 3, 3600),
        CacheBreakpoint(0, 9, 300),
        CacheBreakpoint(1, 3, 300),
        CacheBreakpoint(2, 5, 300),
        CacheBreakpoint(4, 4, 3600),
        CacheBreakpoint(4, 4, 300),
    ]
