"""How a failure looks to Anthropic's clients:

    {"type": "error", "error": {"type": ..., "message": ...}, "request_id": ...}

It follows from the status, which `errors` chooses, and from a code where clients have one to act on.
"""

from typing import Any

from hotloop.core.errors import HotloopError, RequestError

PATH = "/v1/messages"
REQUEST_ID_HEADER = "request-id"

_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    529: "overloaded_error",
}


class ThreadUnsupported(RequestError):
    """The client wants the conversation kept here. Told so in these words, it sends all of it with every turn."""

    code = "thread_unsupported_request"

    def __init__(self) -> None:
        super().__init__("thread: no conversation is kept here: send all of it, without thread", param="thread")


def is_spoken_at(path: str) -> bool:
    return path == PATH or path.startswith(f"{PATH}/")


def translate_status(status: int) -> int:
    """Too much is waiting: to OpenAI's clients a limit on them, to Anthropic's the server's own trouble."""
    return 529 if status == 429 else status


def render_failure(status: int, error: HotloopError, request_id: str) -> dict[str, Any]:
    fallback = "api_error" if status >= 500 else "invalid_request_error"
    body: dict[str, Any] = {"type": _TYPES.get(status, fallback), "message": str(error)}
    if isinstance(error, ThreadUnsupported):
        body["details"] = {"error_code": error.code}
    return {"type": "error", "error": body, "request_id": request_id}
