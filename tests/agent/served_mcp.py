"""The MCP server of the tests over HTTP."""

from typing import Any

import uvicorn
from starlette.responses import Response
from tests.agent.mcp_server import make_server
from tests.threads import ThreadedServer


class ServedMcp(ThreadedServer):
    """With a `token`, only for those who have it."""

    def __init__(self, *, token: str = "", port: int = 0) -> None:
        app = make_server().streamable_http_app()
        if token:
            app.add_middleware(_Checked, token=token)
        super().__init__(uvicorn.Server(uvicorn.Config(app, log_level="error", timeout_graceful_shutdown=1)), port)
        self.url += "/mcp"


class _Checked:
    """Lets nobody in without the token."""

    def __init__(self, app: Any, token: str) -> None:
        self._app = app
        self._token = token

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        is_request = scope["type"] == "http"
        if is_request and (b"authorization", f"Bearer {self._token}".encode()) not in scope["headers"]:
            await Response("who are you?", 401)(scope, receive, send)
            return
        await self._app(scope, receive, send)
