"""Bodies of any API begin as those before them did, whatever clients do to them; and say all that they said."""

import json
from copy import deepcopy
from itertools import pairwise
from typing import Any

import msgspec
import pytest

from hotloop.wire.event import Answer
from hotloop.wire.part import Call
from hotloop.wire.stable import Stabiliser

SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
SYSTEM = "You help.\nThe session is 3f2b8c1d-9a7e-4c55-8d21-0f6be0a1{number:04d}.\nBe brief."


def chat(*said: Any, system: str = "You help.", tools: Any = None) -> dict[str, Any]:
    body = {"model": "m", "messages": [{"role": "system", "content": system}, *said]}
    return body if tools is None else body | {"tools": tools}


def messages(*said: Any, system: Any = "You help.") -> dict[str, Any]:
    return {"model": "m", "max_tokens": 9, "system": system, "messages": [*said]}


def user(text: Any) -> dict[str, Any]:
    return {"role": "user", "content": text}


def text(said: str) -> dict[str, Any]:
    return {"type": "text", "text": said}


def assistant(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def rewritten(
    stabiliser: Stabiliser, api: Any, body: dict[str, Any], **options: Any
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The whole body, and what was done to it."""
    fields, changes = stabiliser.rewrite(api, deepcopy(body), **options)
    assert fields or not changes
    whole = {name: value for name, value in {**body, **fields}.items() if value is not None}
    return msgspec.json.decode(msgspec.json.encode(whole)), changes


def rewrite(stabiliser: Stabiliser, api: Any, body: dict[str, Any], **options: Any) -> dict[str, Any]:
    return rewritten(stabiliser, api, body, **options)[0]


def test_nothing_is_done_to_what_is_stable() -> None:
    for api, body in (("chat", chat(user("hi"))), ("messages", messages(user("hi")))):
        assert Stabiliser().rewrite(api, deepcopy(body)) == ({}, ())  # type: ignore[arg-type]


def test_what_is_the_same_from_request_to_request_is_the_same_again() -> None:
    stabiliser = Stabiliser()
    tools = [{"type": "function", "function": {"name": name, "parameters": SCHEMA}} for name in ("write", "read")]
    bodies = [
        rewrite(stabiliser, "chat", spoken("chat", i, SYSTEM.format(number=7)) | {"tools": tools}) for i in (0, 1)
    ]
    assert json.dumps(bodies[0]["tools"]) == json.dumps(bodies[1]["tools"]) == json.dumps(tools[::-1])
    assert bodies[0]["messages"] == bodies[1]["messages"][:2]


@pytest.mark.parametrize(
    "wrap",
    [
        lambda name, schema: {"type": "function", "function": {"name": name, "parameters": schema}},
        lambda name, schema: {"function": {"parameters": schema, "name": name}, "type": "function"},
    ],
)
def test_tools_and_their_keys_come_in_one_order(wrap: Any) -> None:
    shuffled = {"required": ["path"], "properties": SCHEMA["properties"], "type": "object"}
    body, changes = rewritten(
        Stabiliser(), "chat", chat(user("hi"), tools=[wrap("write", SCHEMA), wrap("read", shuffled)])
    )
    plain = [{"type": "function", "function": {"name": name, "parameters": SCHEMA}} for name in ("read", "write")]
    assert json.dumps(body["tools"]) == json.dumps(plain)
    assert changes == ("tools: put into one order",)


def test_the_mark_of_the_last_tool_stays_the_last() -> None:
    tools = [
        {"name": "b", "input_schema": SCHEMA},
        {"name": "a", "input_schema": SCHEMA, "cache_control": {"type": "x"}},
    ]
    body = rewrite(Stabiliser(), "messages", {**messages(user("hi")), "tools": tools})
    assert [(tool["name"], "cache_control" in tool) for tool in body["tools"]] == [("a", False), ("b", True)]


def spoken(api: str, number: int, system: str) -> dict[str, Any]:
    """The conversation after so many answers."""
    said = [each for i in range(number) for each in (user(f"question {i}"), assistant(f"answer {i}"))]
    said.append(user(f"question {number}"))
    if api == "chat":
        return chat(*said, system=system)
    if api == "messages":
        return messages(*said, system=[{"type": "text", "text": system}])
    return {"model": "m", "instructions": system, "input": said}


@pytest.mark.parametrize("api", ["chat", "messages", "responses"])
@pytest.mark.parametrize("line", ["Current date and time: 2026-11-19 10:{number:02d}:11", SYSTEM.split("\n")[1]])
def test_a_line_that_changes_moves_behind_the_newest_message_and_stays_there(api: Any, line: str) -> None:
    stabiliser, prompts = Stabiliser(), []
    for number in range(4):
        system = f"You help.\n{line.format(number=number)}\nBe brief."
        body = rewrite(stabiliser, api, spoken(api, number, system))
        turns = body.pop("input" if api == "responses" else "messages")
        prompts.append((json.dumps(body), [json.dumps(turn) for turn in turns]))
        assert line.format(number=number) in json.dumps(body) + json.dumps(turns), "it is still told"
    for (head, before), (next_head, turns) in pairwise(prompts[1:]):
        assert head == next_head
        assert turns[: len(before)] == before


def test_the_line_is_looked_for_in_its_own_scope() -> None:
    stabiliser = Stabiliser()
    for number in range(3):
        system = SYSTEM.format(number=number)
        body = rewrite(stabiliser, "chat", chat(user("hi"), system=system), scope=f"tenant {number}")
        assert body["messages"][0]["content"] == system


def test_the_header_of_claude_code_is_dropped() -> None:
    header = {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1.36.a1b; cc_entrypoint=cli;"}
    body, changes = rewritten(
        Stabiliser(), "messages", messages(user("hi"), system=[header, {"type": "text", "text": "Help."}])
    )
    assert body["system"] == [{"type": "text", "text": "Help."}]
    assert changes == ("messages[0]: the billing header was dropped",)


@pytest.mark.parametrize(
    ("said", "wanted"),
    [
        (
            [user("hi"), {"role": "system", "content": "Now in French."}, user("go on")],
            [user("hi"), user("<system>\nNow in French.\n</system>\n\ngo on")],
        ),
        (
            [user("hi"), {"role": "developer", "content": "Stop."}],
            [user("hi\n\n<system>\nStop.\n</system>")],
        ),
        (
            [user("hi"), assistant("yes"), {"role": "system", "content": "Stop."}],
            [user("hi"), assistant("yes"), user("<system>\nStop.\n</system>")],
        ),
        (
            [
                user([{"type": "text", "text": "hi"}]),
                {"role": "system", "content": [{"type": "text", "text": "Stop."}]},
            ],
            [user([{"type": "text", "text": "hi"}, {"type": "text", "text": "<system>\nStop.\n</system>"}])],
        ),
    ],
)
def test_late_system_turns_become_words_where_they_stand(said: Any, wanted: Any) -> None:
    body, changes = rewritten(Stabiliser(), "chat", chat(*said))
    assert body["messages"][1:] == wanted
    assert len(changes) == 1


def test_arguments_come_back_as_they_were_written() -> None:
    stabiliser = Stabiliser()
    stabiliser.learn(Answer(parts=(Call("call_77", "read", '{"path":"a",  "x":1}'),)), scope="s")
    call = {"id": "call_77", "type": "function", "function": {"name": "read", "arguments": '{"path": "a", "x": 1}'}}
    said = [user("hi"), {"role": "assistant", "content": None, "tool_calls": [call]}]
    body = rewrite(stabiliser, "chat", chat(*said), scope="s")
    assert body["messages"][2]["tool_calls"][0]["function"]["arguments"] == '{"path":"a",  "x":1}'
    other = rewrite(stabiliser, "chat", chat(*said), scope="another")
    assert other["messages"][2]["tool_calls"][0] == call
    call["function"]["arguments"] = '{"path": "b"}'  # type: ignore[index]
    assert rewrite(stabiliser, "chat", chat(*said), scope="s")["messages"][2]["tool_calls"][0] == call
    block = {"type": "tool_use", "id": "toolu_77", "name": "read", "input": {"x": 1, "path": "a"}}
    body = rewrite(stabiliser, "messages", messages(user("hi"), {"role": "assistant", "content": [block]}), scope="s")
    assert [*body["messages"][1]["content"][0]["input"]] == ["path", "x"]


def test_marks_and_keys_are_placed_where_they_pay_and_nothing_is_marked() -> None:
    body, changes = rewritten(Stabiliser(), "messages", messages(user("hi")), pays_marks=True)
    assert (
        body["system"][0]["cache_control"]
        == body["messages"][0]["content"][0]["cache_control"]
        == {"type": "ephemeral"}
    )
    assert changes == ("cache_control: placed behind the system text and the newest message",)
    marked = messages(user([{"type": "text", "text": "hi", "cache_control": {"type": "ephemeral"}}]))
    assert Stabiliser().rewrite("messages", deepcopy(marked), pays_marks=True) == ({}, ())
    assert rewrite(Stabiliser(), "chat", chat(user("hi")), cache_key="k")["prompt_cache_key"] == "k"
    given = {**chat(user("hi")), "prompt_cache_key": "own"}
    assert rewrite(Stabiliser(), "chat", given, cache_key="k") == given


@pytest.mark.parametrize(
    "body",
    [
        {"messages": "x"},
        {"messages": [1, None, {"role": 7, "content": {"a": 1}}], "tools": 5, "system": 9},
        {"messages": [{"role": "user"}], "tools": [{}], "system": [{"type": "text"}]},
        {"input": 3, "instructions": ["x"]},
        {
            "messages": [
                {"role": "assistant", "tool_calls": [{"function": {"arguments": 3}}], "content": [{"type": "tool_use"}]}
            ]
        },
        {"tools": [{"function": 3}, {"name": None}, {"type": "function", "function": {"parameters": [1]}}]},
    ],
)
@pytest.mark.parametrize("api", ["chat", "messages", "responses"])
def test_what_cannot_be_read_is_left_to_the_replica(api: Any, body: dict[str, Any]) -> None:
    Stabiliser().rewrite(api, deepcopy(body), pays_marks=True)
