"""Replicas that do not speak an API that their kind does: found out with the first request, then translated."""

import json
import sys
from dataclasses import replace

import pytest
from tests.router.conftest import MESSAGES, Page
from tests.router.translate.replicas import check_message_events, chunks

from hotloop.router.config import ReplicaConfig

CHAT = "/v1/chat/completions"
MODEL_MISSING = (
    b'{"error":{"message":"The model `m` does not exist.","type":"NotFoundError","param":"model","code":404}}'
)
MESSAGES_MISSING = b'{"type":"error","error":{"type":"NotFoundError","message":"The model `m` does not exist."}}'
OLLAMA_MISSING = b'{"error":{"message":"model \\"m\\" not found, try pulling it first","type":"api_error"}}'
ANSWER = {
    "id": "chatcmpl-1",
    "object": "chat.completion",
    "created": 1,
    "model": "m",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "Hello"}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 9, "completion_tokens": 1, "total_tokens": 10},
}
BODIES = {
    "/v1/messages": {"model": "m", "messages": MESSAGES, "max_tokens": 8},
    "/v1/responses": {"model": "m", "input": "Hello"},
}


def speaks_chat(replica) -> ReplicaConfig:
    replica.pages[CHAT] = Page(json.dumps(ANSWER).encode())
    return ReplicaConfig(url=replica.url, name="r", kind="vllm")


@pytest.mark.sampled(3)
@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize(
    ("status", "body"),
    [
        (404, b'{"error":{"message":"Not Found","type":"Not Found","param":null,"code":404}}'),  # vLLM
        (404, b'{"detail":"Not Found"}'),  # SGLang, and vLLM of old: FastAPI's own words
        (404, b'{"error":{"code":404,"message":"File Not Found","type":"not_found_error"}}'),  # llama.cpp
        (404, b""),  # TGI
        (404, b"404 page not found"),  # Ollama
        (404, b"<html><head><title>404 Not Found</title></head></html>"),  # a proxy before it
        (405, b'{"detail":"Method Not Allowed"}'),
    ],
)
async def test_a_path_that_is_not_there_is_found_out_once_and_translated(scripted, route, path, status, body):
    scripted.missing = Page(body, status)
    router = await route((speaks_chat(scripted),))
    answers = [await router.client.post(path, json=BODIES[path]) for _ in range(3)]
    assert [answer.status_code for answer in answers] == [200] * 3
    assert all("Hello" in answer.text for answer in answers)
    assert scripted.paths == [path, CHAT, CHAT, CHAT]
    assert (await router.client.get("/router/replicas")).json()["replicas"][0]["apis"] == sorted(
        {"chat", "completions", "messages", "responses", "tokenize", "embeddings"} - {path.removeprefix("/v1/")}
    )
    assert "tried=1" in answers[0].headers["x-hotloop-route"]


async def test_a_large_body_is_read_and_translated_beside_the_event_loop(scripted, route):
    """Which other clients would have to wait for."""
    scripted.missing = Page(b"404 page not found", 404)
    router = await route((speaks_chat(scripted),))
    called = set()
    for num_turns, is_here in ((1, True), (2000, False)):
        called.clear()
        sys.setprofile(lambda frame, event, argument: called.add(frame.f_code.co_name))
        answer = await router.client.post(
            "/v1/messages", json={**BODIES["/v1/messages"], "messages": MESSAGES * num_turns}
        )
        sys.setprofile(None)
        assert answer.status_code == 200
        assert {"_answer", "_exchange"} <= called
        assert ({"parse_request", "translate"} <= called) is is_here
        assert ({"parse_request", "translate"} & called != set()) is is_here


async def test_a_stream_is_translated_just_the_same(scripted, route):
    router = await route((speaks_chat(scripted),))
    scripted.pages[CHAT] = Page(chunks({"content": "Hi"}), content_type=b"text/event-stream")
    answer = await router.client.post("/v1/messages", json={**BODIES["/v1/messages"], "stream": True})
    assert answer.status_code == 200
    assert [event["type"] for event in check_message_events(answer.content)][-1] == "message_stop"


