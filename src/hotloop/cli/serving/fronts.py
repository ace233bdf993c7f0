"""The engine's process of `hotloop serve` with fronts: it starts them, and another one for each that ends too early.

SIGTERM, SIGINT   told to the fronts, which drain; this process ends when they have
SIGHUP            settings are read here, and told to the fronts, which apply them
"""

import asyncio
import logging
import math
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from hotloop.cli.serving.http import shorten_pauses
from hotloop.cli.serving.pages import live_of_engine
from hotloop.cli.serving.reload import Served
from hotloop.core.errors import ConfigError, DeviceLost, HotloopError
from hotloop.core.structs import compiled
from hotloop.engine.engine import Engine
from hotloop.http.logs import start_logging
from hotloop.http.serving import has_terminal, log_reload
from hotloop.server.engine_client import EngineFacts
from hotloop.server.fronts.host import EngineHost
from hotloop.server.fronts.hub import Hub

log = logging.getLogger("hotloop.fronts")

_CORES_OF_ONE = 4
_STREAMS_OF_ONE = 256  # it takes half a core for so many agents on an H200
_MAX_STARTS = 3  # of fronts that end before they are ready
_MAX_EXIT_S = 15.0  # beyond the time a drain may take


@compiled
class Begin(msgspec.Struct, frozen=True):
    """What a front is told first."""

    model: Any
    engine: Any
    server: Any
    trace: Any
    facts: EngineFacts
    can_reload: bool
    folder: str
    """Where the fronts listen to each other; empty if there is but one."""
    is_first: bool

    @property
    def served(self) -> Served:
        return read_served({name: getattr(self, name) for name in ("model", "engine", "server", "trace")})


def read_served(told: Any) -> Served:
    return msgspec.convert(told, Served)


def count_fronts(fronts: str, engine: Engine) -> int:
    """How many a server is to have: as many as were asked for or, of its own accord, as its streams can keep busy."""
    if fronts != "auto":
        return int(fronts)
    num_cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 0
    return usual_fronts(engine.max_running, num_cores) if engine.leaves_cpu_free else 0


def usual_fronts(max_running: int, num_cores: int) -> int:
    return min(math.ceil(max_running / _STREAMS_OF_ONE), num_cores // _CORES_OF_ONE)


def run_with_fronts(
    num_fronts: int, engine: Engine, served: Served, listener: socket.socket, read: Callable[[], Served] | None
) -> None:
    """Blocks until the fronts have ended because they were to, or the engine has failed."""
    shorten_pauses()
    with tempfile.TemporaryDirectory(prefix="hotloop-", ignore_cleanup_errors=True) as folder:
        asyncio.run(_Supervisor(num_fronts, engine, served, listener, read, Path(folder)).run())


class _Supervisor:
    def __init__(
        self,
        num_fronts: int,
        engine: Engine,
        served: Served,
        listener: socket.socket,
        read: Callable[[], Served] | None,
        folder: Path,
    ) -> None:
        self._engine = engine
        self._served = served
        self._listener = listener
        self._read = read
        self._folder = folder
        self._facts = EngineFacts.of(engine, num_fronts=num_fronts)
        self._hub = Hub(engine, served.server.served_name or engine.name, num_fronts=num_fronts)
        self._reloaded: Served | None = None
        self._is_stopping = False

    async def run(self) -> None:
        self._take_signals()
        fronts = [asyncio.create_task(self._keep_front(i)) for i in range(self._hub.num_fronts)]
        await asyncio.wait(fronts, return_when=asyncio.FIRST_EXCEPTION)
        for front in fronts:
            front.cancel()  # one of them cannot be started: that ends the others
        for ended in await asyncio.gather(*fronts, return_exceptions=True):
            if isinstance(ended, Exception):
                raise ended

    async def _keep_front(self, number: int) -> None:
        """The first of them says where all listen, once."""
        num_failed, is_told = 0, number > 0
        while not self._has_ended():
            is_ready, code = await self._run_front(is_first=not is_told)
            is_told = is_told or is_ready
            if self._has_ended():
                return
            num_failed = 0 if is_ready else num_failed + 1
            if num_failed == _MAX_STARTS:
                raise HotloopError(f"an HTTP process ended {num_failed} times before it was ready; see its log")
            log.error("an HTTP process exited with code %d; its requests were aborted, and it is restarted", code)

    def _has_ended(self) -> bool:
        return self._is_stopping or isinstance(self._engine.failure, DeviceLost)

    async def _run_front(self, *, is_first: bool) -> tuple[bool, int]:
        """Whether it was ready, and what it ended with."""
        ours, theirs = socket.socketpair()
        gone, ready = asyncio.Event(), asyncio.Event()

        async def note_ready(_: Any) -> None:
            ready.set()

        answers = {"live": self._live, "ready": note_ready, "close_listener": self._close_listener}
        host = EngineHost(self._engine, self._hub, ours, answers=answers, on_gone=gone.set)
        process = _start(theirs, self._listener)
        try:
            host.tell("begin", self._begin(is_first=is_first))
            host.start()
            if self._reloaded:
                host.tell("reload", self._reloaded)
            if self._is_stopping:
                host.tell("stop")
            await gone.wait()
            return ready.is_set(), await asyncio.to_thread(_end, process)
        finally:
            await host.close()
            if process.poll() is None:
                process.kill()
                process.wait()
            (self._folder / str(process.pid)).unlink(missing_ok=True)

    def _begin(self, *, is_first: bool) -> Begin:
        served, folder = self._served, str(self._folder) if self._hub.num_fronts > 1 else ""
        settings = served.model, served.engine, served.server, served.trace
        return Begin(*settings, self._facts, self._read is not None, folder, is_first)

    def _take_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop)
        if self._read:
            loop.add_signal_handler(signal.SIGHUP, self._hang_up, has_terminal())
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})

    def _stop(self) -> None:
        self._is_stopping = True
        self._tell("stop")

    def _tell(self, what: str, value: Any = None) -> None:
        for host in self._hub.hosts:
            host.tell(what, value)

    def _hang_up(self, had_terminal: bool) -> None:
        if had_terminal and not has_terminal():
            self._stop()
        else:
            self._reload()

    def _reload(self) -> None:
        """What is wrong with the settings is told here, what they change by the fronts."""
        assert self._read
        try:
            now = self._read()
            now.check()
        except ConfigError as error:
            refusal = error

            def refuse() -> str:
                raise refusal

            log_reload(refuse)
            return
        start_logging(now.server)
        self._engine.limit_classes(now.engine)
        self._reloaded = now
        self._tell("reload", now)

    async def _live(self, _: Any) -> Any:
        return await live_of_engine(self._engine)

    async def _close_listener(self, _: Any) -> None:
        """The fronts close theirs next: from then on nobody is kept waiting for an answer."""
        if self._is_stopping:
            self._listener.close()


def _start(link: socket.socket, listener: socket.socket) -> "subprocess.Popen[bytes]":
    """In a session of its own: Ctrl-C reaches this process alone, which tells the front."""
    with link:
        numbers = link.fileno(), listener.fileno()
        command = [sys.executable, "-m", "hotloop.cli.serving.front", *map(str, numbers)]
        return subprocess.Popen(command, pass_fds=numbers, start_new_session=True)


def _end(process: "subprocess.Popen[bytes]") -> int:
    """Its link is closed: it has nothing left to do but to end."""
    until = time.monotonic() + _MAX_EXIT_S
    while process.poll() is None and time.monotonic() < until:
        time.sleep(0.01)
    if process.poll() is None:
        process.kill()
    return process.wait()
