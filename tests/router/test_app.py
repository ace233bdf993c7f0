"""One address: what it answers itself, what it passes on to the byte, and what it keeps to itself."""

import asyncio
import json
import re
from typing import Any

import httpx
import pytest
from tests.router.conftest import MESSAGES, Page, replica_configs, with_key

from hotloop.router.app import RouterApp
from hotloop.router.config import ReplicaConfig, RouterConfig, RoutingConfig

CHAT = "/v1/chat/completions"


def without_id(content: bytes) -> bytes:
    """A stub numbers its answers."""
    return re.sub(rb'"id":"[^"]*"', b'"id":""', content)


async def test_a_whole_answer_is_the_replicas_to_the_byte(stubs, route):
    [stub] = await stubs(1)
    router = await route(replica_configs([stub]))
    body = {"model": "stub", "messages": MESSAGES}
    async with httpx.AsyncClient(verify=False) as client:
        direct = await client.post(stub.url + CHAT, json=body)
    routed = await router.client.post(CHAT, json=body)
    assert routed.status_code == 200
    assert without_id(routed.content) == without_id(direct.content)
    assert routed.headers["content-type"] == direct.headers["content-type"]


@pytest.mark.parametrize("path", [CHAT, "/v1/messages"])
async def test_a_stream_is_the_replicas_to_the_byte(stubs, route, path):
    [stub] = await stubs(1)
    router = await route(replica_configs([stub]))
    body = {"model": "stub", "messages": MESSAGES, "stream": True, "max_tokens": 8}
    async with httpx.AsyncClient(verify=False) as client:
        direct = await client.post(stub.url + path, json=body)
    routed = await router.client.post(path, json=body)
    ping = b'event: ping\ndata: {"type":"ping"}\n\n' if path == "/v1/messages" else b": ping\n\n"
    assert without_id(routed.content) == ping + without_id(direct.content)
    assert routed.headers["content-type"].startswith("text/event-stream")


@pytest.mark.parametrize("path", [CHAT, "/v1/messages", "/v1/responses"])
async def test_a_request_is_the_clients_to_the_byte_with_fields_nobody_knows(mirror, route, path):
    apis = frozenset({"chat", "messages", "responses"})
    config = ReplicaConfig(url=mirror.url, name="m", kind="openai_compatible", apis=apis)
    router = await route((config,))
    said = rb'"messages": [{"role": "user", "content": "\u00e9", "odd": [1.50, null]}]'
    body = b'{ "unheard_of": {"b": 1, "a": 2.0} ,"model":"own-name", "max_tokens": 4, ' + said + b', "input": "x"}'
    await router.client.post(path, content=body, headers={"content-type": "application/json"})
    assert [each["raw"] for each in mirror.seen if each["path"] == path] == [body]


async def test_it_is_told_where_a_request_went_and_why(stubs, route):
    router = await route(replica_configs(await stubs(2)))
    long = "the same long words " * 200
    first = await router.chat(long, user="somebody")
    again = await router.chat(long, user="somebody")
    place = dict(part.split("=") for part in first.headers["x-hotloop-route"].split("; "))
    after = dict(part.split("=") for part in again.headers["x-hotloop-route"].split("; "))
    assert place["reason"] == "cold"
    assert after["reason"] == "warm"
    assert after["replica"] == place["replica"] == first.json()["id"].partition("-")[2].partition(".")[0]
    assert int(after["matched"].partition("/")[0]) > 0
    assert after["tried"] == "1"


async def test_what_a_replica_sees_and_what_it_does_not(mirror, route):
    plain = ReplicaConfig(url=mirror.url, name="m", kind="openai_compatible", models={"ours": "own-name"})
    router = await route((with_key(plain, "secret-of-m"),), api_key="secret-of-router")
    headers = {
        "authorization": "Bearer secret-of-router",
        "cookie": "a=b",
        "x-session-id": "abc",
        "x-forwarded-for": "10.0.0.1",
        "openai-organization": "org",
    }
    body = {"model": "ours", "messages": MESSAGES, "extra": {"b": 1, "a": 2}}
    answer = await router.client.post(CHAT, json=body, headers=headers)
    [seen] = mirror.seen
    assert seen["headers"]["authorization"] == "Bearer secret-of-m"
    assert seen["headers"]["x-session-id"] == "abc"
    assert not {"cookie", "x-forwarded-for", "openai-organization"} & seen["headers"].keys()
    assert b"secret-of-router" not in seen["raw"] + json.dumps(seen["headers"]).encode()
    assert json.loads(seen["raw"]) == {**body, "model": "own-name"}
    assert answer.headers["x-other"] == "kept"
    assert "set-cookie" not in answer.headers
    page = (await router.client.get("/router/replicas", headers=headers)).text
    assert "secret" not in page


