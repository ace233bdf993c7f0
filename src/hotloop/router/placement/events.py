"""Follows what one replica publishes of its KV cache: vLLM's events over ZeroMQ, which SGLang and hotloop speak too.

    PUB     [topic, number, [time, [event, ...], ...]]          numbers count up from 0
    replay  number ->  [..., number, batch] for each that is still there, then the number -1

An event is `[kind, field, ...]` or `{"type": kind, field: ...}`, by the age of the engine; what cannot be read is
skipped. A missing batch is asked for again; where that fails, or the replica was restarted, all is forgotten. A replica
is not trusted: what it sends is bounded in bytes, in number and in time, and taken in between the work for others.
"""

import asyncio
import logging
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Raw

from hotloop.core.config import check_endpoint
from hotloop.core.errors import ConfigError
from hotloop.router.placement.exact import HeldBlocks

log = logging.getLogger(__name__)

REPLAY_PAUSE_S = 30.0
"""How long a replica that did not replay all that was missing is not asked again."""
RECONNECT_S = 1.0
_END = (-1).to_bytes(8, "big", signed=True)
_HEARTBEAT_MS = 5_000
_MAX_MESSAGE_BYTES = 4 << 20
_MAX_QUEUED = 32  # messages; what comes faster than it is taken in waits at the replica
_BLOCKS_A_TURN = 512  # that are taken in before others get the loop


@dataclass(frozen=True, slots=True)
class ReplayLimits:
    """The most that is listened to when a replica replays; vLLM keeps 10,000 batches if not told otherwise."""

    max_batches: int = 100_000
    max_bytes: int = 512 << 20
    max_s: float = 30.0
    max_silence_s: float = 2.0


TokenId = Annotated[int, Meta(ge=0, lt=2**31)]
BlockHash = int | Annotated[bytes, Meta(max_length=64)]
Hashes = Annotated[list[BlockHash], Meta(max_length=1 << 18)]
Medium = Annotated[str, Meta(max_length=32)]
_NIL = Raw(b"\xc0")
_NOTHING = (b"\xc0", b"\x90")  # nil, and an empty list
_keys = msgspec.msgpack.Decoder(Annotated[list[Raw], Meta(max_length=1 << 18)] | None)


class BlockStored(msgspec.Struct, frozen=True, tag=True):
    """Blocks that a replica has now; the fields in the order of the wire."""

    block_hashes: Hashes
    parent_block_hash: BlockHash | None
    token_ids: Annotated[list[TokenId], Meta(max_length=1 << 20)]
    block_size: Annotated[int, Meta(ge=0)]
    lora_id: int | None = None
    medium: Medium | None = None
    lora_name: Raw = _NIL  # SGLang has the salt of a tenant here
    extra_keys: Raw = _NIL
    group_idx: int | None = None

    @property
    def is_plain(self) -> bool:
        """Whether any prompt of these tokens may use them: not of an adapter, a picture, or a tenant with a salt."""
        return self.lora_id is None and bytes(self.lora_name) in _NOTHING and not _has_keys(self.extra_keys)

    def parts(self) -> Iterator["BlockStored"]:
        """What can be used of it, a few blocks at a time."""
        if not self.is_plain:
            return
        hashes, size, num = self.block_hashes, self.block_size, _BLOCKS_A_TURN
        if len(hashes) <= num:
            yield self
            return
        has_tokens = len(self.token_ids) >= len(hashes) * size  # else known blocks are in another place as well
        for i in range(0, len(hashes), num):
            token_ids = self.token_ids[i * size : (i + num) * size] if has_tokens else []
            parent = hashes[i - 1] if i else self.parent_block_hash
            yield BlockStored(hashes[i : i + num], parent, token_ids, size, medium=self.medium)


class BlockRemoved(msgspec.Struct, frozen=True, tag=True):
    block_hashes: Hashes
    medium: Medium | None = None
    group_idx: int | None = None

    def parts(self) -> Iterator["BlockRemoved"]:
        for i in range(0, len(self.block_hashes), _BLOCKS_A_TURN):
            yield BlockRemoved(self.block_hashes[i : i + _BLOCKS_A_TURN], self.medium)


class AllBlocksCleared(msgspec.Struct, frozen=True, tag=True):
    """A replica has nothing any more."""

    def parts(self) -> Iterator["AllBlocksCleared"]:
        yield self


