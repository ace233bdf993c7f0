"""What every request passes before an endpoint sees it: its id, the key, and how much of a body is read at all.

Pure ASGI: nothing here buffers a response or stands between a stream and its client.
"""

import time

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hotloop.border.requests import OPEN_PATHS, REQUEST_ID_HEADER, ApiKeys, has_key, parse_request_id
from hotloop.server.errors import MESSAGES_REQUEST_ID, HttpError, error_response, is_message_path
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

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers[REQUEST_ID_HEADER] = request_id
                if is_message_path(scope["path"]):
                    headers[MESSAGES_REQUEST_ID] = request_id
                if message["status"] >= 400:
                    self._metrics.count_http_error(message["status"])
            await send(message)

        await self._app(scope, receive, send_with_id)


class KeyCheck:
    def __init__(self, app: ASGIApp, keys: ApiKeys) -> None:
        self._app = app
        self._keys = keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_open = scope["type"] != "http" or scope["path"] in OPEN_PATHS
        if is_open or has_key(dict(scope["headers"]), self._keys.current):
            await self._app(scope, receive, send)
            return
        message = "the API key is missing or wrong: send it as `Authorization: Bearer KEY` or `X-Api-Key: KEY`"
        error = HttpError(401, message, headers={"www-authenticate": "Bearer"})
        await error_response(error, scope["state"]["request_id"], for_anthropic=is_message_path(scope["path"]))(
            scope, receive, send
        )


async def read_json(request: Request, max_bytes: int) -> bytes:
    """The body, up to `max_bytes`. It must say it is JSON: a page of another origin can send anything else unasked."""
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != "application/json":
        raise HttpError(415, "the body must be JSON, and say so: send `Content-Type: application/json`")
    too_large = HttpError(413, f"the body is larger than the {max_bytes} bytes that are read")
    if int(request.headers.get("content-length", "0")) > max_bytes:
        raise too_large
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > max_bytes:
            raise too_large
    return bytes(body)
