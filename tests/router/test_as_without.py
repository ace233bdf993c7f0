"""What a client sees through the router is what it sees at the server itself: every path that a server answers is asked
both ways, as it should be and as it should not. A path that is new there needs a case here, and the router to know it.
"""

import re
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any, NamedTuple

import anthropic
import httpx
import openai
import pytest
from starlette.applications import Starlette
from starlette.routing import Route
from tests.loopback import claude_at, http_at, openai_at
from tests.server.serving import HELLO, MODEL, Routing, Serving

from hotloop.core.config import ServerConfig
from hotloop.http.requests import OPEN_PATHS
from hotloop.server.app import ROUTES

VERSION = {"anthropic-version": "2023-06-01"}
TEXT = {"model": MODEL, "max_tokens": 2, "temperature": 0}
CHAT = {**TEXT, "messages": HELLO}
RESPONSE = {"model": MODEL, "input": "hello", "max_output_tokens": 2, "temperature": 0}
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": CHAT,
    "/v1/completions": {**TEXT, "prompt": "hello"},
    "/v1/messages": CHAT,
    "/v1/messages/count_tokens": {"model": MODEL, "messages": HELLO},
    "/v1/responses": RESPONSE,
    "/v1/responses/compact": {"model": MODEL, "input": "hello"},
    "/v1/responses/input_tokens": {"model": MODEL, "input": "hello"},
    "/tokenize": {"model": MODEL, "messages": HELLO},
    "/detokenize": {"model": MODEL, "tokens": [1, 2]},
    "/v1/embeddings": {"model": MODEL, "input": "hello"},
}
STREAMED = ("/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses")
APART = {
    "POST /v1/sessions/{id:path}/close": "the router tells which replicas it has told",
    "POST /close_session": "the same",
    **dict.fromkeys(
        (
            "POST /v1/files",
            "GET /v1/files",
            "GET /v1/files/{id}",
            "DELETE /v1/files/{id}",
            "GET /v1/files/{id}/content",
        ),
        "files are one server's: the router keeps none",
    ),
    **dict.fromkeys(
        ("POST /v1/batches", "GET /v1/batches", "GET /v1/batches/{id}", "POST /v1/batches/{id}/cancel"),
        "`hotloop batch` asks a router line by line",
    ),
    "GET /metrics": "each has numbers of its own, which docs/metrics.md and docs/routing.md list",
}
"""What the router answers otherwise, on purpose, and why."""
PLAIN = {f"GET {each.path}": each.path for each in ROUTES if "GET" in (each.methods or ()) and "{" not in each.path}
NAMED = {
    **{name: path for name, path in PLAIN.items() if name not in APART},
    "GET /v1/models/{model:path}": f"/v1/models/{MODEL}",
    "GET /v1/responses/{id}": "/v1/responses/{id}",
    "GET /v1/responses/{id}/input_items": "/v1/responses/{id}/input_items",
    "POST /v1/responses/{id}/cancel": "/v1/responses/{id}/cancel",
    "DELETE /v1/responses/{id}": "/v1/responses/{id}",
    "GET /v1/cache/explain/{id:path}": "/v1/cache/explain/{id}",
}
UNKNOWN = (
    "/v1",
    "/v1/",
    "/nothing",
    "/v1/models/other",
    "/v1/models/a/b",
    "/v1/models/",
    "/v1/messages/batches",
    "/v1/messages/batches/x/results",
    "/v1/messagesx",
    "/v1/modelsx",
    "/v1/responses/resp_unknown",
    "/v1/responses/resp_unknown/other",
    "/v1/cache/explain/unknown",
    "/v1/chat/completions/",
    "/v1/messages/",
    "/v1/responses/",
    "/health/",
)
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
COMPARED = ("content-type", "x-request-id", "request-id", "retry-after", "www-authenticate", "cache-control")
ADDED = {"x-hotloop-route"}
"""Headers that only the router has."""
OF_THE_CONNECTION = {"date", "content-length", "transfer-encoding", "connection"}


