"""A server of chat completions whose model is a function, for agents of any framework."""

import json
from collections.abc import Callable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

USAGE = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}

Call = dict[str, Any]


class ChatServer(ThreadingHTTPServer):
    """`answer` has the body of each request, and gives a text, or calls."""

    daemon_threads = True

    def __init__(self, answer: Callable[[Any], str | list[Call]]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answer = answer
        self.url = f"http://127.0.0.1:{self.server_port}/v1"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._send(json.dumps({"object": "list", "data": [{"id": "m", "object": "model"}]}).encode())

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        assert isinstance(self.server, ChatServer)
        answer, is_stream = self.server.answer(body), body.get("stream")
        said: dict[str, Any] = {"role": "assistant", "content": answer if isinstance(answer, str) else None}
        if not isinstance(answer, str):
            said["tool_calls"] = [call | ({"index": i} if is_stream else {}) for i, call in enumerate(answer)]
        choice = {"index": 0, "finish_reason": "stop" if isinstance(answer, str) else "tool_calls", "logprobs": None}
        whole = {"id": "c", "created": 1, "model": "m", "usage": USAGE}
        if is_stream:
            chunk = whole | {"object": "chat.completion.chunk", "choices": [choice | {"delta": said}]}
            self._send(f"data: {json.dumps(chunk)}\n\ndata: [DONE]\n\n".encode(), "text/event-stream")
        else:
            whole |= {"object": "chat.completion", "choices": [choice | {"message": said}]}
            self._send(json.dumps(whole).encode())

    def _send(self, data: bytes, kind: str = "application/json") -> None:
        self.send_response(200)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None: ...

    def handle(self) -> None:
        with suppress(ConnectionError):  # its client was killed
            super().handle()
