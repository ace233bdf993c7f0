"""Log lines: what each says of a request, and what none of them may say."""

import json
import logging
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from tests.server.serving import Serving

from hotloop.core.config import RouterConfig, ServerConfig
from hotloop.http.keys import Tenant
from hotloop.http.logs import FACTS, AccessLog, JsonFormatter, first_token, start_logging
from hotloop.wire.field import Json

SECRET = "sk-not-for-the-log"


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Callable[[], list[Json]]:
    """The access lines so far, as JSON would have them."""
    caplog.set_level(logging.INFO, "hotloop")
    formatter = JsonFormatter()
    return lambda: [json.loads(formatter.format(each)) for each in caplog.records if each.name == "hotloop.access"]


async def ask(path: str = "/v1/models", *, status: int = 200, **state: Any) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        scope.setdefault("state", {}).update(state)
        await send({"type": "http.response.start", "status": status, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    transport = httpx.ASGITransport(AccessLog(app))
    async with httpx.AsyncClient(transport=transport, base_url="http://here") as client:
        await client.get(path, headers={"authorization": f"Bearer {SECRET}"}, params={"key": SECRET})


async def test_a_line_has_what_is_known_and_no_secret(lines: Callable[[], list[Json]]) -> None:
    tenant = Tenant("0123456789abcdef" * 4)
    facts = {"session": "s1", "replica": None, "error": "", **first_token(1.0, 1.25)}
    await ask(request_id="req_1", tenant=tenant, **{FACTS: lambda: facts})
    [line] = lines()
    assert line.pop("duration_ms") >= 0
    assert line.pop("time").endswith("Z")
    message = line.pop("message")
    assert line == {
        "level": "info",
        "logger": "hotloop.access",
        "method": "GET",
        "path": "/v1/models",
        "status": 200,
        "request": "req_1",
        "key": "01234567",
        "session": "s1",
        "ttft_ms": 250.0,
    }
    assert message.startswith("GET /v1/models 200 duration_ms=")
    assert message.endswith("request=req_1 key=01234567 session=s1 ttft_ms=250.0")
    assert SECRET not in message


@pytest.mark.parametrize("path", ["/health", "/ready", "/metrics"])
async def test_probes_are_not_logged_at_info(path: str, lines: Callable[[], list[Json]]) -> None:
    await ask(path)
    assert not lines()


async def test_what_a_client_chose_stays_one_word_on_one_line(lines: Callable[[], list[Json]]) -> None:
    hostile = 'a"b c\nINFO forged status=200\x1b[2J' + "x" * 500
    await ask(f"/v1/{hostile[:3]}", **{FACTS: lambda: {"session": hostile}})
    [line] = lines()
    assert line["session"] == hostile[:200]
    assert line["message"].isprintable()
    assert line["message"].count(" status=200") == 1
    assert f"session={json.dumps(hostile[:200])}" in line["message"]


def test_a_json_line_is_one_line_with_the_traceback_in_it() -> None:
    try:
        raise ValueError("two\nlines")
    except ValueError as error:
        found = (ValueError, error, error.__traceback__)
        record = logging.LogRecord("hotloop", logging.ERROR, __file__, 1, "it failed: %s", ("\n",), found)
    text = JsonFormatter().format(record)
    line = json.loads(text)
    assert "\n" not in text
    assert (line["level"], line["message"]) == ("error", "it failed: \n")
    assert "ValueError: two" in line["exception"]


@pytest.fixture
def root() -> Iterator[logging.Logger]:
    logger, hotloop = logging.getLogger(), logging.getLogger("hotloop")
    kept = [(each, each.formatter) for each in logger.handlers]
    yield logger
    hotloop.setLevel(logging.NOTSET)
    for handler, formatter in kept:
        handler.setFormatter(formatter)


def test_level_and_format_are_as_set_and_change_with_a_reload(root: logging.Logger) -> None:
    start_logging(ServerConfig(log_format="json", log_level="error"))
    assert all(isinstance(each.formatter, JsonFormatter) for each in root.handlers)
    assert logging.getLogger("hotloop").level == logging.ERROR
    start_logging(RouterConfig())
    assert not any(isinstance(each.formatter, JsonFormatter) for each in root.handlers)
    assert logging.getLogger("hotloop").level == logging.INFO


def test_a_server_logs_what_the_engine_counted(lines: Callable[[], list[Json]]) -> None:
    with Serving() as serving:
        body = {"messages": [{"role": "user", "content": SECRET}], "max_tokens": 3, "session_id": "loop-1"}
        headers = {"authorization": f"Bearer {SECRET}", "x-request-id": "mine"}
        with httpx.Client(base_url=serving.url, verify=False, timeout=60) as client:
            usage = client.post("/v1/chat/completions", json=body, headers=headers).json()["usage"]
            client.post("/v1/chat/completions", json={"messages": []})
    answered, refused = lines()
    assert (answered["request"], answered["session"], answered["class"]) == ("mine", "loop-1", "interactive")
    assert (answered["status"], answered["finish"]) == (200, "length")
    assert (answered["prompt_tokens"], answered["output_tokens"]) == (usage["prompt_tokens"], 3)
    assert 0 < answered["ttft_ms"] <= answered["duration_ms"]
    assert (refused["status"], refused["error"]) == (400, "invalid_value")
    assert "error" not in answered
    assert SECRET not in json.dumps(lines())


def test_a_server_logs_why_nobody_was_let_in(lines: Callable[[], list[Json]]) -> None:
    with Serving(ServerConfig(port=0, api_key="right")) as serving, httpx.Client(base_url=serving.url) as client:
        assert client.get("/v1/models").status_code == 401
    assert [each["error"] for each in lines()] == ["invalid_api_key"]
