"""One request's way to an answer: claim a place, send, and retry elsewhere as long as nothing was said yet.

    ├── begin: may fail, and be retried ──┤├── relay: byte for byte, and a proper end whatever happens ──┤
                                          first byte that is no ping

A whole answer is held until it is whole, so it can be retried up to its last byte. Of a stream only complete events are
passed on: one that breaks off in the middle is dropped, so that the error event behind it can be read.
"""

import asyncio
import re
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field

import msgspec

from hotloop.core.errors import HotloopError
from hotloop.router.client_stream import ClientStream
from hotloop.router.errors import RouteError, render_event
from hotloop.router.kinds import Api
from hotloop.router.replicas.fleet import Fleet, Place
from hotloop.router.replicas.replica import Replica
from hotloop.router.request import RoutedRequest
from hotloop.router.spans import RouteSpan
from hotloop.router.summary import END_BYTES, AnswerSummary, read_id, summarize
from hotloop.router.translate import Translation, translate
from hotloop.router.upstream.wire import Headers, UpstreamFailed, UpstreamRequest, UpstreamResponse, read_body
from hotloop.wire.sse import is_ping

RETRIED = frozenset({429, 500, 502, 503, 504, 529})
"""Where another replica may do better."""
REFUSED = frozenset({401, 403})
"""Our own key was refused there: no fault of the client's."""
BUSY = frozenset({429, 529})
"""Too much to do is not broken."""
DROPPED = frozenset({b"date", b"server", b"set-cookie", b"x-request-id", b"request-id", b"content-length"})
DROPPED |= {b"location", b"refresh", b"alt-svc", b"strict-transport-security", b"clear-site-data"}
"""Headers of a replica's answer that are not the client's business, or are written anew. Nor are those by which it
says which pages may read it: that is for the router to say, and it says none."""
_CORS = b"access-control-"
ROUTE_HEADER = b"x-hotloop-route"
NOTES_HEADER = b"x-hotloop-notes"
MAX_ERROR_BYTES = 64 << 10
MAX_EVENT_BYTES = 1 << 20
"""A longer one is passed on in pieces."""

_ERROR_MESSAGE = re.compile(rb'"message"\s*:\s*("(?:[^"\\]|\\.)*")')


class BadAnswer(RouteError):
    """A replica answered with an error: what it said, for the client if nobody answers better."""

    def __init__(self, response: UpstreamResponse, status: int, body: bytes) -> None:
        self.is_for_client = response.status not in REFUSED and not is_redirect(response)
        about = "refused the router's own key" if response.status in REFUSED else f"answered {response.status}"
        super().__init__(status if self.is_for_client else 502, "replica_failed", f"a replica {about}")
        self.headers = response.headers
        self.body = body


class TranslatedEnd(HotloopError):
    """A stream broke off, and its end has been told already."""


@dataclass(slots=True)
class RequestAttempts:
    """One request, wherever it is put. The client hears when it was accepted; of our own questions nobody does."""

    request: RoutedRequest
    headers: Mapping[bytes, bytes]
    client: ClientStream | None = None
    tried: list[str] = field(default_factory=list)


@dataclass(slots=True)
class ProxiedAnswer:
    """An answer that has begun: from here on there is no other. Give it back with `Proxy.finish`."""

    place: Place
    response: UpstreamResponse
    status: int
    body: AsyncGenerator[bytes, None]
    """Ends, or raises UpstreamFailed."""
    is_whole: bool
    headers: Headers = ()


