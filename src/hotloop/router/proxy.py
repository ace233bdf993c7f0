"""One request's way to an answer: claim a place, send, and retry elsewhere as long as nothing was said yet.

    ├── begin: may fail, and be retried ──┤├── relay: byte for byte, and a proper end whatever happens ──┤
                                          first byte that is no ping

A whole answer is held until it is whole, so it can be retried up to its last byte. Of a stream only complete events are
passed on: one that breaks off in the middle is dropped, so that the error event behind it can be read.
"""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import dropwhile

from hotloop.core.errors import HotloopError
from hotloop.http.bodies import read_aside
from hotloop.router.answer import MAX_TOKENS, ProxiedAnswer
from hotloop.router.client_stream import ClientStream
from hotloop.router.compose import Composed, compose
from hotloop.router.errors import RouteError, render_event
from hotloop.router.kinds import WITHOUT_STAND_IN, Api, is_unknown_path
from hotloop.router.lasting import LastingStream, is_lasting
from hotloop.router.replicas.replica import Replica
from hotloop.router.replicas.replica_set import Place, ReplicaSet
from hotloop.router.request import RoutedRequest
from hotloop.router.spans import RouteSpan
from hotloop.router.summary import END_BYTES, AnswerSummary, hide_usage, read_id, summarize
from hotloop.router.translate import StreamTranslation, Translation
from hotloop.router.upstream.wire import Headers, UpstreamFailed, UpstreamResponse, read_body
from hotloop.wire.errors import read_failure
from hotloop.wire.responses.items import ItemStore
from hotloop.wire.sse import find_event_end, is_ping, split_events, take_tokens

log = logging.getLogger("hotloop.router")

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

NO_PRIORITIES = b"riority scheduling is not enabled"
"""So old versions of vLLM word it."""


class BadAnswer(RouteError):
    """A replica answered with an error: what it said, for the client if nobody answers better."""

    def __init__(self, response: UpstreamResponse, status: int, body: bytes) -> None:
        self.is_for_client = response.status not in REFUSED and not is_redirect(response)
        about = "refused the router's own key" if response.status in REFUSED else f"answered {response.status}"
        super().__init__(status if self.is_for_client else 502, "replica_failed", f"a replica {about}")
        self.headers = response.headers
        self.body = body


class UnknownPath(HotloopError):
    """A replica does not have the path of an API that its kind speaks."""


class ClassRefused(HotloopError):
    """A replica that schedules by no priority has refused one."""


