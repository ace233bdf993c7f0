"""The engine's process of `hotloop serve` with a front: it starts the front, and another one if that ends too early.

SIGTERM, SIGINT   told to the front, which drains; this process ends when the front has
SIGHUP            settings are read here, and told to the front, which applies them
"""

import asyncio
import logging
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import msgspec

from hotloop.cli.serving.http import Served, shorten_pauses
from hotloop.cli.serving.pages import live_of_engine
from hotloop.core.config import Fronts
from hotloop.core.errors import ConfigError, DeviceLost, HotloopError
from hotloop.engine.engine import Engine
from hotloop.http.logs import start_logging
from hotloop.http.serving import has_terminal, log_reload
from hotloop.server.engine_metrics import EngineMetrics
from hotloop.server.fronts.host import EngineHost
from hotloop.server.fronts.remote import EngineFacts

log = logging.getLogger("hotloop.fronts")

_MIN_CORES = 4
_MAX_STARTS = 3  # of fronts that end before they are ready
_MAX_EXIT_S = 15.0  # beyond the time a drain may take


class Begin(msgspec.Struct, frozen=True):
    """What a front is told first."""

    model: Any
    engine: Any
    server: Any
    trace: Any
    facts: EngineFacts
    can_reload: bool

    @classmethod
    def of(cls, served: Served, facts: EngineFacts, *, can_reload: bool) -> "Begin":
        return cls(served.model, served.engine, served.server, served.trace, facts, can_reload)

    @property
    def served(self) -> Served:
        return read_served({name: getattr(self, name) for name in ("model", "engine", "server", "trace")})


def read_served(told: Any) -> Served:
    return msgspec.convert(told, Served)


def wants_front(fronts: Fronts, engine: Engine) -> bool:
    has_cores = len(os.sched_getaffinity(0)) >= _MIN_CORES if hasattr(os, "sched_getaffinity") else False
    return fronts == "1" or (fronts == "auto" and engine.leaves_cpu_free and has_cores)


def run_with_front(engine: Engine, served: Served, listener: socket.socket, read: Callable[[], Served] | None) -> None:
    """Blocks until a front has ended because it was to, or the engine has failed."""
    shorten_pauses()
    asyncio.run(_Supervisor(engine, served, listener, read).run())


class _Supervisor:
    def __init__(
        self, engine: Engine, served: Served, listener: socket.socket, read: Callable[[], Served] | None
    ) -> None:
        self._engine = engine
        self._served = served
        self._listener = listener
        self._read = read
        self._metrics = EngineMetrics(engine, served.server.served_name or engine.name)
        self._host: EngineHost | None = None
        self._is_stopping = False
        self._is_ready = False

    async def run(self) -> None:
        self._take_signals()
        num_failed = 0
        while not self._has_ended():
            self._is_ready = False
            code = await self._run_front()
            if self._has_ended():
                return
            num_failed = 0 if self._is_ready else num_failed + 1
            if num_failed == _MAX_STARTS:
                raise HotloopError(f"the HTTP process ended {num_failed} times before it was ready; its log says why")
            log.error("the HTTP process has ended with code %d; its requests were aborted, another one starts", code)

    def _has_ended(self) -> bool:
        return self._is_stopping or isinstance(self._engine.failure, DeviceLost)

    async def _run_front(self) -> int:
        ours, theirs = socket.socketpair()
        gone = asyncio.Event()
        answers = {"live": self._live, "ready": self._note_ready, "close_listener": self._close_listener}
        self._host = host = EngineHost(self._engine, self._metrics, ours, answers=answers, on_gone=gone.set)
        process = _start(theirs, self._listener)
        try:
            host.start()
            facts = EngineFacts.of(self._engine)
            host.tell("begin", Begin.of(self._served, facts, can_reload=self._read is not None))
            await gone.wait()
            return await asyncio.to_thread(_end, process)
        finally:
            await host.close()
            if process.poll() is None:
                process.kill()
                process.wait()

    def _take_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop)
        if self._read:
            loop.add_signal_handler(signal.SIGHUP, self._hang_up, has_terminal())
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})

    def _stop(self) -> None:
        self._is_stopping = True
        if self._host:
            self._host.tell("stop")

    def _hang_up(self, had_terminal: bool) -> None:
        if had_terminal and not has_terminal():
            self._stop()
        else:
            self._reload()

    def _reload(self) -> None:
        """What is wrong with the settings is told here, what they change by the front."""
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
        if self._host:
            self._host.tell("reload", now)

    async def _live(self, _: Any) -> Any:
        return await live_of_engine(self._engine, self._served.engine.max_running)

    async def _note_ready(self, _: Any) -> None:
        self._is_ready = True

    async def _close_listener(self, _: Any) -> None:
        """The front closes its own next: from then on nobody is kept waiting for an answer."""
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