class _StoredInOrder(BlockStored, frozen=True, array_like=True, tag="BlockStored"): ...


class _RemovedInOrder(BlockRemoved, frozen=True, array_like=True, tag="BlockRemoved"): ...


class _ClearedInOrder(AllBlocksCleared, frozen=True, array_like=True, tag="AllBlocksCleared"): ...


Event = BlockStored | BlockRemoved | AllBlocksCleared
_named = msgspec.msgpack.Decoder(Event)
_in_order = msgspec.msgpack.Decoder(_StoredInOrder | _RemovedInOrder | _ClearedInOrder)


class _Batch(msgspec.Struct, array_like=True):
    ts: float
    events: Annotated[list[Raw], Meta(max_length=1 << 18)]


_batch = msgspec.msgpack.Decoder(_Batch)


@dataclass(frozen=True, slots=True)
class EventBatch:
    """What a replica published at once. `ts` is on its own clock. Events are parsed as they are taken in."""

    number: int
    ts: float
    events: Sequence[Raw]
    is_beginning: bool
    """Whether nothing that was said before it matters."""


def parse_batch(frames: Sequence[bytes]) -> EventBatch | None:
    """The last two frames of a message; None for what is no batch."""
    if len(frames) < 2 or len(frames[-2]) != 8:
        return None
    number = int.from_bytes(frames[-2], "big", signed=True)
    try:
        batch = _batch.decode(frames[-1])
    except (ValueError, RecursionError):  # those of msgspec are ValueErrors
        return None
    short = (raw for raw in batch.events if memoryview(raw).nbytes < 64) if b"AllBlocksCleared" in frames[-1] else ()
    is_beginning = number == 0 or any(isinstance(parse_event(raw), AllBlocksCleared) for raw in short)
    return EventBatch(number, batch.ts, batch.events, is_beginning) if number >= 0 else None


def parse_event(raw: bytes | Raw) -> Event | None:
    """None for what cannot be used; of several groups of layers only the first keeps whole prompts."""
    first = memoryview(raw)[0]
    is_map = 0x80 <= first <= 0x8F or first in (0xDE, 0xDF)
    try:
        event: Event = (_named if is_map else _in_order).decode(raw)
    except (ValueError, RecursionError):
        return None
    return None if isinstance(event, (BlockStored, BlockRemoved)) and event.group_idx else event


def _has_keys(packed: Raw) -> bool:
    try:
        return any(bytes(key) not in _NOTHING for key in _keys.decode(packed) or ())
    except (ValueError, RecursionError):
        return True


