"""What only some replicas have, and no other API stands in for: embeddings, and tokens of a prompt."""

import json

import pytest
from tests.router.conftest import Page, ScriptedReplica, replica_configs, serving

from hotloop.router.config import ReplicaConfig

EMBEDDINGS = "/v1/embeddings"
ANSWER = {
    "object": "list",
    "data": [{"object": "embedding", "index": 0, "embedding": [0.25, -1.5]}],
    "model": "m",
    "usage": {"prompt_tokens": 4, "total_tokens": 4},
}
BODY = {"model": "m", "input": ["Where is my order?"], "encoding_format": "float"}


@pytest.fixture
async def other():
    replica = ScriptedReplica()
    async with serving(replica):
        yield replica


def embeds(replica, name="e", **fields) -> ReplicaConfig:
    replica.pages[EMBEDDINGS] = Page(json.dumps(ANSWER).encode())
    return ReplicaConfig(url=replica.url, name=name, **{"kind": "vllm"} | fields)


@pytest.mark.parametrize(
    "kind", ["vllm", "sglang", "llama_cpp", "ollama", "openai_compatible", "openai"], ids=lambda kind: kind
)
async def test_a_replica_that_has_them_is_asked_and_answers_to_the_byte(scripted, route, kind):
    scripted.pages |= {"/api/version": Page(b"{}"), "/metrics": Page(b"")}
    router = await route((embeds(scripted, kind=kind),))
    answer = await router.client.post(EMBEDDINGS, json=BODY)
    assert (answer.status_code, answer.json()) == (200, ANSWER)
    assert answer.headers["x-hotloop-route"].startswith("replica=e; ")
    assert answer.headers["x-request-id"]
    assert scripted.seen == [(EMBEDDINGS, BODY)]


async def test_the_model_says_which(scripted, other, stubs, route):
    """Beside replicas that generate, under the name that clients know it by."""
    other.pages["/v1/models"] = Page(b'{"data":[{"id":"other"}]}')
    configs = (*replica_configs(await stubs(1)), embeds(scripted, models={"near": "m"}), embeds(other, name="o"))
    router = await route(configs)
    assert (await router.client.post(EMBEDDINGS, json={**BODY, "model": "near"})).status_code == 200
    assert (scripted.seen, other.seen) == ([(EMBEDDINGS, BODY)], [])
    assert (await router.client.post(EMBEDDINGS, json={**BODY, "model": "other"})).status_code == 200
    assert len(other.seen) == 1
    generating = await router.client.post(EMBEDDINGS, json={**BODY, "model": "stub"})
    error = generating.json()["error"]
    assert (generating.status_code, error["code"], error["param"]) == (404, "api_not_served", "model")
    assert error["message"] == "no replica with 'stub' has embeddings; those with ['near', 'other'] have"
    unknown = (await router.client.post(EMBEDDINGS, json={**BODY, "model": "nobody"})).json()["error"]
    assert (unknown["code"], unknown["param"]) == ("model_not_found", "model")


async def test_where_none_has_them_that_is_said_in_words(stubs, route):
    router = await route(replica_configs(await stubs(1), kind="hotloop"))
    for body in (BODY, {"input": "x"}, {"model": "stub"}):
        answer = await router.client.post(EMBEDDINGS, json=body)
        error = answer.json()["error"]
        assert (answer.status_code, error["code"], error["type"]) == (404, "api_not_served", "invalid_request_error")
        assert error["message"].startswith("no replica has embeddings: add one that does, of the kinds vllm, sglang")
    assert (await router.client.get(EMBEDDINGS)).headers["allow"] == "POST"


async def test_one_that_turns_out_not_to_have_them_is_asked_once(scripted, other, route):
    """A kind may have them; this replica serves a model that has none."""
    router = await route((ReplicaConfig(url=scripted.url, name="r", kind="vllm"), embeds(other)))
    answers = [await router.client.post(EMBEDDINGS, json=BODY) for _ in range(4)]
    assert [answer.status_code for answer in answers] == [200] * 4
    assert len(scripted.seen) <= 1
    assert len(other.seen) == 4
    assert "embeddings" in router.replica_set.replicas["e"].apis
    del other.pages[EMBEDDINGS]
    answer = await router.client.post(EMBEDDINGS, json=BODY)
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "api_not_served")
    assert all("embeddings" not in each.apis for each in router.replica_set.replicas.values())


async def test_a_model_that_cannot_embed_is_the_replicas_to_refuse(scripted, route):
    router = await route((embeds(scripted),))
    refusal = (
        b'{"error":{"code":501,"message":"This server does not support embeddings.","type":"not_supported_error"}}'
    )
    scripted.pages[EMBEDDINGS] = Page(refusal, 501)
    answers = [await router.client.post(EMBEDDINGS, json=BODY) for _ in range(2)]
    assert [(answer.status_code, answer.content) for answer in answers] == [(501, refusal)] * 2


async def test_apis_in_the_file_may_say_so(scripted, route):
    config = embeds(scripted, kind="openai_compatible", apis=frozenset({"embeddings"}))
    router = await route((config,))
    assert (await router.client.post(EMBEDDINGS, json=BODY)).status_code == 200
    chat = await router.chat(model="m")
    assert (chat.status_code, chat.json()["error"]["code"]) == (404, "api_not_served")


async def test_a_stream_of_them_is_none(scripted, route):
    """The field means nothing here: no ping may come before the answer."""
    router = await route((embeds(scripted),))
    answer = await router.client.post(EMBEDDINGS, json={**BODY, "stream": True})
    assert answer.headers["content-type"] == "application/json"


@pytest.mark.parametrize("path", ["/tokenize", "/detokenize"])
async def test_tokens_are_asked_of_the_model_that_is_named(scripted, other, route, path):
    other.pages["/v1/models"] = Page(b'{"data":[{"id":"other"}]}')
    for replica in (scripted, other):
        replica.pages[path] = Page(b'{"count":1,"tokens":[7]}')
    kinds = (
        ReplicaConfig(url=scripted.url, name="r", kind="vllm"),
        ReplicaConfig(url=other.url, name="o", kind="sglang"),
    )
    router = await route(kinds)
    answer = await router.client.post(path, json={"model": "other", "prompt": "x"})
    assert (answer.status_code, answer.content) == (200, b'{"count":1,"tokens":[7]}')
    assert (scripted.paths, other.paths) == ([], [path])


async def test_a_question_neither_moves_a_session_nor_fills_a_cache(stubs, route):
    """Nothing is prefilled where tokens are counted: the first real turn finds nothing there, and is placed as such."""
    router = await route(replica_configs(await stubs(2), kind="hotloop"))
    long = {"model": "stub", "messages": [{"role": "user", "content": "the same long words " * 200}]}
    headers = {"x-session-id": "one"}
    await router.client.post("/v1/messages/count_tokens", json=long, headers=headers)
    first = await router.client.post("/v1/chat/completions", json=long, headers=headers)
    assert "reason=cold; matched=0/" in first.headers["x-hotloop-route"]
    home = first.headers["x-hotloop-route"].partition(";")[0]
    for _ in range(4):
        await router.client.post("/v1/messages/count_tokens", json=long, headers=headers)
    again = await router.client.post("/v1/chat/completions", json=long, headers=headers)
    assert again.headers["x-hotloop-route"].startswith(f"{home}; reason=warm")
