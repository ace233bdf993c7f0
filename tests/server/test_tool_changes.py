"""What clients say where tools come or go, in the words of each API: they can be called from there on, or no longer."""

import json
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.properties import examples
from tests.server.calls import write_call
from tests.server.serving import HELLO, MODEL, Routing, Serving
from tests.server.test_late_tools import claude_tool, item_tool, post, references, result, saying

FIND = claude_tool("search")
DEFERRED = claude_tool("late", defer_loading=True)
CALL = {"type": "tool_use", "id": "toolu_1", "name": "search", "input": {}}
ASKED: list[Any] = [*HELLO, {"role": "assistant", "content": [CALL]}]
ADDED = {"type": "tool_addition", "tool": {"type": "tool_reference", "name": "late"}}
DEFINED = {"type": "tool_addition", "tool": {"type": "tool_definition", "definition": claude_tool("late")}}
REMOVED = {"type": "tool_removal", "tool": {"type": "tool_reference", "name": "search"}}


def system(*blocks: Any) -> Any:
    return {"role": "system", "content": [*blocks]}


SEARCHED = (*ASKED, result("toolu_1", references("late")))
PLAIN = (*ASKED, result("toolu_1", "none"))
HOSTED = {
    "role": "assistant",
    "content": [
        {"type": "server_tool_use", "id": "srvtoolu_1", "name": "tool_search_tool_bm25", "input": {"query": "x"}},
        {
            "type": "tool_search_tool_result",
            "tool_use_id": "srvtoolu_1",
            "content": {"type": "tool_search_tool_search_result", "tool_references": references("late")},
        },
    ],
}
INPUT: list[Any] = [{"role": "user", "content": "hello"}]
ITEM = {"type": "tool_search_output", "execution": "client", "call_id": "c1", "status": "completed"}
ADDITIONAL = {"type": "additional_tools", "role": "developer"}
SPACE: Any = {"type": "namespace", "name": "crm", "description": "", "tools": [item_tool("late", defer_loading=True)]}

MARKED: list[tuple[str, dict[str, Any], str]] = [
    ("/v1/messages", {"tools": [FIND, DEFERRED], "messages": [*SEARCHED]}, "late"),
    ("/v1/messages", {"tools": [FIND, DEFERRED], "messages": [*PLAIN, system(ADDED)]}, "late"),
    ("/v1/messages", {"tools": [FIND], "messages": [*PLAIN, system(DEFINED)]}, "late"),
    ("/v1/messages", {"tools": [FIND, DEFERRED], "messages": [*HELLO, HOSTED, *HELLO]}, "late"),
    (
        "/v1/responses",
        {"tools": [item_tool("search")], "input": [*INPUT, {**ADDITIONAL, "tools": [item_tool("late")]}]},
        "late",
    ),
    ("/v1/responses", {"input": [{**ADDITIONAL, "tools": [item_tool("late")]}, *INPUT]}, "late"),
    (
        "/v1/responses",
        {
            "tools": [item_tool("search"), SPACE],
            "input": [
                *INPUT,
                {"type": "tool_search_call", "arguments": {}, "call_id": "c1"},
                {**ITEM, "tools": [SPACE]},
            ],
        },
        "crm__late",
    ),
]


