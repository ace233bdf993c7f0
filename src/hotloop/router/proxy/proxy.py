"""One request's way to an answer: claim a place, ask, and try elsewhere as long as nothing was said yet.

    ├── begin: may fail, and be tried again ──┤├── relay: byte for byte, and a proper end whatever happens ──┤
                                              first byte

A whole answer is held until it is whole, so it can be asked for again up to its last byte. Of a stream only complete
events are passed on: one that breaks off in the middle is dropped, so that what ends the stream can be read.
"""

import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any

from hotloop.core.errors import HotloopError
from hotloop.router.errors import RouteError
from hotloop.router.proxy.compose import compose
from hotloop.router.proxy.hedge import race
from hotloop.router.replicas.fleet import Fleet, Place
from hotloop.router.replicas.replica import Replica
from hotloop.router.request import RoutedRequest
from hotloop.router.spans import RouteSpan
from hotloop.router.translate import Translation
from hotloop.router.upstream.wire import Headers, UpstreamFailed, UpstreamRequest, UpstreamResponse

RETRIED = frozenset({429, 500, 502, 503, 504, 529})
"""What another replica may answer better."""
REFUSED = frozenset({401, 403})
"""Our own key was refused there: no fault of the client's."""
BUSY = frozenset({429, 529})
"""Too much to do is not broken."""
MAX_ERROR_BYTES = 64 << 10
MAX_EVENT_BYTES = 1 << 20
"""A longer one is passed on in pieces."""


class BadAnswer(RouteError):
    """A replica answered with an error: what it said, for the client if nobody answers better."""

    def __init__(self, answer: UpstreamResponse, status: int, body: bytes) -> None:
        self.is_for_client = answer.status not in REFUSED
        said = f"a replica answered {answer.status}" if self.is_for_client else "a replica refused the router's own key"
        super().__init__(status if self.is_for_client else 502, "replica_failed", said)
        self.headers = answer.headers
        self.body = body


@dataclass(slots=True)
class Begun:
    """An answer that has begun: from here on there is no other. Give it back with `aclose`."""

    place: Place
    answer: UpstreamResponse
    status: int
    body: AsyncGenerator[bytes, None]
    """Ends, or raises UpstreamFailed."""
    is_whole: bool
    notes: tuple[str, ...] = ()
    """What a translation could not carry over."""
    num_tried: int = 1

    async def aclose(self) -> None:
        await self.body.aclose()
        await self.answer.aclose()


@dataclass(slots=True)
class Proxy:
    """Finds answers for requests. `on_retry` hears which replica failed, and how."""

    fleet: Fleet
    max_held_bytes: int
    on_retry: Callable[[Replica, str], None] = lambda replica, why: None

    async def begin(self, request: RoutedRequest, span: RouteSpan, target: str) -> Begun:
        """The first answer that begins. Raises BadAnswer, UpstreamFailed or RouteError where none does."""
        self.fleet.budget.earn()
        known = await self.fleet.find_known(request)
        tried: list[str] = []
        while True:
            asked_at = time.monotonic()
            place = await self.fleet.claim(request, tried, known)
            tried.append(place.replica.name)
            claimed_at = time.monotonic()
            span.claim(place.replica.name, claimed_at - asked_at)
            try:
                begun = await self._begin_at(place, request, span.headers, target, tried)
            except (UpstreamFailed, BadAnswer) as failure:
                self.on_retry(place.replica, _name_of(failure))
                span.fail(place.replica.name, _name_of(failure), claimed_at)
                if len(tried) > self.fleet.config.router.max_retries or not self.fleet.budget.spend():
                    raise
            else:
                begun.num_tried = len(tried)
                return begun

    async def finish(self, begun: Begun) -> None:
        """Give back what an answer held."""
        try:
            await begun.aclose()
        finally:
            self.fleet.release(begun.place)

    async def _begin_at(
        self, place: Place, request: RoutedRequest, headers: Mapping[bytes, bytes], target: str, tried: list[str]
    ) -> Begun:
        """There, or at a second replica if that one begins earlier."""
        attempt = self._attempt(place, request, headers, target)
        after_s = self.fleet.config.router.hedge_after_s
        if after_s is None:
            return await attempt

        def begin_second() -> Coroutine[Any, Any, Begun] | None:
            other = self.fleet.try_claim(request, tried, {}, is_new=True) if self.fleet.budget.spend() else None
            if not other:
                return None
            tried.append(other.replica.name)
            return self._attempt(other, request, headers, target)

        return await race(attempt, begin_second, after_s=after_s, dismiss=self.finish)

    async def _attempt(
        self, place: Place, request: RoutedRequest, headers: Mapping[bytes, bytes], target: str
    ) -> Begun:
        """Ask one replica, up to the first byte of its answer. If that fails its place is given back."""
        is_heard = False
        try:
            begun = await self._ask(place, request, headers, target)
            is_heard = True
            self.fleet.begin(place)
            return begun
        except (UpstreamFailed, BadAnswer) as failure:
            if isinstance(failure, UpstreamFailed):
                self.fleet.fail(place, is_gone=failure.stage == "connect" and not failure.is_timeout)
            elif failure.status not in BUSY:
                self.fleet.fail(place)
            raise
        finally:
            if not is_heard:
                place.replica.breaker.give_up()
                self.fleet.release(place)

    async def _ask(self, place: Place, request: RoutedRequest, headers: Mapping[bytes, bytes], target: str) -> Begun:
        replica = place.replica
        ask, translation = compose(request, replica, headers, target)
        answer = await replica.upstream.send(ask)
        replica.last_byte_at = time.monotonic()
        try:
            if answer.status < 400 and _is_stream(answer.headers):
                return await self._start(place, answer, translation)
            return await self._hold(place, answer, translation)
        except BaseException:
            await answer.aclose()
            raise

    async def _hold(self, place: Place, answer: UpstreamResponse, translation: Translation | None) -> Begun:
        """A whole answer, or an error."""
        most = MAX_ERROR_BYTES if answer.status >= 400 else self.max_held_bytes
        body = await _collect(answer, most)
        status, said = translation.answer(answer.status, body) if translation else (answer.status, body)
        if answer.status in RETRIED or answer.status in REFUSED:
            raise BadAnswer(answer, status, said)
        return Begun(place, answer, status, _single(said), is_whole=True, notes=_notes(translation))

    async def _start(self, place: Place, answer: UpstreamResponse, translation: Translation | None) -> Begun:
        """A stream, once its first piece is there."""
        chunks = answer.chunks()
        first = await anext(chunks, b"")
        body = _whole_events(place.replica, first, chunks)
        if translation:
            body = _translated(body, translation)
        return Begun(place, answer, answer.status, body, is_whole=False, notes=_notes(translation))


