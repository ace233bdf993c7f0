"""How an event gets from the engine's thread to the client that waits for it.

    engine thread: on_events -> pending                    one wake-up of the loop for all streams that a step fed
    event loop:    pending -> parse -> collector -> take() what a slow client has not taken yet is merged, stays small

An answer is parsed here, once, when it arrives: who renders it, and how fast, changes nothing. An answer ends once: all
its requests finished, or the first failure, after which what is left of it is aborted.
"""

import asyncio
import logging
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import replace
from itertools import chain, groupby
from typing import NamedTuple

from starlette.types import Receive

from hotloop.chat.stream import CallParser, PlainText
from hotloop.core.errors import EngineClosed, HotloopError
from hotloop.core.request import FinishReason, Request, TokenEvent, TokenLogprob, Usage
from hotloop.core.stream import CallDelta, CallOpened, StreamEvent, TextDelta, ThoughtDelta
from hotloop.server.engine_client import EngineClient
from hotloop.server.errors import Disconnected
from hotloop.server.metrics import Metrics

log = logging.getLogger(__name__)

MAX_PENDING = 64
"""Pieces of one choice that are kept before they are merged into one."""


class Piece(NamedTuple):
    """What a choice has gained: its text, and what that says. A tuple, since one is made for every token."""

    text: str
    parts: tuple[StreamEvent, ...]
    num_calls: int
    """Calls that were opened in the choice so far."""
    usage: Usage
    logprobs: tuple[TokenLogprob, ...] = ()
    finish_reason: FinishReason | None = None
    stop_match: str | int | None = None
    token_ids: tuple[int, ...] = ()


def parse_piece(parser: CallParser, event: TokenEvent) -> Piece:
    _, token_ids, text, usage, logprobs, reason, stop_match, _ = event
    parts = parser.push(text)
    if reason:
        parts += parser.finish(is_cut=reason is FinishReason.LENGTH)
    return Piece(text, tuple(parts), parser.num_calls, usage, logprobs, reason, stop_match, token_ids)


