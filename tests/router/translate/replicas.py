"""Replicas that say what they are told to, reached by the real clients through a translation."""

import json
import threading
from collections.abc import Callable, Iterable
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import anthropic
import openai
from anthropic.types import RawMessageStreamEvent
from openai.types.chat import ChatCompletionChunk
from openai.types.responses import ResponseStreamEvent
from pydantic import TypeAdapter
from tests.loopback import claude_at, openai_at

from hotloop.router.kinds import Api
from hotloop.router.translate import Translation, translate

CHAT: frozenset[Api] = frozenset({"chat"})
MESSAGES: frozenset[Api] = frozenset({"messages"})
EVENT: TypeAdapter[Any] = TypeAdapter(RawMessageStreamEvent)
RESPONSE_EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)

Json = dict[str, Any]
ITEMS: list[Json] = [
    {"role": "user", "content": [{"type": "input_text", "text": "a"}, {"type": "input_image", "image_url": "u"}]},
    {"type": "reasoning", "id": "r", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
    {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "b"}]},
    {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"},
    {"type": "custom_tool_call", "call_id": "2", "name": "patch", "input": "ü"},
    {"type": "function_call_output", "call_id": "1", "output": "x"},
]
"""What the responses API may be sent, but for its instructions."""
_PATHS: dict[str, Api] = {"/v1/messages": "messages", "/v1/chat/completions": "chat", "/v1/responses": "responses"}


class Replica:
    """A server that carries each request to a replica that is not there, and answers with what it would have said.

    The answer is the same every time, and comes in pieces of `size` bytes. What was asked is remembered.
    """

    def __init__(self, spoken: frozenset[Api], answer: bytes | Json, *, status: int = 200, size: int = 7) -> None:
        self.asked: list[Json] = []
        self.paths: list[str] = []
        self._spoken = spoken
        self._answer = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
        self._status = status
        self._size = size

    def __enter__(self) -> "Replica":
        replica = self

        class Door(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                status, kind, data = replica._respond(self.path, body)
                self.send_response(status)
                self.send_header("content-type", kind)
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
                pass

        self._server = HTTPServer(("127.0.0.1", 0), Door)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    @property
    def claude(self) -> anthropic.Anthropic:
        return claude_at(self._url)

    @property
    def openai(self) -> openai.OpenAI:
        return openai_at(self._url)

    @property
    def _url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def _respond(self, path: str, body: Json) -> tuple[int, str, bytes]:
        translation = translate(_PATHS[path], self._spoken, body)
        assert translation
        target, asked = translation.request()
        self.asked.append(asked)
        self.paths.append(target)
        if body.get("stream") and self._status == 200:
            return 200, "text/event-stream", feed(translation, self._answer, self._size)
        status, data = translation.answer(self._status, self._answer)
        return status, "application/json", data


def check_broken_off(make: Callable[[], Translation], broken: bytes, opening: bytes) -> None:
    """A stream that ends before its last word ends with one error, whoever says so, and nothing after it."""
    for error in (None, "the replica is gone"):
        live = make().stream()
        live.feed(broken)
        ending = live.end(error)
        assert ending.startswith(opening)
        assert ending.count(opening.partition(b": ")[0] + b": ") == 1
        assert (live.feed(broken), live.end(), live.end("again")) == (b"", b"", b"")


def feed(translation: Translation, data: bytes, size: int, error: str | None = None) -> bytes:
    stream = translation.stream()
    pieces = [stream.feed(data[i : i + size]) for i in range(0, len(data), size)]
    return b"".join(pieces) + stream.end(error)


def chunks(*deltas: Json, finish: str | None = "stop", usage: Json | None = None, **more: Any) -> bytes:
    """A chat's stream: deltas, why it ended, and `[DONE]`."""
    choices: list[list[Json]] = [[{"index": 0, "delta": delta, "finish_reason": None}] for delta in deltas]
    if finish:
        choices.append([{"index": 0, "delta": {}, "finish_reason": finish, **more}])
    frame = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "llama"}
    events: list[Json] = [{**frame, "choices": choice} for choice in choices]
    events += [{**frame, "choices": [], "usage": usage}] if usage else []
    return b"".join(_data(event) for event in events) + b"data: [DONE]\n\n"


def call_piece(index: int, name: str | None = None, arguments: str = "", call_id: str | None = None) -> Json:
    function: Json = {"arguments": arguments, **({"name": name} if name else {})}
    named = {"id": call_id, "type": "function"} if call_id else {}
    return {"tool_calls": [{"index": index, **named, "function": function}]}


def message_events(*blocks: tuple[Json, Iterable[Json]], stop: str = "end_turn", usage: Json | None = None) -> bytes:
    """A message's stream: each block with its deltas."""
    start: Json = {"id": "msg_1", "type": "message", "role": "assistant", "model": "claude", "content": []}
    start |= {"stop_reason": None, "stop_sequence": None, "usage": usage or {"input_tokens": 3, "output_tokens": 1}}
    events: list[Json] = [{"type": "message_start", "message": start}, {"type": "ping"}]
    for i, (block, deltas) in enumerate(blocks):
        events.append({"type": "content_block_start", "index": i, "content_block": block})
        events += [{"type": "content_block_delta", "index": i, "delta": delta} for delta in deltas]
        events.append({"type": "content_block_stop", "index": i})
    delta = {"stop_reason": stop, "stop_sequence": None}
    events += [{"type": "message_delta", "delta": delta, "usage": {"output_tokens": 9}}, {"type": "message_stop"}]
    return b"".join(named(event) for event in events)


def named(event: Json) -> bytes:
    return f"event: {event['type']}\n".encode() + _data(event)


def _data(event: Json) -> bytes:
    return b"data: " + json.dumps(event, ensure_ascii=False).encode() + b"\n\n"


def read_events(data: bytes) -> list[Json]:
    """The data of each event, checked with the client's own type where it has one."""
    lines = [line for line in data.decode().splitlines() if line.startswith("data: ")]
    return [json.loads(line.removeprefix("data: ")) for line in lines if line != "data: [DONE]"]


def check_each(data: bytes, check: Callable[[Any], Any]) -> list[Json]:
    events = read_events(data)
    for event in events:
        check(event)
    return events


def check_message_events(data: bytes) -> list[Json]:
    return check_each(data, lambda event: event["type"] == "ping" or EVENT.validate_python(event, strict=True))


def check_chunks(data: bytes) -> list[Json]:
    return check_each(data, lambda event: ChatCompletionChunk.model_validate(event, strict=True))
