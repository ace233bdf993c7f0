"""Chats and messages on replicas that speak OpenAI's responses only."""

import json
from typing import Any

import pytest
from anthropic.types import Message
from openai.types.chat import ChatCompletion
from openai.types.responses import response_create_params
from pydantic import TypeAdapter
from tests.router.translate.replicas import (
    RESPONSE_EVENT,
    Json,
    Replica,
    check_chunks,
    check_message_events,
    feed,
    named,
)
from tests.router.translate.test_fit import look_through

from hotloop.router.kinds import Api
from hotloop.router.translate import Translation, translate

RESPONSES: frozenset[Api] = frozenset({"responses"})
BODY: TypeAdapter[Any] = TypeAdapter(response_create_params.ResponseCreateParamsNonStreaming)
CALL: Json = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
CHAT: Json = {
    "model": "m",
    "max_tokens": 5,
    "messages": [
        {"role": "system", "content": "be kind"},
        {
            "role": "user",
            "content": [{"type": "text", "text": "look"}, {"type": "image_url", "image_url": {"url": "u"}}],
        },
        {"role": "assistant", "content": "I do", "reasoning_content": "hm", "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "c1", "content": "rain"},
    ],
    "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}],
    "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {}}},
    "reasoning_effort": "low",
    "stream_options": {"include_usage": True},
}
MESSAGES: Json = {
    "model": "m",
    "max_tokens": 5,
    "system": "be kind",
    "messages": [
        {"role": "user", "content": "look"},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "", "signature": "responses:c2VhbA=="},
                {"type": "text", "text": "I do"},
                {"type": "tool_use", "id": "c1", "name": "f", "input": {"a": 1}},
            ],
        },
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": "rain"}]},
    ],
    "tools": [{"name": "f", "input_schema": {"type": "object"}}],
}
TEXT: Json = {"type": "output_text", "text": "größe", "annotations": [], "logprobs": []}
SAID: Json = {"id": "msg_1", "type": "message", "status": "completed", "role": "assistant", "content": [TEXT]}
CALLED: Json = {
    "id": "fc_1",
    "type": "function_call",
    "call_id": "c2",
    "name": "f",
    "arguments": '{"b": 2}',
    "status": "completed",
}
THOUGHT: Json = {
    "id": "rs_1",
    "type": "reasoning",
    "summary": [{"type": "summary_text", "text": "I looked."}],
    "encrypted_content": "c2VhbA==",
}
USAGE: Json = {
    "input_tokens": 100,
    "input_tokens_details": {"cached_tokens": 64, "cache_write_tokens": 0},
    "output_tokens": 7,
    "output_tokens_details": {"reasoning_tokens": 2},
    "total_tokens": 107,
}
RESPONSE: Json = {
    "id": "resp_7",
    "object": "response",
    "created_at": 1,
    "model": "gpt",
    "status": "completed",
    "output": [THOUGHT, SAID, CALLED],
    "parallel_tool_calls": True,
    "tool_choice": "auto",
    "tools": [],
    "usage": USAGE,
}


def translation(api: Api, *, is_strict: bool = False) -> Translation:
    made = translate(api, RESPONSES, CHAT if api == "chat" else MESSAGES, is_strict=is_strict)
    assert made
    return made


