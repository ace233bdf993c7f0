"""Tools that appear mid-session: the beginning of the body stays, and every tool is described once."""

import json
from copy import deepcopy
from typing import Any

import pytest

from hotloop.wire.stable import Stabiliser

SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}}}
SHAPES: dict[Any, Any] = {
    "chat": lambda name: {"type": "function", "function": {"name": name, "description": "", "parameters": SCHEMA}},
    "messages": lambda name: {"name": name, "description": "", "input_schema": SCHEMA},
    "responses": lambda name: {"type": "function", "name": name, "description": "", "parameters": SCHEMA},
}
USER = [{"role": "user", "content": "look"}, {"role": "user", "content": [{"type": "text", "text": "go on"}]}]
ANSWER = {"role": "assistant", "content": "yes"}
FIRST, SECOND = [USER[0]], [USER[0], ANSWER, USER[1]]
THIRD = [*SECOND, ANSWER, {"role": "user", "content": "more"}]


def put(stabiliser: Stabiliser, api: Any, said: list[Any], names: str, way: Any = "words", **more: Any) -> Any:
    """The body as it is sent, and what was done."""
    body = {"input" if api == "responses" else "messages": deepcopy(said), **more}
    body["tools"] = more.get("tools", [SHAPES[api](name) for name in names])
    fields, changes = stabiliser.rewrite(api, deepcopy(body), late_tools=way)
    sent = json.loads(json.dumps({**body, **fields}, default=lambda raw: json.loads(bytes(raw))))
    return sent, changes


def names_of(body: Any) -> str:
    return "".join((tool.get("function") or tool)["name"] for tool in body["tools"])


@pytest.mark.parametrize("api", SHAPES)
def test_a_tool_that_comes_late_is_told_behind_the_message_that_was_the_newest(api: Any) -> None:
    stabiliser, field = Stabiliser(), "input" if api == "responses" else "messages"
    first, changes = put(stabiliser, api, FIRST, "ab")
    assert (names_of(first), first[field], changes) == ("ab", FIRST, ())
    second, changes = put(stabiliser, api, SECOND, "cab")
    assert second["tools"] == first["tools"]
    assert second[field][:2] == SECOND[:2]
    told = second[field][2]["content"]
    assert told[0] == USER[1]["content"][0]
    assert f'"name": "c", "description": "", "parameters": {json.dumps(SCHEMA)}' in told[1]["text"]
    assert "late_tools: c described after the history" in changes
    third, _ = put(stabiliser, api, THIRD, "abc")
    assert third["tools"] == first["tools"]
    assert third[field][:3] == second[field], "what was told stays where it was told"
    assert third[field][3:] == THIRD[3:], "and is told once"


def test_what_goes_stays_in_the_head_and_its_end_is_told() -> None:
    stabiliser = Stabiliser()
    put(stabiliser, "chat", FIRST, "abc")
    sent, changes = put(stabiliser, "chat", SECOND, "ab")
    assert names_of(sent) == "abc"
    assert "can no longer be called: c" in sent["messages"][2]["content"][1]["text"]
    assert changes == ("late_tools: c removed, noted after the history",)


def test_anthropic_is_told_by_changes_in_a_message_of_the_systems() -> None:
    stabiliser = Stabiliser()
    put(stabiliser, "messages", FIRST, "ab", "changes")
    sent, _ = put(stabiliser, "messages", SECOND, "ac", "changes")
    assert names_of(sent) == "ab"
    added = {"type": "tool_addition", "tool": {"type": "tool_definition", "definition": SHAPES["messages"]("c")}}
    gone = {"type": "tool_removal", "tool": {"type": "tool_reference", "name": "b"}}
    assert sent["messages"] == [*SECOND, {"role": "system", "content": [added, gone]}]
    later, _ = put(stabiliser, "messages", THIRD, "abc", "changes")
    back = {"type": "tool_addition", "tool": {"type": "tool_reference", "name": "b"}}
    assert later["messages"] == [*sent["messages"], *THIRD[3:], {"role": "system", "content": [back]}]


def test_marks_stand_on_the_users_newest_turn_and_on_the_last_tool() -> None:
    stabiliser = Stabiliser()
    stabiliser.rewrite(
        "messages", {"messages": deepcopy(FIRST), "tools": [SHAPES["messages"]("a")]}, late_tools="changes"
    )
    body = {"messages": deepcopy(SECOND), "tools": [SHAPES["messages"](name) for name in "ab"]}
    fields, _ = stabiliser.rewrite("messages", body, late_tools="changes", pays_marks=True)
    assert fields["messages"][2]["content"][-1]["cache_control"]
    assert json.dumps(fields["messages"][3]).count("cache_control") == 0
    assert fields["tools"][-1] == SHAPES["messages"]("a") | {"cache_control": {"type": "ephemeral"}}


@pytest.mark.parametrize(
    ("tools", "count"),
    [
        ([{**SHAPES["messages"]("a"), "defer_loading": True}, SHAPES["messages"]("b")], 2),
        ([{"type": "web_search_20250305", "name": "web_search"}, SHAPES["messages"]("a")], 2),
        ([3], 1),
        ("x", 1),
    ],
)
def test_what_a_client_marks_and_what_is_no_function_stays_in_the_list(tools: Any, count: int) -> None:
    stabiliser = Stabiliser()
    put(stabiliser, "messages", FIRST, "", tools=tools[:1])
    sent, _ = put(stabiliser, "messages", SECOND, "", tools=tools)
    assert len(sent["tools"]) == count
    assert sent["messages"] == SECOND


def test_strict_tools_are_listed_where_others_would_be_words() -> None:
    tools = [SHAPES["responses"](name) | {"strict": True} for name in "ab"]
    stabiliser = Stabiliser()
    put(stabiliser, "responses", FIRST, "", tools=tools[:1])
    sent, changes = put(stabiliser, "responses", SECOND, "", tools=tools)
    assert names_of(sent) == "ab"
    assert "late_tools" not in str(changes)


def test_each_scope_and_system_text_has_a_history_of_its_own() -> None:
    stabiliser = Stabiliser()
    put(stabiliser, "messages", FIRST, "a", system="One.")
    sent, _ = put(stabiliser, "messages", SECOND, "ab", system="Another.")
    assert names_of(sent) == "ab"
    fields, _ = stabiliser.rewrite(
        "messages",
        {"messages": deepcopy(SECOND), "system": "One.", "tools": [SHAPES["messages"](name) for name in "ab"]},
        scope="another",
        late_tools="words",
    )
    assert "messages" not in fields
