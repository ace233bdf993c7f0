"""From an answer to the client: the head, the bytes as they come, and an end that can be told from a break."""

import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from hotloop.router.errors import RouteError, render_event
from hotloop.router.kinds import Api
from hotloop.router.proxy.proxy import Begun, TranslatedEnd
from hotloop.router.summary import END_BYTES, AnswerSummary, read_id, summarize
from hotloop.router.upstream.wire import Headers, UpstreamFailed

Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

DROPPED = frozenset({b"date", b"server", b"set-cookie", b"x-request-id", b"request-id", b"content-length"})
"""Headers of a replica's answer that are not the client's business, or are written anew."""


async def relay(begun: Begun, api: Api, headers: Headers, request_id: str, send: Send) -> AnswerSummary:
    """Send all of an answer. A stream that breaks off ends in an error event."""
    kept = kept_headers(begun.response.headers)
    head: dict[str, Any] = {"type": "http.response.start", "status": begun.status, "headers": [*kept, *headers]}
    answer_id, tail, last, is_first, is_broken = None, b"", b"", True, False
    try:
        async for piece in begun.body:
            begun.place.replica.last_byte_at = time.monotonic()
            if is_first:
                answer_id, is_first = read_id(piece), False
                if begun.is_whole:
                    head["headers"].append((b"content-length", str(len(piece)).encode()))
                await send(head)
            tail = (tail + piece)[-END_BYTES:]
            await send({"type": "http.response.body", "body": piece, "more_body": not begun.is_whole})
    except TranslatedEnd:
        is_broken = True
    except UpstreamFailed as failure:
        is_broken = True
        error = RouteError(502, "replica_lost", f"the replica was lost while it answered: {failure}")
        last = render_event(error, api, request_id)
    if is_first:
        await send(head)
    if not begun.is_whole:
        await send({"type": "http.response.body", "body": last, "more_body": False})
    return summarize(answer_id, tail, is_messages=api == "messages", is_broken=is_broken)


def kept_headers(headers: Headers) -> list[tuple[bytes, bytes]]:
    return [header for header in headers if header[0] not in DROPPED]
