"""What clients already say about which conversation a request belongs to and how urgent it is."""

import hashlib
from collections.abc import Mapping

# In the order they are believed: what names a session first, what names a user last.
SESSION_HEADERS = (
    "x-session-id",
    "x-claude-code-session-id",
    "session-id",
    "thread-id",
    "x-session-affinity",
    "x-dynamo-session-id",
)
PRIORITY_HEADER = "x-hotloop-priority"
TOKENS_HEADER = "x-hotloop-tokens"
"""Asks for the token ids of a stream, which a router needs to have an answer go on elsewhere."""
MAX_SESSION_ID = 256


def name_session(
    session_id: str | None, headers: Mapping[str, str], prompt_cache_key: str | None, user: str | None
) -> str:
    """Which conversation this belongs to, as far as the client lets on; empty if it does not. A name that is too long
    to be kept is known by its hash: two that begin alike are still two."""
    named = (session_id, *map(headers.get, SESSION_HEADERS), prompt_cache_key, user)
    name = next((name for name in named if name), "")
    if len(name) <= MAX_SESSION_ID:
        return name
    return f"sha256:{hashlib.sha256(name.encode('utf-8', 'surrogatepass')).hexdigest()}"
