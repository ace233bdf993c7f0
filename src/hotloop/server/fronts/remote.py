"""A front's end of a link: the client of an engine in another process.

The requests here mirror the engine's: events bring their tokens, counts and times. Requests that got one more token and
nothing else are counted and detokenised here.
"""

import asyncio
import socket
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

import msgspec

from hotloop.core.config import ClassLimits, EngineConfig
from hotloop.core.errors import DeviceLost, EngineClosed, HotloopError
from hotloop.core.request import FinishReason, KvSource, Request, TokenEvent, Wait
from hotloop.core.retention import Hold
from hotloop.core.sharing import UNSHARED, Sharing
from hotloop.engine.core import OnEvents
from hotloop.engine.grammar.matcher import Grammars
from hotloop.engine.text import TextStream
from hotloop.models.template import ChatTemplate
from hotloop.models.tokenizer import Tokenizer
from hotloop.server.engine_client import EngineFacts
from hotloop.server.fronts import messages
from hotloop.server.fronts.link import Link
from hotloop.server.fronts.sharing import FrontSharing
from hotloop.server.metrics import Counts

_COUNTS = (
    *("num_cached", "num_forced", "num_drafted", "num_accepted", "num_steps", "num_restored", "num_from_host"),
    "num_reasoning",
)
"""Of a usage, called the same in a request."""


@dataclass(slots=True)
class _Mirror:
    request: Request
    on_events: OnEvents
    text: TextStream | None


class RemoteEngine:
    """An `EngineClient`. To be used on one event loop; `on_told` hears what the engine's process says beside."""

    def __init__(
        self,
        sock: socket.socket,
        facts: EngineFacts,
        tokenizer: Tokenizer,
        template: ChatTemplate | None,
        *,
        grammar_bytes: int,
        on_told: Callable[[str, Any], None] = lambda what, value: None,
    ) -> None:
        self.facts = facts
        self.class_limits: Sequence[ClassLimits] = facts.class_limits
        self.tokenizer = tokenizer
        self.template = template
        self.grammars = Grammars(tokenizer, facts.vocab_size, grammar_bytes)
        self.cache_refill_s = 0.0
        self.failure: Exception | None = None
        self._on_told = on_told
        self._link = Link(sock, self._take, self._lose)
        self._shared = FrontSharing(self._link.send) if facts.num_fronts > 1 else None
        self.sharing: Sharing = self._shared or UNSHARED
        self._count: Callable[[], Counts] = list
        self._numbers = count()
        self._mirrors: dict[int, _Mirror] = {}
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._closing: set[asyncio.Future[int]] = set()

    @property
    def is_lost(self) -> bool:
        return not self._link.is_open or isinstance(self.failure, DeviceLost)

    def limit_classes(self, config: EngineConfig) -> None:
        """They are in force where the engine is; here they are measured against."""
        self.class_limits = config.class_limits

    def start(self) -> None:
        self._link.start()

    def stop(self) -> None:
        self._link.close()

    async def submit(self, requests: Sequence[Request], on_events: OnEvents) -> None:
        self._check()
        for request in requests:
            text = None if request.sampling.stop else TextStream(self.tokenizer, request.sampling)
            self._mirrors[request.number] = _Mirror(request, on_events, text)
        number, is_admitted = next(self._numbers), False
        try:
            new = [_render_request(request) for request in requests]
            await self._send_and_wait(number, messages.Submit(number, new))
            is_admitted = True
        finally:
            if not is_admitted:  # refused, or nobody waits for it any more
                for request in requests:
                    self._mirrors.pop(request.number, None)
                self.abort(*(request.id for request in requests))
                for request in requests:
                    self.release(request)

    def abort(self, *request_ids: str) -> None:
        self._link.send(messages.Abort(list(request_ids)))

    def hold(self, request: Request, hold: Hold, num_tokens: int) -> None:
        self._link.send(messages.HoldPrefix(request.id, num_tokens, hold))

    def release(self, request: Request) -> None:
        self._link.send(messages.Release(request.id))

    def close_session(self, name: str) -> "asyncio.Future[int]":
        closing: asyncio.Future[int] = asyncio.ensure_future(self.ask("close_session", name))
        self._closing.add(closing)
        closing.add_done_callback(self._note_closed)
        return closing

    def _note_closed(self, closing: "asyncio.Future[int]") -> None:
        self._closing.discard(closing)
        if not closing.cancelled():
            closing.exception()  # told to whoever awaits it, if anybody does

    async def read_kv(self, salt: str, token_ids: "array[int]") -> memoryview | None:
        data: bytes | None = await self.ask("read_kv", (salt, token_ids.tobytes()))
        return None if data is None else memoryview(data)

    async def find_session(self, name: str) -> "tuple[array[int], str] | None":
        found = await self.ask("find_session", name)
        return (array("i", found[0]), found[1]) if found else None

    async def take_kv(self, source: KvSource, salt: str, token_ids: Sequence[int], session: str) -> int:
        asked = source.url, source.key, salt, array("i", token_ids).tobytes(), session
        num_known: int = await self.ask("take_kv", asked)
        return num_known

    async def ask(self, what: str, value: Any = None) -> Any:
        """Raises what the answer failed with."""
        self._check()
        number = next(self._numbers)
        return await self._send_and_wait(number, messages.Ask(number, what, value))

    def tell(self, what: str) -> None:
        """As `ask`, without waiting for an answer."""
        self._link.send(messages.Ask(next(self._numbers), what))

    async def is_ready(self) -> bool:
        return self._link.is_open and bool(await self.ask("is_ready"))

    async def metrics(self) -> bytes:
        page: bytes = await self.ask("metrics")
        return page

    async def drain(self, timeout_s: float) -> None:
        if self._link.is_open:
            await self.ask("drain", timeout_s)

    async def catch_up(self) -> None:
        if self._shared:
            await self.ask("catch_up")

    def offer_counts(self, count: Callable[[], Counts]) -> None:
        self._count = count

    async def other_counts(self) -> Counts:
        counts: Counts = await self.ask("counts", self._count())
        return counts

    def _check(self) -> None:
        if not self._link.is_open:
            raise EngineClosed("the engine's process has ended")

    async def _send_and_wait(self, number: int, message: msgspec.Struct) -> Any:
        answer = self._waiting[number] = asyncio.get_running_loop().create_future()
        self._link.send(message)
        try:
            return await answer
        finally:
            self._waiting.pop(number, None)

    def _take(self, frame: bytes) -> None:
        match messages.from_engine.decode(frame):
            case messages.Stepped(tokens, events):
                self._step(tokens, events)
            case messages.Admitted(number) | messages.Reply(number, error=None) as answered:
                self._answer(number, answered.value if isinstance(answered, messages.Reply) else None)
            case messages.Refused(number, error) | messages.Reply(number, error=error):
                assert error
                self._answer(number, error=error.to_error())
            case messages.SharedChange() as change if self._shared:
                self._shared.take(change)
            case messages.Ask(number):  # there is but one question
                self._link.send(messages.Reply(number, self._count()))
            case messages.Failed(error):
                self.failure = error.to_error()
            case messages.Told(what, value):
                self._on_told(what, value)

    def _answer(self, number: int, value: Any = None, error: HotloopError | None = None) -> None:
        waiting = self._waiting.get(number)
        if waiting is None or waiting.done():
            return
        if error:
            waiting.set_exception(error)
        else:
            waiting.set_result(value)

    def _step(self, tokens: bytes, events: Sequence[messages.Event]) -> None:
        told: dict[OnEvents, list[TokenEvent]] = {}
        pairs = iter(array("q", tokens))
        for number, token_id in zip(pairs, pairs, strict=True):
            if mirror := self._mirrors.get(number):
                told.setdefault(mirror.on_events, []).append(_count_token(mirror, token_id))
        for event in events:
            if mirror := self._mirrors.get(event.number):
                if event.facts:
                    self.cache_refill_s = event.facts.cache_refill_s
                if event.finish_reason:
                    del self._mirrors[event.number]
                told.setdefault(mirror.on_events, []).append(_apply(mirror, event))
        for on_events, given in told.items():
            on_events(given)

    def _lose(self) -> None:
        """The engine's process is gone: nobody is left waiting."""
        error = EngineClosed("the engine's process has ended")
        self.failure = self.failure or error
        mirrors, self._mirrors = self._mirrors, {}
        for mirror in mirrors.values():
            request = mirror.request
            request.finish_reason = FinishReason.ERROR
            lost = TokenEvent(request.id, (), "", request.usage, finish_reason=FinishReason.ERROR, error=error)
            mirror.on_events([lost])
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(error)


