"""KV between servers: others fetch what is cached of a prompt here, and a request may name where to fetch its own.

Only keys that may act for all tenants fetch, and only KV of exactly the layout, salt and tokens that they name.
`kv_peers` says which addresses a request may name: nothing else is ever connected to.
"""

import asyncio
import re
from array import array
from collections.abc import AsyncIterator, Sequence

import msgspec
from starlette.requests import Request as HttpRequest
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from hotloop.core.errors import Overloaded
from hotloop.core.request import KvSource
from hotloop.engine.offload.moves import MAX_MOVES, PATH, AskedKv, render_header
from hotloop.http.keys import TENANT_HEADER, AccessDenied, Tenant
from hotloop.server.border import read_json
from hotloop.server.errors import HttpError
from hotloop.server.options import convert, decode
from hotloop.server.service import Service
from hotloop.wire.kv import OFFER_PATH, SESSION_PATH, SOURCE_HEADER, AskedSession, OfferedKv, SessionKv, TakenKv

_MAX_BODY = 16 << 20
_WINDOW_BYTES = 32 << 20  # that are copied at a time, in one pause of the engine


async def send_segments(http: HttpRequest) -> Response:
    """The segments that are asked for, as far as they are here without a gap."""
    service = Service.of(http)
    _check_may_ask(http.state.tenant)
    asked = convert(decode(await read_json(http, _MAX_BODY)), AskedKv)
    segments = service.engine.facts.kv_segments
    if segments is None or asked.layout != segments.layout:
        raise HttpError(409, "the KV here has another layout")
    if service.num_kv_sent >= MAX_MOVES:
        raise Overloaded("too many servers are fetching KV already", 1.0)
    service.num_kv_sent += 1
    try:
        pieces = _read_pieces(service, asked)
        first = await anext(pieces, None)
        if first is None:
            raise HttpError(404, "there is no KV of this prompt here")
        return SegmentsResponse(service, first, pieces)
    except BaseException:
        service.num_kv_sent -= 1
        raise


async def show_session(http: HttpRequest) -> Response:
    """What a session goes on from, so that another server can ask for its KV before it comes there."""
    service = Service.of(http)
    _check_may_ask(http.state.tenant)
    asked = convert(decode(await read_json(http, _MAX_BODY)), AskedSession)
    found, segments = await service.engine.find_session(asked.session), service.engine.facts.kv_segments
    if found is None or segments is None:
        raise HttpError(404, "there is no KV of this session here")
    return _show(SessionKv(segments.layout, found[1], found[0].tolist()))


async def take_session(http: HttpRequest) -> Response:
    """Ask the server that an offer names for it; answers once it is here, with how many of the tokens are."""
    service = Service.of(http)
    _check_may_ask(http.state.tenant)
    offered = convert(decode(await read_json(http, _MAX_BODY)), OfferedKv)
    segments = service.engine.facts.kv_segments
    if segments is None or offered.layout != segments.layout or len(offered.tokens) > service.engine.facts.max_context:
        raise HttpError(409, "the KV here has another layout")
    if not is_peer(offered.source, service.engine.facts.kv_peers):
        raise AccessDenied(403, "forbidden", "the server that has it is not in kv_peers")
    source = KvSource(offered.source, service.peer_key)
    num_known = await service.engine.take_kv(source, offered.salt, offered.tokens, offered.session)
    return _show(TakenKv(num_known))


def _show(told: msgspec.Struct) -> Response:
    return Response(msgspec.json.encode(told), media_type="application/json")


ROUTES = (
    Route(PATH, send_segments, methods=["POST"]),
    Route(SESSION_PATH, show_session, methods=["POST"]),
    Route(OFFER_PATH, take_session, methods=["POST"]),
)


def find_source(http: HttpRequest) -> KvSource | None:
    """Where a router says that the KV of a request is, if that may be asked."""
    service, url = Service.of(http), http.headers.get(SOURCE_HEADER)
    if not url or service.engine.facts.kv_segments is None:
        return None
    tenant: Tenant = http.state.tenant
    is_trusted = TENANT_HEADER.decode() in http.headers or not tenant.is_apart or tenant.is_admin
    return KvSource(url, service.peer_key) if is_trusted and is_peer(url, service.engine.facts.kv_peers) else None


def is_peer(url: str, peers: Sequence[str]) -> bool:
    """Whether an address is one of these; a `*` stands for a part of a name between two dots, or a port."""
    patterns = (re.escape(peer.rstrip("/")).replace(r"\*", r"[\w-]*") for peer in peers)
    return any(re.fullmatch(pattern, url.rstrip("/")) for pattern in patterns)


def _check_may_ask(tenant: Tenant) -> None:
    if tenant.is_apart and not tenant.is_admin:
        raise AccessDenied(403, "forbidden", "KV of all tenants needs an API key with the role admin")


class SegmentsResponse(StreamingResponse):
    """Gives its place back however it ends: of one whose client has gone no piece is ever asked for."""

    def __init__(self, service: Service, first: bytes, pieces: AsyncIterator[bytes]) -> None:
        super().__init__(_chain(first, pieces), media_type="application/octet-stream")
        self._service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._service.num_kv_sent -= 1


async def _chain(first: bytes, pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield first
    async for piece in pieces:
        yield piece


async def _read_pieces(service: Service, asked: AskedKv) -> AsyncIterator[bytes]:
    """Headers and data of the segments from the one asked for on."""
    engine, token_ids = service.engine, array("i", asked.tokens)
    segments = engine.facts.kv_segments
    assert segments
    count = len(token_ids) // segments.num_tokens
    keys = segments.keys(asked.salt).first(count, token_ids)
    window = max(1, _WINDOW_BYTES // segments.num_bytes)
    for begin in range(asked.begin, count, window):
        numbers = range(begin, min(begin + window, count))
        ends = [(number + 1) * segments.num_tokens for number in numbers]
        read = await asyncio.gather(*(engine.read_kv(asked.salt, token_ids[:end]) for end in ends))
        for number, data in zip(numbers, read, strict=True):
            if data is None:
                return
            yield await asyncio.to_thread(render_header, keys[number], data)
            yield bytes(data)
