"""Who shares with whom: nothing read under one salt, or with one key, shows under another."""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from tests.server.serving import Serving, check_error

from hotloop.core.config import ServerConfig
from hotloop.server.tenants import find_key, name_owner, name_scope

LONG = "Nobody else must notice that this was read before. " * 4

CHAT = {"messages": [{"role": "user", "content": LONG}]}
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": CHAT | {"max_tokens": 1},
    "/v1/completions": {"prompt": LONG, "max_tokens": 1},
    "/v1/responses": {"input": LONG, "max_output_tokens": 1},
    "/v1/messages": CHAT | {"max_tokens": 1},
}


def ask(serving: Serving, path: str, headers: dict[str, str] | None = None, **fields: Any) -> int:
    """How much of a prompt was known."""
    response = serving.http.post(path, json=BODIES[path] | fields, headers=headers)
    assert response.status_code == 200, response.text
    usage = response.json()["usage"]
    details = usage.get("prompt_tokens_details") or usage.get("input_tokens_details") or {}
    cached: int = details.get("cached_tokens", usage.get("cache_read_input_tokens"))
    return cached


@pytest.fixture
def open_house() -> Iterator[Serving]:
    with Serving() as serving:
        yield serving


@pytest.fixture
def by_key() -> Iterator[Serving]:
    with Serving(ServerConfig(port=0, cache_isolation="key")) as serving:
        yield serving


@pytest.mark.parametrize("path", BODIES)
def test_salts_share_nothing(open_house: Serving, path: str) -> None:
    assert ask(open_house, path) == 0
    assert ask(open_house, path) > 100
    for salt in "ab":
        assert ask(open_house, path, cache_salt=salt) == 0
        assert ask(open_house, path, cache_salt=salt) > 100


def test_without_isolation_keys_share(open_house: Serving) -> None:
    assert ask(open_house, "/v1/completions", {"authorization": "Bearer one"}) == 0
    assert ask(open_house, "/v1/completions", {"authorization": "Bearer two"}) > 100


@pytest.mark.parametrize("path", BODIES)
def test_keys_share_nothing(by_key: Serving, path: str) -> None:
    for headers in ({}, {"authorization": "Bearer one"}, {"x-api-key": "two"}):
        assert ask(by_key, path, headers) == 0
        assert ask(by_key, path, headers) > 100
    assert ask(by_key, path, {"x-api-key": "one"}) > 100, "the same key, by the other header"
    assert ask(by_key, path, {"x-api-key": "one"}, cache_salt="s") == 0
    assert ask(by_key, path, {"x-api-key": "two"}, cache_salt="s") == 0


@pytest.mark.parametrize("salt", ["", 7, ["a"]])
def test_a_salt_that_is_none_is_refused(serving: Serving, salt: object) -> None:
    error = check_error(serving.chat(cache_salt=salt), 400)
    assert error["param"] == "cache_salt"


def test_scopes() -> None:
    one, two = {"authorization": "Bearer one"}, {"authorization": "Bearer two"}
    assert name_scope(one, None, "none") == ""
    scopes = [
        name_scope({}, None, "key"),
        name_scope(one, None, "key"),
        name_scope(two, None, "key"),
        name_scope(one, "s", "key"),
        name_scope(one, "s", "none"),
        name_scope(one, "\ud800", "none"),
    ]
    assert len({"", *scopes}) == len(scopes) + 1
    assert name_scope(one, "s", "none") == name_scope(two, "s", "none")


@pytest.mark.parametrize(
    ("headers", "key"),
    [
        ({}, ""),
        ({"authorization": "Bearer k"}, "k"),
        ({"authorization": "bearer  k "}, "k"),
        ({"authorization": "Basic k"}, ""),
        ({"authorization": "Basic k", "x-api-key": "x"}, "x"),
        ({"x-api-key": "x"}, "x"),
    ],
)
def test_the_key_a_request_carries(headers: dict[str, str], key: str) -> None:
    assert find_key(httpx.Headers(headers)) == key
    assert (name_owner(headers) == name_owner({})) == (key == "")