class KvEvents:
    """Keeps `held` as one replica publishes it, until it is cancelled."""

    def __init__(
        self,
        held: HeldBlocks,
        replica: str,
        endpoint: str,
        replay: str | None = None,
        limits: ReplayLimits | None = None,
    ) -> None:
        for address in filter(None, (endpoint, replay)):
            check_endpoint(f"kv_events of {replica}", address)
        self._held = held
        self._replica = replica
        self._endpoint = endpoint
        self._replay_endpoint = replay
        self._limits = limits or ReplayLimits()
        self._zmq = load_zmq()
        self._context: Any = None
        self._last: EventBatch | None = None
        self._may_ask_at = 0.0
        self._turn_at = 0.0

    async def run(self) -> None:
        try:
            while True:
                self._context = self._zmq.asyncio.Context()
                try:
                    await self._follow()
                except Exception:  # whatever a replica sends, it is followed on
                    log.exception("following the KV events of %s failed; it begins anew", self._replica)
                    self._forget()
                finally:
                    self._context.destroy(linger=0)
                await asyncio.sleep(RECONNECT_S)
        finally:
            self._forget()

    def _open_socket(self, kind: int) -> Any:
        socket = self._context.socket(kind)
        socket.setsockopt(self._zmq.LINGER, 0)
        socket.setsockopt(self._zmq.RCVHWM, _MAX_QUEUED)
        socket.setsockopt(self._zmq.MAXMSGSIZE, _MAX_MESSAGE_BYTES)
        return socket

    async def _follow(self) -> None:
        """Until the connection is lost: libzmq does not connect again to one who sent too large a message."""
        zmq = self._zmq
        socket, poller = self._open_socket(zmq.SUB), zmq.asyncio.Poller()
        socket.setsockopt(zmq.HEARTBEAT_IVL, _HEARTBEAT_MS)
        socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, 3 * _HEARTBEAT_MS)
        socket.setsockopt(zmq.RECONNECT_IVL_MAX, _HEARTBEAT_MS)
        socket.subscribe(b"")
        monitor = socket.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED)
        poller.register(monitor, zmq.POLLIN)
        poller.register(socket, zmq.POLLIN)
        socket.connect(self._endpoint)
        while True:
            ready = dict(await poller.poll())
            if monitor in ready:
                about, _ = await monitor.recv_multipart()
                if int.from_bytes(about[:2], sys.byteorder) == zmq.EVENT_DISCONNECTED:
                    break
                self._may_ask_at = 0.0  # connected, perhaps not for the first time: who knows what was missed
                await self._catch_up()
                continue
            frames = await socket.recv_multipart()
            self._turn_at = time.monotonic()
            if batch := parse_batch(frames):
                await self._take(batch)
            await self._rest()
        about = "the KV events of %s were cut off: it closed the connection, or sent more than %d bytes at once"
        log.warning(about, self._replica, _MAX_MESSAGE_BYTES)

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
        if self._last and await self._replay(self._last):
            return
        self._forget()
        if not await self._replay(None):
            self._forget()

    async def _replay(self, last: EventBatch | None) -> bool:
        """Apply what the replica still has behind the last batch that was heard, or from the first on. Whether all of
        it was told, and the last is the one that was heard."""
        loop, limits = asyncio.get_running_loop(), self._limits
        if not self._replay_endpoint or loop.time() < self._may_ask_at:
            return False
        begun_at, num_batches, num_bytes = loop.time(), 0, 0
        with self._open_socket(self._zmq.DEALER) as socket:
            socket.connect(self._replay_endpoint)
            await socket.send_multipart([b"", (last.number if last else 0).to_bytes(8, "big")])
            while num_batches <= limits.max_batches and num_bytes <= limits.max_bytes:
                try:
                    left_s = begun_at + limits.max_s - loop.time()
                    async with asyncio.timeout(min(limits.max_silence_s, left_s)):
                        frames = await socket.recv_multipart()
                except TimeoutError:
                    break
                self._turn_at = time.monotonic()
                if frames[-2:-1] == [_END]:
                    if not num_batches and not last:  # it has never said anything: it has nothing
                        self._held.complete()
                    return num_batches > 0 or not last
                num_batches += 1
                num_bytes += sum(map(len, frames))
                batch = parse_batch(frames)
                if num_batches == 1 and last:
                    if not batch or (batch.number, batch.ts) != (last.number, last.ts):
                        return False
                elif batch:
                    await self._apply(batch)
                await self._rest()
        self._may_ask_at = loop.time() + REPLAY_PAUSE_S
        about = "%s did not replay its KV events at %s within the limits: %d messages, %d bytes, %.1f s; trying later"
        log.warning(about, self._replica, self._replay_endpoint, num_batches, num_bytes, loop.time() - begun_at)
        return False

    async def _apply(self, batch: EventBatch) -> None:
        """A batch; if it is not the one that was to come, it is a beginning."""
        if batch.is_beginning or not self._is_next(batch):
            self._forget()
        self._last = batch
        num_blocks = 0
        for raw in batch.events:
            event = parse_event(raw)
            for part in event.parts() if event else (None,):
                num_blocks += self._change(part)
                if num_blocks >= _BLOCKS_A_TURN:
                    num_blocks = 0
                    await self._rest()
        if batch.is_beginning:
            self._held.complete()

    def _change(self, event: Event | None) -> int:
        """Take in an event; returns for how many blocks that was work."""
        match event:
            case AllBlocksCleared():
                self._held.clear()
            case BlockRemoved():
                self._held.removed(event.block_hashes, event.medium or "")
                return 1 + len(event.block_hashes)
            case BlockStored(block_hashes=hashes, token_ids=token_ids, block_size=size, parent_block_hash=parent):
                self._held.stored(hashes, token_ids, block_size=size, parent=parent, place=event.medium or "")
                return 1 + len(hashes)
        return 1

    async def _rest(self) -> None:
        """Let others have the loop for as long as this one had it."""
        await asyncio.sleep(time.monotonic() - self._turn_at)
        self._turn_at = time.monotonic()

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
