"""Built-in tools that clients run themselves: offered to the model, called in the shape their clients expect, and read
back so that the next prompt begins with what was said. And what becomes of those that only their maker runs."""

import json
from typing import Any

import jsonschema
import pytest
from tests.server.asking import ask, check_events, function, kinds
from tests.server.calls import write_call
from tests.server.claude import ask as ask_claude
from tests.server.claude import blocks_of, claude, post
from tests.server.serving import Serving, check_error

from hotloop.wire.builtin import find_anthropic, find_openai

BASH = {"type": "bash_20250124", "name": "bash"}
EDITOR = {"type": "text_editor_20250728", "name": "str_replace_based_edit_tool", "max_characters": 1000}
MEMORY = {"type": "memory_20250818", "name": "memory"}
COMPUTER = {"type": "computer_20250124", "name": "computer", "display_width_px": 800, "display_height_px": 600}
EDIT = {"command": "str_replace", "path": "/a", "old_str": "b", "new_str": "c"}

SHELL = {"commands": ["ls -l", "pwd"], "timeout_ms": 5000}
PATCH = {"type": "update_file", "path": "a.py", "diff": "@@\n-a\n+b\n"}
CALLS: dict[str, tuple[str, dict[str, Any], dict[str, Any], Any]] = {
    "shell": (
        "shell_call",
        SHELL,
        {"action": {**SHELL, "max_output_length": None}, "environment": None},
        [{"stdout": "a\n", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}],
    ),
    "local_shell": (
        "local_shell_call",
        {"command": ["bash", "-lc", "ls"]},
        {"action": {"type": "exec", "command": ["bash", "-lc", "ls"], "env": {}}},
        "a",
    ),
    "apply_patch": ("apply_patch_call", PATCH, {"operation": PATCH}, "Done."),
    "computer_use_preview": (
        "computer_call",
        {"action": {"type": "click", "button": "left", "x": 1, "y": 2}},
        {"action": {"type": "click", "button": "left", "x": 1, "y": 2}, "pending_safety_checks": []},
        {"type": "computer_screenshot", "image_url": "data:image/png;base64,AA"},
    ),
}
TOOL_FIELDS = {"computer_use_preview": {"environment": "linux", "display_width": 800, "display_height": 600}}


def tool(kind: str) -> dict[str, Any]:
    return {"type": kind, **TOOL_FIELDS.get(kind, {})}


@pytest.mark.parametrize(
    ("given", "arguments"), [(BASH, {"command": "ls"}), (EDITOR, EDIT), (COMPUTER, {"action": "screenshot"})], ids=str
)
def test_anthropics_are_called_by_their_names(given: Any, arguments: dict[str, Any]) -> None:
    name = given["name"]
    with Serving(script=[write_call(name, **arguments)]) as serving, claude(serving) as client:
        answer = ask_claude(client, tools=[given])
        with client.messages.stream(
            model="tiny", max_tokens=400, messages=[{"role": "user", "content": "x"}], tools=[given]
        ) as stream:
            streamed = stream.get_final_message()
    assert blocks_of(answer) == blocks_of(streamed) == [(name, arguments)]
    assert answer.stop_reason == "tool_use"
    assert answer.usage.model_extra
    assert not [
        change
        for change in answer.usage.model_extra["hotloop"].get("changes", ())
        if "enforced" in change or "left out" in change
    ]


def test_the_memory_is_called_by_name_and_follows_its_schema(serving: Serving) -> None:
    """A model that says anything at all says what the tool takes."""
    memory, bash = find_anthropic("memory_20250818", {}), find_anthropic("bash_20250124", {})
    assert memory
    assert bash
    for given, found in ((MEMORY, memory), (BASH, bash)):
        choice = {"type": "tool", "name": given["name"]}
        answer = post(serving, tools=[MEMORY, BASH], tool_choice=choice, max_tokens=2000, seed=1).json()
        [block] = [block for block in answer["content"] if block["type"] == "tool_use"]
        assert block["name"] == given["name"]
        if answer["stop_reason"] == "tool_use":
            jsonschema.validate(block["input"], found.schema)


