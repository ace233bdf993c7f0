"""A `hotloop serve` or `hotloop route` of our own, as a child process on a free port, gone when we are."""

import asyncio
import os
import re
import signal
import subprocess
import sys
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Self

from hotloop.bench.client import ChatClient
from hotloop.bench.replay import Progress, replay
from hotloop.bench.report import Summary, summarise
from hotloop.bench.workload import AgentJob
from hotloop.core.errors import RemoteError

NAIVE = ("--disable", "prefix_cache,drafts,forced_tokens", "--max-running", "1")
"""The loop everybody starts with: nothing is reused or drafted, one request at a time."""

_MAX_STOP_S = 10.0


class Child(ABC):
    """A process of ours: ready when the context is entered, gone when it is left or where it did not start."""

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @abstractmethod
    def start(self) -> None:
        """Returns when it is ready."""

    @abstractmethod
    def close(self) -> None:
        """May be called twice, and before it has started."""


class ChildServer(Child):
    """The user's settings do not reach it: it runs with `flags` and the defaults."""

    def __init__(self, flags: Sequence[str] = (), *, command: str = "serve", config: str = os.devnull) -> None:
        self.url = ""
        self._command = [sys.executable, "-m", "hotloop", command, "--config", config, "--port", "0", *flags]
        self._process: subprocess.Popen[str] | None = None

    @property
    def pid(self) -> int:
        assert self._process
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("HOTLOOP_")}
        if "HOTLOOP_HOME" in os.environ:
            kept["HOTLOOP_HOME"] = os.environ["HOTLOOP_HOME"]
        kept["HOTLOOP_TRACE"] = "off"  # unless a flag says otherwise: what is measured is not one of the user's runs
        with tempfile.TemporaryFile("w+") as complaints:
            # A session of its own: Ctrl-C in the terminal reaches us alone, and we stop the server in our own time.
            self._process = subprocess.Popen(
                self._command, env=kept, stdout=subprocess.PIPE, stderr=complaints, text=True, start_new_session=True
            )
            self.url = self._read_address(self._process)
            if not self.url:
                complaints.seek(0)
                lines = complaints.read().strip().splitlines() or ["it said nothing"]
                raise RemoteError(f"the server did not start: {lines[-1]}")

    def close(self) -> None:
        process = self._process
        if process is None or process.stdout is None:
            return
        end_process(process)
        process.stdout.close()

    def _read_address(self, process: "subprocess.Popen[str]") -> str:
        """`serve` says where it is once it answers; if it ends before, there is no such line."""
        assert process.stdout
        for line in process.stdout:
            if found := re.search(r"is at (http://\S+)", line):
                return found[1]
        return ""


def end_process(process: "subprocess.Popen[Any]") -> None:
    process.terminate()
    try:
        process.wait(_MAX_STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def replay_server(
    label: str,
    url: str,
    jobs: Sequence[AgentJob],
    *,
    num_agents: int,
    gap_s: float = 0.0,
    watch: Callable[[Progress], None] = lambda _: None,
) -> Summary:
    async def run() -> Summary:
        async with ChatClient(url) as client:
            result = await replay(client, jobs, num_agents=num_agents, gap_s=gap_s, watch=watch)
        if not result.steps:
            raise RemoteError(result.errors[0])
        return summarise(label, result, jobs)

    return asyncio.run(run())


def exit_on_sigterm() -> None:
    """Leave by an exception when told to stop, so that child servers are stopped on the way out."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
