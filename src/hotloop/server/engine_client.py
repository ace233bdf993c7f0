"""What the server needs of an engine, be it in this process (`LocalEngine`) or in another (`fronts.remote`)."""

import asyncio
import time
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from hotloop.core.config import ClassLimits
from hotloop.core.errors import DeviceLost
from hotloop.core.request import KvSource, Request
from hotloop.core.retention import Hold
from hotloop.core.sharing import UNSHARED, Sharing
from hotloop.engine.core import OnEvents
from hotloop.engine.engine import Engine
from hotloop.engine.grammar.matcher import Grammars
from hotloop.engine.offload.disk.store import Segments
from hotloop.models.template import ChatTemplate
from hotloop.models.tokenizer import Tokenizer
from hotloop.server.engine_metrics import EngineMetrics
from hotloop.server.metrics import Counts


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """What does not change while an engine runs, but for its classes' limits; a front is told it first."""

    name: str
    device_note: str
    block_size: int
    num_kv_tokens: int
    max_context: int
    vocab_size: int
    class_limits: tuple[ClassLimits, ...]
    publishes_kv: bool
    kv_segments: Segments | None
    """How KV is cut that other servers may have; None: they may not."""
    kv_peers: tuple[str, ...]
    """The servers that may be asked for KV."""
    started_at: int
    """Unix time."""
    num_fronts: int
    """Processes that serve one address with it."""

    @classmethod
    def of(cls, engine: Engine, *, num_fronts: int = 1) -> "EngineFacts":
        return cls(
            engine.name,
            engine.device_note,
            engine.block_size,
            engine.num_kv_tokens,
            engine.max_context,
            engine.vocab_size,
            engine.config.class_limits,
            engine.kv_events is not None,
            engine.kv_segments,
            engine.config.kv_peers,
            int(time.time()),
            num_fronts,
        )


class EngineClient(Protocol):
    facts: EngineFacts
    tokenizer: Tokenizer
    template: ChatTemplate | None
    grammars: Grammars
    """Where a grammar is compiled, to be judged, before it is submitted."""
    sharing: Sharing
    """With the other fronts."""

    @property
    def class_limits(self) -> Sequence[ClassLimits]:
        """As they are now."""

    @property
    def failure(self) -> Exception | None:
        """What ended the engine: it will never run again."""

    @property
    def is_lost(self) -> bool:
        """Whether it will serve nobody in this process any more, so that another one should begin."""

    @property
    def cache_refill_s(self) -> float: ...

    def start(self) -> None:
        """On the event loop, once, before anything is submitted."""

    def stop(self) -> None:
        """On the event loop, when everything has ended."""

    async def submit(self, requests: Sequence[Request], on_events: OnEvents) -> None:
        """As `Engine.submit`. The requests are those whose counts and times are looked at afterwards."""

    def abort(self, *request_ids: str) -> None: ...

    def hold(self, request: Request, hold: Hold, num_tokens: int) -> None:
        """Tell when the first tokens of a request that has ended are wanted again. Not after `release`."""

    def release(self, request: Request) -> None:
        """A request has ended, and all that is to be held of it was told."""

    def close_session(self, name: str) -> "asyncio.Future[int]":
        """As `Engine.close_session`. Nobody has to await it."""

    async def read_kv(self, salt: str, token_ids: "array[int]") -> memoryview | None:
        """The last segment of these tokens; None if not all of it is cached."""

    async def find_session(self, name: str) -> "tuple[array[int], str] | None":
        """As `Engine.find_session`."""

    async def take_kv(self, source: KvSource, salt: str, token_ids: Sequence[int], session: str) -> int:
        """As `Engine.take_kv`."""

    async def is_ready(self) -> bool:
        """Whether requests are admitted."""

    async def metrics(self) -> bytes:
        """The engine's part of the metrics page."""

    async def drain(self, timeout_s: float) -> None: ...

    async def catch_up(self) -> None:
        """Returns when this process knows all that the others have told by now. So whoever has heard an answer from one
        of them can go on at this one."""

    def offer_counts(self, count: Callable[[], Counts]) -> None:
        """How the others learn what was counted here."""

    async def other_counts(self) -> Counts:
        """What was counted in the others, and in those that have gone."""


async def read_kv(engine: Engine, salt: str, token_ids: "array[int]") -> memoryview | None:
    """As `EngineClient.read_kv`."""
    copy = await asyncio.wrap_future(engine.read_kv(salt, token_ids))
    return await asyncio.to_thread(copy.wait) if copy else None


class LocalEngine:
    """An engine in this process, which serves alone."""

    def __init__(self, engine: Engine, model: str) -> None:
        self.facts = EngineFacts.of(engine)
        self.tokenizer = engine.tokenizer
        self.template = engine.template
        self.grammars = engine.grammars
        self.sharing: Sharing = UNSHARED
        self._engine = engine
        self._metrics = EngineMetrics(engine, model)
        self.abort = engine.abort
        self.drain = engine.drain

    @property
    def class_limits(self) -> Sequence[ClassLimits]:
        return self._engine.config.class_limits

    @property
    def failure(self) -> Exception | None:
        return self._engine.failure

    @property
    def is_lost(self) -> bool:
        return isinstance(self._engine.failure, DeviceLost)

    @property
    def cache_refill_s(self) -> float:
        return self._engine.cache_refill_s

    def start(self) -> None:
        """It runs already."""

    def stop(self) -> None:
        """Whoever started it closes it."""

    async def submit(self, requests: Sequence[Request], on_events: OnEvents) -> None:
        if not any(request.is_guided for request in requests):
            self._engine.submit(requests, on_events)
            return
        # A grammar that had to make room since it was judged is compiled again: the other streams should not wait.
        submitting = asyncio.ensure_future(asyncio.to_thread(self._engine.submit, requests, on_events))
        try:
            await asyncio.shield(submitting)
        except asyncio.CancelledError:
            submitting.add_done_callback(lambda done: done.exception() or self.abort(*[each.id for each in requests]))
            raise

    def hold(self, request: Request, hold: Hold, num_tokens: int) -> None:
        self._engine.hold(request.token_ids[:num_tokens], hold, request.salt, request.session)

    def release(self, request: Request) -> None:
        """The request itself says all there is to hold."""

    def close_session(self, name: str) -> "asyncio.Future[int]":
        return asyncio.wrap_future(self._engine.close_session(name))

    async def read_kv(self, salt: str, token_ids: "array[int]") -> memoryview | None:
        return await read_kv(self._engine, salt, token_ids)

    async def find_session(self, name: str) -> "tuple[array[int], str] | None":
        return await asyncio.wrap_future(self._engine.find_session(name))

    async def take_kv(self, source: KvSource, salt: str, token_ids: Sequence[int], session: str) -> int:
        return await asyncio.wrap_future(self._engine.take_kv(source, salt, token_ids, session))

    async def is_ready(self) -> bool:
        return self._engine.is_running

    async def metrics(self) -> bytes:
        return self._metrics.render()

    async def catch_up(self) -> None:
        """There are no others."""

    def offer_counts(self, count: Callable[[], Counts]) -> None:
        """Nobody asks."""

    async def other_counts(self) -> Counts:
        return []