async def test_without_the_key_nothing_is_answered_but_probes(stubs, route):
    router = await route(replica_configs(await stubs(1)), api_key="k")
    assert (await router.chat()).status_code == 401
    assert (await router.client.get("/metrics")).status_code == 401
    assert (await router.client.get("/health")).status_code == 200
    assert (await router.client.get("/ready")).status_code == 200
    for path in ("/", "/api/hello"):  # what coding agents ask for first, with no key
        for answer in (await router.client.head(path), await router.client.get(path)):
            assert answer.status_code == 200
    assert (await router.client.head("/v1/models")).status_code == 401
    assert (await router.client.head("/v1/models", headers={"x-api-key": "k"})).status_code == 200
    for headers in ({"authorization": "bearer k"}, {"x-api-key": "k"}):
        assert (await router.client.get("/v1/models", headers=headers)).status_code == 200


@pytest.mark.parametrize(
    ("method", "path", "content", "kind", "status", "code"),
    [
        ("POST", CHAT, b"{", "application/json", 400, "invalid_value"),
        ("POST", CHAT, b"[]", "application/json", 400, "invalid_value"),
        ("POST", CHAT, b'{"model": "other"}', "application/json", 404, "model_not_found"),
        ("POST", CHAT, b"{}", "text/plain", 415, "unsupported_media_type"),
        ("POST", CHAT, b'{"a": "' + b"a" * 3000 + b'"}', "application/json", 413, "request_too_large"),
        ("GET", CHAT, b"", "", 405, "method_not_allowed"),
        ("GET", "/etc/passwd", b"", "", 404, "unknown_url"),
        ("POST", "/v1/embeddings", b"{}", "application/json", 404, "api_not_served"),
        ("GET", "/v1/responses/resp_unknown", b"", "", 404, "response_not_found"),
    ],
)
async def test_what_is_refused(stubs, route, method, path, content, kind, status, code):
    router = await route(replica_configs(await stubs(1)), max_body="2KiB")
    answer = await router.client.request(method, path, content=content, headers={"content-type": kind} if kind else {})
    assert answer.status_code == status
    assert answer.json()["error"]["code"] == code
    assert answer.headers["x-request-id"] == answer.json()["error"]["request_id"]


async def test_a_body_of_too_many_values_is_refused(stubs, route):
    router = await route(replica_configs(await stubs(1)))
    response = await router.chat(unread=[[[]]] * 60_000)
    assert response.status_code == 400
    assert "more than 50,000 lists and objects" in response.json()["error"]["message"]


async def test_large_headers_and_bodies_are_refused_so_that_it_can_be_read(stubs, route):
    router = await route(replica_configs(await stubs(1)), max_body="1KiB")
    large = await router.client.get("/v1/models", headers={"x-large": "x" * 70_000})
    assert (large.status_code, large.json()["error"]["code"]) == (431, "headers_too_large")
    kind = {"content-type": "application/json", "connection": "close"}
    large = await router.client.post(CHAT, content=b" " * 20_000_000, headers=kind)
    assert (large.status_code, large.json()["error"]["code"]) == (413, "request_too_large")


async def test_errors_are_in_anthropics_shape_where_it_is_spoken(stubs, route):
    router = await route(replica_configs(await stubs(1)))
    answer = await router.client.post("/v1/messages", json={"model": "other", "messages": MESSAGES, "max_tokens": 4})
    assert answer.status_code == 404
    assert answer.json()["type"] == "error"
    assert answer.json()["error"]["type"] == "not_found_error"