class Ask(NamedTuple):
    method: str
    path: str
    json: Any = None
    content: bytes | None = None
    headers: tuple[tuple[str, str], ...] = ()


class Ways:
    """A server, and a router before it that looks the same."""

    def __init__(self, direct: httpx.Client, routed: httpx.Client, app: Starlette) -> None:
        self.direct = direct
        self.routed = routed
        self.app = app

    def check(self, ask: Ask) -> httpx.Response:
        """Asked twice of the server, so that all it could have cached is cached."""
        send(self.direct, ask)
        expected, found = send(self.direct, ask), send(self.routed, ask)
        assert tell(found) == tell(expected), ask
        allowed, listed = (set(each.headers.get("allow", "").split(", ")) for each in (expected, found))
        assert allowed <= listed or (listed == {"POST"} and "{id" in ask.path), ask
        return found


@pytest.fixture(scope="module")
def ways() -> Iterator[Ways]:
    with ExitStack() as stack:
        serving = stack.enter_context(Serving())
        direct = serving.http if not Serving.is_routed else pytest.skip("there is a router in front already")
        routed = stack.enter_context(http_at(stack.enter_context(Routing(serving.url))))
        yield Ways(direct, routed, serving.app)


def send(http: httpx.Client, ask: Ask) -> httpx.Response:
    headers = {"x-request-id": "req_ours", **dict(ask.headers)}
    return http.request(ask.method, ask.path, json=ask.json, content=ask.content, headers=headers)


def tell(answer: httpx.Response) -> dict[str, Any]:
    """What of an answer a client may build on."""
    names = {*answer.headers} - ADDED - OF_THE_CONNECTION
    values = {name: answer.headers.get(name) for name in COMPARED}
    return {"status": answer.status_code, "names": names, **values, **tell_body(answer)}


def tell_body(answer: httpx.Response) -> dict[str, Any]:
    if "event-stream" in answer.headers.get("content-type", ""):
        events = re.findall(r"^data: (\{.*)$", answer.text, re.MULTILINE)
        named = re.findall(r"^(?:event|:) ?.*$", answer.text, re.MULTILINE)
        return {"events": {repr(shape(httpx.Response(200, text=each).json())) for each in events}, "named": {*named}}
    if not answer.content:
        return {"body": None}
    body = answer.json()
    error = body.get("error") or {}
    return {"body": shape(body), "error": {name: error.get(name) for name in ("type", "code", "param", "request_id")}}


def shape(value: Any) -> Any:
    match value:
        case dict():
            return {name: shape(each) for name, each in value.items() if name != "waits_ms"}  # which depend on the time
        case list():
            return [shape(each) for each in value[:1]]
    return type(value).__name__


def routes_of(app: Starlette) -> set[str]:
    routes = [route for route in app.routes if isinstance(route, Route)]
    assert len(routes) == len(app.routes)
    return {f"{method} {route.path}" for route in routes for method in (route.methods or ()) - {"HEAD"}}


def test_every_path_of_a_server_has_a_case(ways: Ways) -> None:
    assert {f"POST {path}" for path in BODIES} | {*NAMED} | {*APART} == routes_of(ways.app)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("headers", [{}, VERSION], ids=["plain", "version"])
@pytest.mark.parametrize("path", BODIES)
def test_what_is_posted(ways: Ways, path: str, headers: dict[str, str]) -> None:
    own, body = tuple(headers.items()), BODIES[path]
    unnamed = {name: value for name, value in body.items() if name != "model"}
    bodies = [body, unnamed, {**body, "model": "other"}, {"model": MODEL}]
    bodies += [{**body, "stream": True}] if path in STREAMED else []
    for each in bodies:
        ways.check(Ask("POST", path, each, headers=own))
    is_json = (("content-type", "application/json"), *own)
    if path != "/v1/embeddings":  # which the router reads, to know whom to ask
        for content in (b"", b"{", b"[]", b'{"model": "\xff"}', b"[" * 100_000):
            ways.check(Ask("POST", path, content=content, headers=is_json))
        ways.check(Ask("POST", path, content=b"{}", headers=own))
    for method in {*METHODS} - {"POST"}:
        ways.check(Ask(method, path, headers=own))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("headers", [{}, VERSION], ids=["plain", "version"])
