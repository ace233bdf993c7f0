"""KV that another server has, on its way here: a request waits for it where that is quicker than to compute it.

    tokens   [ known to the tree ...... | asked of the other ...................... | computed ]
    segments [ 0           | 1          | begin       | ...         |

Segments are cut and named as on disk, so nobody's numbers are taken for those of another model, tenant or prompt; a
digest says that they came as they were sent. What does not come in time, is short, or is something else is computed.
Also the other end: what the tree has of a prompt, for a server that asks.
"""

import hashlib
import logging
import socket
import struct
import threading
from array import array
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import Annotated
from urllib.parse import urlsplit

import msgspec

from hotloop.backends.backend import Backend, Copy
from hotloop.core.request import KvSource, Request
from hotloop.core.structs import compiled
from hotloop.engine.offload.disk.folder import KEY_BYTES
from hotloop.engine.offload.disk.store import Segments
from hotloop.engine.offload.disk.tier import Post, SegmentTier, place_blocks
from hotloop.engine.offload.host import CopySpeed, CopyStats
from hotloop.engine.scheduler.scheduler import Scheduler

log = logging.getLogger(__name__)

PATH = "/kv/segments"
PATIENCE_S = 2.0
"""How long the other server may say nothing."""
MAX_MOVES = 4
"""At a time; those that come then are computed."""
_MAX_AHEAD = 2  # segments that were read and are not yet in blocks
_BYTE_S = 1e-9  # to read a byte, until it has been measured
_BEGIN_S = 0.02  # before the first
_MAGIC = b"hotloopM"
_HEADER = struct.Struct(f"<8s{KEY_BYTES}s32s")


@compiled
class AskedKv(msgspec.Struct, frozen=True):
    """What a server asks another for: the segments of a prompt from `begin` on."""

    layout: str
    salt: str
    begin: Annotated[int, msgspec.Meta(ge=0)]
    tokens: list[Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]]


@dataclass(slots=True, eq=False)
class _Move:
    """Segments from `begin` on, being read for one request."""

    request: Request
    begin: int
    keys: list[bytes]
    heard_at: float
    stream: "SegmentStream"
    on_end: Callable[[int], None] | None = None
    """Of one that nobody waits for yet: hears how many tokens are known here then."""
    num_placed: int = 0
    ahead: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(_MAX_AHEAD))


class SegmentStream:
    """Asks one server, on the thread that reads; may be closed on any."""

    def __init__(self, source: KvSource, segments: Segments) -> None:
        self.url = source.url
        self._key = source.key
        self._segments = segments
        self._connection: HTTPConnection | None = None
        self._is_closed = False

    def read(self, asked: AskedKv, keys: list[bytes]) -> Iterator[memoryview]:
        """The data of these segments, as far as they come. Raises OSError, HTTPException or ValueError."""
        response = self._ask(msgspec.json.encode(asked))
        for key in keys:
            frame = memoryview(bytearray(_HEADER.size + self._segments.num_bytes))
            num_read = _fill(response, frame)
            if not num_read:
                return
            if num_read < len(frame):
                raise ConnectionError("it broke off")
            data = frame[_HEADER.size :]
            if frame[: _HEADER.size] != render_header(key, data):
                raise ValueError("what it sent is not what was asked for")
            yield data

    def close(self) -> None:
        """Whoever reads hears of it at once."""
        self._is_closed = True
        sock = self._connection.sock if self._connection else None
        if sock:
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def _ask(self, body: bytes) -> HTTPResponse:
        self.finish()
        url = urlsplit(self.url)
        kind = HTTPSConnection if url.scheme == "https" else HTTPConnection
        connection = self._connection = kind(url.hostname or "", url.port, timeout=PATIENCE_S)
        headers = {"content-type": "application/json"}
        if self._key:
            headers["authorization"] = f"Bearer {self._key}"
        connection.request("POST", PATH, body, headers)
        if self._is_closed:
            raise ConnectionAbortedError("nobody waits for it any more")
        response = connection.getresponse()
        if response.status != 200:
            raise ValueError(f"it answered {response.status}")
        return response

    def finish(self) -> None:
        """On the thread that reads."""
        if self._connection:
            self._connection.close()


