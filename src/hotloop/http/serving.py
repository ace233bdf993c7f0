"""The process that serves an API or a page until it is told to stop: what all listeners have in common.

SIGTERM, SIGINT   not ready, but requests are taken for `drain_delay_s`; then the listener closes, what runs may finish
once more         what still runs is ended at once
SIGHUP            settings are reloaded; from a terminal that was closed it is like SIGTERM
"""

import asyncio
import ctypes
import logging
import math
import os
import resource
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from types import FrameType
from typing import Any

import uvicorn

from hotloop.core.config import ListenerConfig, parse_bytes
from hotloop.core.errors import ConfigError
from hotloop.http.connection import BoundedProtocol, ConnectionLimits
from hotloop.http.listen import bind, url_of
from hotloop.http.logs import AccessLog
from hotloop.http.page import Application, TrustedHosts, WithPage
from hotloop.http.tls import Certificate

log = logging.getLogger("hotloop.http")

_KEEP_ALIVE_S = 75  # an agent comes back on its connection after its tool has run
_CLOSE = (b"connection", b"close")
_TICK_S = 0.05
_RETRY_S = 1.0
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8  # of glibc's malloc.h
_LARGE_BLOCK = 1 << 20
_MAX_ARENAS = 2


class ApiServer(uvicorn.Server):
    """Uvicorn without its logs and websockets, and with limits on connections. `run()` blocks; `stop()`, from any
    thread, drains, and called again ends what still runs; either signal does the same."""

    def __init__(
        self,
        app: Application,
        page: Application | None = None,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        grace_s: float,
        drain_delay_s: float = 0.0,
        is_open: bool = True,
        allowed_hosts: Sequence[str] = (),
        limits: ConnectionLimits | None = None,
        log_level: str | None = None,
        reload: Callable[[], str] | None = None,
        certificate: Certificate | None = None,
        own_socket: Path | None = None,
        heeds_signals: bool = True,
    ) -> None:
        """`is_open`: there is no key, so only names of its own are answered to, and those allowed. `reload` applies the
        settings as they are now and says what came of it; it raises ConfigError, and then nothing has changed.
        `own_socket`: other processes accept from the same listener, and reach this one there. One that does not heed
        signals is stopped by whoever started it, and by nobody else."""
        limits = limits or ConnectionLimits()
        self._is_open = is_open
        self._drain_delay_s = drain_delay_s
        self._reload = reload
        self._certificate = certificate
        self._own_socket = own_socket
        self._heeds_signals = heeds_signals
        self._connecting: set[asyncio.Task[None]] = set()
        logged = AccessLog(app)
        served = WithPage(logged, page) if page else logged
        protocol: Any = partial(
            BoundedProtocol,
            limits=replace(limits, max_connections=min(limits.max_connections, _allow_files(limits) // 2)),
        )
        super().__init__(
            uvicorn.Config(
                TrustedHosts(served, (host, *allowed_hosts)) if is_open else served,
                host,
                port,
                http=protocol,
                ws="none",
                lifespan="off",
                log_config=None,
                log_level=log_level,
                access_log=False,
                server_header=False,
                timeout_keep_alive=_KEEP_ALIVE_S,
                timeout_graceful_shutdown=math.ceil(grace_s),
                ssl_certfile=certificate.cert if certificate else None,
                ssl_keyfile=certificate.key if certificate else None,
            )
        )

    def url_of(self, listener: socket.socket) -> str:
        return url_of(listener, is_tls=self._certificate is not None)

    def run(self, sockets: list[socket.socket] | None = None) -> None:
        return_freed_memory()
        super().run(sockets or [bind(self.config.host, self.config.port)])

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        for address in {each.getsockname()[0] for each in sockets or ()} if self._is_open else ():
            if not ip_address(address.partition("%")[0]).is_loopback:
                log.warning(
                    "listening on %s without an API key; anyone who can reach it can use it. Set --api-key-file.",
                    address,
                )
        try:
            await super().startup([] if self._own_socket else sockets)
            if self._own_socket:
                await self._join(sockets or [], self._own_socket)
        except OSError as error:  # the port was free when it was bound, but another listens there by now
            raise ConfigError(f"cannot listen on {self.config.host}:{self.config.port}: {error.strerror}") from None
        if self._reload and threading.current_thread() is threading.main_thread():
            asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self._hang_up, has_terminal())
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})  # one that came while loading counts

    async def _join(self, listeners: Sequence[socket.socket], own: Path) -> None:
        loop = asyncio.get_running_loop()
        self.servers.append(await loop.create_unix_server(self._make_protocol, own))
        for listener in listeners:
            listener.listen(self.config.backlog)
            listener.setblocking(False)
            loop.add_reader(listener.fileno(), self._accept_one, listener)

    def _accept_one(self, listener: socket.socket) -> None:
        """One at a time, so that whoever has nothing else to do takes the next."""
        try:
            connected, _ = listener.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return
        except OSError as error:  # no file for it: it waits
            log.warning("a connection cannot be accepted: %s", error.strerror)
            loop = asyncio.get_running_loop()
            loop.remove_reader(listener.fileno())
            loop.call_later(_RETRY_S, self._accept_again, listener)
            return
        self._begin_connection(connected)

    def _accept_again(self, listener: socket.socket) -> None:
        if listener.fileno() >= 0:
            asyncio.get_running_loop().add_reader(listener.fileno(), self._accept_one, listener)

    def _begin_connection(self, connected: socket.socket) -> None:
        connecting = asyncio.create_task(self._connect(connected))
        self._connecting.add(connecting)
        connecting.add_done_callback(self._connecting.discard)

    async def _connect(self, connected: socket.socket) -> None:
        with suppress(OSError):  # it is gone already, or has not shaken hands
            connected.setblocking(False)
            loop = asyncio.get_running_loop()
            await loop.connect_accepted_socket(self._make_protocol, connected, ssl=self.config.ssl)

    def _make_protocol(self) -> asyncio.Protocol:
        protocol: Any = self.config.http_protocol_class
        made: asyncio.Protocol = protocol(
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )
        return made

    async def main_loop(self) -> None:
        """Once told to stop: not ready, but still serving until load balancers have noticed. Clients are told to leave
        their connections, since a request that is on its way when one is closed would be lost."""
        await super().main_loop()
        if not self.should_exit:  # it stops by itself, since it can serve nobody any more
            return
        self.begin_drain()
        self.server_state.default_headers.append(_CLOSE)
        deadline = time.monotonic() + self._drain_delay_s
        if self._drain_delay_s:
            log.info("draining: not ready, new requests are accepted for %g s more", self._drain_delay_s)
        while time.monotonic() < deadline and not self.force_exit:  # noqa: ASYNC110  stop() comes from any thread
            await asyncio.sleep(_TICK_S)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await self._close_listeners(sockets or [])
        await super().shutdown(sockets)
        for connection in tuple(self.server_state.connections):  # it was told to end at once
            connection.transport.close()

    async def _close_listeners(self, sockets: Sequence[socket.socket]) -> None:
        """Those who have connected and were not accepted yet would be reset, with the requests they have sent."""
        waiting = [connected for listener in sockets for connected in _accept_all(listener)]
        for server in self.servers:
            server.close()
        for listener in sockets if self._own_socket else ():
            asyncio.get_running_loop().remove_reader(listener.fileno())
            listener.close()
        for connected in waiting:
            self._begin_connection(connected)
        if self._connecting:  # which takes a moment, and with TLS as long as the client likes
            await asyncio.wait(self._connecting, timeout=_RETRY_S)
        await asyncio.sleep(_TICK_S)  # for those that were just accepted to be among the connections

    def begin_drain(self) -> None:
        """From now on the application is not ready; an application that can tell so overrides this."""

    def stop(self) -> None:
        self.force_exit = self.should_exit
        self.should_exit = True

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Unlike uvicorn's own, this takes either signal twice, and does not raise it again when all is done."""
        if self._heeds_signals:
            self.stop()

    def reload(self) -> None:
        log_reload(self._apply_reload)

    def _apply_reload(self) -> str:
        assert self._reload
        said = self._reload()
        if self._certificate and self.config.ssl:
            self._certificate.load(self.config.ssl)
        return said

    def _hang_up(self, had_terminal: bool) -> None:
        if not had_terminal or has_terminal():
            self.reload()
        elif not self.should_exit:
            self.stop()