@pytest.mark.parametrize("kind", CALLS)
def test_openais_are_items_of_their_own(kind: str) -> None:
    item_kind, arguments, expected, _ = CALLS[kind]
    found = find_openai(tool(kind))
    assert found
    with Serving(script=[write_call(found.name, **arguments)]) as serving:
        made = ask(serving, tools=[tool(kind)], max_output_tokens=400).json()
        events = check_events(ask(serving, tools=[tool(kind)], max_output_tokens=400, stream=True).text)
    [item] = made["output"]
    assert {name: item[name] for name in expected} == expected
    assert (item["type"], item["status"]) == (item_kind, "completed")
    assert item["call_id"].startswith("call_")
    assert made["tools"] == [tool(kind)]
    told = [name for name in kinds(events) if not name.startswith("shell_call_command")]
    assert told == ["created", "in_progress", "output_item.added", "output_item.done", "completed"]
    [last] = events[-1]["response"]["output"]
    assert {name: last[name] for name in expected} == expected


def test_the_commands_of_a_shell_are_told_one_by_one() -> None:
    with Serving(script=[write_call("shell", **SHELL)]) as serving:
        events = check_events(ask(serving, tools=[tool("shell")], max_output_tokens=400, stream=True).text)
    told = [event for event in events if "shell_call_command" in event["type"]]
    assert [event["type"].rpartition(".")[2] for event in told] == ["added", "delta", "done"] * 2
    assert [event["command"] for event in told if event["type"].endswith("done")] == SHELL["commands"]
    assert [event["command_index"] for event in told] == [0, 0, 0, 1, 1, 1]


@pytest.mark.parametrize("kind", CALLS)
def test_the_next_prompt_begins_with_what_was_said(kind: str) -> None:
    """What the model wrote, and nothing else, comes back: all of the first turn is cached."""
    item_kind, arguments, _, output = CALLS[kind]
    found = find_openai(tool(kind))
    assert found
    with Serving(script=[write_call(found.name, **arguments), "Done."]) as serving:
        first = ask(serving, tools=[tool(kind)], max_output_tokens=400).json()
        [item] = first["output"]
        result = {"type": f"{item_kind}_output", "call_id": item["call_id"], "output": output, "status": "completed"}
        if item_kind == "local_shell_call":
            result = {"type": f"{item_kind}_output", "id": item["call_id"], "output": output}
        history = [{"role": "user", "content": "hello"}, item, result]
        second = ask(serving, tools=[tool(kind)], input=history, max_output_tokens=400).json()
        continued = ask(
            serving, tools=[tool(kind)], input=[result], previous_response_id=first["id"], max_output_tokens=400
        ).json()
        listed = serving.http.get(f"/v1/responses/{continued['id']}/input_items?order=asc").json()["data"]
    assert second["usage"]["input_tokens_details"]["cached_tokens"] > first["usage"]["input_tokens"]
    assert {*second["usage"]["hotloop"]["causes"]} <= {"block"}  # no more than the end of the last one
    assert second["output"][0]["content"][0]["text"] == "Done."
    assert continued["usage"]["input_tokens"] == second["usage"]["input_tokens"]
    assert [each["type"] for each in listed] == ["message", item_kind, f"{item_kind}_output"]


def test_a_call_that_is_cut_off_is_not_complete() -> None:
    for kind, (_, arguments, _, _) in CALLS.items():
        found = find_openai(tool(kind))
        assert found
        with Serving(script=[write_call(found.name, **arguments)]) as serving:
            made = ask(serving, tools=[tool(kind)], max_output_tokens=60).json()
            events = check_events(ask(serving, tools=[tool(kind)], max_output_tokens=60, stream=True).text)
        assert made["status"] == "incomplete"
        [item] = made["output"]
        assert item["status"] != "completed"
        assert events[-1]["type"] == "response.incomplete"


