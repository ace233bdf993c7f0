"""OpenAI's responses on replicas that speak a chat, or even only Anthropic's messages."""

import json
from typing import Any

import openai
import pytest
from openai.types.responses import Response
from tests.router.translate.replicas import (
    CHAT,
    ITEMS,
    MESSAGES,
    RESPONSE_EVENT,
    Json,
    Replica,
    call_piece,
    check_each,
    chunks,
    feed,
    message_events,
)

from hotloop.core.errors import RequestError
from hotloop.router.translate import Translation, translate

ASK: Any = {"model": "m", "input": "hi"}
FUNCTION: Json = {"type": "function", "name": "f", "parameters": {"type": "object"}, "strict": False}
CUSTOM: Json = {"type": "custom", "name": "patch", "description": "edits"}
USAGE: Json = {"prompt_tokens": 100, "completion_tokens": 7, "prompt_tokens_details": {"cached_tokens": 64}}


def translation(*, is_strict: bool = False, **fields: Any) -> Translation:
    made = translate("responses", CHAT, {**ASK, **fields}, is_strict=is_strict)
    assert made
    return made


def ask(**fields: Any) -> Json:
    return translation(**fields).request()[1]


def stream(data: bytes, **fields: Any) -> list[Json]:
    told = feed(translation(**fields), data, 5)
    return check_each(told, lambda event: RESPONSE_EVENT.validate_python(event))


def test_the_plainest_request_loses_nothing() -> None:
    made = translation(instructions="be kind", max_output_tokens=5, temperature=0.5, prompt_cache_key="k", stream=True)
    assert made.request() == (
        "/v1/chat/completions",
        {
            "model": "m",
            "messages": [{"role": "system", "content": "be kind"}, {"role": "user", "content": "hi"}],
            "max_tokens": 5,
            "temperature": 0.5,
            "prompt_cache_key": "k",
            "stream": True,
            "stream_options": {"include_usage": True},
        },
    )
    assert made.notes == ()


def test_items_become_turns() -> None:
    items = [
        {"role": "developer", "content": "rules"},
        *ITEMS,
        {"type": "custom_tool_call_output", "call_id": "2", "output": [{"type": "input_text", "text": "y"}]},
        {"type": "function_call", "call_id": "3", "name": "f", "namespace": "n", "arguments": "{}"},
    ]

    def call(call_id: str, name: str, arguments: str) -> Json:
        return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}

    assert ask(input=items)["messages"] == [
        {"role": "system", "content": "rules"},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": "u"}}]},
        {
            "role": "assistant",
            "content": "b",
            "reasoning_content": "hm",
            "tool_calls": [call("1", "f", "{}"), call("2", "patch", '{"input": "ü"}')],
        },
        {"role": "tool", "tool_call_id": "1", "content": "x"},
        {"role": "tool", "tool_call_id": "2", "content": "y"},
        {"role": "assistant", "content": None, "tool_calls": [call("3", "n__f", "{}")]},
    ]


def test_tools_and_what_is_asked_of_them() -> None:
    tools = [FUNCTION, CUSTOM, {"type": "namespace", "name": "n", "tools": [FUNCTION]}, {"type": "web_search"}]
    made = translation(tools=tools, tool_choice={"type": "custom", "name": "patch"}, parallel_tool_calls=False)
    body = made.request()[1]
    assert [tool["function"]["name"] for tool in body["tools"]] == ["f", "patch", "n__f"]
    assert body["tool_choice"] == {"type": "function", "function": {"name": "patch"}}
    assert body["parallel_tool_calls"] is False
    assert made.notes == ("tool of type web_search left out: the replica has no built-in tools",)


def test_the_shape_of_the_answer_and_its_effort() -> None:
    form = {"type": "json_schema", "name": "x", "schema": {}, "strict": True}
    body = ask(text={"format": form}, reasoning={"effort": "low"})
    schema = {"name": "x", "schema": {}, "strict": True}
    assert body["response_format"] == {"type": "json_schema", "json_schema": schema}
    assert body["reasoning_effort"] == "low"