def log_reload(reload: Callable[[], str]) -> None:
    try:
        log.warning("reload: %s", reload())  # seen at the level `warning`, too: somebody asked for it
    except ConfigError as error:
        log.error("reload refused, nothing has changed: %s", error)


def _accept_all(listener: socket.socket) -> Iterator[socket.socket]:
    with suppress(OSError):  # there is no other, or no file for it
        while True:
            connected, _ = listener.accept()
            yield connected


def has_terminal() -> bool:
    return any(map(os.isatty, (0, 1, 2)))  # none of them is one any more when the terminal was closed


def return_freed_memory() -> None:
    """Have malloc return a body's memory when it is freed. By itself glibc raises both thresholds to the size of what
    is freed, and gives nearly every thread an arena, each of which comes to keep some megabytes that no other thread
    can use. Another malloc is left as it is."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt:
        mallopt(_M_MMAP_THRESHOLD, _LARGE_BLOCK)
        mallopt(_M_TRIM_THRESHOLD, 2 * _LARGE_BLOCK)
        mallopt(_M_ARENA_MAX, _MAX_ARENAS)


def trim_memory(num_bytes: int) -> None:
    """Behind a body of so many bytes: what a large one has left in malloc's arenas, between what is used, is returned.
    It takes milliseconds, in a thread of its own."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim and num_bytes >= _LARGE_BLOCK:
        asyncio.get_running_loop().run_in_executor(None, trim, 0)


def limits_of(config: ListenerConfig) -> ConnectionLimits:
    return ConnectionLimits(max_body_bytes=parse_bytes(config.body_memory), write_timeout_s=config.write_timeout_s)


def _allow_files(limits: ConnectionLimits) -> int:
    """How many files may be open: as many as half of them being connections takes, if that is allowed. A router has
    another connection for each."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2 * limits.max_connections
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        return wanted
    return wanted if soft == resource.RLIM_INFINITY else soft