async def test_models_are_shown_with_all_that_replicas_say_of_them(scripted, mirror, route):
    card = {"id": "m", "object": "model", "created": 1_795_000_000, "owned_by": "vllm", "max_model_len": 8192}
    card |= {"permission": [{"id": "modelperm-1"}]}
    scripted.pages["/v1/models"] = Page(json.dumps({"data": [card, {"id": "plain"}]}).encode())
    vllm = ReplicaConfig(url=scripted.url, name="v", kind="vllm")
    renamed = ReplicaConfig(url=scripted.url, name="w", kind="vllm", models={"m": "m", "ours": "m", "gone": "n"})
    router = await route((vllm, renamed, ReplicaConfig(url=mirror.url, name="m", kind="openai_compatible")))
    shown = {each["id"]: each for each in (await router.client.get("/v1/models")).json()["data"]}
    assert [*shown] == ["gone", "m", "ours", "own-name", "plain"]
    assert shown["m"] == card
    assert shown["ours"] == {**card, "id": "ours"}
    assert (await router.client.get("/v1/models/ours")).json() == shown["ours"]
    assert "max_model_len" not in shown["gone"]
    answer = await router.client.get("/v1/models/m", headers={"anthropic-version": "2023-06-01"})
    assert (answer.json()["created_at"], answer.json()["max_input_tokens"]) == ("2026-11-18T11:06:40Z", 8192)
    assert answer.headers["request-id"] == answer.headers["x-request-id"]


async def test_a_router_that_can_serve_nobody_is_not_ready(stubs, route, caplog):
    [stub] = await stubs(1)
    router = await route(replica_configs([stub]))
    assert (await router.client.get("/ready")).json() == {"status": "ready"}
    await stub.close()
    await router.until(lambda: router.replica_set.replicas["s0"].state == "down")
    answer = await router.client.get("/ready")
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "no_replica")
    assert answer.json()["error"]["request_id"] == answer.headers["x-request-id"]
    assert (await router.client.get("/openapi.json")).status_code == 404
    router.server.app.is_draining = True
    answer = await router.client.get("/ready")
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "shutting_down")
    assert "request failed" not in caplog.text
    assert [(await router.client.head(path)).status_code for path in ("/", "/api/hello")] == [200, 200]


async def test_models_replicas_and_metrics_are_shown(stubs, route):
    router = await route(replica_configs(await stubs(2)))
    await router.chat()
    models = (await router.client.get("/v1/models")).json()
    assert [card["id"] for card in models["data"]] == ["stub"]
    assert models["object"] == "list"
    models = (await router.client.get("/v1/models", headers={"anthropic-version": "2023-06-01"})).json()
    assert [(card["id"], card["type"]) for card in models["data"]] == [("stub", "model")]
    assert (models["last_id"], models["has_more"]) == ("stub", False)
    assert await router.states() == {"s0": "up", "s1": "up"}
    page = (await router.client.get("/metrics")).text
    assert 'hotloop_router_replica_up{replica="s0"} 1.0' in page
    assert 'hotloop_router_requests_total{api="chat"' in page


async def test_an_answer_is_asked_for_where_it_was_made(mirror, stubs, route):
    [stub] = await stubs(1)
    made = ReplicaConfig(url=mirror.url, name="m", kind="hotloop")
    router = await route((*replica_configs([stub]), made))
    mirror.reply = (200, {"id": "resp_1", "object": "response"})
    await router.client.post("/v1/responses", json={"model": "own-name", "input": "hi"})
    answer = await router.client.get("/v1/responses/resp_1", params={"include": "x"})
    assert answer.json()["id"] == "resp_1"
    follow = {"model": "own-name", "input": "more", "previous_response_id": "resp_1"}
    assert (await router.client.post("/v1/responses", json=follow)).status_code == 200
    assert [seen["path"] for seen in mirror.seen] == ["/v1/responses", "/v1/responses"]


CORS = [
    (b"access-control-allow-origin", b"*"),
    (b"Access-Control-Allow-Credentials", b"true"),
    (b"alt-svc", b'h3=":1"'),
]


