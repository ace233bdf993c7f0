"""Tools that are more than functions, and a body as the Codex command line sends it."""

import json
from typing import Any

import openai
from tests.server.asking import ask, check_events, function, kinds
from tests.server.calls import WEATHER, write_call
from tests.server.serving import MODEL, Serving, check_error

PATCH = "*** Begin Patch\n*** Add File: a.txt\n+é\n*** End Patch\n"
GRAMMAR = {"type": "grammar", "syntax": "lark", "definition": "start: /.+/s"}
APPLY_PATCH: Any = {"type": "custom", "name": "apply_patch", "description": "Edits files.", "format": GRAMMAR}
SHELL = {
    "type": "object",
    "properties": {"cmd": {"type": "string"}, "yield_time_ms": {"type": "number"}},
    "required": ["cmd"],
    "additionalProperties": False,
}
HOSTED = [{"type": "web_search", "external_web_access": False}, {"type": "tool_search", "execution": "client"}]
NAMESPACE = {
    "type": "namespace",
    "name": "mcp__sky",
    "description": "Tools of the sky.",
    "tools": [function("weather", WEATHER), function("exec_command", SHELL)],
}


def message(role: str, *texts: str) -> dict[str, Any]:
    kind = "output_text" if role == "assistant" else "input_text"
    return {"type": "message", "role": role, "content": [{"type": kind, "text": text} for text in texts]}


CODEX: dict[str, Any] = {
    "model": MODEL,
    "instructions": "You are a coding agent.",
    "input": [
        message("developer", "<permissions>read-only</permissions>", "<mode>default</mode>"),
        message("user", "<environment_context><cwd>/repo</cwd></environment_context>"),
        message("user", "Fix the test."),
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": None, "encrypted_content": "gAAAA"},
        message("assistant", "I look at it first."),
        {"type": "function_call", "name": "exec_command", "arguments": '{"cmd": "ls"}', "call_id": "call_1"},
        {"type": "web_search_call", "status": "completed", "action": {"type": "search", "query": "x"}},
        {"type": "function_call_output", "call_id": "call_1", "output": "a.txt"},
        {"type": "custom_tool_call", "name": "apply_patch", "input": PATCH, "call_id": "call_2", "status": "completed"},
        {
            "type": "custom_tool_call_output",
            "call_id": "call_2",
            "output": [{"type": "input_text", "text": "Success."}],
        },
    ],
    "tools": [function("exec_command", SHELL, strict=False), APPLY_PATCH, NAMESPACE, *HOSTED],
    "tool_choice": "auto",
    "parallel_tool_calls": True,
    "reasoning": {"effort": "medium", "summary": "auto"},
    "store": False,
    "stream": True,
    "include": ["reasoning.encrypted_content"],
    "prompt_cache_key": "0199a213-81c0-7800-8aa1-bbab2a035a53",
    "client_metadata": {"x-codex-installation-id": "7"},
    "text": {"verbosity": "low"},
}
HEADERS = {"session-id": "0199a213", "thread-id": "0199a213", "originator": "codex_exec", "accept": "text/event-stream"}


def test_a_body_of_codex() -> None:
    with Serving(script=["", "", "Done."]) as serving:
        answer = serving.http.post("/v1/responses", json=CODEX, headers=HEADERS)
        events = check_events(answer.text)
    assert answer.headers["content-type"].startswith("text/event-stream")
    last = events[-1]["response"]
    assert last["status"] == "completed"
    assert [item["content"][0]["text"] for item in last["output"]] == ["Done."]
    assert [tool["type"] for tool in last["tools"]] == ["function", "custom", "namespace"]  # what the model was told of
    assert last["usage"]["input_tokens_details"]["cached_tokens"] == 0


