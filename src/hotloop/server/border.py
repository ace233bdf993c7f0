"""What every request passes before its endpoint: the request id, the API key, and the limit on its body.

Pure ASGI: nothing here buffers a response or stands between a stream and its client.
"""

import time

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hotloop.http.bodies import JsonBody
from hotloop.http.keys import AccessDenied, ApiKeys
from hotloop.http.logs import REFUSED
from hotloop.http.requests import (
    OPEN_PATHS,
    REQUEST_ID_HEADER,
    is_for_anthropic,
    is_from_front,
    parse_request_id,
    render_ids,
)
from hotloop.server.errors import HttpError, error_response
from hotloop.server.metrics import Metrics


class RequestIds:
    """Gives every request an id, the client's own where it sent a sensible one, and counts the failures."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = parse_request_id(Headers(scope=scope).get(REQUEST_ID_HEADER))
        scope.setdefault("state", {}).update(request_id=request_id, began_at=time.monotonic())

        ids = render_ids(scope, request_id)

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *ids]
                if message["status"] >= 400 and not is_from_front(scope):
                    self._metrics.count_http_error(message["status"])
            await send(message)

        try:
            await self._app(scope, receive, send_with_id)
        finally:
            scope["state"].pop("body", None)  # an open connection keeps the scope of its last request


class KeyCheck:
    """Lets in who may be here, as `state.tenant`."""

    def __init__(self, app: ASGIApp, keys: ApiKeys) -> None:
        self._app = app
        self._keys = keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        app = self._app
        if scope["type"] == "http" and scope["path"] not in OPEN_PATHS:
            try:
                scope["state"]["tenant"] = self._keys.current.admit(dict(scope["headers"]), scope["path"])
            except AccessDenied as error:
                scope["state"][REFUSED], request_id = error.code, scope["state"]["request_id"]
                app = error_response(error, request_id, for_anthropic=is_for_anthropic(scope))
        await app(scope, receive, send)


async def read_json(request: Request, max_bytes: int) -> bytes:
    """The body, up to `max_bytes` and as many values as are taken. It must say it is JSON: a page of another origin can
    send anything else unasked."""
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != "application/json":
        raise HttpError(415, "unsupported media type: send `Content-Type: application/json`")
    too_large = HttpError(413, f"request body exceeds the limit of {max_bytes} bytes (--max-body)")
    if int(request.headers.get("content-length", "0")) > max_bytes:
        raise too_large
    body = JsonBody()
    async for chunk in request.stream():
        body.add(chunk)
        if body.num_bytes > max_bytes:
            raise too_large
    return body.take()
