"""What a chat replica answers, as an Anthropic client reads it: with its own types, and through its own client."""

import json
from typing import Any

import anthropic
import pytest
from anthropic.types import Message
from tests.router.translate.replicas import (
    CHAT,
    Json,
    Replica,
    call_piece,
    check_broken_off,
    check_message_events,
    chunks,
    feed,
)

from hotloop.router.translate import Translation, translate

ASK: Any = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}
USAGE: Json = {
    "prompt_tokens": 100,
    "completion_tokens": 7,
    "total_tokens": 107,
    "prompt_tokens_details": {"cached_tokens": 64, "cache_write_tokens": 16},
    "completion_tokens_details": {"reasoning_tokens": 2},
}


def translation() -> Translation:
    made = translate("messages", CHAT, ASK)
    assert made
    return made


def completion(message: Json, finish: str = "stop", **choice: Any) -> Json:
    said = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": finish, **choice}
    return {"id": "chatcmpl-7", "object": "chat.completion", "model": "llama", "choices": [said], "usage": USAGE}


def read(answer: Json) -> Message:
    status, body = translation().answer(200, json.dumps(answer).encode())
    assert status == 200
    return Message.model_validate_json(body, strict=True)


def stream(data: bytes, size: int = 7) -> list[Json]:
    return check_message_events(feed(translation(), data, size))


def kinds(events: list[Json]) -> list[str]:
    return [event["type"].removeprefix("content_") for event in events]


def test_a_whole_answer() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    message = read(completion({"content": "ok", "reasoning_content": "hm", "tool_calls": [call]}, "tool_calls"))
    assert [block.type for block in message.content] == ["thinking", "text", "tool_use"]
    assert (message.id, message.model, message.stop_reason) == ("msg_7", "llama", "tool_use")
    assert message.content[2].model_dump()["input"] == {"a": 1}


def test_every_token_of_the_prompt_is_counted_once() -> None:
    usage = read(completion({"content": "ok"})).usage
    assert (usage.input_tokens, usage.cache_read_input_tokens, usage.cache_creation_input_tokens) == (20, 64, 16)
    assert usage.output_tokens == 7
    assert usage.output_tokens_details
    assert usage.output_tokens_details.thinking_tokens == 2


@pytest.mark.parametrize(
    ("finish", "extra", "reason", "sequence"),
    [
        ("stop", {}, "end_turn", None),
        ("stop", {"stop_reason": "END"}, "stop_sequence", "END"),
        ("stop", {"matched_stop": "END"}, "stop_sequence", "END"),
        ("stop", {"stop_reason": 128009}, "end_turn", None),
        ("length", {}, "max_tokens", None),
        ("content_filter", {}, "refusal", None),
        ("tool_calls", {}, "tool_use", None),
    ],
)
def test_why_it_ended(finish: str, extra: Json, reason: str, sequence: str | None) -> None:
    message = read(completion({"content": "ok"}, finish, **extra))
    assert (message.stop_reason, message.stop_sequence) == (reason, sequence)
    delta = stream(chunks({"content": "ok"}, finish=finish, **extra))[-2]["delta"]
    assert delta == {"stop_reason": reason, "stop_sequence": sequence}


def test_calls_that_were_cut_off_or_ended_with_the_wrong_reason() -> None:
    call = {"function": {"name": "f", "arguments": '{"a": '}}
    message = read(completion({"content": None, "tool_calls": [call]}))
    assert message.stop_reason == "tool_use"
    assert message.content[0].model_dump(include={"input", "id"}) == {"input": {}, "id": "toolu_7_0"}


