"""The agents of docs/coming-from.md, side by side: each that is installed here asks the same, and answers."""

import importlib.util
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

PAGE = Path(__file__).parents[1] / "docs" / "coming-from.md"
BLOCKS = re.findall(r"## (.*?)\n```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
NEEDED = {"hotloop": "hotloop", "pydantic-ai": "pydantic_ai"}
"""Of the others only the syntax is checked: they are not installed for the tests."""

SOURCES = os.pathsep.join(filter(None, sys.path))
CALL = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Rome"}'}}
USAGE = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answers)
        self.bodies: list[dict[str, Any]] = []


class Answers(BaseHTTPRequestHandler):
    """First a call of the weather, then an answer made of its result."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._send(json.dumps({"object": "list", "data": [{"id": "any", "object": "model"}]}).encode())

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        assert isinstance(self.server, Server)
        self.server.bodies.append(body)
        results = [message["content"] for message in body["messages"] if message["role"] == "tool"]
        said = {"role": "assistant", "content": f"It is {results[0]}." if results else None}
        said |= {} if results else {"tool_calls": [CALL | ({"index": 0} if body.get("stream") else {})]}
        choice = {"index": 0, "finish_reason": "stop" if results else "tool_calls", "logprobs": None}
        whole = {"id": "c", "created": 1, "model": "any", "usage": USAGE}
        if body.get("stream"):
            chunk = whole | {"object": "chat.completion.chunk", "choices": [choice | {"delta": said}]}
            self._send(f"data: {json.dumps(chunk)}\n\ndata: [DONE]\n\n".encode(), "text/event-stream")
        else:
            self._send(
                json.dumps(whole | {"object": "chat.completion", "choices": [choice | {"message": said}]}).encode()
            )

    def _send(self, data: bytes, kind: str = "application/json") -> None:
        self.send_response(200)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(("title", "code"), BLOCKS, ids=[title for title, _ in BLOCKS])
def test_each_asks_the_same_and_answers_the_same(title: str, code: str, server: Server):
    text = code.replace("http://localhost:8700", f"http://127.0.0.1:{server.server_port}")
    compile(text, title, "exec")
    if title not in NEEDED:
        return
    assert importlib.util.find_spec(NEEDED[title])
    command = [sys.executable, "-c", f"{text}\nprint(answer)"]  # apart: not all of them close what they open
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60, env=os.environ | {"PYTHONPATH": SOURCES})
    assert ran.stdout == "It is 24 degrees in Rome.\n", ran.stderr
    first, second = server.bodies
    assert [message["role"] for message in first["messages"]] == ["system", "user"]
    assert first["messages"][0]["content"] == "You help Ada, who lives in Rome."
    assert [tool["function"]["name"] for tool in first["tools"]] == ["weather"]
    assert second["messages"][-1]["content"] == "24 degrees in Rome"


def test_all_four_are_there():
    assert [title for title, _ in BLOCKS] == ["hotloop", "pydantic-ai", "The OpenAI Agents SDK", "LangGraph"]
