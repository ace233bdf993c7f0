"""Tools that come late are read in every shape, and rendered for APIs that have none of these."""

from itertools import permutations
from typing import Any

import pytest
from tests.wire.test_requests import APIS, parse

from hotloop.wire.formats import FORMATS
from hotloop.wire.offered import find_changes, offered_tools
from hotloop.wire.part import Api
from hotloop.wire.policy import RenderTarget
from hotloop.wire.request import ApiRequest

SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}}
HI = {"role": "user", "content": [{"type": "text", "text": "hi"}]}


def claude_tool(name: str, **fields: Any) -> dict[str, Any]:
    return {"name": name, "input_schema": SCHEMA, **fields}


def item_tool(name: str, **fields: Any) -> dict[str, Any]:
    return {"type": "function", "name": name, "parameters": SCHEMA, **fields}


def reference(name: str) -> dict[str, Any]:
    return {"type": "tool_reference", "tool_name": name}


def system(kind: str, **tool: Any) -> dict[str, Any]:
    return {"role": "system", "content": [{"type": kind, "tool": tool}]}


REDEFINED = claude_tool("read", description="Reads lines.")
CLAUDE = {
    "model": "m",
    "max_tokens": 9,
    "tools": [claude_tool("search"), claude_tool("late", defer_loading=True), claude_tool("never", defer_loading=True)],
    "messages": [
        HI,
        {"role": "assistant", "content": [{"type": "tool_use", "id": "t1", "name": "search", "input": {}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": [reference("late")]}]},
        system("tool_addition", type="tool_definition", definition=claude_tool("read")),
        {"role": "assistant", "content": [{"type": "text", "text": "ok"}]},
        HI,
        system("tool_removal", type="tool_reference", name="search"),
        {"role": "assistant", "content": [{"type": "text", "text": "ok"}]},
        HI,
        system("tool_addition", type="tool_definition", definition=REDEFINED),
    ],
}
SPACE = {"type": "namespace", "name": "crm", "tools": [item_tool("late", defer_loading=True)]}
CODEX = {
    "model": "m",
    "tools": [item_tool("search"), SPACE, item_tool("never", defer_loading=True)],
    "input": [
        {"role": "user", "content": "hi"},
        {"type": "additional_tools", "role": "developer", "tools": [item_tool("read"), {"type": "web_search"}]},
        {"role": "assistant", "content": "ok"},
        {"role": "user", "content": "hi"},
        {"type": "tool_search_output", "execution": "server", "status": "completed", "call_id": None, "tools": [SPACE]},
    ],
}


def test_what_anthropics_clients_say() -> None:
    request = parse("messages", CLAUDE)
    offered = offered_tools(request)
    assert [tool.name for tool in offered.head] == ["search"]  # type: ignore[union-attr]
    found = [([tool.name for tool in change.added], change.removed) for change in offered.changes]
    assert found == [(["late"], ()), (["read"], ()), ([], ("search",)), (["read"], ())]
    assert [change.added[0].description for change in offered.changes if change.added] == [None, None, "Reads lines."]
    assert [(tool.name, tool.description) for tool in offered.callable] == [("late", None), ("read", "Reads lines.")]


def test_what_openais_clients_say() -> None:
    offered = offered_tools(parse("responses", CODEX))
    assert [tool.name for tool in offered.head] == ["search"]  # type: ignore[union-attr]
    assert [[tool.flat_name for tool in change.added] for change in offered.changes] == [["read"], ["crm__late"]]
    assert [tool.flat_name for tool in offered.callable] == ["search", "read", "crm__late"]


def test_what_may_be_called_already_is_not_added_again() -> None:
    again = {**CLAUDE["messages"][2], "role": "user"}  # type: ignore[index]
    request = parse("messages", {**CLAUDE, "messages": [*CLAUDE["messages"][:3], *CLAUDE["messages"][1:2], again]})  # type: ignore[index]
    assert [len(change.added) for change in offered_tools(request).changes] == [1, 0]


def test_what_is_not_defined_is_told() -> None:
    request = parse("messages", {**CLAUDE, "tools": [claude_tool("search")], "messages": CLAUDE["messages"][:3]})  # type: ignore[index]
    assert offered_tools(request).changes[0].unknown == ("late",)
    asked = {"role": "assistant", "content": [{"type": "server_tool_use", "id": "s", "name": "x", "input": {}}]}
    failed = {"type": "tool_search_tool_result_error", "error_code": "unavailable"}
    asked["content"] += [{"type": "tool_search_tool_result", "tool_use_id": "s", "content": failed}]  # type: ignore[operator]
    mcp = system("tool_addition", type="mcp_toolset_reference", server_name="x")
    request = parse("messages", {**CLAUDE, "messages": [HI, asked, HI, mcp]})
    assert [(change.added, change.unknown) for change in offered_tools(request).changes] == [((), ()), ((), ())]


@pytest.mark.parametrize(("api", "body"), [("messages", CLAUDE), ("responses", CODEX)])
def test_they_are_rendered_as_they_came(api: Api, body: dict[str, Any]) -> None:
    request, target = parse(api, body), RenderTarget()
    rendered = FORMATS[api].render(request, target)
    assert parse(api, rendered) == request
    assert rendered["tools"] == body["tools"]
    assert not any("tool" in note for note in target.notes.all)


BODIES: dict[Api, Any] = {"messages": CLAUDE, "responses": CODEX}


@pytest.mark.parametrize(("near", "far"), [pair for pair in permutations(APIS, 2) if pair[0] != "chat"])
def test_an_api_without_them_has_what_was_found_in_its_list(near: Api, far: Api) -> None:
    request, target = parse(near, BODIES[near]), RenderTarget(is_strict=True)
    arrived: ApiRequest = parse(far, FORMATS[far].render(request, target))
    assert [tool.flat_name for tool in arrived.tools] == [tool.flat_name for tool in offered_tools(request).callable]  # type: ignore[union-attr]
    assert not any(tool.is_deferred for tool in arrived.tools)  # type: ignore[union-attr]
    assert [*find_changes(arrived.turns)] == []
    assert "late tools are listed with the others once they are found" in target.notes.all
    if near == "messages":
        assert "Tools loaded: late" in str(arrived.turns)