@pytest.mark.parametrize("body", [MODEL_MISSING, MESSAGES_MISSING, OLLAMA_MISSING])
async def test_a_model_that_is_not_there_is_another_matter(scripted, route, body):
    router = await route((speaks_chat(scripted),))
    scripted.pages["/v1/messages"] = Page(body, 404)
    answers = [await router.client.post("/v1/messages", json=BODIES["/v1/messages"]) for _ in range(2)]
    assert [(answer.status_code, answer.content) for answer in answers] == [(404, body)] * 2
    assert scripted.paths == ["/v1/messages"] * 2


async def test_a_replica_that_was_down_is_asked_again(scripted, route):
    """It may be another version now."""
    router = await route((speaks_chat(scripted),))
    await router.client.post("/v1/messages", json=BODIES["/v1/messages"])
    scripted.pages["/health"] = Page(b"{}", 503)
    await router.until(lambda: router.replica_set.replicas["r"].state == "down")
    scripted.pages |= {"/health": Page(b"{}"), "/v1/messages": Page(b'{"id":"msg_1","type":"message"}')}
    await router.until(lambda: router.replica_set.replicas["r"].state == "up")
    answer = await router.client.post("/v1/messages", json=BODIES["/v1/messages"])
    assert answer.content == b'{"id":"msg_1","type":"message"}'


async def test_who_has_nothing_for_a_moment_speaks_what_it_spoke(scripted, route):
    """A proxy before it answers 404 to everything while it is deployed: it must not stay without its API."""
    config = speaks_chat(scripted)
    router, page = await route((config,)), scripted.pages.pop(CHAT)
    body = {"model": "m", "messages": MESSAGES}
    assert (await router.client.post(CHAT, json=body)).status_code == 404
    scripted.pages[CHAT] = page
    answer = await router.client.post(CHAT, json=body)
    assert (answer.status_code, scripted.paths[-1]) == (200, CHAT)


async def test_who_cannot_count_tokens_may_speak_the_api_all_the_same(scripted, route):
    router = await route((speaks_chat(scripted),))
    scripted.pages["/v1/messages"] = Page(b'{"id":"msg_1","type":"message"}')
    count = await router.client.post("/v1/messages/count_tokens", json=BODIES["/v1/messages"])
    assert (count.status_code, count.content) == (404, scripted.missing.body)
    assert (await router.client.post("/v1/messages", json=BODIES["/v1/messages"])).json()["id"] == "msg_1"


async def test_what_cannot_be_translated_is_refused_by_name(scripted, route):
    router = await route((speaks_chat(scripted),))
    body = {**BODIES["/v1/responses"], "previous_response_id": "resp_1"}
    answer = await router.client.post("/v1/responses", json=body)
    assert answer.status_code == 400
    assert "previous_response_id" in answer.text


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("field", [b'"unread": 1e999', b'"unread": "\xff"', b'"\xff": 1', b'"unread": {"a": [-1e999]}'])
async def test_a_body_that_cannot_be_read_is_the_clients_error_where_it_is_translated(scripted, route, path, field):
    config = replace(speaks_chat(scripted), apis=frozenset({"chat"}))
    router = await route((config,))
    body = json.dumps(BODIES[path]).encode().removesuffix(b"}") + b", " + field + b"}"
    answer = await router.client.post(path, content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 400
    assert "cannot be read" in answer.text
    assert scripted.seen == []


async def test_a_conversation_that_no_engine_keeps_is_not_answered_from_its_end(scripted, route):
    """Engines ignore a field that they do not know: what they would answer is the last turn alone. Whoever asks sends
    all of it when told so by this code."""
    scripted.pages["/v1/messages"] = Page(b'{"id":"msg_1","type":"message"}')
    router = await route((speaks_chat(scripted),))
    body = {**BODIES["/v1/messages"], "thread": {"type": "continue", "previous_message_id": "msg_0"}}
    answer = await router.client.post("/v1/messages", json=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["details"] == {"error_code": "thread_unsupported_request"}
    assert "/v1/messages" not in scripted.paths
    assert (await router.client.post("/v1/messages", json={**body, "thread": None})).status_code == 200


async def test_anthropic_itself_keeps_it(scripted, route):
    scripted.pages["/v1/messages"] = Page(b'{"id":"msg_1","type":"message"}')
    router = await route((replace(speaks_chat(scripted), kind="anthropic"),))
    body = {**BODIES["/v1/messages"], "thread": {"type": "create"}}
    assert (await router.client.post("/v1/messages", json=body)).status_code == 200
    assert scripted.seen[-1][1]["thread"] == {"type": "create"}