@pytest.mark.parametrize("kind", ["shell", "apply_patch", "local_shell", "computer_use_preview", "computer_use"])
def test_a_choice_by_type(serving: Serving, kind: str) -> None:
    name = "computer_use_preview" if kind == "computer_use" else kind
    tools = [function("clock"), tool(name)]
    made = ask(serving, tools=tools, tool_choice={"type": kind}, max_output_tokens=600, seed=3).json()
    assert made["output"][0]["type"] == CALLS[name][0]
    allowed = {"type": "allowed_tools", "mode": "required", "tools": [{"type": kind}, {"type": "web_search"}]}
    made = ask(serving, tools=tools, tool_choice=allowed, max_output_tokens=600, seed=3).json()
    assert made["output"][0]["type"] == CALLS[name][0]


def test_a_hosted_tool_that_is_asked_for_is_refused_in_words(serving: Serving) -> None:
    search, clock = {"type": "web_search"}, function("clock")
    for fields in (
        {"tools": [search], "tool_choice": "required"},
        {"tools": [clock, search], "tool_choice": {"type": "web_search"}},
        {"tools": [clock, search], "tool_choice": {"type": "mcp", "server_label": "x"}},
        {"tools": [clock, search], "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [search]}},
        {"tools": [{"type": "shell", "environment": {"type": "container_auto"}}], "tool_choice": "required"},
    ):
        assert "nothing here runs" in check_error(ask(serving, **fields), 400, "invalid_value")["message"]
    fetch = {"type": "web_fetch_20250910", "name": "web_fetch"}
    for fields in (
        {"tools": [fetch], "tool_choice": {"type": "any"}},
        {"tools": [BASH, fetch], "tool_choice": {"type": "tool", "name": "web_fetch"}},
    ):
        answer = post(serving, **fields)
        assert answer.status_code == 400
        assert "nothing here runs 'web_fetch_20250910'" in answer.json()["error"]["message"]


def test_a_hosted_tool_that_is_only_offered_is_left_out_and_that_is_told(serving: Serving) -> None:
    search, fetch = {"type": "web_search"}, {"type": "web_fetch_20250910", "name": "web_fetch"}
    for answer in (ask(serving, tools=[search]), ask(serving, tools=[search], tool_choice="none")):
        assert answer.status_code == 200
        assert any("web_search was left out" in change for change in answer.json()["usage"]["hotloop"]["changes"])
    assert post(serving, tools=[fetch]).status_code == 200
    assert post(serving, tools=[BASH, fetch]).status_code == 200


def test_two_tools_of_one_name(serving: Serving) -> None:
    clash = [function("shell"), tool("shell")]
    assert "another tool named 'shell'" in check_error(ask(serving, tools=clash), 400)["message"]


@pytest.mark.parametrize(
    ("item", "param"),
    [
        ({"type": "shell_call", "call_id": "1"}, "input[0].action"),
        ({"type": "shell_call", "action": {"commands": []}}, "input[0].id"),
        ({"type": "apply_patch_call", "call_id": "1", "operation": 7}, "input[0].operation"),
        ({"type": "local_shell_call_output", "output": "x"}, "input[0].id"),
        ({"type": "shell_call_output", "call_id": "1", "output": [7]}, "input[0].output[0]"),
        ({"type": "computer_call_output", "call_id": "1"}, "input[0].output"),
    ],
    ids=str,
)
def test_items_that_are_wrong_are_named(serving: Serving, item: Any, param: str) -> None:
    assert check_error(ask(serving, input=[item]), 400)["param"] == param


def test_deep_arguments_are_refused() -> None:
    deep: Any = "x"
    for _ in range(900):
        deep = [deep]
    with Serving() as serving:
        item = {"type": "computer_call", "call_id": "1", "actions": deep}
        body = json.dumps({"input": [item, {"role": "user", "content": "x"}], "max_output_tokens": 2})
        answer = serving.http.post("/v1/responses", content=body, headers={"content-type": "application/json"})
    assert answer.status_code in (200, 400)
