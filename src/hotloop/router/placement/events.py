"""Follows what one replica publishes of its KV cache: vLLM's events over ZeroMQ, which SGLang and hotloop speak too.

    PUB     [topic, number, [time, [event, ...], ...]]          numbers count up from 0
    replay  number ->  [..., number, batch] for each that is still there, then the number -1

An event is `[kind, field, ...]` or `{"type": kind, field: ...}`, by the age of the engine; what cannot be read is
skipped. A missing batch is asked for again; where that fails, or the replica was restarted, all is forgotten.
"""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from hotloop.core.config import check_endpoint
from hotloop.core.errors import ConfigError
from hotloop.router.placement.exact import HeldBlocks

log = logging.getLogger(__name__)

REPLAY_TIMEOUT_S = 2.0
REPLAY_PAUSE_S = 30.0
"""How long a replica that did not replay all that was missing is not asked again."""
_END = (-1).to_bytes(8, "big", signed=True)
_HEARTBEAT_MS = 5_000
_MAX_QUEUED = 100_000
_EVENTS_A_TURN = 64  # that are taken in before others get the loop


TokenId = Annotated[int, Meta(ge=0, lt=2**31)]


class BlockStored(msgspec.Struct, frozen=True):
    """Blocks that a replica has now; the fields in the order of the wire."""

    block_hashes: list[int | bytes]
    parent_block_hash: int | bytes | None
    token_ids: list[TokenId]
    block_size: Annotated[int, Meta(ge=0)]
    lora_id: int | None = None
    medium: str | None = None
    lora_name: Any = None  # SGLang has the salt of a tenant here
    extra_keys: list[Any] | None = None
    group_idx: int | None = None

    @property
    def is_plain(self) -> bool:
        """Whether any prompt of these tokens may use them: not of an adapter, a picture, or a tenant with a salt."""
        return self.lora_id is None and self.lora_name is None and not any(self.extra_keys or ())


class BlockRemoved(msgspec.Struct, frozen=True):
    block_hashes: list[int | bytes]
    medium: str | None = None
    group_idx: int | None = None


class AllBlocksCleared(msgspec.Struct, frozen=True):
    """A replica has nothing any more."""


Event = BlockStored | BlockRemoved | AllBlocksCleared
_KINDS: Mapping[str, type[Event]] = {kind.__name__: kind for kind in (BlockStored, BlockRemoved, AllBlocksCleared)}


class EventBatch(msgspec.Struct, frozen=True):
    """What a replica published at once. `ts` is on its own clock."""

    number: int
    ts: float
    events: Sequence[Event]

    @property
    def is_beginning(self) -> bool:
        """Whether nothing that was said before it matters."""
        return self.number == 0 or any(isinstance(event, AllBlocksCleared) for event in self.events)


def parse_batch(frames: Sequence[bytes]) -> EventBatch | None:
    """The last two frames of a message; None for what is no batch."""
    try:
        ts, events, *_ = msgspec.msgpack.decode(frames[-1])
        parsed = [event for event in map(parse_event, events) if event]
        return EventBatch(int.from_bytes(frames[-2], "big", signed=True), float(ts), parsed)
    except (IndexError, TypeError, ValueError, msgspec.DecodeError):
        return None


def parse_event(raw: Any) -> Event | None:
    """None for what cannot be used; of several groups of layers only the first keeps whole prompts."""
    name, *values = (raw.get("type", ""),) if isinstance(raw, Mapping) else raw
    kind = _KINDS.get(name)
    if kind is None:
        return None
    fields = raw if isinstance(raw, Mapping) else dict(zip(kind.__struct_fields__, values, strict=False))
    try:
        event = msgspec.convert(fields, kind)
    except msgspec.ValidationError:
        return None
    return None if isinstance(event, (BlockStored, BlockRemoved)) and event.group_idx else event


