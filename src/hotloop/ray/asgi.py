"""An application in this process, asked as if it were elsewhere: an `UpstreamRequest` in, an `UpstreamResponse` out.

The application waits while what it sent is not taken, so a slow reader is felt there as over a connection.
"""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import suppress
from urllib.parse import unquote

from starlette.types import ASGIApp, Message, Scope

from hotloop.http.headers import end_to_end
from hotloop.router.upstream.wire import Headers, UpstreamFailed, UpstreamRequest

log = logging.getLogger(__name__)

MAX_PENDING = 8
"""Pieces of a body that are kept before the application has to wait."""


async def ask_app(app: ASGIApp, request: UpstreamRequest) -> "AsgiResponse":
    response = AsgiResponse(app, request)
    try:
        await response.begin()
    except BaseException:
        await response.aclose()
        raise
    return response


class AsgiResponse:
    """One call of an application, running as a task of its own until its response is read or closed."""

    def __init__(self, app: ASGIApp, request: UpstreamRequest) -> None:
        self.status = 0
        self.headers: Headers = ()
        self._body: bytes | None = request.body
        self._pieces: asyncio.Queue[bytes | None] = asyncio.Queue(MAX_PENDING)  # b"" for the head, None for the end
        self._is_whole = False
        self._is_closed = asyncio.Event()
        self._task = asyncio.create_task(self._run(app, _scope(request)))

    async def begin(self) -> None:
        if await self._pieces.get() is None:
            raise UpstreamFailed("the engine did not answer", stage="head")

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while (piece := await self._pieces.get()) is not None:
            yield piece
        if not self._is_whole:
            raise UpstreamFailed("the engine broke off", stage="body")

    async def aclose(self) -> None:
        self._is_closed.set()
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task

    async def _run(self, app: ASGIApp, scope: Scope) -> None:
        try:
            await app(scope, self._receive, self._send)
        except Exception:  # as a server would: the client learns that it failed, the log why
            log.exception("%s %s failed", scope["method"], scope["path"])
        await self._pieces.put(None)

    async def _receive(self) -> Message:
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        await self._is_closed.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status, self.headers = message["status"], end_to_end(message.get("headers", ()))
            await self._pieces.put(b"")
        elif message["type"] == "http.response.body":
            if message.get("body"):
                await self._pieces.put(bytes(message["body"]))
            self._is_whole = not message.get("more_body", False)


def _scope(request: UpstreamRequest) -> Scope:
    path, _, query = request.target.partition("?")
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": request.method,
        "scheme": "http",
        "path": unquote(path),
        "raw_path": path.encode("ascii", "replace"),
        "query_string": query.encode("ascii", "replace"),
        "root_path": "",
        "headers": [(name.lower(), value) for name, value in request.headers],
        "client": None,
        "server": None,
    }