async def ask_whole(replica: Replica, ask: UpstreamRequest, max_bytes: int) -> tuple[int, Headers, bytes]:
    """A whole answer of one replica. Raises UpstreamFailed."""
    answer = await replica.upstream.send(ask)
    try:
        return answer.status, answer.headers, await _collect(answer, max_bytes)
    finally:
        await answer.aclose()


async def _collect(answer: UpstreamResponse, max_bytes: int) -> bytes:
    body = bytearray()
    async for chunk in answer.chunks():
        body += chunk
        if len(body) > max_bytes:
            raise UpstreamFailed(f"it is larger than the {max_bytes} bytes that are held", stage="body")
    return bytes(body)


async def _single(body: bytes) -> AsyncGenerator[bytes, None]:
    yield body


async def _whole_events(replica: Replica, first: bytes, chunks: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
    cut = end_of_events(first)
    held = first[cut:]
    if cut:
        yield first[:cut]
    async for chunk in chunks:
        replica.last_byte_at = time.monotonic()
        piece = held + chunk if held else chunk
        cut = end_of_events(piece) or (len(piece) if len(piece) > MAX_EVENT_BYTES else 0)
        held = piece[cut:]
        if cut:
            yield piece[:cut]
    if held:
        yield held


async def _translated(body: AsyncGenerator[bytes, None], translation: Translation) -> AsyncGenerator[bytes, None]:
    """What broke off ends properly in the other language too."""
    stream = translation.stream()
    try:
        async for piece in body:
            said = stream.feed(piece)
            if said:
                yield said
    except HotloopError as error:
        yield stream.end(str(error))
        raise TranslatedEnd from error
    yield stream.end(None)


class TranslatedEnd(HotloopError):
    """A stream broke off, and its end has been told already."""


def end_of_events(piece: bytes) -> int:
    """Where the last complete event ends."""
    if piece.endswith((b"\n\n", b"\r\n\r\n")):
        return len(piece)
    plain, carried = piece.rfind(b"\n\n"), piece.rfind(b"\r\n\r\n")
    return max(plain + 2 if plain >= 0 else 0, carried + 4 if carried >= 0 else 0)


def _notes(translation: Translation | None) -> tuple[str, ...]:
    return tuple(translation.notes) if translation else ()


def _is_stream(headers: Headers) -> bool:
    return any(name == b"content-type" and value.startswith(b"text/event-stream") for name, value in headers)


def _name_of(failure: UpstreamFailed | BadAnswer) -> str:
    return failure.stage if isinstance(failure, UpstreamFailed) else str(failure.status)
