"""The agents of docs/coming-from.md, side by side: each that is installed here asks the same, and answers."""

import importlib.util
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from benchmarks.chat_server import Call, ChatServer

PAGE = Path(__file__).parents[1] / "docs" / "coming-from.md"
BLOCKS = re.findall(r"## (.*?)\n```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
NEEDED = {
    "hotloop": "hotloop",
    "pydantic-ai": "pydantic_ai",
    "The OpenAI Agents SDK": "agents",
    "LangGraph": "langchain_openai",
}
INSTALLED = [title for title, package in NEEDED.items() if importlib.util.find_spec(package)]
"""Of others only the syntax is checked."""

SOURCES = os.pathsep.join(filter(None, sys.path))
CALL = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Rome"}'}}


class Server(ChatServer):
    """First a call of the weather, then an answer made of its result."""

    def __init__(self) -> None:
        super().__init__(self._answer)
        self.bodies: list[dict[str, Any]] = []

    def _answer(self, body: dict[str, Any]) -> str | list[Call]:
        self.bodies.append(body)
        results = [message["content"] for message in body["messages"] if message["role"] == "tool"]
        return f"It is {results[0]}." if results else [CALL]


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("title", "code"), BLOCKS, ids=[title for title, _ in BLOCKS])
def test_each_asks_the_same_and_answers_the_same(title: str, code: str, server: Server):
    text = code.replace("http://localhost:8700", f"http://127.0.0.1:{server.server_port}")
    compile(text, title, "exec")
    if title not in INSTALLED:
        return
    command = [sys.executable, "-c", f"{text}\nprint(answer)"]  # apart: not all of them close what they open
    ran = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": SOURCES})
    assert ran.stdout == "It is 24 degrees in Rome.\n", ran.stderr
    first, second = server.bodies
    assert [message["role"] for message in first["messages"]] == ["system", "user"]
    assert first["messages"][0]["content"] == "You help Ada, who lives in Rome."
    assert [tool["function"]["name"] for tool in first["tools"]] == ["weather"]
    assert second["messages"][-1]["content"] == "24 degrees in Rome"


def test_all_four_are_there():
    assert [title for title, _ in BLOCKS] == list(NEEDED)
    assert INSTALLED[:2] == ["hotloop", "pydantic-ai"]
