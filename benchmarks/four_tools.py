"""The agents of examples/four_tools against one `hotloop serve`: wall time, and tokens of their prompts and computed.

Each question is asked of the server, which reads the prompt and writes as many tokens as calls take; the calls that the
agent is given are scripted, so that all three do the same work. Each run has an empty cache. Those whose framework is
installed take turns.
"""

import importlib.util
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import httpx
from cyclopts.types import PositiveInt
from rich.table import Table

from benchmarks.chat_server import Call, ChatServer
from benchmarks.command import main, show_report
from hotloop.bench.report import figures_table
from hotloop.bench.serving import ChildServer
from hotloop.cli.settings import JsonOutput
from hotloop.core.errors import ConfigError

FOLDER = Path(__file__).parents[1] / "examples" / "four_tools"
NEEDED = {"with_hotloop": "hotloop", "with_pydantic_ai": "pydantic_ai", "with_agents_sdk": "agents"}
INSTALLED = tuple(name for name, package in NEEDED.items() if importlib.util.find_spec(package))

_SOURCES = os.pathsep.join(filter(None, sys.path))
_FIRST = {"stock": "{}", "price": "{}", "archive": "{}"}
_CALL_TOKENS = 16  # that the model writes for each call, and for the answer


@dataclass(frozen=True, slots=True)
class Work:
    """What one run of an agent took. Prompts are the server's own count."""

    wall_s: float
    """From its first question to its last answer."""
    process_s: float
    """With its interpreter and imports."""
    num_asked: int
    num_prompt: int
    num_computed: int


@dataclass(frozen=True, slots=True)
class FourToolsReport:
    works: dict[str, list[Work]]

    def to_json(self) -> dict[str, Any]:
        return {name: [asdict(each) for each in works] for name, works in self.works.items()}

    def to_table(self) -> Table:
        table = figures_table("agent", ("wall", "least to most", "with process", "questions", "prompts", "computed"))
        for name, works in self.works.items():
            walls = [each.wall_s for each in works]
            counts = (statistics.median(getattr(each, key) for each in works) for key in _COUNTS)
            process_s = statistics.median(each.process_s for each in works)
            least_to_most = f"{min(walls):.2f} to {max(walls):.2f} s"
            times = (f"{statistics.median(walls):.2f} s", least_to_most, f"{process_s:.2f} s")
            table.add_row(name, *times, *(f"{count:,.0f}" for count in counts))
        return table


_COUNTS = ("num_asked", "num_prompt", "num_computed")


def next_calls(messages: list[dict[str, Any]]) -> dict[str, str]:
    """What is still to be called, by what has been answered; what could not be reached is asked for once more."""
    names = {call["id"]: call["function"]["name"] for message in messages for call in message.get("tool_calls") or ()}
    results = [message for message in messages if message["role"] == "tool"]
    done = {names[each["tool_call_id"]] for each in results if "unreachable" not in str(each["content"])}
    left = {name: _FIRST[name] for name in _FIRST if name not in done}
    return left or ({} if "pay" in done else {"pay": '{"amount": 5}'})


def render_calls(calls: dict[str, str], salt: object) -> list[Call]:
    return [
        {"id": f"call_{salt}_{name}", "type": "function", "function": {"name": name, "arguments": arguments}}
        for name, arguments in calls.items()
    ]


class Script:
    """Answers an agent with its next calls, once the server has read the prompt and written as much."""

    def __init__(self, url: str, salt: str) -> None:
        self._url = url
        self._salt = salt
        self.began_at = self.ended_at = 0.0
        self.num_asked = self.num_prompt = self.num_computed = 0

    def __call__(self, body: dict[str, Any]) -> str | list[Call]:
        self.began_at = self.began_at or time.perf_counter()
        calls = next_calls(body["messages"])
        asked = {key: body[key] for key in ("messages", "tools")}
        asked |= {"max_tokens": _CALL_TOKENS * max(1, len(calls)), "ignore_eos": True, "cache_salt": self._salt}
        answer = httpx.post(f"{self._url}/v1/chat/completions", json=asked, timeout=300).raise_for_status().json()
        usage = answer["usage"]
        self.num_asked += 1
        self.num_prompt += usage["prompt_tokens"]
        self.num_computed += usage["prompt_tokens"] - usage["prompt_tokens_details"]["cached_tokens"]
        self.ended_at = time.perf_counter()
        return render_calls(calls, self.num_asked) or "Ordered."


def start(name: str, url: str, folder: Path) -> "subprocess.Popen[str]":
    """The agent as a process of its own, with a trace of its own."""
    command = [sys.executable, str(FOLDER / f"{name}.py"), url, str(folder / "effects")]
    environ = os.environ | {"PYTHONPATH": _SOURCES, "HOTLOOP_TRACE": str(folder / "trace.db")}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environ)


@contextmanager
def scripted(answer: Callable[[Any], str | list[Call]]) -> Iterator[str]:
    """The address where it is asked."""
    server = ChatServer(answer)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server.url
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def work(name: str, url: str, salt: str) -> Work:
    """One run of an agent at a server. Raises ConfigError where it does not end as it should."""
    script, began_at = Script(url, salt), time.perf_counter()
    with (
        scripted(script) as address,
        tempfile.TemporaryDirectory() as folder,
        start(name, address, Path(folder)) as process,
    ):
        said, errors = process.communicate()
    if said != "Ordered.\n":
        raise ConfigError(f"{name} ended without an answer: {errors.strip()[-300:]}")
    process_s = time.perf_counter() - began_at
    wall_s = script.ended_at - script.began_at
    return Work(wall_s, process_s, script.num_asked, script.num_prompt, script.num_computed)


def four_tools(*, repeats: PositiveInt = 5, json: JsonOutput = False) -> None:
    """One agent of four tools in each framework that is installed, in turn.

    Parameters
    ----------
    repeats
        Runs of each that count; one before them does not.
    """
    works: dict[str, list[Work]] = {name: [] for name in INSTALLED}
    with ChildServer(("--disable", "drafts")) as server:
        for number in range(repeats + 1):
            for name in INSTALLED:
                found = work(name, server.url, f"{name} {number}")
                if number:
                    works[name].append(found)
    show_report(FourToolsReport(works), json)


if __name__ == "__main__":
    main(four_tools)
