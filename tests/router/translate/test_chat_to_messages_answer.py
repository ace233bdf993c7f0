"""What an Anthropic replica answers, as an OpenAI client reads it: with its own types, and through its own client."""

import json
from typing import Any

import openai
import pytest
from openai.types.chat import ChatCompletion
from tests.router.translate.replicas import (
    MESSAGES,
    Json,
    Replica,
    check_broken_off,
    check_chunks,
    feed,
    message_events,
    named,
)

from hotloop.router.translate import Translation, translate

ASK: Any = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
USAGE: Json = {
    "input_tokens": 20,
    "cache_read_input_tokens": 64,
    "cache_creation_input_tokens": 16,
    "output_tokens": 7,
    "cache_creation": {"ephemeral_5m_input_tokens": 16},
}
THINKING: tuple[Json, list[Json]] = (
    {"type": "thinking", "thinking": "", "signature": ""},
    [{"type": "thinking_delta", "thinking": "hm"}, {"type": "signature_delta", "signature": "sig"}],
)
WORDS: tuple[Json, list[Json]] = (
    {"type": "text", "text": ""},
    [{"type": "text_delta", "text": "größe "}, {"type": "text_delta", "text": "🦜"}],
)


def call(call_id: str, name: str, *pieces: str) -> tuple[Json, list[Json]]:
    block = {"type": "tool_use", "id": call_id, "name": name, "input": {}}
    return block, [{"type": "input_json_delta", "partial_json": piece} for piece in pieces]


def translation(**fields: Any) -> Translation:
    made = translate("chat", MESSAGES, {**ASK, **fields})
    assert made
    return made


def message(*content: Json, stop: str = "end_turn") -> Json:
    fields: Json = {"id": "msg_7", "type": "message", "role": "assistant", "model": "claude", "content": content}
    return {**fields, "stop_reason": stop, "stop_sequence": None, "usage": USAGE}


def read(answer: Json) -> ChatCompletion:
    status, body = translation().answer(200, json.dumps(answer).encode())
    assert status == 200
    return ChatCompletion.model_validate_json(body, strict=True)


def stream(data: bytes, size: int = 7) -> list[Json]:
    return check_chunks(feed(translation(stream_options={"include_usage": True}), data, size))


def test_a_whole_answer() -> None:
    thought = {"type": "thinking", "thinking": "hm", "signature": "sig"}
    used = {"type": "tool_use", "id": "t1", "name": "f", "input": {"ä": 1}}
    answer = read(message(thought, {"type": "text", "text": "a"}, {"type": "text", "text": "b"}, used, stop="tool_use"))
    [choice] = answer.choices
    said = choice.message.model_dump()
    assert (answer.id, answer.model, choice.finish_reason) == ("chatcmpl-7", "claude", "tool_calls")
    assert (said["content"], said["reasoning_content"], said["thinking_blocks"]) == ("ab", "hm", [thought])
    assert said["tool_calls"][0]["function"] == {"name": "f", "arguments": '{"ä": 1}'}


def test_the_cached_tokens_are_a_part_of_the_prompt() -> None:
    usage = read(message({"type": "text", "text": "a"})).usage
    assert usage
    assert usage.prompt_tokens_details
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (100, 7, 107)
    assert (usage.prompt_tokens_details.cached_tokens, usage.prompt_tokens_details.cache_write_tokens) == (64, 16)


@pytest.mark.parametrize(
    ("stop", "finish"),
    [
        ("end_turn", "stop"),
        ("stop_sequence", "stop"),
        ("max_tokens", "length"),
        ("model_context_window_exceeded", "length"),
        ("tool_use", "tool_calls"),
        ("refusal", "content_filter"),
        ("pause_turn", "stop"),
        ("something_new", "stop"),
    ],
)
def test_why_it_ended(stop: str, finish: str) -> None:
    assert read(message(stop=stop)).choices[0].finish_reason == finish
    assert stream(message_events(WORDS, stop=stop))[-2]["choices"][0]["finish_reason"] == finish


def test_the_chunks_of_a_stream_and_their_order() -> None:
    data = message_events(
        THINKING, WORDS, call("t1", "f", '{"a":', "1}"), call("t2", "g"), stop="tool_use", usage=USAGE
    )
    *chunks, usage = stream(data, size=1)
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert deltas == [
        {"role": "assistant", "content": "", "refusal": None},
        {"reasoning_content": "hm"},
        {"thinking_blocks": [{"type": "thinking", "thinking": "hm", "signature": "sig"}]},
        {"content": "größe "},
        {"content": "🦜"},
        {"tool_calls": [{"index": 0, "id": "t1", "type": "function", "function": {"name": "f", "arguments": ""}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": '{"a":'}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": "1}"}}]},
        {"tool_calls": [{"index": 1, "id": "t2", "type": "function", "function": {"name": "g", "arguments": ""}}]},
        {"tool_calls": [{"index": 1, "function": {"arguments": "{}"}}]},
        {},
    ]
    assert [chunk["usage"] for chunk in chunks] == [None] * len(chunks)
    assert usage["choices"] == []
    assert (usage["usage"]["prompt_tokens"], usage["usage"]["completion_tokens"]) == (100, 9)


def test_usage_comes_only_where_it_was_asked_for() -> None:
    data = feed(translation(stream=True), message_events(WORDS), 9)
    assert b'"usage"' not in data
    assert data.endswith(b"data: [DONE]\n\n")


def test_the_client_puts_a_stream_together() -> None:
    data = message_events(WORDS, call("t1", "f", '{"a":', " 1}"), stop="tool_use", usage=USAGE)
    with (
        Replica(MESSAGES, data, size=3) as replica,
        replica.openai as client,
        client.chat.completions.stream(**ASK, stream_options={"include_usage": True}) as answer,
    ):
        answer.until_done()
        final = answer.get_final_completion()
    [choice] = final.choices
    assert choice.message.content == "größe 🦜"
    assert choice.message.tool_calls
    assert choice.message.tool_calls[0].function.arguments == '{"a": 1}'
    assert final.usage
    assert final.usage.prompt_tokens == 100
    assert replica.paths == ["/v1/messages"]


def test_a_stream_that_breaks_off_ends_with_one_error_and_no_done() -> None:
    broken = message_events(WORDS).split(b"event: message_delta")[0]
    check_broken_off(translation, broken, b'data: {"error":')


def test_the_client_hears_of_a_failure_inside_a_stream() -> None:
    begun = message_events(WORDS).split(b"event: message_delta")[0]
    failure = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
    with (
        Replica(MESSAGES, begun + named(failure)) as replica,
        replica.openai as client,
        pytest.raises(openai.APIError, match="Overloaded"),
    ):
        list(client.chat.completions.create(**ASK, stream=True))


@pytest.mark.parametrize("data", [b"data: {\n\n", b'data: {"delta": 3}\n\n', b"data: \xff\n\n", b"data: [1]\n\n", b""])
def test_nonsense_in_a_stream_is_one_error(data: bytes) -> None:
    ending = feed(translation(), data, 5)
    assert ending.count(b'data: {"error"') == 1
    assert b"[DONE]" not in ending


@pytest.mark.parametrize("body", [b"", b"<html>", b"[]", b'{"content": 1}', b"\xff"])
def test_nonsense_in_a_whole_answer_is_a_bad_gateway(body: bytes) -> None:
    status, told = translation().answer(200, body)
    assert status == 502
    assert json.loads(told)["error"]["type"] == "server_error"
