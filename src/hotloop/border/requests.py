"""Who asks, and what the request is called."""

import hmac
import re
import secrets
from collections.abc import Mapping

REQUEST_ID_HEADER = "x-request-id"
OPEN_PATHS = frozenset({"/health", "/ready"})
"""What answers without a key: the probes of whoever keeps the process alive."""

_REQUEST_ID = re.compile(r"[\x21-\x7e]{1,128}")


def parse_request_id(given: str | None) -> str:
    """The client's own id where it sent a sensible one, else a new one."""
    return given if given and _REQUEST_ID.fullmatch(given) else f"req_{secrets.token_hex(12)}"


def has_key(headers: Mapping[bytes, bytes], expected: bytes) -> bool:
    """The scheme's name may be in any case; how long the comparison takes tells nothing about the key."""
    scheme, _, token = headers.get(b"authorization", b"").partition(b" ")
    keys = (token.strip() if scheme.lower() == b"bearer" else b"", headers.get(b"x-api-key", b""))
    return any(hmac.compare_digest(key, expected) for key in keys)
