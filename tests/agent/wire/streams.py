"""What hosted APIs send, as bytes, and a server on loopback that sends it: every request has the next reply.

The streams are written by hand in the shape of the vendors' own types, which a test holds them against.
"""

import asyncio
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from hotloop.agent.model import Ask
from hotloop.core.message import Message, Tool

CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER = Tool("weather", "The weather of a city.", CITY)
CLOCK = Tool("clock", "The time.", {"type": "object", "properties": {}})
ASK = Ask(
    messages=(Message("system", "Be brief."), Message("user", "Paris?")), tools=(CLOCK, WEATHER), session_id="session-1"
)
SSE = "text/event-stream"


def data(*chunks: Any, done: bool = True) -> bytes:
    """Chunks as OpenAI's stream has them."""
    lines = [f"data: {json.dumps(chunk)}\n\n" for chunk in chunks] + (["data: [DONE]\n\n"] if done else [])
    return "".join(lines).encode()


def chunk(delta: dict[str, Any] | None = None, *, finish: str | None = None, **fields: Any) -> dict[str, Any]:
    choices = [{"index": 0, "delta": delta or {}, "logprobs": None, "finish_reason": finish}]
    envelope = {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": "gpt-5",
        "choices": choices,
    }
    return {**envelope, "service_tier": "default", "system_fingerprint": None, **fields}


def opened(index: int, call_id: str, name: str, arguments: str = "") -> dict[str, Any]:
    function = {"name": name, "arguments": arguments}
    return chunk({"tool_calls": [{"index": index, "id": call_id, "type": "function", "function": function}]})


def grown(index: int, arguments: str) -> dict[str, Any]:
    return chunk({"tool_calls": [{"index": index, "function": {"arguments": arguments}}]})


OPENAI_USAGE = {
    "prompt_tokens": 1200,
    "completion_tokens": 40,
    "total_tokens": 1240,
    "prompt_tokens_details": {"cached_tokens": 1024, "audio_tokens": 0},
    "completion_tokens_details": {"reasoning_tokens": 0, "audio_tokens": 0},
}
OPENAI_CHUNKS = [
    chunk({"role": "assistant", "content": None, "refusal": None}),
    chunk({"content": "Ich schaue nach: ☂ "}),
    opened(0, "call_a", "weather"),
    grown(0, '{"ci'),
    grown(0, 'ty":"Pa\\"}ris'),
    grown(0, '"}'),
    opened(1, "call_b", "clock"),
    grown(1, "{}"),
    chunk(finish="tool_calls"),
    chunk(choices=[], usage=OPENAI_USAGE),
]
OPENAI_CALLS = data(*OPENAI_CHUNKS)
OPENAI_TEXT = data(
    chunk({"role": "assistant", "content": "", "refusal": None}),
    chunk({"content": "It rains"}),
    chunk({"content": "."}),
    chunk(finish="stop"),
    chunk(choices=[], usage=OPENAI_USAGE),
)


def events(*items: dict[str, Any]) -> bytes:
    """Events as Anthropic's stream has them."""
    return "".join(f"event: {item['type']}\ndata: {json.dumps(item)}\n\n" for item in items).encode()


def started(**usage: Any) -> dict[str, Any]:
    counts = {
        "input_tokens": 20,
        "cache_creation_input_tokens": 100,
        "cache_read_input_tokens": 1000,
        "output_tokens": 1,
    }
    message = {"id": "msg_1", "type": "message", "role": "assistant", "model": "claude", "content": []}
    rest = {"stop_reason": None, "stop_sequence": None, "usage": {**counts, **usage}}
    return {"type": "message_start", "message": {**message, **rest}}


def begun(index: int, **block: Any) -> dict[str, Any]:
    return {"type": "content_block_start", "index": index, "content_block": block}


def added(index: int, **delta: Any) -> dict[str, Any]:
    return {"type": "content_block_delta", "index": index, "delta": delta}


def ended(index: int) -> dict[str, Any]:
    return {"type": "content_block_stop", "index": index}


def stopped(reason: str) -> list[dict[str, Any]]:
    delta = {"stop_reason": reason, "stop_sequence": None}
    return [{"type": "message_delta", "delta": delta, "usage": {"output_tokens": 40}}, {"type": "message_stop"}]


def thought_block(index: int, *pieces: str, signature: str) -> list[dict[str, Any]]:
    return [
        begun(index, type="thinking", thinking="", signature=""),
        *(added(index, type="thinking_delta", thinking=piece) for piece in pieces),
        added(index, type="signature_delta", signature=signature),
        ended(index),
    ]


def sealed_block(index: int, data: str) -> list[dict[str, Any]]:
    return [begun(index, type="redacted_thinking", data=data), ended(index)]


def text_block(index: int, *pieces: str) -> list[dict[str, Any]]:
    deltas = [added(index, type="text_delta", text=piece) for piece in pieces]
    return [begun(index, type="text", text=""), *deltas, ended(index)]


def call_block(index: int, call_id: str, name: str, *pieces: str) -> list[dict[str, Any]]:
    deltas = [added(index, type="input_json_delta", partial_json=piece) for piece in pieces]
    return [begun(index, type="tool_use", id=call_id, name=name, input={}), *deltas, ended(index)]


ANTHROPIC_EVENTS = [
    started(),
    {"type": "ping"},
    *thought_block(0, "Hm.", signature="c2ln"),
    *text_block(1, "Ich schaue nach: ", "☂ "),
    *call_block(2, "toolu_a", "weather", "", '{"ci', 'ty":"Pa\\"}ris', '"}'),
    *call_block(3, "toolu_b", "clock", ""),
    *stopped("tool_use"),
]
ANTHROPIC_CALLS = events(*ANTHROPIC_EVENTS)
ANTHROPIC_TEXT = events(started(), *text_block(0, "It rains", "."), *stopped("end_turn"))


