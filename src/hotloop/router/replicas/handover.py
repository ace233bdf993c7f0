"""Sessions of a replica that drains, handed on: who will take them has their KV before they come.

    router ── what does this session go on from? ──> the one that drains
           ── it is there: ask for it ────────────> the one that will take it ── /kv/segments ──> the one that drains

The KV goes from one to the other and both judge who may ask. What fails costs what it would have cost anyway.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable

import msgspec

from hotloop.router.placement.placement import Placement
from hotloop.router.replicas.replica import Replica
from hotloop.router.upstream.wire import UpstreamFailed, UpstreamRequest, fetch, parse_json
from hotloop.wire.kv import OFFER_PATH, SESSION_PATH, AskedSession, OfferedKv, SessionKv, TakenKv

log = logging.getLogger("hotloop.router")

MAX_SESSIONS = 64
"""Of a replica, the latest."""
_AT_A_TIME = 2
_MAX_S = 30.0
_MAX_BYTES = 16 << 20
_SHARE = 0.5
"""Of what a session goes on from: less is not counted on."""


async def hand_on(source: Replica, placement: Placement, list_targets: Callable[[], Iterable[Replica]]) -> None:
    """`list_targets`: the replicas that may have them, as they are then."""
    gate, handed = asyncio.Semaphore(_AT_A_TIME), list[str]()

    async def hand(session: str) -> None:
        async with gate:
            targets = {each.name: each for each in list_targets()}
            name = placement.next_home(targets) if placement.is_at(session, source.name) else ""
            if name and await _hand(source, targets[name], session):
                placement.hand_on(session, source.name, name)
                handed.append(session)

    sessions = placement.sessions_at(source.name, MAX_SESSIONS)
    await asyncio.gather(*map(hand, sessions))
    if sessions:
        log.info("sessions handed on: from=%s num=%d of=%d", source.name, len(handed), len(sessions))


async def _hand(source: Replica, target: Replica, session: str) -> bool:
    """Whether most of it is there now."""
    try:
        async with asyncio.timeout(_MAX_S):
            page = await _post(source, SESSION_PATH, AskedSession(session))
            told = parse_json(page, SessionKv) if page else None
            if told is None:
                return False
            offer = OfferedKv(told.layout, told.salt, told.tokens, session, source.config.url)
            page = await _post(target, OFFER_PATH, offer)
    except (UpstreamFailed, TimeoutError) as failure:
        log.debug("session not handed on: from=%s to=%s reason=%s", source.name, target.name, failure)
        return False
    taken = parse_json(page, TakenKv) if page else None
    return taken is not None and taken.tokens >= _SHARE * len(told.tokens)


async def _post(replica: Replica, path: str, value: msgspec.Struct) -> bytes:
    """What it answers; nothing if it refuses."""
    headers = replica.headers({b"content-type": b"application/json"})
    request = UpstreamRequest("POST", path, headers, msgspec.json.encode(value))
    status, _, page = await fetch(replica.upstream, request, _MAX_BYTES)
    return page if status == 200 else b""
