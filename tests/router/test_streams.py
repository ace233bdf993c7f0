"""Streams are counted whether or not the client asked for usage; fields that a kind would refuse stay here."""

import json

import pytest
from tests.router.conftest import MESSAGES, Page
from tests.router.translate.replicas import chunks, message_events

from hotloop.router.config import ReplicaConfig
from hotloop.router.kinds import KINDS

CHAT = "/v1/chat/completions"
USAGE = {"prompt_tokens": 900, "completion_tokens": 5, "total_tokens": 905}
PLAIN = chunks({"content": 'a "usage": {} \n\n b'}, {"content": "b"})
COUNTED = chunks({"content": 'a "usage": {} \n\n b'}, {"content": "b"}, usage=USAGE)
PING = b": ping\n\n"


async def stream(router, **fields):
    return await router.client.post(CHAT, json={"model": "m", "messages": MESSAGES, "stream": True, **fields})


async def counted(router) -> str:
    return (await router.client.get("/metrics")).text


def of_kind(replica, kind: str, body: bytes, size: int = 1 << 20) -> ReplicaConfig:
    replica.pages |= dict.fromkeys((CHAT, "/v1/completions"), Page(body, 200, b"text/event-stream", size))
    replica.pages["/api/version"] = Page(b"{}")
    return ReplicaConfig(url=replica.url, name="r", kind=kind)


@pytest.mark.parametrize("size", [1, 7, 1 << 20])
async def test_usage_is_asked_for_counted_and_kept_from_a_client_that_did_not_ask(scripted, route, size):
    router = await route((of_kind(scripted, "vllm", COUNTED, size),))
    answer = await stream(router)
    assert answer.content == PING + PLAIN
    assert scripted.seen[0][1]["stream_options"] == {"include_usage": True}
    assert 'hotloop_router_prompt_tokens_total{replica="r"} 900.0' in await counted(router)


async def test_line_ends_are_the_replicas_own(scripted, route):
    router = await route((of_kind(scripted, "vllm", COUNTED.replace(b"\n", b"\r\n")),))
    assert (await stream(router)).content == PING + PLAIN.replace(b"\n", b"\r\n")


@pytest.mark.parametrize("size", [1, 7, 1 << 20])
async def test_a_client_hears_of_the_acceptance_once_however_a_replicas_own_ping_arrives(scripted, route, size):
    router = await route((of_kind(scripted, "vllm", PING + b": and more\n\n" + PLAIN + PING, size),))
    assert (await stream(router)).content == PING + PLAIN + PING


async def test_usage_that_the_client_asked_for_is_passed_on(scripted, route):
    router = await route((of_kind(scripted, "vllm", COUNTED),))
    answer = await stream(router, stream_options={"include_usage": True, "continuous_usage_stats": True})
    assert answer.content == PING + COUNTED
    assert scripted.seen[0][1]["stream_options"] == {"include_usage": True, "continuous_usage_stats": True}


@pytest.mark.parametrize(
    ("given", "sent"),
    [
        (None, {"include_usage": True}),
        ({"include_usage": False}, {"include_usage": True}),
        ({"include_obfuscation": False}, {"include_obfuscation": False, "include_usage": True}),
        ({"include_usage": False, "continuous_usage_stats": True}, {"include_usage": True}),
        ("wrong", "wrong"),
    ],
)
async def test_other_options_of_a_stream_stay(scripted, route, given, sent):
    router = await route((of_kind(scripted, "vllm", COUNTED),))
    await stream(router, stream_options=given)
    assert scripted.seen[0][1]["stream_options"] == sent


