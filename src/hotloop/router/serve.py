"""The process that serves the router until it is told to stop.

first signal    the listener closes, what runs may finish within the drain timeout
second signal   what still runs is ended at once
SIGHUP          the file is reloaded: replicas come and go, no stream is dropped
"""

import asyncio
import logging
import signal
import socket
from collections.abc import Callable

from hotloop.border.listen import url_of
from hotloop.border.page import Application
from hotloop.border.serving import ApiServer, limits_of
from hotloop.core.errors import ConfigError
from hotloop.router.app import RouterApp
from hotloop.router.config import FleetConfig
from hotloop.trace.tracer import Tracer

log = logging.getLogger("hotloop.router")


class RouterServer(ApiServer):
    def __init__(
        self,
        config: FleetConfig,
        *,
        tracer: Tracer | None = None,
        page: Callable[[RouterApp], Application] | None = None,
        read_config: Callable[[], FleetConfig] | None = None,
        on_ready: Callable[[str], None] = lambda url: None,
    ) -> None:
        self.app = RouterApp(config, tracer)
        self._read_config = read_config
        self._on_ready = on_ready
        router, shown = config.router, page(self.app) if page else None
        super().__init__(
            self.app,
            shown,
            host=router.host,
            port=router.port,
            grace_s=router.drain_timeout_s,
            is_open=not (router.api_key or router.api_key_file),
            allowed_hosts=router.allowed_hosts,
            limits=limits_of(router),
        )

    def reload(self) -> None:
        """Read the file again; one that cannot be read changes nothing."""
        if not self._read_config:
            return
        try:
            self.app.reload(self._read_config())
        except ConfigError as error:
            log.error("the fleet stays as it is: %s", error)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        assert sockets
        self.app.fleet.start()
        await super().startup(sockets)
        self.app.recorder.service = f"router:{sockets[0].getsockname()[1]}"
        if self._read_config:
            asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self.reload)
        self._on_ready(url_of(sockets[0]))

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await super().shutdown(sockets)
        await self.app.fleet.aclose()
