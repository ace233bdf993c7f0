"""One request's way to an answer: claim a place, send, and retry elsewhere as long as nothing was said yet.

    ├── begin: may fail, and be retried ──┤├── relay: byte for byte, and a proper end whatever happens ──┤
                                          first byte

A whole answer is held until it is whole, so it can be retried up to its last byte. Of a stream only complete events are
passed on: one that breaks off in the middle is dropped, so that the error event behind it can be read.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
from starlette.types import Send

from hotloop.core.errors import HotloopError
from hotloop.router.errors import RouteError, render_event
from hotloop.router.kinds import Api
from hotloop.router.replicas.fleet import Fleet, Place
from hotloop.router.replicas.replica import Replica
from hotloop.router.request import RoutedRequest
from hotloop.router.spans import RouteSpan
from hotloop.router.summary import END_BYTES, AnswerSummary, read_id, summarize
from hotloop.router.translate import Translation, translate
from hotloop.router.upstream.wire import Headers, UpstreamFailed, UpstreamRequest, UpstreamResponse, read_body

RETRIED = frozenset({429, 500, 502, 503, 504, 529})
"""Where another replica may do better."""
REFUSED = frozenset({401, 403})
"""Our own key was refused there: no fault of the client's."""
BUSY = frozenset({429, 529})
"""Too much to do is not broken."""
DROPPED = frozenset({b"date", b"server", b"set-cookie", b"x-request-id", b"request-id", b"content-length"})
"""Headers of a replica's answer that are not the client's business, or are written anew."""
MAX_ERROR_BYTES = 64 << 10
MAX_EVENT_BYTES = 1 << 20
"""A longer one is passed on in pieces."""


class BadAnswer(RouteError):
    """A replica answered with an error: what it said, for the client if nobody answers better."""

    def __init__(self, response: UpstreamResponse, status: int, body: bytes) -> None:
        self.is_for_client = response.status not in REFUSED
        about = f"answered {response.status}" if self.is_for_client else "refused the router's own key"
        super().__init__(status if self.is_for_client else 502, "replica_failed", f"a replica {about}")
        self.headers = response.headers
        self.body = body


class TranslatedEnd(HotloopError):
    """A stream broke off, and its end has been told already."""


@dataclass(slots=True)
class ProxiedAnswer:
    """An answer that has begun: from here on there is no other. Give it back with `Proxy.finish`."""

    place: Place
    response: UpstreamResponse
    status: int
    body: AsyncGenerator[bytes, None]
    """Ends, or raises UpstreamFailed."""
    is_whole: bool
    notes: tuple[str, ...] = ()
    """What a translation could not carry over."""
    num_tried: int = 1