@dataclass(slots=True)
class RequestAttempts:
    """One request, wherever it is put. The client hears when it was accepted; of our own questions nobody does."""

    request: RoutedRequest
    headers: Mapping[bytes, bytes]
    client: ClientStream | None = None
    tried: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Proxy:
    """Finds answers for requests. `on_failure` is told which replica failed, and how; `on_resume`, which one was lost
    in the middle of a stream, and how that went on."""

    replica_set: ReplicaSet
    max_held_bytes: int
    on_failure: Callable[[str, str], None]
    on_resume: Callable[[str, str], None]
    items: ItemStore = field(default_factory=ItemStore)
    """What translated answers have put out."""

    async def begin(self, request: RoutedRequest, span: RouteSpan, client: ClientStream | None = None) -> ProxiedAnswer:
        """The first answer that begins. Raises BadAnswer, UpstreamFailed or RouteError where none does."""
        begun = await self._begin(request, span, client)
        if self.replica_set.config.router.resume_streams and is_lasting(request) and not begun.is_whole:
            lasting = LastingStream(
                begun,
                request,
                span.request_id,
                self.replica_set,
                self.items,
                lambda request, tried: self._begin(request, span, None, tried),
                self.finish,
                self.on_resume,
            )
            begun.body = lasting.relay(begun.body)
        return begun

    async def _begin(
        self, request: RoutedRequest, span: RouteSpan, client: ClientStream | None, tried: Sequence[str] = ()
    ) -> ProxiedAnswer:
        self.replica_set.budget.earn()
        known = await self.replica_set.find_known(request)
        attempts = RequestAttempts(request, span.headers, client, [*tried])
        while True:
            asked_at = time.monotonic()
            place = await self.replica_set.claim(request, attempts.tried, known)
            name = place.replica.name
            attempts.tried.append(name)
            claimed_at = time.monotonic()
            span.claim(name, claimed_at - asked_at)
            try:
                return await self._begin_at(place, attempts)
            except UnknownPath:
                continue  # it is not placed there again
            except (UpstreamFailed, BadAnswer) as failure:
                why = failure.stage if isinstance(failure, UpstreamFailed) else str(failure.status)
                self.on_failure(name, why)
                span.fail(name, why, claimed_at)
                if not self._may_retry(attempts):
                    raise
                log.warning("retry: request=%s replica=%s reason=%s", span.request_id, name, failure)

    async def finish(self, begun: ProxiedAnswer) -> None:
        try:
            await begun.body.aclose()
            await begun.response.aclose()
        finally:
            self.replica_set.release(begun.place)

    async def _begin_at(self, place: Place, attempts: RequestAttempts) -> ProxiedAnswer:
        """There; or, if that takes long, at a second replica as well: the first to succeed, or the last failure. What
        the other had begun is given back."""
        after_s = self.replica_set.config.router.hedge_after_s
        if after_s is None:
            return await self._attempt(place, attempts)
        tasks = {asyncio.create_task(self._attempt(place, attempts))}
        try:
            done, pending = await asyncio.wait(tasks, timeout=after_s)
            can_hedge = not done and self.replica_set.budget.spend()
            if can_hedge and (other := self.replica_set.try_claim(attempts.request, attempts.tried, {}, is_new=True)):
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
            self.replica_set.begin(place)
            return begun
        except UpstreamFailed as failure:
            self.replica_set.fail(place, is_gone=failure.is_gone)
            raise
        except BadAnswer as failure:
            if failure.status not in BUSY:
                self.replica_set.fail(place)
            raise
        finally:
            if not has_begun:
                self.replica_set.give_back(place)

    async def _send(self, place: Place, attempts: RequestAttempts) -> ProxiedAnswer:
        replica, api = place.replica, attempts.request.api
        try:
            return await self._exchange(place, attempts)
        except ClassRefused:
            replica.class_step = 0
            log.info("%s does not schedule by priority: classes are left out until it restarts", replica.name)
            return await self._exchange(place, attempts)
        except UnknownPath:
            replica.missing_apis |= {api}
            if api in WITHOUT_STAND_IN:
                log.info("%s has no %s: such requests go elsewhere until it restarts", replica.name, api)
                raise
        is_there = False
        try:
            begun = await self._exchange(place, attempts)
            is_there = begun.response.status not in (404, 405)
            return begun
        finally:
            if is_there:
                what = "%s does not speak the %s API: such requests are translated until it restarts"
                log.info(what, replica.name, api)
            else:  # nothing is there: for a moment, or at all, which says nothing of this API
                replica.missing_apis -= {api}

    async def _exchange(self, place: Place, attempts: RequestAttempts) -> ProxiedAnswer:
        replica = place.replica
        tells_tokens = self.replica_set.config.router.resume_streams and attempts.request.is_stream
        request = attempts.request
        make = partial(
            compose,
            request,
            replica,
            attempts.headers,
            self.items,
            tells_tokens=tells_tokens,
            kv_source=self.replica_set.find_source(place),
        )
        composed = await read_aside(len(request.raw), make)

        def may_resend() -> bool:
            may = self._may_retry(attempts)
            attempts.tried.extend([replica.name] if may else [])
            return may

        response = await replica.upstream.send(composed.sent, may_resend)
        replica.last_byte_at = time.monotonic()
        try:
            is_started = response.status < 300 and is_stream(response.headers)
            headers = answer_headers(response, place, attempts, composed.translation)
            if is_started and attempts.client:
                await attempts.client.accept(headers)
            begun = await (self._start if is_started else self._hold)(place, response, composed)
            begun.headers = headers
            return begun
        except BaseException:
            await response.aclose()
            raise

    def _may_retry(self, attempts: RequestAttempts) -> bool:
        return len(attempts.tried) <= self.replica_set.config.router.max_retries and self.replica_set.budget.spend()

    async def _hold(self, place: Place, response: UpstreamResponse, composed: Composed) -> ProxiedAnswer:
        status = response.status
        if is_redirect(response):
            raise BadAnswer(response, status, b"")
        body = await read_body(response, MAX_ERROR_BYTES if status >= 400 else self.max_held_bytes)
        if composed.has_other_way and is_unknown_path(status, body):
            raise UnknownPath
        if composed.has_class and status == 400 and NO_PRIORITIES in body:
            raise ClassRefused
        if composed.translation:
            status, body = composed.translation.answer(status, body)
        if response.status in RETRIED or response.status in REFUSED:
            raise BadAnswer(response, status, body)
        return ProxiedAnswer(place, response, status, _single(body), is_whole=True)

    async def _start(self, place: Place, response: UpstreamResponse, composed: Composed) -> ProxiedAnswer:
        token_ids: list[int] = []
        body = await _from_first_event(_without_tokens(whole_events(aiter(response)), token_ids), place.replica)
        stream = composed.translation.stream() if composed.translation else None
        begun = ProxiedAnswer(place, response, response.status, body, is_whole=False, hides_usage=composed.hides_usage)
        begun.token_ids = token_ids
        if stream:
            begun.body, begun.render_end = _translated(body, stream), stream.end
        return begun


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
            said = dropwhile(is_ping, split_events(first))  # they came together; the client was sent one already
            return _resumed(b"".join(said), pieces)
    return pieces


