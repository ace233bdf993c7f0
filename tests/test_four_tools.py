"""The agents of examples/four_tools that are installed: the same work, and what becomes of it after a kill."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from benchmarks.chat_server import Call, ChatServer
from benchmarks.four_tools import (
    FOLDER,
    INSTALLED,
    NEEDED,
    FourToolsReport,
    Script,
    Work,
    next_calls,
    render_calls,
    start,
)
from tests.server.serving import Serving

NUM_PAYMENTS_AFTER_A_KILL = {"with_hotloop": 1, "with_pydantic_ai": 2, "with_agents_sdk": 2}


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
        return render_calls(calls, len(body["messages"]))


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


@pytest.mark.parametrize("name", INSTALLED)
@pytest.mark.long
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


def test_the_benchmark_counts_what_a_server_read():
    asked = {"messages": [{"role": "user", "content": "Order lamps."}], "tools": []}
    with Serving() as serving:
        script = Script(serving.url, "a")
        calls = [script(asked), script(asked)]
    names = [[call["function"]["name"] for call in each if isinstance(call, dict)] for each in calls]
    assert names == [["stock", "price", "archive"]] * 2
    assert script.num_asked == 2
    assert 0 < script.num_prompt / 2 < script.num_computed < script.num_prompt
    report = FourToolsReport({"with_hotloop": [Work(1.0, 2.0, 2, script.num_prompt, script.num_computed)]})
    assert report.to_table().row_count == 1
    assert report.to_json()["with_hotloop"][0]["num_prompt"] == script.num_prompt