class OutputCollector:
    """The requests behind one answer, and what they produced that nobody has taken yet. Lives on the event loop."""

    def __init__(
        self, requests: Sequence[Request], abort: Callable[..., None], parser: Callable[[], CallParser] = PlainText
    ) -> None:
        self.requests = requests
        self.last_event_at = [0.0] * len(requests)
        self.usages = [Usage(request.num_prompt, 0, 0) for request in requests]
        self.calls: list[list[CallOpened]] = [[] for _ in requests]
        self.failure: HotloopError | None = None
        self.is_over = False
        self._abort = abort
        self._num_open = len(requests)
        self._parsers = [parser() for _ in requests]
        self._pending: dict[int, list[Piece]] = {}
        self._waiter: asyncio.Future[None] | None = None  # of who takes what is new
        self._is_nudged = False

    @property
    def has_more(self) -> bool:
        """Whether `take` still has something to give, be it bad news."""
        return not self.is_over or bool(self._pending) or self.failure is not None

    async def take(self) -> list[tuple[int, Piece]]:
        """Everything new, one piece a choice, as soon as there is something, or nothing after a nudge. Raises what the
        answer failed with."""
        while not (self._pending or self.failure or self._is_nudged):
            await self._wait()
        self._is_nudged = False
        if self.failure:
            raise self.failure
        pending, self._pending = self._pending, {}
        return [(index, merge(pieces)) for index, pieces in pending.items()]

    async def take_all(self) -> list[tuple[int, Piece]]:
        while not self.is_over:
            await self._wait()
        return await self.take()

    def nudge(self) -> None:
        """Let whoever waits in `take` go on without anything new."""
        self._is_nudged = True
        self._wake()

    def add(self, index: int, event: TokenEvent) -> None:
        if self.is_over:
            return
        if event.finish_reason in (FinishReason.ABORT, FinishReason.ERROR):
            self.fail(event.error or EngineClosed("the server is shutting down: the request was aborted"))
            return
        self.usages[index] = event.usage
        pieces, piece = self._pending.setdefault(index, []), parse_piece(self._parsers[index], event)
        pieces.append(piece)
        if piece.num_calls > len(self.calls[index]):
            self.calls[index] += [part for part in piece.parts if isinstance(part, CallOpened)]
        if len(pieces) >= MAX_PENDING:
            pieces[:] = [merge(pieces)]
        self._num_open -= event.finish_reason is not None
        self.is_over = not self._num_open
        self._wake()

    def fail(self, error: HotloopError) -> None:
        """End now, for everyone: the waiting coroutine hears the error, the engine stops what is still running."""
        if self.is_over:
            return
        self.failure, self.is_over = error, True
        self._wake()
        self._abort(*[request.id for request in self.requests])

    @asynccontextmanager
    async def attended(self, receive: Receive) -> AsyncIterator[None]:
        """While the body runs, a client that hangs up ends the answer; when it is left, nothing of it runs on."""
        watch = asyncio.create_task(self._watch(receive))
        try:
            yield
        finally:
            watch.cancel()
            self.fail(Disconnected())

    async def _wait(self) -> None:
        self._waiter = asyncio.get_running_loop().create_future()
        await self._waiter

    def _wake(self) -> None:
        if self._waiter and not self._waiter.done():
            self._waiter.set_result(None)

    async def _watch(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self.fail(Disconnected())


def merge(pieces: Sequence[Piece]) -> Piece:
    if len(pieces) == 1:
        return pieces[0]
    return pieces[-1]._replace(
        text="".join(piece.text for piece in pieces),
        parts=tuple(_join(chain.from_iterable(piece.parts for piece in pieces))),
        logprobs=tuple(chain.from_iterable(piece.logprobs for piece in pieces)),
        token_ids=tuple(chain.from_iterable(piece.token_ids for piece in pieces)),
    )


def _join(parts: Iterable[StreamEvent]) -> Iterator[StreamEvent]:
    for _, together in groupby(parts, key=lambda part: (type(part), getattr(part, "index", None))):
        same = [*together]
        if isinstance(same[0], TextDelta | ThoughtDelta):
            text = "".join(part.text for part in same if isinstance(part, TextDelta | ThoughtDelta))
            yield replace(same[0], text=text)
        elif isinstance(same[0], CallDelta):
            arguments = (part.arguments for part in same if isinstance(part, CallDelta))
            yield CallDelta(same[0].index, "".join(arguments))
        else:
            yield from same


OnFinish = Callable[[Request, Sequence[CallOpened] | None], None]
"""Told of a request that has ended, and of the calls in its answer; None if nobody heard it."""


class _Route(NamedTuple):
    """Where the events of a request go."""

    outputs: OutputCollector
    choice: int
    on_first: Callable[[], None]
    on_finish: OnFinish


class EventBridge:
    """Hands requests to the engine and brings their events back to the event loop it is used on."""

    def __init__(self, engine: EngineClient, metrics: Metrics) -> None:
        self._engine = engine
        self._metrics = metrics
        self._loop: asyncio.AbstractEventLoop | None = None
        self._routes: dict[str, _Route] = {}  # of the requests that have not ended
        self._pending: deque[TokenEvent] = deque()
        self._is_waking = False

    @property
    def num_running(self) -> int:
        """Requests that have not ended."""
        return len(self._routes)

    async def submit(
        self,
        requests: Sequence[Request],
        on_finish: OnFinish,
        parser: Callable[[], CallParser],
        on_first: Callable[[], None] = lambda: None,
    ) -> OutputCollector:
        """All of the requests or none; raises what `Engine.submit` raises. `on_first` hears of each request's first
        event, behind those who wait for it, and `on_finish` of its end, before them."""
        self._loop = asyncio.get_running_loop()
        outputs = OutputCollector(requests, self._engine.abort, parser)
        self._routes |= {request.id: _Route(outputs, i, on_first, on_finish) for i, request in enumerate(requests)}
        is_admitted = False
        try:
            await self._engine.submit(requests, self._post)
            is_admitted = True
        finally:
            for request in () if is_admitted else requests:
                del self._routes[request.id]
        return outputs

    def abort_all(self) -> None:
        for route in [*self._routes.values()]:
            route.outputs.fail(EngineClosed("the server is shutting down: the request was aborted"))

    def _post(self, events: Sequence[TokenEvent]) -> None:
        """On the thread that tells. `_deliver` clears the flag before it reads, so an event is never left behind."""
        assert self._loop
        self._pending.extend(events)
        if not self._is_waking:
            self._is_waking = True
            with suppress(RuntimeError):  # the loop is closed: nobody is left to be told
                self._loop.call_soon_threadsafe(self._deliver)

    def _deliver(self) -> None:
        """Metrics are fed once for all streams: those that a step fed have mostly waited equally long."""
        self._is_waking = False
        now = time.monotonic()
        gaps: Counter[tuple[float, int]] = Counter()
        while self._pending:
            event = self._pending.popleft()
            route = self._routes.get(event.request_id)
            if route is None:  # whoever submitted it gave up before hearing that it was admitted
                continue
            outputs, index, on_first, on_finish = route
            if last_event_at := outputs.last_event_at[index]:
                gaps[now - last_event_at, len(event.token_ids)] += 1
            else:
                asyncio.get_running_loop().call_soon(on_first)
            outputs.last_event_at[index] = now
            with _contained(outputs):
                outputs.add(index, event)
            if event.finish_reason:
                del self._routes[event.request_id]
                request = outputs.requests[index]
                with _contained(outputs):
                    on_finish(request, None if outputs.failure else outputs.calls[index])
                self._engine.release(request)
        self._metrics.observe_gaps(gaps)


@contextmanager
def _contained(outputs: OutputCollector) -> Iterator[None]:
    """A mistake of ours ends the answer it was made in, and no other one has to wait for its events."""
    try:
        yield
    except Exception:
        log.exception("an answer could not be delivered")
        outputs.fail(HotloopError("internal server error; see the server log"))
