"""What the router itself has to say when something fails, in the shape of the API that was asked. One table."""

import math
from typing import Any

import msgspec

from hotloop.core.errors import HotloopError, Overloaded, RequestError
from hotloop.router.kinds import Api


class RouteError(HotloopError):
    """The router cannot get an answer; `status` says to the client whose fault that is."""

    def __init__(self, status: int, code: str, message: str, *, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.retry_after_s = retry_after_s


_ANTHROPIC_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}


def as_route_error(error: HotloopError) -> RouteError:
    if isinstance(error, RouteError):
        return error
    if isinstance(error, Overloaded):
        return RouteError(429, "overloaded", str(error), retry_after_s=error.retry_after_s)
    if isinstance(error, RequestError):
        return RouteError(400, "invalid_request", str(error))
    return RouteError(502, "replica_failed", str(error))


def render_error(error: RouteError, api: Api | None, request_id: str) -> bytes:
    return msgspec.json.encode(_shape(error, api, request_id))


def error_headers(error: RouteError) -> list[tuple[bytes, bytes]]:
    headers = [(b"content-type", b"application/json")]
    if error.retry_after_s is not None:
        headers.append((b"retry-after", str(max(1, math.ceil(error.retry_after_s))).encode()))
    if error.status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    return headers


def render_event(error: RouteError, api: Api, request_id: str) -> bytes:
    """The last event of a stream that broke off."""
    if api == "responses":
        shape: dict[str, Any] = {"type": "error", "code": error.code, "message": str(error), "param": None}
        return b"event: error\ndata: " + msgspec.json.encode(shape) + b"\n\n"
    name = b"event: error\n" if api == "messages" else b""
    return name + b"data: " + render_error(error, api, request_id) + b"\n\n"


def _shape(error: RouteError, api: Api | None, request_id: str) -> dict[str, Any]:
    if api == "messages":
        kind = _ANTHROPIC_TYPES.get(error.status, "api_error")
        return {"type": "error", "error": {"type": kind, "message": str(error)}, "request_id": request_id}
    kind = "server_error" if error.status >= 500 else "invalid_request_error"
    body = {"message": str(error), "type": kind, "param": None, "code": error.code, "request_id": request_id}
    return {"error": body}
