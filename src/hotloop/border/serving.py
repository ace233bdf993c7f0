"""The process that serves an API or a page until it is told to stop: what all listeners have in common."""

import logging
import math
import resource
import socket
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from ipaddress import ip_address
from types import FrameType
from typing import Any

import uvicorn

from hotloop.border.connection import BoundedProtocol, ConnectionLimits
from hotloop.border.listen import bind
from hotloop.border.page import Application, OwnNames, WithPage
from hotloop.core.config import RouterConfig, ServerConfig, parse_bytes

log = logging.getLogger("hotloop.http")

_KEEP_ALIVE_S = 75  # an agent comes back on its connection after its tool has run


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
        is_open: bool = True,
        allowed_hosts: Sequence[str] = (),
        limits: ConnectionLimits | None = None,
        log_level: str | None = None,
    ) -> None:
        """`is_open`: there is no key, so only names of its own are answered to, and those allowed."""
        limits = limits or ConnectionLimits()
        self._is_open = is_open
        served = WithPage(app, page) if page else app
        protocol: Any = partial(
            BoundedProtocol,
            limits=replace(limits, max_connections=min(limits.max_connections, _allow_files(limits) // 2)),
        )
        super().__init__(
            uvicorn.Config(
                OwnNames(served, (host, *allowed_hosts)) if is_open else served,
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
            )
        )

    def run(self, sockets: list[socket.socket] | None = None) -> None:
        super().run(sockets or [bind(self.config.host, self.config.port)])

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        for address in {each.getsockname()[0] for each in sockets or ()} if self._is_open else ():
            if not ip_address(address.partition("%")[0]).is_loopback:
                log.warning("no API key is set, and %s is no loopback address: whoever reaches it may use it", address)
        await super().startup(sockets)

    def stop(self) -> None:
        self.force_exit = self.should_exit
        self.should_exit = True

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Unlike uvicorn's own, this takes either signal twice, and does not raise it again when all is done."""
        self.stop()


def limits_of(config: ServerConfig | RouterConfig) -> ConnectionLimits:
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
