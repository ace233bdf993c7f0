"""The agents of examples/four_tools that are installed: the same work, and what becomes of it after a kill."""

import importlib.util
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.chat_server import Call, ChatServer

FOLDER = Path(__file__).parents[1] / "examples" / "four_tools"
NEEDED = {"with_hotloop": "hotloop", "with_pydantic_ai": "pydantic_ai", "with_agents_sdk": "agents"}
INSTALLED = [name for name, package in NEEDED.items() if importlib.util.find_spec(package)]
NUM_PAYMENTS_AFTER_A_KILL = {"with_hotloop": 1, "with_pydantic_ai": 2, "with_agents_sdk": 2}
SOURCES = os.pathsep.join(filter(None, sys.path))
FIRST = {"stock": "{}", "price": "{}", "archive": "{}"}


def next_calls(messages: list[dict[str, Any]]) -> dict[str, str]:
    """What is still to be called, by what has been answered; what could not be reached is asked for once more."""
    names = {call["id"]: call["function"]["name"] for message in messages for call in message.get("tool_calls") or ()}
    results = [message for message in messages if message["role"] == "tool"]
    done = {names[each["tool_call_id"]] for each in results if "unreachable" not in str(each["content"])}
    left = {name: FIRST[name] for name in FIRST if name not in done}
    return left or ({} if "pay" in done else {"pay": '{"amount": 5}'})


class Server(ChatServer):
    """Its model makes three calls, then the payment, then the answer. `hold`: what is waited for behind the payment."""

    def __init__(self, hold: threading.Event | None = None) -> None:
        super().__init__(self._answer)
        self.hold = hold
        self.has_paid = threading.Event()
        self.num_asked = 0

    def _answer(self, body: dict[str, Any]) -> str | list[Call]:
        self.num_asked += 1
        calls = next_calls(body["messages"])
        if not calls:
            self.has_paid.set()
            if self.hold:
                self.hold.wait()
            return "Ordered."
        salt = len(body["messages"])
        return [
            {"id": f"call_{salt}_{name}", "type": "function", "function": {"name": name, "arguments": arguments}}
            for name, arguments in calls.items()
        ]


Serve = Callable[..., Server]


@pytest.fixture
def serve() -> Iterator[Serve]:
    begun: list[tuple[Server, threading.Thread]] = []

    def start(hold: threading.Event | None = None) -> Server:
        server = Server(hold)
        begun.append((server, threading.Thread(target=server.serve_forever)))
        begun[-1][1].start()
        return server

    yield start
    for server, thread in begun:
        server.shutdown()
        thread.join()
        server.server_close()


def start(name: str, url: str, folder: Path) -> "subprocess.Popen[str]":
    command = [sys.executable, str(FOLDER / f"{name}.py"), url, str(folder / "effects")]
    environ = os.environ | {"PYTHONPATH": SOURCES, "HOTLOOP_TRACE": str(folder / "trace.db")}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environ)


@pytest.mark.parametrize("name", INSTALLED)
def test_each_does_its_work(name: str, serve: Serve, tmp_path: Path):
    server = serve()
    with start(name, server.url, tmp_path) as process:
        said, errors = process.communicate()
    assert said == "Ordered.\n", errors
    assert (tmp_path / "effects").read_text() == "paid 5\n"


@pytest.mark.long
@pytest.mark.parametrize("name", INSTALLED)
def test_what_each_does_after_it_was_killed(name: str, serve: Serve, tmp_path: Path):
    """Killed behind the payment and begun again: only a run with a journal knows of it."""
    hold = threading.Event()
    held = serve(hold)
    with start(name, held.url, tmp_path) as process:
        assert held.has_paid.wait(600), process.communicate()
        process.kill()
        process.communicate()
    hold.set()
    server = serve()
    with start(name, server.url, tmp_path) as process:
        said, errors = process.communicate()
    assert said == "Ordered.\n", errors
    assert (tmp_path / "effects").read_text() == "paid 5\n" * NUM_PAYMENTS_AFTER_A_KILL[name]
    assert (server.num_asked == 1) == (name == "with_hotloop")


@pytest.mark.parametrize("name", NEEDED)
def test_all_three_are_python(name: str):
    compile((FOLDER / f"{name}.py").read_text("utf-8"), name, "exec")
