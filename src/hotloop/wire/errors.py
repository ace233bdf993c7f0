"""A server's failure, read from whatever it sent and told in the words of the client's API. One table a direction.

    OpenAI     {"error": {"message", "type", "param", "code"}}       (vLLM, TGI and others vary it, all are understood)
    Anthropic  {"type": "error", "error": {"type", "message"}}

Between the two lies a `RemoteError`: a line for a person, and the status.
"""

import re
from typing import Any, ClassVar

import msgspec

from hotloop.core.errors import RemoteError, RequestError
from hotloop.wire.field import Json

_BAD_ANSWER = 502
_MAX_CHARS = 2000
_TOO_LONG = re.compile(r"context[ _](length|size|window)|prompt is too long|too many (input )?tokens", re.IGNORECASE)
_KNOWN_WORDS = "prompt is too long"

_MESSAGE_TYPES = {
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
    529: "overloaded_error",
}
_CHAT_CODES = {
    401: ("authentication_error", "invalid_api_key"),
    403: ("permission_error", "permission_denied"),
    404: ("invalid_request_error", "model_not_found"),
    413: ("invalid_request_error", "request_too_large"),
    429: ("rate_limit_error", "rate_limit_exceeded"),
    503: ("server_error", "overloaded"),
}
# An error inside a stream has no status of its own.
_STATUSES = {kind: status for status, kind in _MESSAGE_TYPES.items()}
_STATUSES |= {"invalid_request_error": 400, "BadRequestError": 400}


class ThreadUnsupported(RequestError):
    """The client wants the conversation kept here. Told so by `details`, it sends all of it with every turn."""

    details: ClassVar[Json] = {"error_code": "thread_unsupported_request"}

    def __init__(self) -> None:
        super().__init__("thread is not supported: send the full conversation instead", param="thread")


def read_failure(status: int, body: bytes) -> RemoteError:
    """What a replica said when it refused; a page of a proxy before it is told by its first words."""
    try:
        value = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        value = body[:_MAX_CHARS].decode(errors="replace").strip()
    return RemoteError(_read_message(value) or f"the replica answered with status {status}", status=status)


def read_event_failure(error: Any) -> RemoteError:
    """What a replica said inside a stream, or in place of an answer."""
    inner = error.get("error", error) if isinstance(error, dict) else error
    kind, code = (inner.get("type"), inner.get("code")) if isinstance(inner, dict) else (None, None)
    status = code if isinstance(code, int) and 400 <= code < 600 else _STATUSES.get(str(kind), 500)
    can_retry = status in (408, 429) or status >= 500
    return RemoteError(_read_message(error) or "the replica failed", status=status, can_retry=can_retry)


def bad_answer(what: object, *, can_retry: bool = False) -> RemoteError:
    said = f"invalid response from upstream: {what}"[:_MAX_CHARS]
    return RemoteError(said, status=_BAD_ANSWER, can_retry=can_retry)


def broke_off() -> RemoteError:
    return bad_answer("it ended before it was whole", can_retry=True)


def is_too_long(error: RemoteError) -> bool:
    return (error.status or 0) in (400, 413, 422, 500) and bool(_TOO_LONG.search(str(error)))


def render_message_failure(error: RemoteError) -> tuple[int, Json]:
    """For Anthropic's clients. Those that make a long conversation shorter do so at words they know."""
    status, message = error.status or _BAD_ANSWER, str(error)
    if is_too_long(error):
        status = 400
        message = message if _KNOWN_WORDS in message.lower() else f"{_KNOWN_WORDS}: {message}"
    return status, {"type": "error", "error": {"type": message_error_type(status), "message": message}}


def message_error_type(status: int) -> str:
    return _MESSAGE_TYPES.get(status, "api_error" if status >= 500 else "invalid_request_error")


def message_status(status: int) -> int:
    """Too much is waiting: to OpenAI's clients a limit on them, to Anthropic's the server's own trouble."""
    return 529 if status == 429 else status


def chat_error_type(status: int) -> str:
    usual = "server_error" if status >= 500 else "invalid_request_error"
    return _CHAT_CODES[status][0] if status in _CHAT_CODES else usual


def render_chat_failure(error: RemoteError) -> tuple[int, Json]:
    """For OpenAI's clients, who do not know 529."""
    status = 503 if error.status == 529 else error.status or _BAD_ANSWER
    usual = ("server_error", "replica_failed") if status >= 500 else ("invalid_request_error", "invalid_value")
    kind, code = _CHAT_CODES.get(status, usual)
    if is_too_long(error):
        status, kind, code = 400, "invalid_request_error", "context_length_exceeded"
    return status, {"error": {"message": str(error), "type": kind, "param": None, "code": code}}


def _read_message(value: Any) -> str:
    match value:
        case {"error": {"message": str(message)}} | {"error": str(message)} | {"message": str(message)}:
            return message[:_MAX_CHARS]
        case {"detail": str(message)} | str(message):
            return message[:_MAX_CHARS]
        case {"detail": detail} | {"error": detail}:
            return str(detail)[:_MAX_CHARS]
    return ""
