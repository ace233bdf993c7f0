"""What the router's access log says of a request."""

import json
import logging
from typing import Any

import pytest
from tests.router.conftest import replica_configs

from hotloop.wire.field import Json

SECRET = "sk-not-for-the-log"


async def test_a_line_says_which_replica_it_was_and_no_secret(
    caplog: pytest.LogCaptureFixture, stubs: Any, route: Any
) -> None:
    caplog.set_level(logging.INFO, "hotloop")
    [stub] = await stubs(1)
    router = await route(replica_configs([stub]))
    said = await router.chat(SECRET, session_id="loop-1")
    unknown = await router.client.post("/v1/chat/completions", json={"model": "none", "messages": []})
    assert (said.status_code, unknown.status_code) == (200, 404)
    found: list[Json] = [vars(each)["facts"] for each in caplog.records if each.name == "hotloop.access"]
    answered, refused = found
    assert (answered["replica"], answered["session"], answered["model"]) == (stub.name, "loop-1", "stub")
    assert (answered["status"], answered["tried"], answered["class"]) == (200, 1, "interactive")
    assert answered["prompt_tokens"] == said.json()["usage"]["prompt_tokens"]
    assert 0 < answered["ttft_ms"] <= answered["duration_ms"]
    assert (refused["status"], refused["model"]) == (404, "none")
    assert "error" not in answered
    assert "none" in refused["error"]
    assert SECRET not in json.dumps(found) + caplog.text


async def test_a_line_says_why_a_request_was_refused(caplog: pytest.LogCaptureFixture, stubs: Any, route: Any) -> None:
    caplog.set_level(logging.INFO, "hotloop")
    router = await route(replica_configs(await stubs(1)))
    unread = await router.client.post("/v1/chat/completions", content=b"{")
    missing = await router.client.get("/v1/nothing")
    assert (unread.status_code, missing.status_code) == (415, 404)
    facts = [vars(each)["facts"] for each in caplog.records if each.name == "hotloop.access"]
    assert [each["error"] for each in facts] == ["unsupported_media_type", "unknown_url"]