def num_tokens(http: httpx.Client, path: str, body: Any) -> Any:
    path = f"{path}/{'count_tokens' if path == '/v1/messages' else 'input_tokens'}"
    return post(http, path, **body)["input_tokens"]


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("path", "body", "name"), MARKED)
@pytest.mark.parametrize("is_routed", [False, True])
def test_what_was_found_can_be_called(path: str, body: dict[str, Any], name: str, is_routed: bool) -> None:
    script = [write_call(name, path="a")] * 3
    with saying(*script) as serving:
        if is_routed:
            with Routing(serving.url) as url, httpx.Client(base_url=url, verify=False) as http:
                answer = post(http, path, max_tokens=400, max_output_tokens=400, **body)
        else:
            answer = post(serving.http, path, max_tokens=400, max_output_tokens=400, **body)
            assert num_tokens(serving.http, path, body) == num_tokens(serving.http, path, body)
    calls = answer.get("content") or answer.get("output")
    assert name in [f"{call['namespace']}__{call['name']}" if call.get("namespace") else call["name"] for call in calls]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/messages", {"tools": [FIND, DEFERRED], "messages": [*PLAIN]}),
        ("/v1/messages", {"tools": [FIND, DEFERRED], "messages": [*PLAIN], "tool_choice": {"type": "any"}}),
        ("/v1/responses", {"tools": [item_tool("search"), item_tool("late", defer_loading=True)], "input": INPUT}),
        (
            "/v1/messages",
            {
                "tools": [claude_tool("late"), FIND],
                "messages": [
                    *PLAIN,
                    system({"type": "tool_removal", "tool": {"type": "tool_reference", "name": "late"}}),
                ],
            },
        ),
    ],
)
def test_what_was_not_found_or_is_gone_cannot_be_called(path: str, body: dict[str, Any]) -> None:
    with saying(*[write_call("late", path="a")] * 3) as serving:
        answer = post(serving.http, path, max_tokens=200, max_output_tokens=200, **body)
        assert '"late"' not in json.dumps(answer["content"] if "content" in answer else answer["output"])
        choice = {"type": "tool" if path == "/v1/messages" else "function", "name": "late"}
        refused = serving.http.post(path, json={**body, "model": MODEL, "max_tokens": 9, "tool_choice": choice})
    assert refused.status_code == 400
    assert "late" in refused.json()["error"]["message"]


def test_a_deferred_tool_is_not_in_the_prompt_until_it_is_found() -> None:
    with saying("a") as serving:
        tools = [FIND, DEFERRED]
        without = num_tokens(serving.http, "/v1/messages", {"tools": tools[:1], "messages": PLAIN})
        assert num_tokens(serving.http, "/v1/messages", {"tools": tools, "messages": PLAIN}) == without
        assert num_tokens(serving.http, "/v1/messages", {"tools": tools, "messages": SEARCHED}) > without + 100


def test_an_answer_goes_on_from_what_a_provider_found() -> None:
    with saying("a") as serving:
        tools = [FIND, DEFERRED]
        without = num_tokens(serving.http, "/v1/messages", {"tools": tools, "messages": HELLO})
        answer = post(serving.http, "/v1/messages", max_tokens=9, tools=tools, messages=[*HELLO, HOSTED])
    assert answer["usage"]["input_tokens"] + answer["usage"]["cache_read_input_tokens"] > without + 100


def test_where_a_provider_would_search_all_are_loaded() -> None:
    hosted = {"type": "tool_search_tool_regex_20251119", "name": "tool_search_tool_regex"}
    with saying(write_call("late", path="a")) as serving:
        body = {"tools": [hosted, FIND, DEFERRED], "messages": HELLO}
        answer = post(serving.http, "/v1/messages", max_tokens=400, **body)
        changes = answer["usage"]["hotloop"]["changes"]
    assert [block["name"] for block in answer["content"]] == ["late"]
    assert any("deferred ones are all loaded" in change for change in changes)


