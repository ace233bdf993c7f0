"""Whatever a client or a replica sends: a translation, or one line that says what is wrong with it."""

import json
import re
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from tests.router.translate.conversations import Json, chat_bodies, message_bodies, objects, values, words
from tests.router.translate.replicas import CHAT, ITEMS, MESSAGES, call_piece, chunks, feed, message_events

from hotloop.core.errors import RequestError
from hotloop.router.kinds import Api
from hotloop.router.translate import Translation, translate

HELLO: Json = {"model": "m", "max_tokens": 3, "input": "hi", "messages": [{"role": "user", "content": "hi"}]}
APIS: list[Api] = ["messages", "chat", "responses"]
FULL: Json = {
    "tools": [
        {"name": "f", "type": "custom", "input_schema": {}, "strict": True, "cache_control": {"type": "ephemeral"}}
    ],
    "tool_choice": {"type": "auto", "disable_parallel_tool_use": True},
    "metadata": {"user_id": "u"},
    "output_config": {"effort": "low", "format": {"type": "json_schema", "schema": {}}},
    "thinking": {"type": "disabled"},
    "stop_sequences": ["a"],
    "service_tier": "auto",
}
FULL_CHAT: Json = {
    "tools": [{"type": "function", "function": {"name": "f", "parameters": {}, "strict": False}}],
    "tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [{"function": {"name": "f"}}]}},
    "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {}}},
    "stream_options": {"include_usage": True},
    "prompt_cache_options": {"mode": "implicit", "ttl": "30m"},
    "stop": ["a"],
    "reasoning_effort": "low",
}
FULL_RESPONSE: Json = {
    "model": "m",
    "instructions": "s",
    "input": ITEMS,
    "tools": [
        {"type": "function", "name": "f", "parameters": {}, "strict": True},
        {"type": "namespace", "name": "n", "tools": [{"type": "custom", "name": "c", "format": {"definition": "d"}}]},
    ],
    "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "f"}]},
    "text": {"format": {"type": "json_schema", "name": "x", "schema": {}}, "verbosity": "low"},
    "reasoning": {"effort": "low"},
    "max_output_tokens": 3,
    "stream": True,
}
STREAMS: dict[Api, bytes] = {
    "messages": chunks(
        {"content": "größe"}, {"reasoning": "🦜"}, call_piece(0, "f", '{"ü": 1}', "c"), usage={"prompt_tokens": 3}
    ),
    "chat": message_events(
        ({"type": "text", "text": ""}, [{"type": "text_delta", "text": "größe 🦜"}]),
        ({"type": "tool_use", "id": "t", "name": "f", "input": {"ü": 1}}, []),
    ),
}
STREAMS["responses"] = STREAMS["messages"]
ENDINGS: dict[Api, tuple[bytes, bytes]] = {
    "messages": (b"event: message_stop", b"event: error"),
    "chat": (b"data: [DONE]", b'data: {"error"'),
    "responses": (b"event: response.completed", b"event: response.failed"),
}


def spoken(api: Api) -> frozenset[Api]:
    return MESSAGES if api == "chat" else CHAT


def hello(api: Api) -> Translation:
    return translate(api, spoken(api), HELLO)


def places(value: Any) -> list[tuple[Any, ...]]:
    """Where in a body there is something, from the outside in."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [(), *((key, *rest) for key, each in inner for rest in places(each))]


def replaced(value: Any, place: tuple[Any, ...], new: Any) -> Any:
    if not place:
        return new
    copy = value.copy()
    copy[place[0]] = replaced(value[place[0]], place[1:], new)
    return copy


def check(api: Api, body: Any) -> None:
    try:
        translation = translate(api, spoken(api), body)
    except RequestError:
        return
    msgspec.json.encode(translation.request()[1])
    for note in translation.notes:
        assert note.isascii()
        assert note.isprintable()


@given(message_bodies, values, st.data())
def test_one_wrong_thing_in_a_body_of_messages(body: Json, wrong: Any, data: st.DataObject) -> None:
    body = {**FULL, **body}
    place = data.draw(st.sampled_from(places(body)[1:]))
    check("messages", replaced(body, place, wrong))


@given(chat_bodies, values, st.data())
def test_one_wrong_thing_in_a_body_of_a_chat(body: Json, wrong: Any, data: st.DataObject) -> None:
    body = {**FULL_CHAT, **body}
    place = data.draw(st.sampled_from(places(body)[1:]))
    check("chat", replaced(body, place, wrong))


@given(values, st.data())
def test_one_wrong_thing_in_a_body_of_a_response(wrong: Any, data: st.DataObject) -> None:
    place = data.draw(st.sampled_from(places(FULL_RESPONSE)[1:]))
    check("responses", replaced(FULL_RESPONSE, place, wrong))


@given(st.sampled_from(APIS), objects)
def test_fields_nobody_knows(api: Api, body: Json) -> None:
    check(api, {**body, **HELLO})


@given(st.sampled_from(APIS), st.integers(200, 599), objects | values)
def test_whatever_a_replica_answers(api: Api, status: int, value: Any) -> None:
    told, body = hello(api).answer(status, json.dumps(value).encode())
    assert told >= 200
    assert isinstance(json.loads(body), dict)


@given(st.sampled_from(APIS), st.lists(st.integers(0, 1500), max_size=6))
def test_a_stream_may_be_cut_anywhere(api: Api, cuts: list[int]) -> None:
    data = STREAMS[api]
    ends = sorted({*cuts, len(data)})
    stream = hello(api).stream()
    told = [stream.feed(data[begin:end]) for begin, end in zip([0, *ends], ends, strict=False)]
    whole = without_time(feed(hello(api), data, len(data)))
    assert without_time(b"".join(told) + stream.end()) == whole


@given(st.sampled_from(APIS), values, st.data())
def test_one_wrong_thing_in_a_stream_still_ends_it_once(api: Api, wrong: Any, data: st.DataObject) -> None:
    events = STREAMS[api].split(b"\n\n")
    which = data.draw(st.integers(0, len(events) - 2))
    name, _, text = events[which].rpartition(b"data: ")
    if text != b"[DONE]":
        value = json.loads(text)
        value = replaced(value, data.draw(st.sampled_from(places(value))), wrong)
        events[which] = name + b"data: " + json.dumps(value).encode()
    told = feed(hello(api), b"\n\n".join(events), 50)
    assert sum(told.count(ending) for ending in ENDINGS[api]) == 1


@given(words)
def test_nothing_a_client_writes_breaks_the_header_of_notes(name: str) -> None:
    check("messages", {**HELLO, "container": 1, "metadata": {name: 1}, "tools": [{"type": name}]})


def without_time(data: bytes) -> bytes:
    """Answers say when they were made."""
    return re.sub(rb'"created(_at)?":\d+', b"", data)
