"""Streams whose answer takes long to begin: the head and a ping come at once, and only what is refused has a status."""

import socket
from collections.abc import Callable
from contextlib import ExitStack, closing
from typing import Any
from urllib.parse import urlsplit

import anthropic
import msgspec
import openai
import pytest
from tests.server.claude import claude
from tests.server.serving import HELLO, MODEL, Routing, Serving

from hotloop.core.config import EngineConfig

BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": HELLO, "max_tokens": 4},
    "/v1/completions": {"prompt": "hello", "max_tokens": 4},
    "/v1/responses": {"input": "hello", "max_output_tokens": 16},
    "/v1/messages": {"messages": HELLO, "max_tokens": 4},
}
PINGS = {path: b"event: ping\n" if path == "/v1/messages" else b": ping\n\n" for path in BODIES}
LONG = "long " * 2000


def post(url: str, path: str, **fields: Any) -> socket.socket:
    """A request by hand, for whoever wants to see the bytes as they come."""
    body, address = msgspec.json.encode({**BODIES[path], "stream": True, **fields}), urlsplit(url)
    peer = socket.create_connection((address.hostname, address.port or 80), timeout=20)
    head = (
        f"POST {path} HTTP/1.1\r\nhost: here\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    peer.sendall(head.encode() + body)
    return peer


def read_until(peer: socket.socket, is_enough: Callable[[bytes], bool]) -> bytes:
    seen = b""
    while not is_enough(seen):
        data = peer.recv(65536)
        assert data, seen
        seen += data
    return seen


def read_status(peer: socket.socket) -> int:
    return int(read_until(peer, lambda seen: b"\r\n\r\n" in seen).split()[1])


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("is_routed", [False, True], ids=["direct", "routed"])
def test_the_head_and_a_ping_come_before_the_first_token(serving: Serving, path: str, is_routed: bool) -> None:
    def look(url: str) -> None:
        with serving.gate:
            peer = post(url, path)
            seen = read_until(peer, lambda seen: PINGS[path] in seen)
        with closing(peer):
            seen += read_until(peer, lambda rest: b"\r\n0\r\n" in rest or rest.startswith(b"0\r\n"))
        assert seen.startswith(b"HTTP/1.1 200 ")
        assert b"content-type: text/event-stream" in seen.lower().partition(b"\r\n\r\n")[0]
        assert any(end in seen for end in (b"[DONE]", b"message_stop", b"response.completed", b"response.incomplete"))

    if is_routed:
        with Routing(serving.url) as url:
            look(url)
    else:
        look(serving.url)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("is_routed", [False, True], ids=["direct", "routed"])
def test_what_is_refused_has_a_status(path: str, is_routed: bool) -> None:
    field = next(name for name in ("messages", "prompt", "input") if name in BODIES[path])
    long = {field: [{"role": "user", "content": LONG}] if field == "messages" else LONG}
    with Serving(engine_config=EngineConfig(max_waiting=1)) as serving:

        def look(url: str) -> None:
            for fields in ({"temperature": "hot"}, long):
                with closing(post(url, path, **fields)) as peer:
                    assert read_status(peer) == 400
            with ExitStack() as peers:
                peers.enter_context(serving.gate)
                codes: list[int] = []
                while codes[-1:] in ([], [200]) and len(codes) < 9:
                    codes.append(read_status(peers.enter_context(closing(post(url, path)))))
            assert codes[-1] == (529 if path == "/v1/messages" else 429)

        if is_routed:
            with Routing(serving.url) as url:
                look(url)
        else:
            look(serving.url)


def test_real_clients_take_pings_and_refusals(serving: Serving) -> None:
    with serving.openai() as client:
        with serving.gate:
            stream = client.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=4, stream=True)
            assert stream.response.status_code == 200
            with pytest.raises(openai.BadRequestError):
                client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": LONG}], stream=True)
        assert len(list(stream)) > 1
    with (
        serving.openai() as client,
        client.responses.stream(model=MODEL, input="hello", max_output_tokens=16) as events,
    ):
        assert next(iter(events)).type == "response.created"
    with claude(serving) as anthropic_client:
        with anthropic_client.messages.stream(model=MODEL, messages=HELLO, max_tokens=4) as told:
            assert told.get_final_message().usage.output_tokens == 4
        with pytest.raises(anthropic.BadRequestError, match="prompt is too long"):
            anthropic_client.messages.create(
                model=MODEL, messages=[{"role": "user", "content": LONG}], max_tokens=4, stream=True
            )
