"""A server on the test's own event loop that answers whatever the test says, and the words of other engines.

What engines say of themselves is in the shapes of their own documentation.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

Json = dict[str, Any]

SGLANG_CARD = {"id": "fake", "object": "model", "owned_by": "sglang", "root": "fake", "max_model_len": 32768}
SGLANG_INFO = {
    "model_path": "fake",
    "disable_radix_cache": False,
    "enable_cache_report": False,
    "max_running_requests": 64,
    "tool_call_parser": None,
    "enable_metrics": False,
    "version": "0.5.6",
}
SGLANG_METRICS = """\
# HELP sglang:num_running_reqs The number of running requests.
# TYPE sglang:num_running_reqs gauge
sglang:num_running_reqs{model_name="fake"} 2.0
# HELP sglang:num_queue_reqs The number of requests in the waiting queue.
# TYPE sglang:num_queue_reqs gauge
sglang:num_queue_reqs{model_name="fake"} 1.0
"""
TGI_INFO = {
    "model_id": "fake",
    "model_sha": None,
    "max_concurrent_requests": 128,
    "max_input_tokens": 1023,
    "max_total_tokens": 1536,
    "max_client_batch_size": 4,
    "router": "text-generation-router",
    "version": "3.3.6",
}
TGI_METRICS = """\
# TYPE tgi_queue_size gauge
tgi_queue_size 1
# TYPE tgi_batch_current_size gauge
tgi_batch_current_size 4
"""


@dataclass(frozen=True)
class Asked:
    method: str
    path: str
    headers: Mapping[str, str]
    body: Json


@dataclass(frozen=True)
class Reply:
    """One that `repeats` never ends; one that `hangs` never comes."""

    body: bytes = b""
    status: int = 200
    content_type: str = "application/json"
    headers: Mapping[str, str] = field(default_factory=dict)
    repeats: bool = False
    hangs: bool = False


NOT_FOUND = Reply(b'{"detail": "Not Found"}', 404)
Script = Callable[[Asked], Reply]


def page(value: Any, **rest: Any) -> Reply:
    return Reply(json.dumps(value).encode(), **rest)


def events(*values: Any) -> Reply:
    return Reply(b"".join(b"data: %b\n\n" % json.dumps(value).encode() for value in values), 200, "text/event-stream")


def say(text: str, usage: Json | None = None) -> Reply:
    """A streamed answer, a word a piece."""
    deltas = [{"choices": [{"index": 0, "delta": {"content": f"{word} "}}]} for word in text.split()]
    return events(*deltas, {"choices": [], "usage": usage})


def engine(pages: Mapping[str, Any], card: Json | None = None, **headers: str) -> Script:
    """Lists one model, answers every chat with two words, and has the pages given."""

    def answer(asked: Asked) -> Reply:
        if asked.path == "/v1/models":
            return page({"object": "list", "data": [card or {"id": "fake", "object": "model", "owned_by": "fake"}]})
        if asked.path == "/v1/chat/completions":
            said = say("yes indeed", {"prompt_tokens": 300, "completion_tokens": 2})
            return Reply(said.body, 200, said.content_type, headers)
        given = pages.get(asked.path)
        if given is None:
            return NOT_FOUND
        return Reply(given.encode(), 200, "text/plain") if isinstance(given, str) else page(given)

    return answer


@asynccontextmanager
async def speaking(script: Script) -> AsyncIterator[str]:
    """Its address, while inside. Whoever is left by then is hung up on."""
    writers: set[asyncio.StreamWriter] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.add(writer)
        with suppress(ConnectionError):
            while asked := await _read(reader):
                reply = script(asked)
                await (reader.read() if reply.hangs else _write(writer, reply))
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for writer in writers:
            writer.transport.abort()
        await asyncio.sleep(0)


async def _read(reader: asyncio.StreamReader) -> Asked | None:
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
    except asyncio.IncompleteReadError:
        return None
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:] if line)}
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    method, path, _ = head[0].split(" ")
    return Asked(method, path, headers, json.loads(body) if body else {})


async def _write(writer: asyncio.StreamWriter, reply: Reply) -> None:
    lines = [f"HTTP/1.1 {reply.status} Whatever", f"Content-Type: {reply.content_type}"]
    lines += [f"{name}: {value}" for name, value in reply.headers.items()]
    if not reply.repeats:
        lines.append(f"Content-Length: {len(reply.body)}")
    writer.write("\r\n".join([*lines, "", ""]).encode() + reply.body)
    while reply.repeats:
        writer.write(reply.body)
        await writer.drain()
        await asyncio.sleep(0)
    await writer.drain()