def events() -> bytes:
    """As OpenAI streams it; checked with its own types."""
    place, where = {"output_index": 1}, {"output_index": 1, "item_id": "msg_1", "content_index": 0}
    begun = {**RESPONSE, "status": "in_progress", "output": [], "usage": None}
    told: list[Json] = [
        {"type": "response.created", "response": begun},
        {"type": "response.output_item.added", "output_index": 0, "item": {**THOUGHT, "summary": []}},
        {
            "type": "response.reasoning_summary_text.delta",
            "item_id": "rs_1",
            "output_index": 0,
            "summary_index": 0,
            "delta": "I looked.",
        },
        {"type": "response.output_item.done", "output_index": 0, "item": THOUGHT},
        {"type": "response.output_item.added", **place, "item": {**SAID, "content": [], "status": "in_progress"}},
        {"type": "response.output_text.delta", **where, "delta": "größe", "logprobs": []},
        {"type": "response.output_text.done", **where, "text": "größe", "logprobs": []},
        {"type": "response.output_item.done", **place, "item": SAID},
        {"type": "response.output_item.added", "output_index": 2, "item": {**CALLED, "arguments": ""}},
        {
            "type": "response.function_call_arguments.delta",
            "output_index": 2,
            "item_id": "fc_1",
            "delta": '{"b": 2}',
        },
        {"type": "response.output_item.done", "output_index": 2, "item": CALLED},
        {"type": "response.completed", "response": RESPONSE},
    ]
    numbered = [{**event, "sequence_number": i} for i, event in enumerate(told)]
    for event in numbered:
        RESPONSE_EVENT.validate_python(event)
    return b"".join(named(event) for event in numbered)


@pytest.mark.parametrize("api", ["chat", "messages"])
@pytest.mark.parametrize("is_strict", [True, False])
def test_what_is_asked_fits_the_types_of_openais_client(api: Api, is_strict: bool) -> None:
    path, body = translation(api, is_strict=is_strict).request()
    assert path == "/v1/responses"
    # Its types want a thought's id, which the API itself does not where nothing is stored.
    items = [{"id": "rs", **item} if item["type"] == "reasoning" else item for item in body["input"]]
    look_through(BODY.validate_python({**body, "input": items}))
    assert (body["instructions"], body["max_output_tokens"], body["store"]) == ("be kind", 5, False)
    kinds = [item["type"] for item in body["input"]]
    has_thought = api == "messages" or not is_strict
    thought = ["reasoning"] if has_thought else []
    assert kinds == ["message", *thought, "message", "function_call", "function_call_output"]


def test_a_chats_fields_have_their_place() -> None:
    body = translation("chat").request()[1]
    assert body["text"]["format"] == {"type": "json_schema", "name": "x", "schema": {}}
    assert body["reasoning"] == {"effort": "low"}
    assert body["tools"] == [{"type": "function", "name": "f", "parameters": {"type": "object"}, "strict": False}]
    assert body["input"][0]["content"][1] == {"type": "input_image", "image_url": "u", "detail": "auto"}


def test_what_openai_sealed_goes_back_to_it() -> None:
    item = translation("messages", is_strict=True).request()[1]["input"][1]
    assert item == {"type": "reasoning", "summary": [], "encrypted_content": "c2VhbA=="}


def test_a_whole_answer_as_a_chat() -> None:
    status, data = translation("chat").answer(200, json.dumps(RESPONSE).encode())
    completion = ChatCompletion.model_validate_json(data, strict=True)
    [choice] = completion.choices
    assert (status, completion.id, choice.finish_reason) == (200, "chatcmpl-7", "tool_calls")
    said = choice.message.model_dump()
    assert (said["content"], said["reasoning_content"]) == ("größe", "I looked.")
    assert said["tool_calls"][0]["function"] == {"name": "f", "arguments": '{"b": 2}'}
    assert completion.usage
    assert (completion.usage.prompt_tokens, completion.usage.completion_tokens) == (100, 7)


def test_a_whole_answer_as_a_message() -> None:
    status, data = translation("messages").answer(200, json.dumps(RESPONSE).encode())
    message = Message.model_validate_json(data, strict=True)
    assert (status, message.id, message.stop_reason) == (200, "msg_7", "tool_use")
    assert [block.type for block in message.content] == ["thinking", "text", "tool_use"]
    assert message.content[0].model_dump()["signature"] == "responses:c2VhbA=="
    assert (message.usage.input_tokens, message.usage.cache_read_input_tokens) == (36, 64)


@pytest.mark.parametrize("size", [1, 64])
def test_streams(size: int) -> None:
    chunks = check_chunks(feed(translation("chat"), events(), size))
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks if chunk["choices"]]
    assert "".join(delta.get("content") or "" for delta in deltas) == "größe"
    assert chunks[-1]["usage"]["prompt_tokens"] == 100
    told = check_message_events(feed(translation("messages"), events(), size))
    assert [event["content_block"]["type"] for event in told if "content_block" in event] == [
        "thinking",
        "text",
        "tool_use",
    ]
    assert told[-2]["delta"]["stop_reason"] == "tool_use"


