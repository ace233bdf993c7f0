"""Who shares with whom: nothing read under one salt, or with one key, shows under another."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.server.serving import Serving, check_error

from hotloop.core.config import EngineConfig, ServerConfig
from hotloop.core.errors import ConfigError
from hotloop.http.keys import Key, Keys, Tenant
from hotloop.server.app import create_app
from hotloop.server.tenants import name_scope

SHARED_KEYS = Keys((Key(b"anna"), Key(b"bob")))
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
    one, two = Tenant("one"), Tenant("two")
    apart = replace(one, is_apart=True)
    assert name_scope(one, None, "none") == name_scope(one, None, "auto") == name_scope(apart, None, "none") == ""
    assert name_scope(apart, None, "auto") == name_scope(one, None, "key")
    scopes = [
        name_scope(Tenant(""), None, "key"),
        name_scope(one, None, "key"),
        name_scope(two, None, "key"),
        name_scope(one, "s", "key"),
        name_scope(one, "s", "none"),
        name_scope(one, "\ud800", "none"),
    ]
    assert len({"", *scopes}) == len(scopes) + 1
    assert name_scope(one, "s", "none") == name_scope(two, "s", "auto")


@pytest.fixture
def shared(tmp_path: Path) -> Iterator[Serving]:
    """Several keys, and nothing said about isolation."""
    file = tmp_path / "keys"
    file.write_text("anna\nbob\nroot admin\nscrape metrics\n")
    with Serving(ServerConfig(port=0, api_key_file=str(file))) as serving:
        yield serving


ANNA, BOB, ROOT = ({"authorization": f"Bearer {name}"} for name in ("anna", "bob", "root"))


@pytest.mark.parametrize("path", BODIES)
def test_several_keys_share_nothing_unasked(shared: Serving, path: str) -> None:
    for headers in (ANNA, BOB):
        assert ask(shared, path, headers) == 0
        assert ask(shared, path, headers) > 100


def test_one_key_and_one_for_metrics_share(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("anna\nscrape metrics\n")
    with Serving(ServerConfig(port=0, api_key_file=str(file))) as serving:
        assert not serving.engine.stats().num_running
        ask(serving, "/v1/completions", ANNA)
        assert "\nhotloop_" in serving.http.get("/metrics", headers=ANNA).text


def test_what_each_role_may_do(shared: Serving) -> None:
    scrape = {"authorization": "Bearer scrape"}
    assert "\nhotloop_" in shared.http.get("/metrics", headers=scrape).text
    assert "\nhotloop_" in shared.http.get("/metrics", headers=ROOT).text
    check_error(shared.http.get("/metrics", headers=ANNA), 403, "forbidden")
    check_error(shared.http.get("/v1/models", headers=scrape), 403, "forbidden")
    check_error(shared.http.post("/v1/completions", json={"prompt": "a"}, headers=scrape), 403, "forbidden")
    made = shared.http.post("/v1/responses", json={"input": LONG, "max_output_tokens": 1}, headers=ANNA).json()["id"]
    for path in (f"/v1/responses/{made}", f"/v1/responses/{made}/input_items", f"/v1/cache/explain/{made}"):
        assert shared.http.get(path, headers=BOB).status_code == 404
        assert shared.http.get(path, headers=ANNA).status_code == shared.http.get(path, headers=ROOT).status_code == 200


def test_a_session_is_another_for_another_tenant(shared: Serving) -> None:
    for headers in (ANNA, BOB):
        ask(shared, "/v1/completions", headers, session_id="one")
    sessions = {*shared.engine._core.scheduler.admission._known}
    assert len({name for name in sessions if name.endswith("/one")}) == 2


def test_a_client_cannot_speak_for_another(shared: Serving) -> None:
    bob = SHARED_KEYS.admit({b"x-api-key": b"bob"}, "/")
    for secret in ("anna", "bob", ""):
        header = {"x-hotloop-tenant": bob.vouch(secret.encode()).decode()}
        check_error(shared.http.get("/v1/models", headers=ANNA | header), 403, "invalid_tenant")
    vouched = {"x-hotloop-tenant": bob.vouch(b"root").decode()}
    made = shared.http.post("/v1/responses", json={"input": "a", "max_output_tokens": 1}, headers=ROOT | vouched)
    assert shared.http.get(f"/v1/responses/{made.json()['id']}", headers=BOB).status_code == 200


def test_published_state_and_several_keys_do_not_go_together(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("anna\nbob\n")
    with Serving(engine_config=EngineConfig(kv_events="tcp://127.0.0.1:0")) as serving:
        for isolation in ("auto", "key"):
            config = ServerConfig(api_key_file=str(file), cache_isolation=isolation)
            with pytest.raises(ConfigError, match="kv_events"):
                create_app(serving.engine, config)
