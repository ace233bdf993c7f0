"""Who sends a request, and with whom that one shares what was computed.

A scope is a name for those who share: prefixes, and what is remembered of prompts, are found within one scope only. It
is a hash, so that neither a key nor a salt lies about in what the engine keeps.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

from hotloop.core.config import CacheIsolation
from hotloop.core.request import Priority


@dataclass(frozen=True, slots=True)
class Caller:
    """Who sends a request, as part of what, and how urgent it is."""

    owner: str
    """Whose the answer is."""
    scope: str
    """With whom what was computed is shared."""
    session_id: str = ""
    request_id: str = ""
    priority: Priority = Priority.INTERACTIVE


NOBODY = Caller("", "")


def find_key(headers: Mapping[str, str]) -> str:
    scheme, _, token = headers.get("authorization", "").partition(" ")
    return (token.strip() if scheme.lower() == "bearer" else "") or headers.get("x-api-key", "")


def name_owner(headers: Mapping[str, str]) -> str:
    """Whose things are made now: who carries another key, or none, finds others."""
    return _digest(find_key(headers))


def name_scope(headers: Mapping[str, str], cache_salt: str | None, isolation: CacheIsolation) -> str:
    """Empty where everybody shares."""
    key = find_key(headers) if isolation == "key" else ""
    return _digest(key, cache_salt or "") if cache_salt or isolation == "key" else ""


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass")).hexdigest()