@dataclass(slots=True)
class Proxy:
    """Finds answers for requests. `on_failure` is told which replica failed, and how."""

    fleet: Fleet
    max_held_bytes: int
    on_failure: Callable[[str, str], None]

    async def begin(self, request: RoutedRequest, span: RouteSpan, client: ClientStream | None = None) -> ProxiedAnswer:
        """The first answer that begins. Raises BadAnswer, UpstreamFailed or RouteError where none does."""
        self.fleet.budget.earn()
        known = await self.fleet.find_known(request)
        attempts = RequestAttempts(request, span.headers, client)
        while True:
            asked_at = time.monotonic()
            place = await self.fleet.claim(request, attempts.tried, known)
            name = place.replica.name
            attempts.tried.append(name)
            claimed_at = time.monotonic()
            span.claim(name, claimed_at - asked_at)
            try:
                return await self._begin_at(place, attempts)
            except (UpstreamFailed, BadAnswer) as failure:
                why = failure.stage if isinstance(failure, UpstreamFailed) else str(failure.status)
                self.on_failure(name, why)
                span.fail(name, why, claimed_at)
                if len(attempts.tried) > self.fleet.config.router.max_retries or not self.fleet.budget.spend():
                    raise

    async def finish(self, begun: ProxiedAnswer) -> None:
        try:
            await begun.body.aclose()
            await begun.response.aclose()
        finally:
            self.fleet.release(begun.place)

    async def _begin_at(self, place: Place, attempts: RequestAttempts) -> ProxiedAnswer:
        """There; or, if that takes long, at a second replica as well: the first to succeed, or the last failure. What
        the other had begun is given back."""
        after_s = self.fleet.config.router.hedge_after_s
        if after_s is None:
            return await self._attempt(place, attempts)
        tasks = {asyncio.create_task(self._attempt(place, attempts))}
        try:
            done, pending = await asyncio.wait(tasks, timeout=after_s)
            can_hedge = not done and self.fleet.budget.spend()
            if can_hedge and (other := self.fleet.try_claim(attempts.request, attempts.tried, {}, is_new=True)):
                attempts.tried.append(other.replica.name)
                tasks.add(asyncio.create_task(self._attempt(other, attempts)))
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

    async def _attempt(self, place: Place, attempts: RequestAttempts) -> ProxiedAnswer:
        """Ask one replica, up to the first byte of its answer. If that fails its place is given back."""
        has_begun = False
        try:
            begun = await self._send(place, attempts)
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

    async def _send(self, place: Place, attempts: RequestAttempts) -> ProxiedAnswer:
        replica = place.replica
        sent, translation = compose(attempts.request, replica, attempts.headers)
        response = await replica.upstream.send(sent)
        replica.last_byte_at = time.monotonic()
        try:
            is_started = response.status < 300 and is_stream(response.headers)
            headers = answer_headers(response, place, attempts, translation)
            if is_started and attempts.client:
                await attempts.client.accept(headers)
            begun = await (self._start if is_started else self._hold)(place, response, translation)
            begun.headers = headers
            return begun
        except BaseException:
            await response.aclose()
            raise

    async def _hold(self, place: Place, response: UpstreamResponse, translation: Translation | None) -> ProxiedAnswer:
        status = response.status
        if is_redirect(response):
            raise BadAnswer(response, status, b"")
        body = await read_body(response, MAX_ERROR_BYTES if status >= 400 else self.max_held_bytes)
        if translation:
            status, body = translation.answer(status, body)
        if response.status in RETRIED or response.status in REFUSED:
            raise BadAnswer(response, status, body)
        return ProxiedAnswer(place, response, status, _single(body), is_whole=True)

    async def _start(self, place: Place, response: UpstreamResponse, translation: Translation | None) -> ProxiedAnswer:
        body = await _from_first_event(whole_events(aiter(response)), place.replica)
        if translation:
            body = _translated(body, translation)
        return ProxiedAnswer(place, response, response.status, body, is_whole=False)


def compose(
    request: RoutedRequest, replica: Replica, headers: Mapping[bytes, bytes]
) -> tuple[UpstreamRequest, Translation | None]:
    """The client's own bytes if the replica speaks that API and calls the model so. Raises RequestError if the request
    cannot be said in any API the replica speaks."""
    model, spoken = replica.models.get(request.model, request.model), replica.speaks(request)
    sent = replica.headers(headers, request.tenant)
    changed = {"model": model} if model != request.model else {}
    if request.scope and replica.kind.salted:
        changed["cache_salt"] = request.cache_salt
    if request.api in spoken:
        body = request.edit(**changed) if changed else request.raw
        return UpstreamRequest("POST", request.target, sent, body), None
    given = {**request.read_body(), "model": model}
    translation = translate(request.api, spoken, given, is_strict=replica.kind.is_strict)
    path, translated = translation.request()
    return UpstreamRequest("POST", path, sent, msgspec.json.encode({**translated, **changed})), translation