def test_a_custom_tool_takes_plain_text() -> None:
    call_body = json.dumps({"name": "apply_patch", "arguments": {"input": PATCH}}, ensure_ascii=False)
    script = [f"<tool_call>\n{call_body}\n</tool_call>", "Done."]
    with Serving(script=script) as serving, serving.openai() as client:
        events = check_events(ask(serving, stream=True, tools=[APPLY_PATCH], max_output_tokens=500).text)
        response = client.responses.create(model=MODEL, input="hello", tools=[APPLY_PATCH])
        [call] = response.output
        assert call.type == "custom_tool_call"
        assert (call.name, call.input) == ("apply_patch", PATCH)
        output: Any = {"type": "custom_tool_call_output", "call_id": call.call_id, "output": "Success."}
        again = client.responses.create(
            model=MODEL, input=[output], tools=[APPLY_PATCH], previous_response_id=response.id
        )
        listed = client.responses.input_items.list(again.id, order="asc").data
    assert again.output_text == "Done."
    assert [item.type for item in listed] == ["message", "custom_tool_call", "custom_tool_call_output"]
    assert kinds(events)[2:-1] == [
        "output_item.added",
        "custom_tool_call_input.delta",
        "custom_tool_call_input.done",
        "output_item.done",
    ]
    assert events[-1]["response"]["output"][0]["input"] == PATCH


def test_a_custom_call_that_is_cut_has_no_text() -> None:
    with Serving(script=[write_call("apply_patch", input="abc")]) as serving:
        whole = ask(serving, tools=[APPLY_PATCH], tool_choice="required", max_output_tokens=61).json()
    assert [(item["input"], item["status"]) for item in whole["output"]] == [("", "incomplete")]


def test_tools_in_a_namespace() -> None:
    """Two tools of the same name, told apart; the call goes back as the client knows it, and may be sent again."""
    tools: Any = [function("exec_command", SHELL), NAMESPACE]
    script = [write_call("mcp__sky__exec_command", cmd="ls"), "Done."]
    with Serving(script=script) as serving, serving.openai() as client:
        response = client.responses.create(model=MODEL, input="hello", tools=tools)
        [call] = response.output
        assert call.type == "function_call"
        assert (call.name, call.namespace, call.arguments) == ("exec_command", "mcp__sky", '{"cmd": "ls"}')
        output: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "a.txt"}
        given: list[Any] = [{"role": "user", "content": "hello"}, call, output]
        resent = client.responses.create(model=MODEL, input=given, tools=tools)
        chained = client.responses.create(model=MODEL, input=[output], tools=tools, previous_response_id=response.id)
    assert resent.output_text == chained.output_text == "Done."
    assert resent.usage
    assert chained.usage
    assert resent.usage.input_tokens == chained.usage.input_tokens


def test_a_tool_that_cannot_be_is_named_where_it_is(serving: Serving) -> None:
    odd = function("odd", {"type": "object", "properties": {"a": {"type": "odd"}}})
    tools = [*HOSTED, {"type": "namespace", "name": "n", "tools": [function("fine"), odd]}]
    assert check_error(ask(serving, tools=tools), 400)["param"] == "tools[2].tools[1].parameters"
    nested = {"type": "namespace", "name": "n", "tools": [{"type": "namespace", "name": "m", "tools": []}]}
    assert check_error(ask(serving, tools=[nested]), 400)["param"] == "tools[0].tools[0]"


def test_a_named_custom_tool(client: openai.OpenAI) -> None:
    response = client.responses.create(
        model=MODEL,
        input="hello",
        tools=[APPLY_PATCH, function("clock")],
        tool_choice={"type": "custom", "name": "apply_patch"},
        max_output_tokens=200,
    )
    assert response.output[0].type == "custom_tool_call"
    assert response.tool_choice.to_dict() == {"type": "custom", "name": "apply_patch"}  # type: ignore[union-attr]
    assert json.loads(response.to_json())["tools"][1]["strict"] is True


def test_hosted_tools_are_left_out_and_told(serving: Serving) -> None:
    kinds = ["file_search", "mcp", "code_interpreter", "web_search"]
    made = ask(serving, tools=[function("clock"), *({"type": kind} for kind in kinds)]).json()
    assert [tool["name"] for tool in made["tools"]] == ["clock"]
    assert [change.split()[1] for change in made["usage"]["hotloop"]["changes"]] == kinds