RESPONSE: dict[str, Any] = {
    "id": "resp_1",
    "object": "response",
    "created_at": 1,
    "model": "gpt-5",
    "status": "completed",
    "output": [],
    "parallel_tool_calls": True,
    "tool_choice": "auto",
    "tools": [],
    "usage": {
        "input_tokens": 1200,
        "input_tokens_details": {"cached_tokens": 1024, "cache_write_tokens": 0},
        "output_tokens": 40,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 1240,
    },
}


def sealed_item(index: int, seal: str) -> list[dict[str, Any]]:
    item = {"id": f"rs_{index}", "type": "reasoning", "summary": [], "encrypted_content": seal}
    return [
        {"type": "response.output_item.added", "output_index": index, "item": {**item, "encrypted_content": None}},
        {"type": "response.output_item.done", "output_index": index, "item": item},
    ]


def text_item(index: int, *pieces: str) -> list[dict[str, Any]]:
    where = {"output_index": index, "item_id": f"msg_{index}", "content_index": 0}
    part = {"type": "output_text", "text": "".join(pieces), "annotations": [], "logprobs": []}
    item = {"id": f"msg_{index}", "type": "message", "role": "assistant", "status": "completed", "content": [part]}
    begun_item = {**item, "status": "in_progress", "content": []}
    deltas = [{"type": "response.output_text.delta", **where, "delta": piece, "logprobs": []} for piece in pieces]
    return [
        {"type": "response.output_item.added", "output_index": index, "item": begun_item},
        *deltas,
        {"type": "response.output_item.done", "output_index": index, "item": item},
    ]


def call_item(index: int, call_id: str, name: str, *pieces: str) -> list[dict[str, Any]]:
    item = {"id": f"fc_{index}", "type": "function_call", "call_id": call_id, "name": name, "status": "completed"}
    where = {"output_index": index, "item_id": f"fc_{index}"}
    deltas = [{"type": "response.function_call_arguments.delta", **where, "delta": piece} for piece in pieces]
    return [
        {"type": "response.output_item.added", "output_index": index, "item": {**item, "arguments": ""}},
        *deltas,
        {"type": "response.output_item.done", "output_index": index, "item": {**item, "arguments": "".join(pieces)}},
    ]


def response(*items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    told = [{"type": "response.created", "response": {**RESPONSE, "status": "in_progress", "usage": None}}]
    told += [event for item in items for event in item]
    told.append({"type": "response.completed", "response": RESPONSE})
    return [{**event, "sequence_number": i} for i, event in enumerate(told)]


RESPONSES_EVENTS = response(
    sealed_item(0, "c2VhbA=="),
    text_item(1, "Ich schaue nach: ", "☂ "),
    call_item(2, "call_a", "weather", '{"ci', 'ty":"Pa\\"}ris', '"}'),
    call_item(3, "call_b", "clock", "{}"),
)
RESPONSES_CALLS = events(*RESPONSES_EVENTS)
RESPONSES_TEXT = events(*response(text_item(0, "It rains", ".")))


@dataclass(frozen=True, slots=True)
class Reply:
    """`body` in pieces of `size` bytes. One that `breaks` closes its connection before the end of the body."""

    body: bytes
    status: int = 200
    content_type: str = SSE
    headers: dict[str, str] = field(default_factory=dict)
    size: int = 1 << 20
    breaks: bool = False
    hold: asyncio.Event | None = None
    """If given, the body ends only when this is set."""


@dataclass(frozen=True, slots=True)
class Asked:
    method: str
    path: str
    headers: dict[str, str]
    body: dict[str, Any]


class WireServer:
    """Async context manager; `asked` are the requests it got, `num_connections` how many connections they came over."""

    def __init__(self, *replies: Reply | bytes) -> None:
        self.asked: list[Asked] = []
        self.num_connections = 0
        self.has_lost = asyncio.Event()
        """Set once a client has closed its connection."""
        self._replies = [Reply(reply) if isinstance(reply, bytes) else reply for reply in replies]

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1")
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()

    @property
    def bodies(self) -> Sequence[dict[str, Any]]:
        return [asked.body for asked in self.asked]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.num_connections += 1
        try:
            while asked := await _read(reader):
                self.asked.append(asked)
                reply = self._replies.pop(0)
                await self._send(reply, reader, writer)
                if reply.breaks:
                    break
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            self.has_lost.set()
            writer.close()

    async def _send(self, reply: Reply, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = {"content-type": reply.content_type, "transfer-encoding": "chunked", **reply.headers}
        lines = [f"HTTP/1.1 {reply.status} Reason", *(f"{name}: {value}" for name, value in head.items()), "", ""]
        writer.write("\r\n".join(lines).encode())
        for piece in pieces(reply.body, reply.size):
            writer.write(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
            await writer.drain()
        if reply.hold:
            hangs_up = asyncio.create_task(reader.read(1))
            holds = asyncio.create_task(reply.hold.wait())
            await asyncio.wait({hangs_up, holds}, return_when=asyncio.FIRST_COMPLETED)
            holds.cancel()
            hangs_up.cancel()
            if not reply.hold.is_set():
                raise ConnectionError
        if not reply.breaks:
            writer.write(b"0\r\n\r\n")
        await writer.drain()


def pieces(body: bytes, size: int) -> Iterable[bytes]:
    return (body[i : i + size] for i in range(0, len(body), size))


async def _read(reader: asyncio.StreamReader) -> Asked | None:
    head = await reader.readuntil(b"\r\n\r\n")
    request, *lines = head.decode().strip().split("\r\n")
    method, path, _ = request.split(" ")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    return Asked(method, path, headers, json.loads(body) if body else {})
