"""The process that serves an API until it is told to stop: what the server and the router have in common."""

import math
import socket
from types import FrameType

import uvicorn

from hotloop.border.listen import bind
from hotloop.border.page import Application, WithPage

_KEEP_ALIVE_S = 75  # an agent comes back on its connection after its tool has run


class ApiServer(uvicorn.Server):
    """Uvicorn without its logs and websockets. `run()` blocks; `stop()`, from any thread, drains, and called again ends
    what still runs; either signal does the same."""

    def __init__(self, app: Application, page: Application | None, *, host: str, port: int, grace_s: float) -> None:
        super().__init__(
            uvicorn.Config(
                WithPage(app, page) if page else app,
                host,
                port,
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                timeout_keep_alive=_KEEP_ALIVE_S,
                timeout_graceful_shutdown=math.ceil(grace_s),
            )
        )

    def run(self, sockets: list[socket.socket] | None = None) -> None:
        super().run(sockets or [bind(self.config.host, self.config.port)])

    def stop(self) -> None:
        self.force_exit = self.should_exit
        self.should_exit = True

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Unlike uvicorn's own, this takes either signal twice, and does not raise it again when all is done."""
        self.stop()