async def test_a_chunk_with_usage_and_words_is_passed_on(scripted, route):
    """As of an engine that says it with the last words."""
    last = {"id": "1", "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}], "usage": USAGE}
    body = b"data: " + json.dumps(last).encode() + b"\n\ndata: [DONE]\n\n"
    router = await route((of_kind(scripted, "vllm", body),))
    assert (await stream(router)).content == PING + body
    assert 'hotloop_router_prompt_tokens_total{replica="r"} 900.0' in await counted(router)


async def test_chunks_do_not_say_that_usage_is_to_come(scripted, route):
    """OpenAI and hotloop do so in every chunk of a stream that will have usage."""
    said = json.dumps({"content": ', "usage": null'}).encode()
    before = b'data: {"choices":[{"index":0,"delta":' + said + b'}],"usage":null}\n\n'
    body = before + COUNTED
    router = await route((of_kind(scripted, "openai", body),))
    assert (await stream(router)).content == PING + before.replace(b',"usage":null', b"") + PLAIN


async def test_completions_are_counted_too(scripted, route):
    router = await route((of_kind(scripted, "vllm", COUNTED),))
    answer = await router.client.post("/v1/completions", json={"model": "m", "prompt": "a", "stream": True})
    assert answer.content == PING + PLAIN


async def test_a_kind_of_which_nothing_is_known_is_not_asked(scripted, route):
    router = await route((of_kind(scripted, "openai_compatible", PLAIN),))
    assert (await stream(router)).content == PING + PLAIN
    assert "stream_options" not in scripted.seen[0][1]


async def test_a_whole_answer_needs_no_asking(scripted, route):
    router = await route((of_kind(scripted, "vllm", b"{}"),))
    await stream(router, stream=False)
    assert "stream_options" not in scripted.seen[0][1]


async def test_a_translated_stream_is_counted(scripted, route):
    words = ({"type": "text", "text": ""}, [{"type": "text_delta", "text": "Hello"}])
    usage = {"input_tokens": 800, "output_tokens": 1}
    scripted.pages["/v1/messages"] = Page(message_events(words, usage=usage), 200, b"text/event-stream")
    config = ReplicaConfig(url=scripted.url, name="r", kind="vllm", apis=frozenset({"messages"}))
    router = await route((config,))
    answer = await stream(router)
    assert b'"usage"' not in answer.content
    assert answer.content.endswith(b"data: [DONE]\n\n")
    assert 'hotloop_router_prompt_tokens_total{replica="r"} 800.0' in await counted(router)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("kind", [name for name, kind in KINDS.items() if "chat" in kind.apis])
@pytest.mark.parametrize("given", ["background", 7])
async def test_a_priority_reaches_who_understands_it(scripted, route, kind, given):
    router = await route((of_kind(scripted, kind, b"{}"),))
    await stream(router, stream=False, priority=given)
    is_kept = kind == "hotloop" or (given == 7 and kind in ("vllm", "sglang"))
    translated = 2 if kind == "vllm" else None  # what SGLang's numbers mean it was asked, and did not say
    assert scripted.seen[0][1].get("priority") == (given if is_kept else translated)


@pytest.mark.parametrize(
    ("options", "sent"),
    [
        ({"enable_priority_scheduling": True}, [None, -1, -2]),
        ({"enable_priority_scheduling": True, "schedule_low_priority_values_first": True}, [None, 1, 2]),
        ({"enable_priority_scheduling": False}, [None, None, None]),
        ([], [None, None, None]),
    ],
)
async def test_classes_are_numbers_for_sglang_as_it_was_started(scripted, route, options, sent):
    scripted.pages["/get_server_info"] = Page(json.dumps(options).encode())
    router = await route((of_kind(scripted, "sglang", b"{}"),))
    for name in ("interactive", "workflow", "background"):
        headers = {"x-hotloop-priority": name, "x-session-id": "s"}
        await router.client.post(CHAT, json={"model": "m", "messages": MESSAGES}, headers=headers)
    assert [body.get("priority") for _, body in scripted.seen] == sent
    assert {body["session_id"] for _, body in scripted.seen} == {"s"}, "its cache keeps what is of one session"


async def test_a_vllm_that_schedules_by_no_priority_is_found_out_once(scripted, route):
    router = await route((of_kind(scripted, "vllm", b'{"id": "x"}'),))
    refusal = {"error": {"message": "Got priority 2 but Priority scheduling is not enabled."}}
    scripted.pages[CHAT] = Page(json.dumps(refusal).encode(), 400)
    refused = await router.client.post(CHAT, json={"model": "m", "messages": MESSAGES, "priority": "background"})
    assert refused.status_code == 400, "it refuses everything here"
    assert [body.get("priority") for _, body in scripted.seen] == [2, None], "but was asked without as well"
    await router.client.post(CHAT, json={"model": "m", "messages": MESSAGES, "priority": "workflow"})
    assert [body.get("priority") for _, body in scripted.seen][2:] == [None]


async def test_whoever_keeps_sessions_hears_that_one_is_over(scripted, route):
    router = await route((of_kind(scripted, "sglang", b"{}"),))
    scripted.pages["/close_session"] = Page(b"{}")
    by_path = await router.client.post("/v1/sessions/a/b/close")
    by_body = await router.client.post("/close_session", json={"session_id": "c"})
    assert by_path.json() == {"id": "a/b", "object": "session.closed", "replicas": ["r"]}
    assert by_body.json()["id"] == "c"
    assert [body for path, body in scripted.seen if path == "/close_session"] == [
        {"session_id": "a/b"},
        {"session_id": "c"},
    ]
    assert (await router.client.post("/close_session", json={"session_id": 3})).status_code == 400