def _render_request(request: Request) -> messages.NewRequest:
    lists: dict[str, Any] = {"resume_at": list(request.resume_at), "begun_ids": list(request.begun_ids)}
    same = {name: getattr(request, name) for name in messages.REQUEST_FIELDS if name not in lists}
    return messages.NewRequest(number=request.number, prompt=request.token_ids.tobytes(), **same, **lists)


def _count_token(mirror: _Mirror, token_id: int) -> TokenEvent:
    request = mirror.request
    request.token_ids.append(token_id)
    request.num_steps += 1
    assert mirror.text
    text, _ = mirror.text.push(token_id)
    return TokenEvent(request.id, (token_id,), text, request.usage)


def _apply(mirror: _Mirror, event: messages.Event) -> TokenEvent:
    request, reason = mirror.request, event.finish_reason
    request.token_ids.extend(event.token_ids)
    request.finish_reason = reason
    for name in _COUNTS:
        setattr(request, name, getattr(event.usage, name))
    request.waits_s |= {wait: event.usage.waits_s.get(wait, 0.0) for wait in Wait}
    for name in messages.REQUEST_FACTS if event.facts else ():
        setattr(request, name, getattr(event.facts, name))
    text = event.text
    if mirror.text:
        text = "".join([mirror.text.push(token_id)[0] for token_id in event.token_ids])
        if reason in (FinishReason.STOP, FinishReason.LENGTH):
            text += mirror.text.finish()
    error = event.error.to_error() if event.error else None
    logprobs = tuple(event.logprobs)
    return TokenEvent(request.id, tuple(event.token_ids), text, event.usage, logprobs, reason, event.stop_match, error)