async def _resumed(first: bytes, pieces: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    yield first
    async for piece in pieces:
        yield piece


async def _single(body: bytes) -> AsyncGenerator[bytes, None]:
    yield body


async def whole_events(chunks: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
    """The same bytes, cut behind events. If the chunks break off, so does this, less the event they were in."""
    held = bytearray()
    async for chunk in chunks:
        seen = max(0, len(held) - 1)  # no byte is looked at twice but the last, which may be half of a blank line
        held += chunk
        if cut := find_event_end(held, seen) or (len(held) if len(held) > MAX_EVENT_BYTES else 0):
            yield bytes(held[:cut])
            del held[:cut]
    if held:
        yield bytes(held)


async def _without_tokens(pieces: AsyncIterator[bytes], token_ids: list[int]) -> AsyncGenerator[bytes, None]:
    """Whole events without the tokens that they were made of, which are noted here."""
    async for piece in pieces:
        events, told = take_tokens(piece)
        token_ids += told if len(token_ids) < MAX_TOKENS else ()
        if events:
            yield events


async def _translated(body: AsyncGenerator[bytes, None], stream: StreamTranslation) -> AsyncGenerator[bytes, None]:
    async for piece in body:
        if translated := stream.feed(piece):
            yield translated
    yield stream.end(None)


def is_stream(headers: Headers) -> bool:
    return any(name == b"content-type" and value.startswith(b"text/event-stream") for name, value in headers)


async def relay(begun: ProxiedAnswer, api: Api, request_id: str, client: ClientStream) -> AnswerSummary:
    """Send all of an answer. A stream that breaks off ends in an error event."""
    answer_id, tail, last, is_first = None, b"", b"", True
    began_at, num_bytes, lost = time.monotonic(), 0, ""
    try:
        async for piece in begun.body:
            begun.place.replica.last_byte_at = time.monotonic()
            if is_first:
                answer_id, is_first = read_id(piece), False
            tail = (tail + piece)[-END_BYTES:]
            num_bytes += len(piece)
            if begun.is_whole:
                await send_whole(client, begun.status, begun.headers, piece, api, request_id)
            elif shown := hide_usage(piece) if begun.hides_usage else piece:
                await client.write(shown)
    except UpstreamFailed as failure:
        lost = str(failure)
        error = RouteError(502, "replica_lost", f"the replica was lost while it answered: {failure}")
        last = begun.render_end(lost) if begun.render_end else render_event(error, api, request_id)
    if lost:
        where = request_id, begun.place.replica.name, num_bytes, time.monotonic() - began_at
        log.warning("stream lost: request=%s replica=%s after_bytes=%d after_s=%.1f reason=%s", *where, lost)
    if not begun.is_whole:
        await client.write(last, is_last=True)
    summary = summarize(answer_id, tail, is_messages=api == "messages", is_broken=bool(lost))
    return summary.with_usage(begun.usage) if begun.usage else summary


async def send_whole(
    client: ClientStream, status: int, headers: Headers, body: bytes, api: Api, request_id: str
) -> None:
    """A whole answer, or an error; where a stream has begun already, as its last event."""
    if client.has_begun:
        error = RouteError(status, "replica_failed", str(read_failure(status, body)))
        await client.write(render_event(error, api, request_id), is_last=True)
    else:
        await client.send_whole(status, headers, body)


def is_redirect(response: UpstreamResponse) -> bool:
    """Neither followed, which would be a way to anywhere, nor passed on, which would send the client there."""
    return 300 <= response.status < 400


def kept_headers(headers: Headers) -> list[tuple[bytes, bytes]]:
    return [header for header in headers if header[0] not in DROPPED and not header[0].startswith(_CORS)]
