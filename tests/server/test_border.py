"""Keys, origins, request ids, and bodies that are too large."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from tests.server.serving import HELLO, MODEL, Serving, check_error

from hotloop.core.config import ServerConfig
from hotloop.http.requests import parse_request_id
from hotloop.server.border import RequestIds


@pytest.fixture(scope="module")
def guarded() -> Iterator[Serving]:
    with Serving(ServerConfig(port=0, api_key="secret", cors_origins=("https://good.example",))) as serving:
        yield serving


def test_the_right_key_opens(guarded: Serving) -> None:
    with guarded.openai("secret") as client:
        assert client.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=1).choices
    with guarded.openai("wrong") as client, pytest.raises(openai.AuthenticationError):
        client.models.list()


@pytest.mark.parametrize("header", [None, "", "Bearer", "Bearer secre", "Bearer secrets", "Basic secret", "secret"])
@pytest.mark.parametrize("path", ["/v1/models", "/metrics", "/version", "/nowhere"])
def test_without_the_key_nothing_opens(guarded: Serving, header: str | None, path: str) -> None:
    response = guarded.http.get(path, headers={} if header is None else {"authorization": header})
    check_error(response, 401, "invalid_api_key")
    assert response.headers["www-authenticate"] == "Bearer"


@pytest.mark.parametrize("header", [b"Bearer \xff\xfe", b"\xff\xfe secret"])
def test_a_key_of_strange_bytes_is_just_wrong(guarded: Serving, header: bytes) -> None:
    check_error(guarded.http.get("/v1/models", headers={"authorization": header}), 401)


def test_a_key_need_not_be_ascii() -> None:
    with Serving(ServerConfig(port=0, api_key="clé")) as serving:
        assert serving.http.get("/v1/models", headers={"authorization": "Bearer clé".encode()}).status_code == 200


def test_the_scheme_may_be_in_any_case(guarded: Serving) -> None:
    assert guarded.http.get("/v1/models", headers={"authorization": "bearer secret"}).status_code == 200


@pytest.mark.parametrize("path", ["/health", "/ready"])
def test_probes_need_no_key(guarded: Serving, path: str) -> None:
    assert guarded.http.get(path).status_code == 200


def test_cors_is_off_by_default(serving: Serving) -> None:
    headers = {"origin": "https://evil.example", "access-control-request-method": "POST"}
    check_error(serving.http.options("/v1/chat/completions", headers=headers), 405)
    response = serving.http.get("/v1/models", headers={"origin": "https://evil.example"})
    assert not [name for name in response.headers if name.startswith("access-control")]


def test_cors_lets_in_only_the_origins_given(guarded: Serving) -> None:
    ask = {"access-control-request-method": "POST", "access-control-request-headers": "authorization,content-type"}
    good = guarded.http.options("/v1/chat/completions", headers={"origin": "https://good.example", **ask})
    assert good.status_code == 200
    assert good.headers["access-control-allow-origin"] == "https://good.example"
    evil = guarded.http.options("/v1/chat/completions", headers={"origin": "https://evil.example", **ask})
    assert "access-control-allow-origin" not in evil.headers
    answer = guarded.http.get(
        "/v1/models", headers={"origin": "https://good.example", "authorization": "Bearer secret"}
    )
    assert answer.headers["access-control-allow-origin"] == "https://good.example"
    assert "access-control-allow-credentials" not in answer.headers


def test_request_ids_are_echoed_or_made(serving: Serving) -> None:
    assert serving.http.get("/health", headers={"x-request-id": "mine-1"}).headers["x-request-id"] == "mine-1"
    made = {serving.http.get("/health").headers["x-request-id"] for _ in range(3)}
    assert len(made) == 3
    error = serving.http.get("/nowhere", headers={"x-request-id": "mine-2"})
    assert error.json()["error"]["request_id"] == "mine-2"
    with serving.http.stream("POST", "/v1/completions", json={"prompt": "x", "stream": True}) as response:
        assert response.headers["x-request-id"].startswith("req_")


@pytest.mark.parametrize("given", [None, "", "two words", "x" * 129, "é", "a\tb"])
def test_a_request_id_that_makes_no_sense_is_replaced(given: str | None) -> None:
    assert parse_request_id(given).startswith("req_")


def test_a_body_that_is_too_large_is_not_read() -> None:
    with Serving(ServerConfig(port=0, max_body="1KiB")) as serving:
        check_error(serving.chat(user="x" * 2000), 413, "request_too_large")

        def endless() -> Iterator[bytes]:
            for _ in range(64):
                yield b" " * 512

        headers = {"content-type": "application/json"}
        for options in ({}, {"connection": "close"}):
            response = serving.http.post("/v1/chat/completions", content=endless(), headers=headers | options)
            check_error(response, 413, "request_too_large")
        assert serving.chat().status_code == 200


async def test_a_body_that_is_recorded_is_let_go_with_its_request(serving: Serving) -> None:
    """An open connection keeps the scope of its last request."""
    scope: dict[str, Any] = {"type": "http", "path": "/", "headers": []}

    async def keep_body(scope: Any, receive: Any, send: Any) -> None:
        scope["state"]["body"] = b"x"

    await RequestIds(keep_body, metrics=serving.server._service.metrics)(scope, None, None)
    assert "body" not in scope["state"]


def test_headers_that_are_too_large_are_refused_whoever_sends_them(guarded: Serving) -> None:
    check_error(guarded.http.get("/v1/models", headers={"x-large": "x" * 70_000}), 431, "headers_too_large")
    assert guarded.http.get("/health", headers={"x-large": "x" * 60_000}).status_code == 200


def test_keys_may_be_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("one\ntwo\n")
    with Serving(ServerConfig(port=0, api_key_file=str(file))) as serving:
        for key, status in (("one", 200), ("two", 200), ("three", 401)):
            answer = serving.http.get("/v1/models", headers={"authorization": f"Bearer {key}"})
            assert answer.status_code == status
        assert "$HOTLOOP_API_KEY" in serving.curl


@pytest.mark.parametrize("path", ["/v1/models", "/metrics", "/version", "/nowhere"])
def test_without_a_key_a_name_that_anybody_may_have_is_refused(serving: Serving, path: str) -> None:
    check_error(serving.http.get(path, headers={"host": "evil.example"}), 403, "unknown_host")
    check_error(serving.http.get(path, headers={"host": "evil.example:8700"}), 403, "unknown_host")
    assert serving.http.get(path, headers={"host": "localhost:8700"}).status_code in (200, 404)
    evil = {"host": "evil.example", "origin": "http://evil.example"}
    check_error(serving.http.post("/v1/chat/completions", json={"messages": HELLO}, headers=evil), 403, "unknown_host")


@pytest.mark.parametrize("path", ["/health", "/ready"])
def test_probes_may_call_it_as_they_like(serving: Serving, path: str) -> None:
    assert serving.http.get(path, headers={"host": "evil.example"}).status_code == 200


def test_with_a_key_or_where_it_is_allowed_any_name_will_do(guarded: Serving) -> None:
    headers = {"host": "api.example", "authorization": "Bearer secret"}
    assert guarded.http.get("/v1/models", headers=headers).status_code == 200
    with Serving(ServerConfig(port=0, allowed_hosts=("API.example",))) as serving:
        assert serving.http.get("/v1/models", headers={"host": "api.example:443"}).status_code == 200
        check_error(serving.http.get("/v1/models", headers={"host": "other.example"}), 403, "unknown_host")


@pytest.mark.parametrize(
    ("host", "key", "warns"), [("0.0.0.0", None, True), ("0.0.0.0", "k", False), ("127.0.0.1", None, False)]
)
def test_it_warns_where_whoever_reaches_it_may_use_it(
    host: str, key: str | None, warns: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with Serving(ServerConfig(host=host, port=0, api_key=key)):
        assert ("listening on 0.0.0.0 without an API key" in caplog.text) == warns
