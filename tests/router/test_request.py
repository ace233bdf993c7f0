"""A request parsed once: what it is about, and a key that grows as a conversation does."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hotloop.core.errors import RequestError
from hotloop.core.request import Priority
from hotloop.http.keys import Tenant
from hotloop.router.kinds import CHAT
from hotloop.router.placement.index import HASH_BYTES
from hotloop.router.request import BLOCK_BYTES, RoutedRequest, parse_request

TEXT = "a sentence that says a little " * 40


def ask(body: dict[str, Any], target: str = CHAT, **headers: str) -> RoutedRequest:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return parse_request(target, named, json.dumps(body).encode())


def turn(role: str, text: str) -> dict[str, Any]:
    return {"role": role, "content": text}


turns = st.lists(st.builds(turn, st.sampled_from(["user", "assistant"]), st.text(max_size=2000)), max_size=6)


@given(turns, turns)
def test_a_longer_conversation_begins_with_the_key_of_the_shorter(first: list[Any], more: list[Any]):
    short = ask({"model": "m", "/v1/messages": first})
    long = ask({"model": "m", "/v1/messages": first + more})
    assert long.key.startswith(short.key)
    assert len(short.key) % HASH_BYTES == 0


def test_the_key_tells_models_salts_tools_and_words_apart():
    base = {"model": "m", "messages": [turn("user", TEXT)]}
    keys = {
        ask(body).key
        for body in (
            base,
            {**base, "model": "n"},
            {**base, "cache_salt": "s"},
            {**base, "tools": [{"type": "function", "function": {"name": "f"}}]},
            {**base, "messages": [turn("user", "B" + TEXT)]},
        )
    }
    assert len(keys) == 5


def test_marks_that_move_along_do_not_change_the_key():
    def body(marked: int) -> dict[str, Any]:
        messages = [{"role": "user", "content": [{"type": "text", "text": TEXT + str(i)}]} for i in range(3)]
        messages[marked]["content"][0]["cache_control"] = {"type": "ephemeral"}
        return {"model": "m", "max_tokens": 5, "messages": messages}

    # What has no mark is hashed as it was written, so write it as it would be written without one.
    def compact(marked: int) -> RoutedRequest:
        return parse_request("/v1/messages", {}, json.dumps(body(marked), separators=(",", ":")).encode())

    assert compact(0).key == compact(2).key


def test_input_items_and_instructions_are_a_prompt_too():
    short = ask({"model": "m", "instructions": TEXT, "input": [turn("user", TEXT)]}, "/v1/responses")
    long = ask({"model": "m", "instructions": TEXT, "input": [turn("user", TEXT), turn("user", "x")]}, "/v1/responses")
    assert len(short.key) >= 2 * len(TEXT) // BLOCK_BYTES * HASH_BYTES
    assert long.key.startswith(short.key)
    assert ask({"model": "m", "prompt": TEXT}, "/v1/completions").key


@pytest.mark.parametrize(
    ("body", "headers", "session"),
    [
        ({"session_id": "b"}, {"x_session_id": "h"}, "b"),
        ({"prompt_cache_key": "k", "user": "u"}, {"x_claude_code_session_id": "h"}, "h"),
        ({"prompt_cache_key": "k", "user": "u"}, {}, "k"),
        ({"user": "u"}, {}, "u"),
        ({}, {}, ""),
    ],
)
def test_a_session_is_whatever_clients_already_send(body, headers, session):
    assert ask(body, **headers).session == session


@pytest.mark.parametrize(
    ("body", "headers", "priority"),
    [
        ({}, {}, Priority.INTERACTIVE),
        ({"priority": "background"}, {"x_hotloop_priority": "workflow"}, Priority.BACKGROUND),
        ({}, {"x_hotloop_priority": "workflow"}, Priority.WORKFLOW),
        ({"service_tier": "flex"}, {}, Priority.BACKGROUND),
        ({"priority": "nonsense"}, {}, Priority.INTERACTIVE),
        ({"priority": 7}, {}, Priority.INTERACTIVE),
    ],
)
def test_priority_is_read_as_the_server_reads_it(body, headers, priority):
    assert ask(body, **headers).priority is priority


def test_what_has_the_wrong_type_is_left_for_the_replica_to_refuse():
    odd = {
        "model": 5,
        "messages": 7,
        "input": {},
        "max_tokens": "many",
        "previous_response_id": 7,
        "stream": "yes",
        "user": [],
    }
    asked = ask({**odd, "user": []})
    assert (asked.model, asked.follows, asked.is_stream, asked.session) == ("", None, False, "")


def test_a_change_leaves_the_other_fields_as_they_were():
    raw = b'{"model": "a", "x": [1,  2.50], "y": null, "z": 1e999, "messages": []}'
    request = parse_request(CHAT, {}, raw)
    changed = request.replace({"model": "b", "messages": None})
    assert json.loads(changed) == {"model": "b", "x": [1, 2.5], "y": None, "z": float("inf")}
    assert b"[1,  2.50]" in changed
    assert request.replace({}) is raw


@pytest.mark.parametrize(
    "field", [b'"x": 1e999', b'"x": "\xff"', b'"\xff": 1', b'"x": ["a", "\xff\xfe"]', b'"x": {"y": -1e999}']
)
def test_fields_that_nobody_reads_are_an_error_only_for_who_reads_them(field):
    request = parse_request(CHAT, {}, b'{"model": "a", "messages": [], ' + field + b"}")
    with pytest.raises(RequestError, match="cannot be read"):
        request.read_body()


def test_cache_marks_beside_what_cannot_be_read_are_hashed_as_they_are():
    content = b'[{"type": "text", "text": "\xff", "n": 1e999, "cache_control": {}}]'
    assert parse_request(CHAT, {}, b'{"messages": [{"role": "user", "content": ' + content + b"}]}")


@pytest.mark.parametrize(
    "raw",
    [b"", b"nonsense", b"[]", b"\xff\xfe", b'{"a":' + b"[" * 100_000],
)
def test_what_cannot_be_read_is_one_clear_error(raw):
    with pytest.raises(RequestError, match="cannot be read"):
        parse_request(CHAT, {}, raw)


def test_what_two_tenants_say_alike_is_told_apart() -> None:
    raw = json.dumps({"model": "m", "session_id": "s", "prompt": "word " * 400}).encode()
    tenants = [Tenant(name, is_apart=True) for name in ("a" * 64, "b" * 64)]
    one, two = (parse_request("/v1/completions", {}, raw, tenant, tenant.id) for tenant in tenants)
    alone = parse_request("/v1/completions", {}, raw)
    assert len({each.session for each in (one, two, alone)}) == 3
    assert len({each.key[:8] for each in (one, two, alone)}) == 3
    assert len({each.cache_salt for each in (one, two)}) == 2
    assert {each.session_name for each in (one, two, alone)} == {"s"} == {alone.session}