def test_what_was_done_is_told() -> None:
    with saying(*["ok"] * 4) as serving:
        body = {"tools": [FIND, DEFERRED], "messages": [*SEARCHED, system(REMOVED)]}
        changes = post(serving.http, "/v1/messages", max_tokens=9, **body)["usage"]["hotloop"]["changes"]
        assert "tools: late added later, described after messages[2]" in changes
        assert "tools: search removed, noted after messages[2]" in changes
        body = {"tools": [FIND], "messages": SEARCHED}
        changes = post(serving.http, "/v1/messages", max_tokens=9, **body)["usage"]["hotloop"]["changes"]
        assert "tools: late named in the conversation, not defined: left out" in changes


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/messages", {"messages": [*HELLO, system({"type": "tool_addition"})]}, "messages[1].content[0].tool"),
        (
            "/v1/messages",
            {"messages": [*HELLO, system({"type": "tool_removal", "tool": {}})]},
            "messages[1].content[0].tool.type",
        ),
        (
            "/v1/messages",
            {"messages": [*HELLO, {"role": "user", "content": [{"type": "tool_reference"}]}]},
            "messages[1].content[0].tool_name",
        ),
        ("/v1/responses", {"input": [*INPUT, {"type": "additional_tools", "tools": 3}]}, "input[1].tools"),
        ("/v1/responses", {"input": [*INPUT, {**ADDITIONAL, "tools": [item_tool("no name")]}]}, "input[1].tools[0]"),
    ],
)
def test_what_is_wrong_is_named(path: str, body: dict[str, Any], param: str) -> None:
    with saying("a") as serving:
        refused = serving.http.post(path, json={"model": MODEL, "max_tokens": 9, **body})
    assert refused.status_code == 400, refused.text
    assert param in refused.json()["error"]["message"]


NAMES = st.sampled_from(["search", "late", "other", ""])
REFERENCES = NAMES.map(lambda name: {"type": "tool_reference", "tool_name": name})
TARGETS = (
    NAMES.map(lambda name: {"type": "tool_reference", "name": name})
    | NAMES.map(lambda name: {"type": "tool_definition", "definition": claude_tool(name, num_words=1)})
    | st.sampled_from([{}, {"type": "mcp_toolset_reference", "server_name": "x"}, {"type": "tool_definition"}])
)
BLOCKS = st.one_of(
    REFERENCES,
    st.builds(
        lambda kind, tool: {"type": kind, "tool": tool}, st.sampled_from(["tool_addition", "tool_removal"]), TARGETS
    ),
    st.lists(REFERENCES, max_size=2).map(lambda found: {"type": "tool_result", "tool_use_id": "t", "content": found}),
    st.lists(REFERENCES, max_size=2).map(
        lambda found: {"type": "tool_search_tool_result", "tool_use_id": "s", "content": {"tool_references": found}}
    ),
    st.just(CALL),
    st.just({"type": "text", "text": "hi"}),
)
TURN = st.builds(
    lambda role, content: {"role": role, "content": content},
    st.sampled_from(["user", "assistant", "system"]),
    st.lists(BLOCKS, max_size=3),
)
DECLARED = st.lists(
    st.builds(lambda name, is_late: claude_tool(name, 1, defer_loading=is_late), NAMES, st.booleans()), max_size=3
)
ITEMS = st.one_of(
    NAMES.map(lambda name: {**ADDITIONAL, "tools": [item_tool(name or "f"), {"type": "web_search"}]}),
    NAMES.map(lambda name: {**ITEM, "tools": [item_tool(name or "f", defer_loading=True)]}),
    st.sampled_from([*INPUT, {"type": "tool_search_call", "arguments": {}}, {"role": "assistant", "content": "ok"}]),
    st.just({"type": "function_call", "call_id": "c", "name": "late", "arguments": "{}"}),
    st.just({"type": "function_call_output", "call_id": "c", "output": "1"}),
)


def test_any_mix_of_them_is_answered_or_refused() -> None:
    with Serving() as serving:

        @settings(max_examples=examples(150), deadline=None)
        @given(DECLARED, st.lists(TURN, min_size=1, max_size=5), st.lists(ITEMS, min_size=1, max_size=6))
        def check(tools: list[Any], messages: list[Any], items: list[Any]) -> None:
            bodies = {"messages": {"tools": tools, "messages": messages}, "responses": {"input": items}}
            for api, body in bodies.items():
                response = serving.http.post(f"/v1/{api}", json={"max_tokens": 1, "max_output_tokens": 1, **body})
                assert response.status_code in (200, 400), response.text

        check()
