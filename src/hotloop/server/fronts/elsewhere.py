"""Requests for what only another front knows: a response in progress, an explanation.

    client ─> front A: 404 ─> front B: 404
                           ─> front C: 200 ─> client

Each front listens on a socket in a folder of theirs alone, without TLS. Who asks there has the client's own key, and is
told no more than the client would be.
"""

import os
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import httpx
from starlette.responses import Response, StreamingResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hotloop.core.errors import HotloopError
from hotloop.http.requests import REQUEST_ID_HEADER, is_from_front
from hotloop.server.engine_client import EngineClient
from hotloop.server.errors import error_response

_PLACES = ("/v1/responses/", "/v1/cache/explain/")
_ANSWER_S = 30.0  # longer than a stream is silent
_OF_CONNECTION = frozenset({"connection", "content-length", "date", "expect", "keep-alive", "transfer-encoding"})
_NOT_TOLD = _OF_CONNECTION | {REQUEST_ID_HEADER}


class Elsewhere:
    """An application that asks the others before it says that there is no such thing. They listen at sockets in the
    folder of its `own`."""

    def __init__(self, app: ASGIApp, own: Path, engine: EngineClient) -> None:
        self._app = app
        self._own = own
        self._engine = engine

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not _is_by_id(scope) or is_from_front(scope):
            await self._app(scope, receive, send)
            return
        try:
            await self._engine.catch_up()
        except HotloopError as error:
            await error_response(error, scope["state"]["request_id"])(scope, receive, send)
            return
        unknown: list[Message] = []

        async def send_known(message: Message) -> None:
            if unknown or message.get("status") == 404:
                unknown.append(message)
            else:
                await send(message)

        await self._app(scope, receive, send_known)
        if not unknown:
            return
        async with AsyncExitStack() as stack:
            if answer := await self._ask_others(scope, stack):
                await answer(scope, receive, send)
                return
        for message in unknown:
            await send(message)

    async def _ask_others(self, scope: Scope, stack: AsyncExitStack) -> Response | None:
        """What the first of them says that knows more."""
        if not (request := _copy(scope)):
            return None
        for path in self._others():
            transport = httpx.AsyncHTTPTransport(verify=False, uds=str(path))  # certificates take long to be read
            client = httpx.AsyncClient(transport=transport, timeout=_ANSWER_S, trust_env=False)
            try:
                response = await (await stack.enter_async_context(client)).send(request, stream=True)
            except httpx.HTTPError:  # it has just ended, or stands still
                continue
            stack.push_async_callback(response.aclose)
            if response.status_code != 404:
                told = {name: value for name, value in response.headers.items() if name not in _NOT_TOLD}
                return StreamingResponse(_read(response), response.status_code, told)
        return None

    def _others(self) -> Sequence[Path]:
        folder = self._own.parent
        return [folder / name for name in sorted(os.listdir(folder)) if name != self._own.name]


def _is_by_id(scope: Scope) -> bool:
    path: str = scope["path"]
    return path.startswith(_PLACES) and (scope["method"] in ("GET", "DELETE") or path.endswith("/cancel"))


def _copy(scope: Scope) -> httpx.Request | None:
    """The request without its body, which means nothing here; None for one that nobody could answer."""
    headers = {name.decode("latin-1"): value for name, value in scope["headers"]}
    headers[REQUEST_ID_HEADER] = scope["state"]["request_id"].encode("latin-1")
    kept = {name: value for name, value in headers.items() if name not in _OF_CONNECTION}
    query = b"?" + scope["query_string"] if scope["query_string"] else b""
    try:
        url = httpx.URL("http://front", raw_path=scope["raw_path"] + query)
        return httpx.Request(scope["method"], url, headers=[(name.encode(), value) for name, value in kept.items()])
    except (httpx.InvalidURL, ValueError):
        return None


async def _read(response: httpx.Response) -> AsyncIterator[bytes]:
    async for data in response.aiter_raw():
        yield data
