"""The process that serves the router until it is told to stop.

first signal    the listener closes, what runs may finish within the drain timeout
second signal   what still runs is ended at once
SIGHUP          the file is read again: replicas come and go, no stream is dropped
"""

import asyncio
import logging
import math
import signal
import socket
from collections.abc import Callable
from types import FrameType

import uvicorn

from hotloop.border.listen import bind, url_of
from hotloop.border.page import Application, WithPage
from hotloop.core.errors import ConfigError
from hotloop.router.app import RouterApp
from hotloop.router.config import FleetConfig
from hotloop.trace.tracer import Tracer

log = logging.getLogger("hotloop.router")


class RouterServer(uvicorn.Server):
    """Uvicorn, with a fleet. `run()` blocks; `stop()`, from any thread, drains, and called again ends what runs."""

    def __init__(
        self,
        config: FleetConfig,
        *,
        tracer: Tracer | None = None,
        page: Callable[[RouterApp], Application] | None = None,
        read_again: Callable[[], FleetConfig] | None = None,
        on_ready: Callable[[str], None] = lambda url: None,
    ) -> None:
        self.app = RouterApp(config, tracer)
        self._settings = config.router
        self._read_again = read_again
        self._on_ready = on_ready
        super().__init__(
            uvicorn.Config(
                WithPage(self.app, page(self.app)) if page else self.app,
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                timeout_keep_alive=75,
                timeout_graceful_shutdown=math.ceil(config.router.drain_timeout_s),
            )
        )

    def run(self, sockets: list[socket.socket] | None = None) -> None:
        super().run(sockets or [bind(self._settings.host, self._settings.port)])

    def stop(self) -> None:
        self.force_exit = self.should_exit
        self.should_exit = True

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.stop()

    def reload(self) -> None:
        """Read the file again; one that cannot be read changes nothing."""
        if not self._read_again:
            return
        try:
            self.app.reload(self._read_again())
        except ConfigError as error:
            log.error("the fleet stays as it is: %s", error)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        assert sockets
        self.app.fleet.start()
        await super().startup(sockets)
        self.app.recorder.service = f"router:{sockets[0].getsockname()[1]}"
        if self._read_again:
            asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self.reload)
        self._on_ready(url_of(sockets[0]))

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await super().shutdown(sockets)
        await self.app.fleet.aclose()
