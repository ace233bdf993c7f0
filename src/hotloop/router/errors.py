"""What the router itself has to say when something fails, in the shape of the API that was asked. One table."""

import math
from collections.abc import Collection
from typing import Any

import msgspec

from hotloop.core.errors import HotloopError, Overloaded, RequestError
from hotloop.http.keys import AccessDenied
from hotloop.router.kinds import Api
from hotloop.wire.errors import ThreadUnsupported, chat_error_type, message_error_type, message_status
from hotloop.wire.field import present
from hotloop.wire.responses.items import UnknownItem
from hotloop.wire.sse import write_data, write_event


class RouteError(HotloopError):
    """The router cannot get an answer; `status` says to the client whose fault that is."""

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        *,
        param: str | None = None,
        retry_after_s: float | None = None,
        allowed: Collection[str] = (),
        details: dict[str, Any] | None = None,
    ) -> None:
        """`allowed` are the methods that a path answers, where this one is not."""
        super().__init__(message)
        self.details = details
        self.status = status
        self.code = code
        self.param = param
        self.retry_after_s = retry_after_s
        self.allowed = allowed


def as_route_error(error: HotloopError) -> RouteError:
    if isinstance(error, RouteError):
        return error
    if isinstance(error, AccessDenied):
        return RouteError(error.status, error.code, str(error))
    if isinstance(error, Overloaded):
        return RouteError(429, "rate_limit_exceeded", str(error), retry_after_s=error.retry_after_s)
    if isinstance(error, UnknownItem):
        return RouteError(404, "item_not_found", str(error))
    if isinstance(error, RequestError):
        details = error.details if isinstance(error, ThreadUnsupported) else None
        return RouteError(400, "invalid_value", str(error), param=error.param, details=details)
    return RouteError(502, "replica_failed", str(error))


def render_error(error: RouteError, api: Api | None, request_id: str) -> tuple[int, bytes]:
    """Status and body, as the clients of an API know them."""
    status = _message_status(error) if api == "messages" else error.status
    return status, msgspec.json.encode(_shape(error, api, request_id))


def error_headers(error: RouteError) -> list[tuple[bytes, bytes]]:
    headers = [(b"content-type", b"application/json")]
    if error.retry_after_s is not None:
        headers.append((b"retry-after", str(max(1, math.ceil(error.retry_after_s))).encode()))
    if error.status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    if error.allowed:
        headers.append((b"allow", ", ".join(sorted(error.allowed)).encode()))
    return headers


def render_event(error: RouteError, api: Api, request_id: str) -> bytes:
    if api == "responses":
        return write_event("error", code=error.code, message=str(error), param=None)
    shape = _shape(error, api, request_id)
    return write_event("error", error=shape["error"], request_id=request_id) if api == "messages" else write_data(shape)


def _message_status(error: RouteError) -> int:
    """A client's own limit is no trouble of the server's."""
    return error.status if error.code == "quota_exceeded" else message_status(error.status)


def _shape(error: RouteError, api: Api | None, request_id: str) -> dict[str, Any]:
    if api == "messages":
        kind = message_error_type(_message_status(error))
        about = present(type=kind, message=str(error), details=error.details)
        return {"type": "error", "error": about, "request_id": request_id}
    body = {"message": str(error), "type": chat_error_type(error.status), "param": error.param, "code": error.code}
    return {"error": {**body, "request_id": request_id}}
