"""What servers and routers tell each other of KV: where a prompt's is, and what a session that moves goes on from."""

from typing import Annotated

import msgspec

from hotloop.core.structs import compiled

SOURCE_HEADER = "x-hotloop-kv-source"
"""By which a router names the replica that probably has the KV of a prompt."""
SESSION_PATH, OFFER_PATH = "/kv/session", "/kv/offer"
"""Where a router hears what a session goes on from, and where it offers that to the replica that is to have it."""

_TokenId = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]


@compiled
class AskedSession(msgspec.Struct, frozen=True):
    """Told by a router whose sessions are to go elsewhere, as one that ends is told here."""

    session: str


@compiled
class SessionKv(msgspec.Struct, frozen=True):
    """Where a session's next prompt goes on from."""

    layout: str
    salt: str
    tokens: list[_TokenId]


@compiled
class OfferedKv(SessionKv, frozen=True):
    """KV of a session that is going to come, and the server that has it."""

    session: str
    source: str


@compiled
class TakenKv(msgspec.Struct, frozen=True):
    """How many of these tokens are known now to whom they were offered."""

    tokens: int