def test_openai_itself_is_sent_nothing_it_would_refuse() -> None:
    made = translation(is_strict=True, top_k=3, user="u", include=["x"], max_output_tokens=4)
    assert set(made.request()[1]) == {"model", "messages", "user", "max_completion_tokens"}
    assert made.notes == ("not known to the replica's API: include", "not known to the replica's API: top_k")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"conversation": "c"}, "conversation"),
        ({"prompt": {"id": "p"}}, "prompt"),
        ({"background": True}, "background"),
        ({"input": []}, "input"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0]"),
        ({"input": [{"role": "user", "content": [{"type": "input_audio"}]}]}, "input[0].content[0]"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"text": {"format": {"type": "xml"}}}, "text.format.type"),
    ],
)
def test_what_cannot_be_carried_is_refused_by_name(fields: Json, param: str) -> None:
    with pytest.raises(RequestError) as caught:
        ask(**fields)
    assert caught.value.param == param


def test_a_whole_answer() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "patch", "arguments": '{"input": "ü"}'}}
    message = {"role": "assistant", "content": "ok", "reasoning_content": "hm", "tool_calls": [call]}
    choice = {"index": 0, "message": message, "finish_reason": "tool_calls"}
    answer = {"id": "chatcmpl-7", "model": "llama", "choices": [choice], "usage": USAGE}
    status, body = translation(tools=[CUSTOM]).answer(200, json.dumps(answer).encode())
    response = Response.model_validate_json(body)
    assert (status, response.id, response.status, response.model) == (200, "resp_7", "completed", "llama")
    assert [item.type for item in response.output] == ["reasoning", "message", "custom_tool_call"]
    assert response.output_text == "ok"
    assert response.output[2].model_dump()["input"] == "ü"
    assert response.usage
    assert (response.usage.input_tokens, response.usage.input_tokens_details.cached_tokens) == (100, 64)


def test_the_events_of_a_stream_and_their_order() -> None:
    data = chunks(
        {"role": "assistant", "content": ""},
        {"reasoning": "hm"},
        {"content": "größe "},
        {"content": "🦜"},
        call_piece(0, "f", "", "c0"),
        call_piece(0, None, '{"a":1}'),
        call_piece(1, "patch", '{"input": "x"}', "c1"),
        finish="tool_calls",
        usage=USAGE,
    )
    events = stream(data, tools=[FUNCTION, CUSTOM])
    assert [event["type"].removeprefix("response.") for event in events] == [
        *("created", "in_progress"),
        *("output_item.added", "content_part.added", "reasoning_text.delta"),
        *("reasoning_text.done", "content_part.done", "output_item.done"),
        *("output_item.added", "content_part.added", "output_text.delta", "output_text.delta"),
        *("output_text.done", "content_part.done", "output_item.done"),
        *("output_item.added", "function_call_arguments.delta", "function_call_arguments.done", "output_item.done"),
        *("output_item.added", "custom_tool_call_input.delta", "custom_tool_call_input.done", "output_item.done"),
        "completed",
    ]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    Response.model_validate(events[-1]["response"])


def test_an_answer_that_is_cut_off_and_a_stream_that_breaks_off() -> None:
    [*_, last] = stream(chunks({"content": "a"}, finish="length"))
    assert (last["type"], last["response"]["incomplete_details"]["reason"]) == (
        "response.incomplete",
        "max_output_tokens",
    )
    for broken in (chunks({"content": "a"}, finish=None).removesuffix(b"data: [DONE]\n\n"), b""):
        [*_, last] = stream(broken)
        assert (last["type"], last["response"]["error"]["code"]) == ("response.failed", "server_error")


