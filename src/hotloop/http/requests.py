"""What a request is called, whose client sent it, what answers without a key, and the answer to one that no application
hears of.
"""

import re
import secrets
from collections.abc import Mapping
from typing import Any

import msgspec

REQUEST_ID_HEADER = "x-request-id"
MESSAGES_REQUEST_ID = "request-id"
"""The header in which Anthropic's clients look for the id."""
VERSION_HEADER = "anthropic-version"
"""Anthropic's clients all send it, and no others do."""
MESSAGES_PATH, MODELS_PATH = "/v1/messages", "/v1/models"
HELLO_PATHS = ("/", "/api/hello")
"""What coding agents ask for before their first request, without a key, to see whether somebody answers."""
OPEN_PATHS = frozenset({"/health", "/ready", *HELLO_PATHS})
"""What answers without a key: those, and the probes of whoever keeps the process alive."""

_REQUEST_ID = re.compile(r"[\x21-\x7e]{1,128}")


def parse_request_id(given: str | None) -> str:
    """The client's own id where it sent a sensible one, else a new one."""
    return given if given and _REQUEST_ID.fullmatch(given) else f"req_{secrets.token_hex(12)}"


def is_for_anthropic(scope: Mapping[str, Any]) -> bool:
    """Whether an ASGI request is from a client of Anthropic's: these have an address of their own, and share that of
    the models."""
    path = scope["path"]
    if path == MESSAGES_PATH or path.startswith(f"{MESSAGES_PATH}/"):
        return True
    is_models = path == MODELS_PATH or path.startswith(f"{MODELS_PATH}/")
    return is_models and any(name == VERSION_HEADER.encode() for name, _ in scope["headers"])


def is_from_front(scope: Mapping[str, Any]) -> bool:
    """Whether another front of the same server asks, for a client of its own: only clients have addresses."""
    return scope.get("client", ()) is None


def render_ids(scope: Mapping[str, Any], request_id: str) -> list[tuple[bytes, bytes]]:
    """The headers with the id of a request that whatever answers it must have."""
    names = (REQUEST_ID_HEADER, *([MESSAGES_REQUEST_ID] if is_for_anthropic(scope) else []))
    return [(name.encode(), request_id.encode("latin-1")) for name in names]


def render_refusal(status: int, code: str, message: str) -> tuple[list[tuple[bytes, bytes]], bytes]:
    """Headers and body, in a shape that the clients of either maker can read."""
    request_id = parse_request_id(None)
    kind = "server_error" if status >= 500 else "invalid_request_error"
    error = {"message": message, "type": kind, "param": None, "code": code, "request_id": request_id}
    body = msgspec.json.encode({"type": "error", "error": error, "request_id": request_id})
    ids = dict.fromkeys((REQUEST_ID_HEADER, MESSAGES_REQUEST_ID), request_id)
    given = {"content-type": "application/json", "content-length": str(len(body)), **ids}
    return [(name.encode(), value.encode()) for name, value in given.items()], body
