"""The process that serves an agent until it is told to stop.

first signal    not ready; after the drain delay the listener closes, and runs end behind their turn, to be gone on with
second signal   what still runs is ended at once
"""

import socket
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from typing import Any

from hotloop.agent.agent import Agent
from hotloop.agent.service.app import AgentApp, entered
from hotloop.core.config import AgentServerConfig
from hotloop.http.keys import ApiKeys, read_keys
from hotloop.http.serving import ApiServer, limits_of
from hotloop.http.tls import certificate_of


class AgentServer(ApiServer):
    def __init__(
        self,
        agent: Agent[Any],
        config: AgentServerConfig,
        *,
        context: Sequence[Any] = (),
        keys: ApiKeys | None = None,
        reload: Callable[[], str] | None = None,
        on_ready: Callable[[str], None] = lambda url: None,
    ) -> None:
        keys = keys or ApiKeys(read_keys(config.api_key, config.api_key_file))
        self.app = AgentApp(agent, config, context=context, keys=keys)
        self._agent = agent
        self._entered = AsyncExitStack()
        self._on_ready = on_ready
        super().__init__(
            self.app,
            host=config.host,
            port=config.port,
            grace_s=config.drain_timeout_s,
            drain_delay_s=config.drain_delay_s,
            is_open=not keys.current,
            allowed_hosts=config.allowed_hosts,
            limits=limits_of(config),
            reload=reload,
            certificate=certificate_of(config),
        )

    def begin_drain(self) -> None:
        self.app.is_draining = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        assert sockets
        await self._entered.enter_async_context(entered(self.app, self._agent))
        await super().startup(sockets)
        self._on_ready(self.url_of(sockets[0]))

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self.app.running.pause()
        try:
            await super().shutdown(sockets)
        finally:
            await self._entered.aclose()