class KvMoves(SegmentTier):
    """Segments of other servers."""

    def __init__(
        self, segments: Segments, backend: Backend, scheduler: Scheduler, post: Post, clock: Callable[[], float]
    ) -> None:
        super().__init__(segments.num_tokens, backend, scheduler, post, clock)
        self.segments = segments
        self._speed = CopySpeed(_BYTE_S, _BEGIN_S)
        self._moves: list[_Move] = []
        self._stats = CopyStats()

    @property
    def is_busy(self) -> bool:
        """Whether any is under way, be it for a request that has not come yet."""
        return bool(self._moves)

    def take(self, request: Request, on_end: Callable[[int], None]) -> None:
        """Have read what a request is going to need that has not come yet; `on_end` hears how many of its tokens are
        known then, which are kept for it for a while."""
        request.is_loading = self.fetch(request, on_end)
        if not request.is_loading:
            on_end(self._num_known(request))

    def fetch(self, request: Request, on_end: Callable[[int], None] | None = None) -> bool:
        """Have read what the server has that a request names, and is not known here; whether the request waits."""
        source, count = request.kv_source, request.num_tokens // self.segments.num_tokens
        if source is None or not count or len(self._moves) >= MAX_MOVES:
            return False
        token_ids = request.token_ids[: count * self.segments.num_tokens]
        num_known, num_in_host = self._count_known(token_ids, request.salt)
        begin = num_known // self._segment_blocks
        num_gained = count * self._segment_blocks - num_known - num_in_host
        compute_s, num_bytes = self._scheduler.compute_s(num_gained), (count - begin) * self.segments.num_bytes
        if num_gained < self._segment_blocks or not self._speed.beats(compute_s, num_bytes):
            return False
        keys = self.segments.keys(request.salt).first(count, token_ids)[begin:]
        move = _Move(request, begin, keys, self._clock(), SegmentStream(source, self.segments), on_end)
        self._moves.append(move)
        threading.Thread(target=self._read, args=(move, token_ids), name="hotloop-kv-move", daemon=True).start()
        return True

    def read(self, salt: str, token_ids: "array[int]") -> Copy | None:
        """The last segment of these tokens, if the tree has all of them on the device."""
        known = self._scheduler.tree.peek(token_ids, salt)
        if len(known) * self._scheduler.block_size < len(token_ids):
            return None
        self._stats.num_bytes_out += self.segments.num_bytes
        return self._backend.read_blocks(known[-self._segment_blocks :])

    def let_all_go(self) -> None:
        for move in [*self._moves]:
            self._end(move, "the engine was shut down")

    def reset(self) -> None:
        """After a failed step. Nothing is used between two segments."""

    def poll(self, now: float) -> None:
        """Nobody waits for ever for a server that does not answer."""
        for move in [*self._moves]:
            if now - move.heard_at > PATIENCE_S:
                self._end(move, f"nothing came for {PATIENCE_S:.0f} s")

    def stats(self) -> CopyStats:
        return replace(self._stats)

    def check(self) -> None:
        assert all(move.request.is_loading for move in self._moves)
        assert len(self._moves) <= MAX_MOVES

    def _read(self, move: _Move, token_ids: "array[int]") -> None:
        """On a thread of its own. What broke off is asked for once more from there."""
        num_read, failure = 0, ""
        for _ in range(2):
            asked = AskedKv(self.segments.layout, move.request.salt, move.begin + num_read, token_ids.tolist())
            try:
                for data in move.stream.read(asked, move.keys[num_read:]):
                    num_read, failure = num_read + 1, ""
                    if not move.ahead.acquire(timeout=PATIENCE_S):
                        raise TimeoutError("there is no room for it")
                    self._post(partial(self._arrive, move, data))
                break
            except (HTTPException, ConnectionError) as error:
                failure = str(error) or type(error).__name__
            except (OSError, ValueError) as error:
                failure = str(error) or type(error).__name__
                break
            finally:
                move.stream.finish()
        self._post(partial(self._end, move, failure))

    def _arrive(self, move: _Move, data: memoryview) -> None:
        """The next segment is here."""
        if move not in self._moves:  # it may have been given up meanwhile
            return
        now, request = self._clock(), move.request
        begin = (move.begin + move.num_placed) * self._segment_blocks
        num_new = None
        if not request.is_finished:
            num_new = place_blocks(self._scheduler, self._backend, request, begin, begin + self._segment_blocks, data)
        if num_new is None:
            self._end(move, "" if request.is_finished else "there is no room for it")
            return
        request.num_restored += num_new * self._scheduler.block_size
        self._speed.learn(len(data), now - move.heard_at)
        move.heard_at = now
        move.num_placed += 1
        self._stats.num_bytes_in += len(data)
        move.ahead.release()

    def _end(self, move: _Move, failure: str = "") -> None:
        """Let the request wait for its turn."""
        if move not in self._moves:
            return
        self._moves.remove(move)
        move.stream.close()
        self._stats.num_copies += bool(move.num_placed)
        self._stats.num_failed += bool(failure)
        if failure:
            request, url = move.request, move.stream.url
            log.warning("KV not moved: request=%s from=%s reason=%s", request.id, url, failure)
        if move.on_end or (move.request.has_held_prefix and not move.request.is_finished):
            self._scheduler.sessions.keep(move.request)
        move.request.is_loading = False
        if move.on_end:
            move.on_end(self._num_known(move.request))

    def _num_known(self, request: Request) -> int:
        known = self._scheduler.tree.peek(request.token_ids, request.salt)
        return len(known) * self._scheduler.block_size


def render_header(key: bytes, data: memoryview) -> bytes:
    """What stands before a segment: what it is, and a digest of it."""
    return _HEADER.pack(_MAGIC, key, hashlib.sha256(data).digest())


def _fill(response: HTTPResponse, frame: memoryview) -> int:
    """Read as much as there is room for; how much there was."""
    num_read = 0
    while num_read < len(frame):
        more = response.readinto(frame[num_read:])
        if not more:
            break
        num_read += more
    return num_read