def test_the_client_puts_a_stream_together() -> None:
    with (
        Replica(RESPONSES, events(), size=5) as replica,
        replica.claude as client,
        client.messages.stream(**MESSAGES) as answer,
    ):
        message = answer.get_final_message()
    thinking, text, call = (block.model_dump() for block in message.content)
    assert (thinking["thinking"], thinking["signature"]) == ("I looked.", "responses:c2VhbA==")
    assert (text["text"], call["input"]) == ("größe", {"b": 2})
    assert replica.paths == ["/v1/responses"]


@pytest.mark.parametrize("api", ["chat", "messages"])
def test_a_stream_that_breaks_off_or_fails_ends_with_one_error(api: Api) -> None:
    broken = events().split(b"event: response.completed")[0]
    failed = {**RESPONSE, "status": "failed", "error": {"code": "server_error", "message": "out of memory"}}
    for data in (broken, broken + named({"type": "response.failed", "response": failed})):
        told = feed(translation(api), data, 50)
        assert told.count(b'"error":{') == 1
        assert b"[DONE]" not in told
    assert b"out of memory" in told


CUSTOM: Json = {"type": "custom", "custom": {"name": "sql", "description": "Asks."}}
CUSTOM_CALL: Json = {"id": "c1", "type": "custom", "custom": {"name": "sql", "input": "SELECT 1"}}


def test_custom_tools_of_a_chat_become_functions_and_come_back() -> None:
    turns = [
        {"role": "user", "content": "x"},
        {"role": "assistant", "content": None, "tool_calls": [CUSTOM_CALL]},
        {"role": "tool", "tool_call_id": "c1", "content": "1"},
    ]
    named = {"type": "custom", "custom": {"name": "sql"}}
    translation = translate(
        "chat", RESPONSES, {"model": "m", "messages": turns, "tools": [CUSTOM], "tool_choice": named}
    )
    body = translation.request()[1]
    BODY.validate_python(body)
    assert (body["tools"][0]["type"], body["tools"][0]["name"]) == ("function", "sql")
    assert body["tool_choice"] == {"type": "function", "name": "sql"}
    called = {"type": "function_call", "call_id": "c1", "name": "sql", "arguments": '{"input": "SELECT 1"}'}
    assert body["input"][1:] == [called, {"type": "function_call_output", "call_id": "c1", "output": "1"}]
    item = {**CALLED, "name": "sql", "arguments": '{"input": "SELECT 2"}'}
    answer = {"id": "resp_1", "object": "response", "model": "m", "status": "completed", "output": [item]}
    status, said = translation.answer(200, json.dumps(answer).encode())
    [call] = json.loads(said)["choices"][0]["message"]["tool_calls"]
    assert (status, call["type"], call["custom"]) == (200, "custom", {"name": "sql", "input": "SELECT 2"})
    events = [
        {"type": "response.created", "response": {"id": "resp_1", "model": "m"}},
        {"type": "response.output_item.added", "output_index": 0, "item": {**item, "arguments": ""}},
        {"type": "response.function_call_arguments.delta", "output_index": 0, "delta": item["arguments"]},
        {"type": "response.output_item.done", "output_index": 0, "item": item},
        {"type": "response.completed", "response": answer},
    ]
    told = feed(translation, b"".join(named_event(event) for event in events), 7)
    pieces = [
        piece
        for chunk in told.decode().split("\n\n")
        if chunk.startswith("data: {")
        for choice in json.loads(chunk.removeprefix("data: "))["choices"]
        for piece in choice["delta"].get("tool_calls", ())
    ]
    assert [piece["custom"] for piece in pieces] == [{"name": "sql", "input": ""}, {"input": "SELECT 2"}]


def named_event(event: Json) -> bytes:
    return f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode()