@dataclass(slots=True)
class Proxy:
    """Finds answers for requests. `on_failure` is told which replica failed, and how."""

    fleet: Fleet
    max_held_bytes: int
    on_failure: Callable[[str, str], None]

    async def begin(self, request: RoutedRequest, span: RouteSpan) -> ProxiedAnswer:
        """The first answer that begins. Raises BadAnswer, UpstreamFailed or RouteError where none does."""
        self.fleet.budget.earn()
        known = await self.fleet.find_known(request)
        tried: list[str] = []
        while True:
            asked_at = time.monotonic()
            place = await self.fleet.claim(request, tried, known)
            name = place.replica.name
            tried.append(name)
            claimed_at = time.monotonic()
            span.claim(name, claimed_at - asked_at)
            try:
                begun = await self._begin_at(place, request, span.headers, tried)
            except (UpstreamFailed, BadAnswer) as failure:
                why = failure.stage if isinstance(failure, UpstreamFailed) else str(failure.status)
                self.on_failure(name, why)
                span.fail(name, why, claimed_at)
                if len(tried) > self.fleet.config.router.max_retries or not self.fleet.budget.spend():
                    raise
            else:
                begun.num_tried = len(tried)
                return begun

    async def finish(self, begun: ProxiedAnswer) -> None:
        try:
            await begun.body.aclose()
            await begun.response.aclose()
        finally:
            self.fleet.release(begun.place)

    async def _begin_at(
        self, place: Place, request: RoutedRequest, headers: Mapping[bytes, bytes], tried: list[str]
    ) -> ProxiedAnswer:
        """There; or, if that takes long, at a second replica as well: the first to succeed, or the last failure. What
        the other had begun is given back."""
        after_s = self.fleet.config.router.hedge_after_s
        if after_s is None:
            return await self._attempt(place, request, headers)
        tasks = {asyncio.create_task(self._attempt(place, request, headers))}
        try:
            done, pending = await asyncio.wait(tasks, timeout=after_s)
            can_hedge = not done and self.fleet.budget.spend()
            if can_hedge and (other := self.fleet.try_claim(request, tried, {}, is_new=True)):
                tried.append(other.replica.name)
                tasks.add(asyncio.create_task(self._attempt(other, request, headers)))
                pending = set(tasks)
            while not any(not task.exception() for task in done) and pending:
                done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            winner = min(done, key=lambda task: task.exception() is not None)
            tasks.discard(winner)
            return winner.result()
        finally:
            for task in tasks:
                task.cancel()
            for result in await asyncio.gather(*tasks, return_exceptions=True):
                if isinstance(result, ProxiedAnswer):
                    await self.finish(result)

    async def _attempt(self, place: Place, request: RoutedRequest, headers: Mapping[bytes, bytes]) -> ProxiedAnswer:
        """Ask one replica, up to the first byte of its answer. If that fails its place is given back."""
        has_begun = False
        try:
            begun = await self._send(place, request, headers)
            has_begun = True
            self.fleet.begin(place)
            return begun
        except UpstreamFailed as failure:
            self.fleet.fail(place, is_gone=failure.is_gone)
            raise
        except BadAnswer as failure:
            if failure.status not in BUSY:
                self.fleet.fail(place)
            raise
        finally:
            if not has_begun:
                self.fleet.give_back(place)

    async def _send(self, place: Place, request: RoutedRequest, headers: Mapping[bytes, bytes]) -> ProxiedAnswer:
        replica = place.replica
        sent, translation = compose(request, replica, headers)
        response = await replica.upstream.send(sent)
        replica.last_byte_at = time.monotonic()
        try:
            is_started = response.status < 400 and is_stream(response.headers)
            begun = await (self._start if is_started else self._hold)(place, response, translation)
            begun.notes = translation.notes if translation else ()
            return begun
        except BaseException:
            await response.aclose()
            raise

    async def _hold(self, place: Place, response: UpstreamResponse, translation: Translation | None) -> ProxiedAnswer:
        status = response.status
        body = await read_body(response, MAX_ERROR_BYTES if status >= 400 else self.max_held_bytes)
        if translation:
            status, body = translation.answer(status, body)
        if response.status in RETRIED or response.status in REFUSED:
            raise BadAnswer(response, status, body)
        return ProxiedAnswer(place, response, status, _single(body), is_whole=True)

    async def _start(self, place: Place, response: UpstreamResponse, translation: Translation | None) -> ProxiedAnswer:
        chunks = aiter(response)
        body = whole_events(chunks, await anext(chunks, b""))
        if translation:
            body = _translated(body, translation)
        return ProxiedAnswer(place, response, response.status, body, is_whole=False)


def compose(
    request: RoutedRequest, replica: Replica, headers: Mapping[bytes, bytes]
) -> tuple[UpstreamRequest, Translation | None]:
    """The client's own bytes if the replica speaks that API and calls the model so. Raises RequestError if the request
    cannot be said in any API the replica speaks."""
    model = replica.models.get(request.model, request.model)
    if request.api in replica.apis:
        body = request.raw if model == request.model else request.rename(model)
        return UpstreamRequest("POST", request.target, replica.headers(headers), body), None
    given = {**request.read_body(), "model": model}
    translation = translate(request.api, replica.apis, given, is_strict=replica.kind.is_strict)
    path, translated = translation.request()
    return UpstreamRequest("POST", path, replica.headers(headers), msgspec.json.encode(translated)), translation


async def _single(body: bytes) -> AsyncGenerator[bytes, None]:
    yield body


async def whole_events(chunks: AsyncIterator[bytes], held: bytes = b"") -> AsyncGenerator[bytes, None]:
    """The same bytes, cut behind events. If the chunks break off, so does this, less the event they were in."""
    if cut := end_of_events(held):
        yield held[:cut]
        held = held[cut:]
    async for chunk in chunks:
        held = held + chunk if held else chunk
        if cut := end_of_events(held) or (len(held) if len(held) > MAX_EVENT_BYTES else 0):
            yield held[:cut]
            held = held[cut:]
    if held:
        yield held


async def _translated(body: AsyncGenerator[bytes, None], translation: Translation) -> AsyncGenerator[bytes, None]:
    stream = translation.stream()
    try:
        async for piece in body:
            if translated := stream.feed(piece):
                yield translated
    except HotloopError as error:
        yield stream.end(str(error))
        raise TranslatedEnd from error
    yield stream.end(None)


def end_of_events(piece: bytes) -> int:
    if piece.endswith((b"\n\n", b"\r\n\r\n")):
        return len(piece)
    plain, carried = piece.rfind(b"\n\n"), piece.rfind(b"\r\n\r\n")
    return max(plain + 2 if plain >= 0 else 0, carried + 4 if carried >= 0 else 0)


def is_stream(headers: Headers) -> bool:
    return any(name == b"content-type" and value.startswith(b"text/event-stream") for name, value in headers)


async def relay(begun: ProxiedAnswer, api: Api, headers: Headers, request_id: str, send: Send) -> AnswerSummary:
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