def test_the_client_puts_a_stream_together() -> None:
    data = chunks({"content": "größe 🦜"}, call_piece(0, "f", '{"a": 1}', "c0"), finish="tool_calls", usage=USAGE)
    with (
        Replica(CHAT, data, size=3) as replica,
        replica.openai as client,
        client.responses.stream(**ASK) as answer,
    ):
        response = answer.until_done().get_final_response()
    assert response.output_text == "größe 🦜"
    assert response.output[1].model_dump()["arguments"] == '{"a": 1}'


def test_a_response_from_anthropic() -> None:
    words: tuple[Json, list[Json]] = ({"type": "text", "text": ""}, [{"type": "text_delta", "text": "größe"}])
    call: tuple[Json, list[Json]] = ({"type": "tool_use", "id": "t", "name": "f", "input": {}}, [])
    tools: Any = [FUNCTION]
    with Replica(MESSAGES, message_events(words, call, stop="tool_use"), size=3) as replica, replica.openai as client:
        with client.responses.stream(**ASK, tools=tools) as answer:
            response = answer.until_done().get_final_response()
        assert response.output_text == "größe"
        assert response.output[1].model_dump()["arguments"] == "{}"
        assert response.usage
        assert (response.usage.input_tokens, response.usage.output_tokens) == (3, 9)
        assert replica.asked[0]["tools"][0]["name"] == "f"
    broken = message_events(words).split(b"event: message_delta")[0]
    with Replica(MESSAGES, broken) as replica, replica.openai as client:
        *_, last = client.responses.create(**ASK, stream=True)
        assert last.type == "response.failed"
    refusal = {"type": "error", "error": {"type": "rate_limit_error", "message": "slow down"}}
    with (
        Replica(MESSAGES, refusal, status=429) as replica,
        replica.openai as client,
        pytest.raises(openai.RateLimitError, match="slow down"),
    ):
        client.responses.create(**ASK)


SHELL_ITEM: Json = {
    "type": "shell_call",
    "call_id": "1",
    "action": {"commands": ["ls"], "timeout_ms": None, "max_output_length": None},
    "status": "completed",
}
SHELL_OUTPUT: Json = {
    "type": "shell_call_output",
    "call_id": "1",
    "output": [{"stdout": "a", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}],
}


def test_built_in_tools_become_functions_and_come_back_as_items() -> None:
    tools: list[Json] = [{"type": "shell"}, {"type": "apply_patch"}]
    body = ask(
        tools=tools, tool_choice={"type": "shell"}, input=[{"role": "user", "content": "x"}, SHELL_ITEM, SHELL_OUTPUT]
    )
    assert [tool["function"]["name"] for tool in body["tools"]] == ["shell", "apply_patch"]
    assert body["tool_choice"] == {"type": "function", "function": {"name": "shell"}}
    [call] = body["messages"][1]["tool_calls"]
    assert call == {"id": "1", "type": "function", "function": {"name": "shell", "arguments": '{"commands": ["ls"]}'}}
    assert body["messages"][2] == {"role": "tool", "tool_call_id": "1", "content": "a\nexit code: 0"}
    patch = {"type": "create_file", "path": "a", "diff": "+b"}
    data = chunks(
        call_piece(0, "shell", '{"commands": ["ls", "pwd"]}', "c1"),
        call_piece(1, "apply_patch", json.dumps(patch), "c2"),
    )
    events = stream(data, tools=tools)
    shell, patched = events[-1]["response"]["output"]
    assert (shell["type"], shell["action"]["commands"], shell["call_id"]) == ("shell_call", ["ls", "pwd"], "c1")
    assert (patched["type"], patched["operation"]) == ("apply_patch_call", patch)


@pytest.mark.parametrize("choice", ["required", {"type": "web_search"}])
def test_a_hosted_tool_that_is_asked_for_is_refused(choice: Any) -> None:
    with pytest.raises(RequestError, match="nothing here runs 'web_search'"):
        ask(tools=[{"type": "web_search"}, *([] if choice == "required" else [FUNCTION])], tool_choice=choice)
