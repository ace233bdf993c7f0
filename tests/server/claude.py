"""Anthropic's way to talk to the server of the tests: its client, its tools, and a check of every event of a stream."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import anthropic
import httpx
from anthropic.types import Message, RawMessageStreamEvent, ToolUseBlock
from anthropic.types.shared import ErrorResponse
from pydantic import TypeAdapter
from tests.loopback import claude_at
from tests.server.calls import WEATHER
from tests.server.serving import HELLO, MODEL, Serving

EVENT: TypeAdapter[Any] = TypeAdapter(RawMessageStreamEvent)
TOOLS: list[Any] = [
    {"name": "weather", "description": "", "input_schema": WEATHER},
    {"name": "clock", "input_schema": {"type": "object", "properties": {}}},
]


PING = 'event: ping\ndata: {"type":"ping"}\n\n'


def claude(serving: Serving, **fields: Any) -> anthropic.Anthropic:
    return claude_at(serving.url, **fields)


@contextmanager
def saying(*script: str) -> Iterator[anthropic.Anthropic]:
    """A client of a server whose model says this."""
    with Serving(script=script) as serving, claude(serving) as client:
        yield client


def ask(client: anthropic.Anthropic, **fields: Any) -> Message:
    answer = client.messages.create(**{"model": MODEL, "messages": HELLO, "max_tokens": 400} | fields)
    return Message.model_validate_json(answer.model_dump_json(), strict=True)


def post(serving: Serving, **fields: Any) -> httpx.Response:
    return serving.http.post("/v1/messages", json={"messages": HELLO, "max_tokens": 4, **fields})


def read_events(text: str) -> list[dict[str, Any]]:
    """The events of a stream, each as the client's own types have it, and in the order they must come in, less the
    ping that goes out at once."""
    events: list[dict[str, Any]] = []
    for block in text.removeprefix(PING).removesuffix("\n\n").split("\n\n"):
        name, data = block.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        events.append(event)
    for event in events:
        if event["type"] not in ("ping", "error"):
            EVENT.validate_python(event)
    check_order([event["type"] for event in events])
    return events


def check_order(kinds: list[str]) -> None:
    """Blocks come one after the other, each begun and ended, inside one message."""
    assert kinds[:2] == ["message_start", "ping"]
    if "error" in kinds:
        assert kinds.index("error") == len(kinds) - 1
        return
    assert kinds[-2:] == ["message_delta", "message_stop"]
    is_open = False
    for kind in kinds[2:-2]:
        assert (kind == "content_block_start") != is_open
        is_open = kind != "content_block_stop"
    assert not is_open


def check_failure(response: httpx.Response, status: int, kind: str) -> str:
    """Every failure has Anthropic's shape."""
    assert response.status_code == status, response.text
    body = response.json()
    if kind != "request_too_large":  # which their own types do not know
        ErrorResponse.model_validate(body)
    assert (body["type"], body["error"]["type"]) == ("error", kind)
    assert body["request_id"] == response.headers["request-id"] == response.headers["x-request-id"]
    message: str = body["error"]["message"]
    assert message
    assert "\n" not in message
    return message


def blocks_of(answer: Message) -> list[Any]:
    """Texts, and calls as name and input."""
    blocks: list[Any] = answer.content
    return [(block.name, block.input) if isinstance(block, ToolUseBlock) else block.text for block in blocks]


def prompt_tokens(answer: Message) -> int:
    usage = answer.usage
    return usage.input_tokens + (usage.cache_creation_input_tokens or 0) + (usage.cache_read_input_tokens or 0)
