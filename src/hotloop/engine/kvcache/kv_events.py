"""Publishes to routers what the prefix tree keeps: vLLM's KV events over ZeroMQ.

    PUB     [topic, number, [time, [event, ...], rank]]             numbers count up from 0
    ROUTER  number ->  [topic, number, batch] for each from there on that is still here, then the number -1

The engine's thread only hands over what changed; a thread names, packs and sends it. If too much waits, or someone asks
for what is gone, everything is said again after AllBlocksCleared. Prefixes with a salt are not published.
"""

import threading
import time
from array import array
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from hashlib import blake2b
from queue import Empty, SimpleQueue
from typing import Any

import msgspec

from hotloop.core.errors import ConfigError
from hotloop.engine.kvcache.changes import Change, Emptied, Evicted, KeptBlocks, Moved

MAX_REPLAYED = 4096  # how many batches are kept for those who missed some
MAX_WAITING = 4096  # how many may wait to be sent
MIN_RESTATE_S = 1.0  # how often everything is said again, at most, to those who ask
_POLL_S = 0.05  # how often it is seen whether someone asks for a replay, while nothing changes
_END = (-1).to_bytes(8, "big", signed=True)
_TOPIC = b""
_TOKEN_BYTES = array("i").itemsize


class EventEncoder:
    """Changes of the tree in the words of the wire. A block is called by a hash of its tokens and all before them."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._names: dict[int, int] = {}

    def render(self, change: Change) -> list[Any] | None:
        """The event, if there is anything to say."""
        match change:
            case KeptBlocks():
                return self._stored(change)
            case Evicted():
                names = [self._names.pop(block_id) for block_id in change.block_ids if block_id in self._names]
                return ["BlockRemoved", names, None] if names else None
            case Moved():
                pairs = zip(change.block_ids, change.new_ids, strict=True)
                self._names |= {new_id: self._names.pop(old_id) for old_id, new_id in pairs if old_id in self._names}
                return None
            case Emptied():
                self._names.clear()
                return ["AllBlocksCleared"]

    def _stored(self, kept: KeptBlocks) -> list[Any]:
        parent = name = None if kept.parent_id is None else self._names[kept.parent_id]
        names, size = [], self._block_size * _TOKEN_BYTES
        for i, block_id in enumerate(kept.block_ids):
            above = b"" if name is None else name.to_bytes(8, "big")
            digest = blake2b(above + kept.key[i * size : (i + 1) * size], digest_size=8)
            name = int.from_bytes(digest.digest(), "big")
            self._names[block_id] = name
            names.append(name)
        return ["BlockStored", names, parent, array("i", kept.key).tolist(), self._block_size, None, None]


class KvPublisher:
    """Publishes changes. `ask_all` has `restate` called on the engine's thread, sooner or later."""

    def __init__(
        self,
        endpoint: str,
        block_size: int,
        ask_all: Callable[[], None],
        *,
        max_replayed: int = MAX_REPLAYED,
        max_waiting: int = MAX_WAITING,
    ) -> None:
        self.changes: list[Change] = []  # the tree adds to it, on the engine's thread
        self._encoder = EventEncoder(block_size)
        self._ask_all = ask_all
        self._restated_at = -MIN_RESTATE_S
        self._number = 0
        self._batches: deque[tuple[int, bytes]] = deque(maxlen=max_replayed)
        self._waiting: SimpleQueue[list[Change]] = SimpleQueue()
        self._max_waiting = max_waiting
        self._is_behind = False
        self._is_closing = False
        self._open(endpoint)
        self._thread = threading.Thread(target=self._run, name="hotloop-kv-events", daemon=True)
        self._thread.start()

    def flush(self) -> None:
        """Hand over what changed. On the engine's thread; never waits."""
        changes = self.changes.copy()
        self.changes.clear()
        if not changes or self._is_behind:
            return
        if self._waiting.qsize() >= self._max_waiting:
            self._is_behind = True
            self._ask_all()
            return
        self._waiting.put(changes)

    def restate(self, kept: Iterable[KeptBlocks]) -> None:
        """Say again all that the tree keeps. On the engine's thread."""
        with suppress(Empty):
            while True:
                self._waiting.get_nowait()
        self._is_behind = False
        self.changes[:] = [Emptied(), *kept]

    def close(self) -> None:
        if not self._is_closing:
            self._is_closing = True
            self._waiting.put([])
            self._thread.join()
            self._ask_all = lambda: None  # the engine, which holds this, is not held by it

    def _open(self, endpoint: str) -> None:
        try:
            import zmq  # noqa: PLC0415 - an extra
        except ImportError:
            raise ConfigError("kv_events needs ZeroMQ: pip install 'hotloop[kv-events]'") from None
        host, _, port = endpoint.rpartition(":")
        self._context = zmq.Context()
        self._pub, self._router = self._context.socket(zmq.PUB), self._context.socket(zmq.ROUTER)
        self._pub.setsockopt(zmq.SNDHWM, MAX_WAITING)
        self._router.setsockopt(zmq.SNDHWM, 0)  # or it would lose parts of a replay
        try:
            self._pub.bind(endpoint)
            self._router.bind(f"{host}:{int(port) + 1 if int(port) else 0}")
        except zmq.ZMQError as error:
            self._context.destroy(linger=0)
            raise ConfigError(f"kv_events cannot listen on {endpoint} and the port after it: {error}") from None
        self.endpoint, self.replay_endpoint = (
            socket.getsockopt_string(zmq.LAST_ENDPOINT) for socket in (self._pub, self._router)
        )

    def _run(self) -> None:
        while not self._is_closing:
            if self._router.poll(0):
                self._replay(self._router.recv_multipart())
            with suppress(Empty):
                changes = self._waiting.get(timeout=_POLL_S)
                self._publish(changes)
        self._context.destroy(linger=0)

    def _publish(self, changes: list[Change]) -> None:
        if events := [event for event in map(self._encoder.render, changes) if event]:
            batch = msgspec.msgpack.encode([time.time(), events, 0])
            self._pub.send_multipart([_TOPIC, self._number.to_bytes(8, "big"), batch])
            self._batches.append((self._number, batch))
            self._number += 1

    def _replay(self, frames: list[bytes]) -> None:
        """Answer who asks for all batches from a number on; if some of them are gone, everybody hears everything."""
        if len(frames) != 3 or len(frames[2]) != 8:
            return
        asker, begin = frames[0], int.from_bytes(frames[2], "big")
        now = time.monotonic()
        if self._batches and begin < self._batches[0][0] and now - self._restated_at >= MIN_RESTATE_S:
            self._restated_at = now
            self._ask_all()
        for number, batch in self._batches:
            if number >= begin:
                self._router.send_multipart([asker, b"", _TOPIC, number.to_bytes(8, "big"), batch])
        self._router.send_multipart([asker, b"", b"", _END, b""])
