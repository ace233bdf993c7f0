"""Who asks, what the request is called, and the answer to one that no application hears of."""

import hmac
import re
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from hotloop.core.errors import ConfigError

REQUEST_ID_HEADER = "x-request-id"
OPEN_PATHS = frozenset({"/health", "/ready"})
"""What answers without a key: the probes of whoever keeps the process alive."""

_REQUEST_ID = re.compile(r"[\x21-\x7e]{1,128}")


def parse_request_id(given: str | None) -> str:
    """The client's own id where it sent a sensible one, else a new one."""
    return given if given and _REQUEST_ID.fullmatch(given) else f"req_{secrets.token_hex(12)}"


def has_key(headers: Mapping[bytes, bytes], expected: Iterable[bytes]) -> bool:
    """Whether one of the keys is there. The scheme's name may be in any case; how long the comparison takes tells
    nothing about a key."""
    scheme, _, token = headers.get(b"authorization", b"").partition(b" ")
    given = (token.strip() if scheme.lower() == b"bearer" else b"", headers.get(b"x-api-key", b""))
    return any(hmac.compare_digest(key, each) for each in expected for key in given)


def read_keys(api_key: str | None, file: str | None) -> tuple[bytes, ...]:
    """The key that was given and those in the file, one a line; none if neither is given. Raises ConfigError."""
    keys = [api_key] if api_key else []
    if file:
        try:
            lines = [line.strip() for line in Path(file).expanduser().read_text(encoding="utf-8").splitlines()]
        except (OSError, UnicodeError) as error:
            raise ConfigError(f"cannot read the API keys in {file}: {error}") from None
        found = [line for line in lines if line and not line.startswith("#")]
        if not found:
            raise ConfigError(f"there is no API key in {file}")
        keys += found
    return tuple(key.encode() for key in keys)


@dataclass(slots=True)
class ApiKeys:
    """The keys that are valid now, shared by everything that checks them: a reload replaces them in one assignment."""

    current: tuple[bytes, ...] = ()


def render_refusal(status: int, code: str, message: str) -> tuple[list[tuple[bytes, bytes]], bytes]:
    """Headers and body, in a shape that the clients of either maker can read."""
    request_id = parse_request_id(None)
    kind = "server_error" if status >= 500 else "invalid_request_error"
    error = {"message": message, "type": kind, "param": None, "code": code, "request_id": request_id}
    body = msgspec.json.encode({"type": "error", "error": error, "request_id": request_id})
    given = {"content-type": "application/json", "content-length": str(len(body)), REQUEST_ID_HEADER: request_id}
    return [(name.encode(), value.encode()) for name, value in given.items()], body