class KvEvents:
    """Keeps `held` as one replica publishes it, until it is cancelled."""

    def __init__(self, held: HeldBlocks, replica: str, endpoint: str, replay: str | None = None) -> None:
        for address in filter(None, (endpoint, replay)):
            check_endpoint(f"kv_events of {replica}", address)
        self._held = held
        self._replica = replica
        self._endpoint = endpoint
        self._replay = replay
        self._zmq = load_zmq()
        self._context: Any = None
        self._last: EventBatch | None = None
        self._may_ask_at = 0.0

    async def run(self) -> None:
        self._context = self._zmq.asyncio.Context()
        try:
            await self._follow()
        finally:
            self._context.destroy(linger=0)
            self._forget()

    async def _follow(self) -> None:
        zmq = self._zmq
        socket, poller = self._context.socket(zmq.SUB), zmq.asyncio.Poller()
        socket.setsockopt(zmq.HEARTBEAT_IVL, _HEARTBEAT_MS)
        socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, 3 * _HEARTBEAT_MS)
        socket.setsockopt(zmq.RECONNECT_IVL_MAX, _HEARTBEAT_MS)
        socket.setsockopt(zmq.RCVHWM, _MAX_QUEUED)
        socket.subscribe(b"")
        monitor = socket.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED)
        poller.register(monitor, zmq.POLLIN)
        poller.register(socket, zmq.POLLIN)
        socket.connect(self._endpoint)
        while True:
            ready = dict(await poller.poll())
            if monitor in ready:  # connected, perhaps not for the first time: who knows what was missed
                await monitor.recv_multipart()
                self._may_ask_at = 0.0
                await self._catch_up()
            elif batch := parse_batch(await socket.recv_multipart()):
                await self._take(batch)

    async def _take(self, batch: EventBatch) -> None:
        last = self._last
        if last and batch.number <= last.number and batch.ts <= last.ts:
            return  # it was replayed
        if last and batch.number <= last.number:
            log.info("%s was started anew: what was known of its KV cache is forgotten", self._replica)
            self._forget()
        if not self._is_next(batch):
            await self._catch_up()
            if self._last and batch.number <= self._last.number:
                return
        await self._apply(batch)

    async def _catch_up(self) -> None:
        """Hear what was missed; if it cannot be told whether anything was, begin anew."""
        last = self._last
        if last:
            batches = await self._ask(last.number) or []
            if batches and (batches[0].number, batches[0].ts) == (last.number, last.ts):
                for batch in batches[1:]:
                    await self._apply(batch)
                return
        self._forget()
        kept = await self._ask(0)
        if kept == []:  # it has never said anything: it has nothing
            self._held.complete()
        for batch in kept or ():
            await self._apply(batch)

    async def _ask(self, number: int) -> list[EventBatch] | None:
        """What the replica still has from that batch on; None if it does not say."""
        now = asyncio.get_running_loop().time()
        if not self._replay or now < self._may_ask_at:
            return None
        batches: list[EventBatch] = []
        with self._context.socket(self._zmq.DEALER) as socket:
            socket.setsockopt(self._zmq.LINGER, 0)
            socket.setsockopt(self._zmq.RCVHWM, _MAX_QUEUED)
            socket.connect(self._replay)
            await socket.send_multipart([b"", number.to_bytes(8, "big")])
            while True:
                try:
                    async with asyncio.timeout(REPLAY_TIMEOUT_S):
                        frames = await socket.recv_multipart()
                except TimeoutError:
                    log.warning("%s does not replay its KV events at %s", self._replica, self._replay)
                    self._may_ask_at = now + REPLAY_PAUSE_S
                    return None
                if frames[-2:-1] == [_END]:
                    return batches
                if batch := parse_batch(frames):
                    batches.append(batch)

    async def _apply(self, batch: EventBatch) -> None:
        """A batch; if it is not the one that was to come, it is a beginning."""
        if batch.is_beginning or not self._is_next(batch):
            self._forget()
        self._last = batch
        for i, event in enumerate(batch.events, 1):
            match event:
                case AllBlocksCleared():
                    self._held.clear()
                case BlockRemoved():
                    self._held.removed(event.block_hashes, event.medium or "")
                case BlockStored(block_hashes=hashes, token_ids=token_ids, block_size=size) if event.is_plain:
                    place, parent = event.medium or "", event.parent_block_hash
                    self._held.stored(hashes, token_ids, block_size=size, parent=parent, place=place)
            if i % _EVENTS_A_TURN == 0:
                await asyncio.sleep(0)
        if batch.is_beginning:
            self._held.complete()

    def _is_next(self, batch: EventBatch) -> bool:
        return batch.number == (self._last.number + 1 if self._last else 0)

    def _forget(self) -> None:
        self._last = None
        self._held.clear()


def load_zmq() -> ModuleType:
    try:
        import zmq  # noqa: PLC0415 - an extra
        import zmq.asyncio  # noqa: PLC0415
    except ImportError:
        raise ConfigError("KV events need ZeroMQ: pip install 'hotloop[kv-events]'") from None
    return zmq
