"""How every failure looks on the wire: one table, and a shape for each maker's clients.

    OpenAI     {"error": {"message": ..., "type": ..., "param": ..., "code": ..., "request_id": ...}}
    Anthropic  {"type": "error", "error": {"type": ..., "message": ...}, "request_id": ...}

Nothing else in the server chooses a status.
"""

import math
from collections.abc import Mapping
from http import HTTPStatus
from typing import NamedTuple

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from hotloop.core.errors import (
    BackendError,
    EngineClosed,
    HotloopError,
    Overloaded,
    PromptTooLong,
    RequestError,
    Unavailable,
    UnknownModel,
)
from hotloop.http.keys import AccessDenied
from hotloop.http.logs import REFUSED
from hotloop.http.requests import is_for_anthropic, render_ids
from hotloop.wire.errors import ThreadUnsupported, message_error_type, message_status
from hotloop.wire.field import Json
from hotloop.wire.responses.items import UnknownItem

CLIENT_GONE = 499


class HttpError(HotloopError):
    """Refused before the engine hears of it, with the HTTP status that says why."""

    def __init__(self, status: int, message: str, *, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.headers = headers or {}


class Disconnected(HttpError):
    """The client hung up: what is rendered from this reaches nobody, but it is counted."""

    def __init__(self) -> None:
        super().__init__(CLIENT_GONE, "the client closed the connection")


class Cancelled(HttpError):
    def __init__(self) -> None:
        super().__init__(CLIENT_GONE, "the response was cancelled")


class UnknownResponse(RequestError):
    """Never made here or not stored, deleted, or so long unused that it had to make room."""


class UnknownPrevious(UnknownResponse):
    """The response that another one was to continue."""


class UnknownExplanation(RequestError):
    """Never asked here, not ended yet, of others, or so long ago that it had to make room."""


class ApiNotServed(RequestError):
    """A path of OpenAI's that this server does not have, and what to do instead."""


class UnknownRecord(RequestError):
    """No such file or batch, or somebody else's."""


class ErrorKind(NamedTuple):
    status: int
    type: str
    code: str


_KINDS: dict[type[HotloopError], ErrorKind] = {
    PromptTooLong: ErrorKind(400, "invalid_request_error", "context_length_exceeded"),
    UnknownModel: ErrorKind(404, "invalid_request_error", "model_not_found"),
    UnknownPrevious: ErrorKind(404, "invalid_request_error", "previous_response_not_found"),
    UnknownResponse: ErrorKind(404, "invalid_request_error", "response_not_found"),
    UnknownItem: ErrorKind(404, "invalid_request_error", "item_not_found"),
    UnknownExplanation: ErrorKind(404, "invalid_request_error", "explanation_not_found"),
    UnknownRecord: ErrorKind(404, "invalid_request_error", "not_found"),
    ApiNotServed: ErrorKind(404, "invalid_request_error", "api_not_served"),
    RequestError: ErrorKind(400, "invalid_request_error", "invalid_value"),
    Overloaded: ErrorKind(429, "rate_limit_error", "rate_limit_exceeded"),
    Unavailable: ErrorKind(503, "server_error", "unavailable"),
    EngineClosed: ErrorKind(503, "server_error", "shutting_down"),
    BackendError: ErrorKind(500, "server_error", "backend_error"),
    HotloopError: ErrorKind(500, "server_error", "internal_error"),
}

_HTTP_KINDS: dict[int, tuple[str, str]] = {
    404: ("invalid_request_error", "unknown_url"),
    405: ("invalid_request_error", "method_not_allowed"),
    413: ("invalid_request_error", "request_too_large"),
    415: ("invalid_request_error", "unsupported_media_type"),
    CLIENT_GONE: ("invalid_request_error", "client_closed_request"),
}


def kind_of(error: HotloopError) -> ErrorKind:
    """The row of the table that fits best: the error's own class, or its nearest ancestor's."""
    if isinstance(error, AccessDenied):
        kind = "authentication_error" if error.status == HTTPStatus.UNAUTHORIZED else "permission_error"
        return ErrorKind(error.status, kind, error.code)
    if isinstance(error, HttpError):
        return ErrorKind(error.status, *_HTTP_KINDS.get(error.status, ("invalid_request_error", "http_error")))
    return next(_KINDS[ancestor] for ancestor in type(error).__mro__ if ancestor in _KINDS)


def render_error(error: HotloopError, request_id: str) -> Json:
    kind = kind_of(error)
    param = error.param if isinstance(error, RequestError) else None
    body = {"message": str(error), "type": kind.type, "param": param, "code": kind.code, "request_id": request_id}
    return {"error": body}


def render_message_error(error: HotloopError, request_id: str) -> Json:
    status = _message_status(error)
    body: Json = {"type": "api_error" if status == 503 else message_error_type(status), "message": str(error)}
    if isinstance(error, ThreadUnsupported):
        body["details"] = error.details
    return {"type": "error", "error": body, "request_id": request_id}


def error_response(error: HotloopError, request_id: str, *, for_anthropic: bool = False) -> Response:
    headers = dict(error.headers) if isinstance(error, HttpError) else {}
    if kind_of(error).status == HTTPStatus.UNAUTHORIZED:
        headers["www-authenticate"] = "Bearer"
    if isinstance(error, Overloaded):
        headers["retry-after"] = str(max(1, math.ceil(error.retry_after_s)))
    if for_anthropic:
        status, body = _message_status(error), render_message_error(error, request_id)
    else:
        status, body = kind_of(error).status, render_error(error, request_id)
    return Response(msgspec.json.encode(body), status, headers, media_type="application/json")


def _message_status(error: HotloopError) -> int:
    return message_status(kind_of(error).status)


async def on_error(request: Request, error: Exception) -> Response:
    if isinstance(error, ClientDisconnect):
        error = Disconnected()
    elif isinstance(error, HTTPException):
        error = HttpError(error.status_code, _http_message(request, error), headers=error.headers)
    assert isinstance(error, HotloopError)
    request.scope["state"][REFUSED] = kind_of(error).code
    return error_response(error, request.state.request_id, for_anthropic=is_for_anthropic(request.scope))


async def on_bug(request: Request, error: Exception) -> Response:
    """The last resort. The client learns no details; Starlette raises the error again, so that the log has them."""
    request_id = request.state.request_id
    mistake = HotloopError("internal server error; see the server log")
    request.scope["state"][REFUSED] = kind_of(mistake).code
    response = error_response(mistake, request_id, for_anthropic=is_for_anthropic(request.scope))
    response.raw_headers += render_ids(request.scope, request_id)
    return response


def _http_message(request: Request, error: HTTPException) -> str:
    if error.status_code == HTTPStatus.NOT_FOUND:
        return f"unknown URL: {request.method} {request.url.path}"
    if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        return f"method {request.method} not allowed for {request.url.path}"
    return error.detail