def test_the_events_of_a_stream_and_their_order() -> None:
    data = chunks(
        {"role": "assistant", "content": ""},
        {"reasoning_content": "h"},
        {"reasoning_content": "m"},
        {"content": "größe "},
        {"content": "🦜"},
        call_piece(0, "f", "", "c0"),
        call_piece(0, None, '{"a":'),
        call_piece(0, None, "1}"),
        call_piece(1, "g", "{}", "c1"),
        finish="tool_calls",
        usage=USAGE,
    )
    events = stream(data, size=1)
    assert kinds(events) == [
        *("message_start", "ping"),
        *("block_start", "block_delta", "block_delta", "block_stop"),
        *("block_start", "block_delta", "block_delta", "block_stop"),
        *("block_start", "block_delta", "block_delta", "block_stop"),
        *("block_start", "block_delta", "block_stop"),
        *("message_delta", "message_stop"),
    ]
    assert [event["index"] for event in events if "index" in event] == [0] * 4 + [1] * 4 + [2] * 4 + [3] * 3
    assert events[-2]["usage"]["cache_read_input_tokens"] == 64


def test_the_client_puts_a_stream_together() -> None:
    data = chunks({"content": "größe 🦜"}, call_piece(0, "f", '{"a": 1}', "c0"), finish="tool_calls", usage=USAGE)
    with Replica(CHAT, data, size=3) as replica, replica.claude as client, client.messages.stream(**ASK) as answer:
        message = answer.get_final_message()
    text, call = message.content
    assert text.model_dump()["text"] == "größe 🦜"
    assert call.model_dump(include={"id", "name", "input"}) == {"id": "c0", "name": "f", "input": {"a": 1}}
    assert message.usage.input_tokens == 20
    assert replica.paths == ["/v1/chat/completions"]


@pytest.mark.parametrize("named", [True, False])
def test_replicas_that_leave_out_the_index_or_give_every_call_the_same(named: bool) -> None:
    deltas = [call_piece(0, "f", "{}", "a" if named else None), call_piece(0, "g", "{}", "b" if named else None)]
    if not named:
        for delta in deltas:
            del delta["tool_calls"][0]["index"]
    blocks = [event["content_block"] for event in stream(chunks(*deltas)) if "content_block" in event]
    assert [block["name"] for block in blocks] == ["f", "g"]
    assert len({block["id"] for block in blocks}) == 2


def test_a_stream_ends_with_or_without_its_last_word() -> None:
    whole = chunks({"content": "a"}, usage=USAGE)
    unsaid = whole.removesuffix(b"data: [DONE]\n\n")
    assert kinds(stream(unsaid)) == kinds(stream(whole))
    assert kinds(stream(whole + whole)) == kinds(stream(whole))
    assert kinds(stream(b": hello\n\n" + whole.replace(b"\n", b"\r\n"), size=1)) == kinds(stream(whole))


def test_a_stream_that_breaks_off_ends_with_one_error() -> None:
    broken = chunks({"content": "a"}, finish=None).removesuffix(b"data: [DONE]\n\n")
    check_broken_off(translation, broken, b"event: error\n")


def test_the_client_hears_of_a_failure_inside_a_stream() -> None:
    failure = b'data: {"error": {"message": "out of memory", "type": "server_error", "code": 503}}\n\n'
    begun = chunks({"content": "a"}).split(b"\n\n")[0] + b"\n\n"
    with (
        Replica(CHAT, begun + failure) as replica,
        replica.claude as client,
        pytest.raises(anthropic.APIStatusError, match="out of memory"),
        client.messages.stream(**ASK) as answer,
    ):
        answer.until_done()


@pytest.mark.parametrize(
    "data", [b"data: {\n\n", b'data: {"choices": 3}\n\n', b"data: \xff\n\n", b"data: [1]\n\n", b""]
)
def test_nonsense_in_a_stream_is_one_error(data: bytes) -> None:
    ending = feed(translation(), data, 5)
    assert ending.count(b"event: error") == 1
    assert b"Traceback" not in ending


@pytest.mark.parametrize("body", [b"", b"<html>", b"[]", b'{"choices": []}', b'{"choices": [{"index": 0}]}', b"\xff"])
def test_nonsense_in_a_whole_answer_is_a_bad_gateway(body: bytes) -> None:
    status, told = translation().answer(200, body)
    assert status == 502
    assert json.loads(told)["error"]["type"] == "api_error"