def answer_headers(
    response: UpstreamResponse, place: Place, attempts: RequestAttempts, translation: Translation | None
) -> list[tuple[bytes, bytes]]:
    """The replica's, where the request went and why, and what a translation could not carry over."""
    choice = place.ticket.choice
    matched = f"{choice.matched_tokens}/{attempts.request.num_tokens}"
    route = render_route(choice.name, choice.reason, matched, len(attempts.tried))
    notes = "; ".join(translation.notes if translation else ()).encode("ascii", "replace")[:1000]
    return [*kept_headers(response.headers), (ROUTE_HEADER, route), *([(NOTES_HEADER, notes)] if notes else [])]


def render_route(name: str, reason: str, matched: str, num_tried: int) -> bytes:
    about = f"replica={name}; reason={reason.replace(' ', '_')}; matched={matched}; tried={num_tried}"
    return about.encode("latin-1", "replace")


async def _from_first_event(pieces: AsyncGenerator[bytes, None], replica: Replica) -> AsyncGenerator[bytes, None]:
    """Waits for something that is no ping: until then nothing was said, and the request may be put elsewhere."""
    async for first in pieces:
        replica.last_byte_at = time.monotonic()
        if not is_ping(first):
            return _resumed(first, pieces)
    return pieces


async def _resumed(first: bytes, pieces: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    yield first
    async for piece in pieces:
        yield piece


async def _single(body: bytes) -> AsyncGenerator[bytes, None]:
    yield body


async def whole_events(chunks: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
    """The same bytes, cut behind events. If the chunks break off, so does this, less the event they were in."""
    held = b""
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


async def relay(begun: ProxiedAnswer, api: Api, request_id: str, client: ClientStream) -> AnswerSummary:
    """Send all of an answer. A stream that breaks off ends in an error event."""
    answer_id, tail, last, is_first, is_broken = None, b"", b"", True, False
    try:
        async for piece in begun.body:
            begun.place.replica.last_byte_at = time.monotonic()
            if is_first:
                answer_id, is_first = read_id(piece), False
            tail = (tail + piece)[-END_BYTES:]
            if begun.is_whole:
                await send_whole(client, begun.status, begun.headers, piece, api, request_id)
            else:
                await client.write(piece)
    except TranslatedEnd:
        is_broken = True
    except UpstreamFailed as failure:
        is_broken = True
        error = RouteError(502, "replica_lost", f"the replica was lost while it answered: {failure}")
        last = render_event(error, api, request_id)
    if not begun.is_whole:
        await client.write(last, is_last=True)
    return summarize(answer_id, tail, is_messages=api == "messages", is_broken=is_broken)


async def send_whole(
    client: ClientStream, status: int, headers: Headers, body: bytes, api: Api, request_id: str
) -> None:
    """A whole answer, or an error; where a stream has begun already, as its last event."""
    if client.has_begun:
        about = _ERROR_MESSAGE.search(body)
        error = RouteError(status, "replica_failed", msgspec.json.decode(about[1]) if about else f"status {status}")
        await client.write(render_event(error, api, request_id), is_last=True)
    else:
        await client.send_whole(status, headers, body)


def is_redirect(response: UpstreamResponse) -> bool:
    """Neither followed, which would be a way to anywhere, nor passed on, which would send the client there."""
    return 300 <= response.status < 400


def kept_headers(headers: Headers) -> list[tuple[bytes, bytes]]:
    return [header for header in headers if header[0] not in DROPPED and not header[0].startswith(_CORS)]