@pytest.mark.parametrize("method", ["GET", "POST", "PUT"])
@pytest.mark.parametrize("path", ["..%2f..%2fadmin", "x/%2e%2e/%2E%2E/..%2fadmin", "%2e/x"])
async def test_no_other_path_of_a_replica_is_asked_for_an_answer(mirror, route, method, path):
    router = await route((ReplicaConfig(url=mirror.url, name="m", api_key="the router's own"),))
    mirror.paths.clear()
    answer = await router.client.request(method, httpx.URL(f"{router.url}/v1/responses/{path}"))
    assert answer.status_code in (404, 405)
    assert {*mirror.paths} <= {"/health", "/v1/models", "/metrics", "/version", "/v1/internal/load"}


async def test_what_is_escaped_in_an_answers_name_stays_so(mirror, route):
    router = await route((ReplicaConfig(url=mirror.url, name="m"),))
    await router.client.post("/v1/responses/a%3Fb%23%25%c3%bc/cancel?x=1")
    assert [seen["path"] for seen in mirror.seen] == ["/v1/responses/a?b#%ü/cancel"]


async def test_which_pages_may_read_an_answer_is_not_for_a_replica_to_say(mirror, route):
    router = await route((ReplicaConfig(url=mirror.url, name="m", kind="hotloop"),))
    mirror.headers = CORS
    for body in (
        {"model": "own-name", "messages": MESSAGES},
        {"model": "own-name", "messages": MESSAGES, "stream": True},
    ):
        answer = await router.client.post(CHAT, json=body, headers={"origin": "https://evil.example"})
        assert answer.status_code == 200
        assert answer.headers["x-other"] == "kept"
        assert not [name for name in answer.headers if name.startswith("access-control") or name == "alt-svc"]
    mirror.reply = (400, {"error": {"message": "no"}})
    answer = await router.client.post(CHAT, json=body)
    assert (answer.status_code, "access-control-allow-origin" in answer.headers) == (400, False)
    mirror.reply = (200, {"id": "resp_1", "object": "response"})
    answer = await router.client.get("/v1/responses/resp_1")
    assert (answer.status_code, "access-control-allow-origin" in answer.headers) == (200, False)


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_replica_sends_nobody_elsewhere(mirror, stubs, route, status):
    [elsewhere] = await stubs(1)
    router = await route((ReplicaConfig(url=mirror.url, name="m", kind="hotloop"),), max_retries=0)
    mirror.reply, mirror.headers = (status, {}), [(b"location", elsewhere.url.encode() + CHAT.encode())]
    for is_stream in (False, True):
        body = {"model": "own-name", "messages": MESSAGES, "stream": is_stream}
        answer = await router.client.post(CHAT, json=body)
        assert (answer.status_code, answer.json()["error"]["code"]) == (502, "replica_failed")
        assert "location" not in answer.headers
    answer = await router.client.get("/v1/responses/resp_1")
    assert (answer.status_code, "location" in answer.headers) == (502, False)
    assert not elsewhere.paths


async def test_a_field_that_nobody_reads_is_passed_on_where_replicas_publish_what_they_hold(mirror, route):
    """There the router looks into a body more closely, to know its tokens."""
    config = ReplicaConfig(url=mirror.url, name="m", kind="vllm", kv_events="tcp://127.0.0.1:9")
    router = await route((config,))
    body = b'{"model": "own-name", "messages": [], "unread": 1e999}'
    answer = await router.client.post(CHAT, content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 200
    assert mirror.seen[-1]["raw"] == body


async def test_whoever_watches_for_the_clients_end_takes_nothing_of_what_it_sends() -> None:
    """The name of a session that is closed, in pieces."""
    pieces = [b"{", b'"session_id"', b": ", b'"c"', b"}"]
    told: list[Any] = []

    async def receive() -> Any:
        await asyncio.sleep(0)
        if not pieces:
            await asyncio.Event().wait()
        return {"type": "http.request", "body": pieces.pop(0), "more_body": bool(pieces)}

    async def send(message: Any) -> None:
        told.append(message)

    app = RouterApp(RoutingConfig(router=RouterConfig(), replicas=(ReplicaConfig(url="http://127.0.0.1:9", name="r"),)))
    headers = [(b"content-type", b"application/json")]
    path: dict[str, Any] = {"path": "/close_session", "raw_path": b"/close_session", "query_string": b""}
    await app({"type": "http", "method": "POST", "headers": headers, **path}, receive, send)
    assert told[0]["status"] == 200
    assert json.loads(told[1]["body"]) == {"id": "c", "object": "session.closed", "replicas": []}
