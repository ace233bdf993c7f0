"""An MCP server to test against: `python mcp_server.py` speaks stdio, `ServedMcp` streamable HTTP on loopback."""

import asyncio
import os
import sys
import threading
import time
from typing import Any, Self

import uvicorn
from mcp.server.mcpserver import Image, MCPServer
from mcp.types import ToolAnnotations
from starlette.responses import Response

NUM_GUESTS = 8


def make_server() -> MCPServer:
    server = MCPServer("tests", log_level="ERROR")
    _add_answering(server)
    _add_troubled(server)
    return server


def _add_answering(server: MCPServer) -> None:
    door = asyncio.Barrier(NUM_GUESTS)

    @server.tool(annotations=ToolAnnotations(read_only_hint=True))
    def add(a: int, b: int = 2) -> int:
        """Add two numbers."""
        return a + b

    @server.tool(annotations=ToolAnnotations(idempotent_hint=True))
    def listed() -> list[dict[str, int]]:
        return [{"id": 1}, {"id": 2}]

    @server.tool(name="dotted.name")
    def dotted() -> str:
        return "one\ntwo"

    @server.tool()
    def picture() -> Image:
        return Image(data=b"not really", format="png")

    @server.tool()
    def long(num_chars: int) -> str:
        return "x" * num_chars

    @server.tool()
    async def meet() -> str:
        """Nobody leaves before all are there."""
        await door.wait()
        return "met"

    @server.tool()
    def process() -> int:
        return os.getpid()

    @server.tool()
    def environment(name: str) -> str:
        return os.environ.get(name, "not set")


def _add_troubled(server: MCPServer) -> None:
    @server.tool()
    def refuse(reason: str) -> str:
        raise ValueError(reason)

    @server.tool()
    async def hang() -> str:
        await asyncio.Event().wait()
        return "never"

    @server.tool()
    def die() -> str:
        os._exit(3)


class ServedMcp:
    """The server over HTTP in a thread; with a `token`, only for those who have it."""

    def __init__(self, *, token: str = "") -> None:
        app = make_server().streamable_http_app()
        if token:
            app.add_middleware(_Checked, token=token)
        self._server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error", timeout_graceful_shutdown=1))
        self._thread = threading.Thread(target=self._server.run)

    def __enter__(self) -> Self:
        self._thread.start()
        while not self._server.started:
            time.sleep(0.005)
        [port] = {socket.getsockname()[1] for server in self._server.servers for socket in server.sockets}
        self.url = f"http://127.0.0.1:{port}/mcp"
        return self

    def __exit__(self, *_: object) -> None:
        self._server.should_exit = True
        self._thread.join(30)
        assert not self._thread.is_alive()


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


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["crash"]:
            sys.exit("the notes are nowhere to be found")
        case ["mute"]:
            sys.stdin.read()
        case _:
            make_server().run()
