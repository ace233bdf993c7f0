"""The process that serves the router until it is told to stop.

first signal    not ready; after the drain delay the listener closes, what runs may finish within the drain timeout
second signal   what still runs is ended at once
SIGHUP          settings are reloaded: replicas come and go, no stream is dropped
"""

import socket
from collections.abc import Callable
from functools import partial

from hotloop.http.keys import ApiKeys
from hotloop.http.page import Application
from hotloop.http.serving import ApiServer, limits_of
from hotloop.http.tls import certificate_of
from hotloop.router.app import RouterApp
from hotloop.router.config import RoutingConfig
from hotloop.trace.tracer import Tracer


class RouterServer(ApiServer):
    def __init__(
        self,
        config: RoutingConfig,
        *,
        tracer: Tracer | None = None,
        page: Callable[[RouterApp], Application] | None = None,
        keys: ApiKeys | None = None,
        reload: Callable[[RouterApp], str] | None = None,
        on_ready: Callable[[str], None] = lambda url: None,
    ) -> None:
        self.app = RouterApp(config, tracer, keys)
        self._on_ready = on_ready
        router, shown = config.router, page(self.app) if page else None
        super().__init__(
            self.app,
            shown,
            host=router.host,
            port=router.port,
            grace_s=router.drain_timeout_s,
            drain_delay_s=router.drain_delay_s,
            is_open=not (router.api_key or router.api_key_file),
            allowed_hosts=router.allowed_hosts,
            limits=limits_of(router),
            reload=partial(reload, self.app) if reload else None,
            certificate=certificate_of(router),
        )

    def begin_drain(self) -> None:
        self.app.is_draining = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        assert sockets
        self.app.start()
        await super().startup(sockets)
        self.app.recorder.service = f"router:{sockets[0].getsockname()[1]}"
        self._on_ready(self.url_of(sockets[0]))

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await super().shutdown(sockets)
        await self.app.aclose()