@pytest.mark.parametrize("name", NAMED)
def test_what_is_named(ways: Ways, name: str, headers: dict[str, str]) -> None:
    method, _, _ = name.partition(" ")
    answers = [send(http, Ask("POST", "/v1/responses", RESPONSE)) for http in (ways.direct, ways.routed)]
    paths = [NAMED[name].format(id=each.json()["id"]) for each in answers]
    own = tuple(headers.items())
    for each in {method, "HEAD" if method == "GET" else method}:
        expected, found = (
            send(http, Ask(each, path, headers=own))
            for http, path in zip((ways.direct, ways.routed), paths, strict=True)
        )
        assert tell(found) == tell(expected)
        assert found.status_code == (400 if name.endswith("cancel") else 200)
    for other in {*METHODS} - {"GET", "HEAD", "DELETE", "POST"}:
        ways.check(Ask(other, NAMED[name], headers=own))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("headers", [{}, VERSION], ids=["plain", "version"])
@pytest.mark.parametrize("path", UNKNOWN)
def test_what_is_not_there(ways: Ways, path: str, headers: dict[str, str]) -> None:
    for method in METHODS:
        answer = ways.check(Ask(method, path, headers=tuple(headers.items())))
        assert answer.status_code in (307, 404, 405)


def test_a_redirect_leads_to_the_path_and_its_query(ways: Ways) -> None:
    for http in (ways.direct, ways.routed):
        answer = http.post("/v1/chat/completions/?a=%20b", json=CHAT, follow_redirects=True)
        assert answer.status_code == 200
        assert answer.request.url.raw_path == b"/v1/chat/completions?a=%20b"


def test_models_are_listed_as_at_the_server(ways: Ways) -> None:
    for headers in ({}, VERSION):
        for path in ("/v1/models", f"/v1/models/{MODEL}"):
            direct, routed = (http.get(path, headers=headers).json() for http in (ways.direct, ways.routed))
            assert routed == direct
    assert routed["max_input_tokens"] == 4096
    assert routed["created_at"] > "2020"


def test_the_page_of_metrics_is_the_routers_own(ways: Ways) -> None:
    direct, routed = (http.get("/metrics") for http in (ways.direct, ways.routed))
    assert routed.headers["content-type"] == direct.headers["content-type"]
    assert "hotloop_router_" in routed.text
    assert ways.routed.head("/metrics").status_code == 200


def test_the_makers_own_clients_find_what_they_look_for(ways: Ways) -> None:
    url = str(ways.routed.base_url).rstrip("/")
    with claude_at(url) as claude, openai_at(url) as client:
        said = claude.messages.create(model=MODEL, messages=HELLO, max_tokens=2)
        assert said._request_id
        assert claude.models.retrieve(MODEL)._request_id
        assert claude.models.list().data[0].created_at.year > 2020
        with pytest.raises(anthropic.NotFoundError) as caught:
            claude.messages.batches.list()
        assert (caught.value.type, bool(caught.value.request_id)) == ("not_found_error", True)
        assert client.models.retrieve(MODEL).created > 1_600_000_000
        with pytest.raises(openai.NotFoundError, match="no replica has embeddings"):
            client.embeddings.create(model=MODEL, input="hello")


def test_keys_are_asked_for_alike() -> None:
    wrong = (("authorization", "Bearer wrong"),)
    with (
        Serving(ServerConfig(port=0, api_key="k")) as serving,
        Routing(serving.url, replica_key="k", api_key="k") as url,
        http_at(url) as http,
    ):
        for name in sorted(routes_of(serving.app)):
            method, path = name.split()
            for headers in ((), wrong, (*wrong, *VERSION.items())):
                ask = Ask(method, path, headers=headers)
                direct, routed = send(serving.http, ask), send(http, ask)
                assert routed.status_code == (200 if path in OPEN_PATHS else 401)
                assert tell(routed) == tell(direct), ask
