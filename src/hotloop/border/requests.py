"""What a request is called, what answers without a key, and the answer to one that no application hears of."""

import re
import secrets

import msgspec

REQUEST_ID_HEADER = "x-request-id"
HELLO_PATHS = ("/", "/api/hello")
"""What coding agents ask for before their first request, without a key, to see whether somebody answers."""
OPEN_PATHS = frozenset({"/health", "/ready", *HELLO_PATHS})
"""What answers without a key: those, and the probes of whoever keeps the process alive."""

_REQUEST_ID = re.compile(r"[\x21-\x7e]{1,128}")


def parse_request_id(given: str | None) -> str:
    """The client's own id where it sent a sensible one, else a new one."""
    return given if given and _REQUEST_ID.fullmatch(given) else f"req_{secrets.token_hex(12)}"


def render_refusal(status: int, code: str, message: str) -> tuple[list[tuple[bytes, bytes]], bytes]:
    """Headers and body, in a shape that the clients of either maker can read."""
    request_id = parse_request_id(None)
    kind = "server_error" if status >= 500 else "invalid_request_error"
    error = {"message": message, "type": kind, "param": None, "code": code, "request_id": request_id}
    body = msgspec.json.encode({"type": "error", "error": error, "request_id": request_id})
    given = {"content-type": "application/json", "content-length": str(len(body)), REQUEST_ID_HEADER: request_id}
    return [(name.encode(), value.encode()) for name, value in given.items()], body
