"""Which KV segments are on disk, and the two threads that write them behind and read them ahead.

A segment is the KV of a fixed run of tokens at an aligned position. Its key is a digest of all that its numbers depend
on: the layout (model, precision, kernel), the salt, and every token up to its end, so it never changes, and tenants
and models never meet. The recurrent states of hybrid models, which may end anywhere, have files and keys of their own,
each with the KV from the last segment up to it. Neither tokens nor text are on disk. Nothing that happens to the folder
is an error here: what cannot be read was never there, what cannot be written is dropped, and the log says so.
"""

import hashlib
import logging
import threading
import time
from array import array
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from queue import SimpleQueue

from hotloop.core.errors import BackendError
from hotloop.engine.offload.disk.folder import HEADER_BYTES, KEY_BYTES, Folder

log = logging.getLogger(__name__)

SEGMENT_TOKENS = 256
_MAX_QUEUED_BYTES = 256 << 20
_PAUSE_S = 60.0  # after a failed write
_TOUCH_S = 60.0  # a use is noted this often
_STARTED_AT = time.time() - time.monotonic()  # when that clock began, in unix time
_FLUSH_S = 5.0
_SLACK = 16  # a sixteenth of the room is freed at once, and may be written before the folder is looked through again

OnData = Callable[[memoryview | None], None]


@dataclass(slots=True)
class DiskStats:
    """The folder at one moment. The totals only grow."""

    num_segments: int = 0
    num_bytes: int = 0  # what the folder holds, as far as we know
    num_bytes_read: int = 0
    num_bytes_written: int = 0
    num_damaged: int = 0
    num_dropped: int = 0


class Keys:
    """The keys of one sequence's segments, made as far as they are asked for."""

    def __init__(self, layout: str, salt: str, segment_tokens: int) -> None:
        self._segment_tokens = segment_tokens
        self._keys: list[bytes] = []
        self._digests = [hashlib.blake2b(digest_size=KEY_BYTES)]  # after no segment, one, two, ...
        for part in (layout.encode(), salt.encode(errors="surrogatepass")):
            self._digests[0].update(len(part).to_bytes(8, "little") + part)

    def first(self, count: int, token_ids: "array[int]") -> list[bytes]:
        """The keys of the first `count` segments of these tokens, which may only have grown since the last time."""
        size = self._segment_tokens
        for begin in range(len(self._keys) * size, count * size, size):
            self._digests.append(_extended(self._digests[-1], token_ids[begin : begin + size].tobytes()))
            self._keys.append(self._digests[-1].digest())
        return self._keys[:count]

    def state(self, place: int, token_ids: "array[int]") -> bytes:
        """The key of the recurrent state after so many of these tokens."""
        count = place // self._segment_tokens
        self.first(count, token_ids)
        rest = token_ids[count * self._segment_tokens : place].tobytes()
        return _extended(self._digests[count], rest + b"state").digest()


@dataclass(frozen=True, slots=True)
class Segments:
    """How KV is cut into segments: of so many tokens and bytes, which are those of one layout."""

    layout: str
    num_tokens: int
    num_bytes: int

    def keys(self, salt: str) -> Keys:
        return Keys(f"{self.layout} {self.num_tokens} {self.num_bytes}", salt, self.num_tokens)


class ThreadWorker:
    """A thread that dies with the process."""

    def __init__(self, name: str) -> None:
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def put(self, job: Callable[[], None]) -> None:
        self._jobs.put(job)

    def close(self) -> None:
        """It is not waited for: a disk may never answer."""
        self._jobs.put(None)

    def _run(self) -> None:
        while job := self._jobs.get():
            job()


class KvStore:
    """Asked from the engine's thread; never makes it wait for the disk."""

    def __init__(
        self,
        folder: Folder,
        *,
        layout: str,
        segment_bytes: int,
        max_bytes: int,
        segment_tokens: int = SEGMENT_TOKENS,
        max_queued_bytes: int = _MAX_QUEUED_BYTES,
        make_worker: Callable[[str], ThreadWorker] = ThreadWorker,
    ) -> None:
        self.segment_bytes = segment_bytes
        self.segment_tokens = segment_tokens
        self._stats = DiskStats()
        self._folder = folder
        self._segments = Segments(layout, segment_tokens, segment_bytes)
        self._max_bytes = max_bytes
        self._max_queued_bytes = max_queued_bytes
        self._used_at: dict[bytes, float] = {}
        self._queued: dict[bytes, int] = {}  # and how many bytes they are
        self._num_unseen_bytes = 0
        self._paused_until = 0.0
        self._is_closing = False
        try:
            folder.prepare()
        except OSError as error:
            self._pause(error)
        with suppress(OSError):  # a folder that cannot be written to may still be read
            self._look_through(max_bytes)
        self._writer, self._reader = make_worker("hotloop-kv-writer"), make_worker("hotloop-kv-reader")

    def stats(self) -> DiskStats:
        return replace(self._stats, num_segments=len(self._used_at))

    def keys(self, salt: str) -> Keys:
        return self._segments.keys(salt)

    def num_leading(self, keys: Sequence[bytes]) -> int:
        """How many of these, from the first on, can be read; all of them are noted as used."""
        count = next((i for i, key in enumerate(keys) if key not in self._used_at), len(keys))
        uses = {key: _use_of(depth) for depth, key in enumerate(keys[:count])}
        stale = {key: now for key, now in uses.items() if now - self._used_at.get(key, now) > _TOUCH_S}
        if stale:
            self._used_at.update(stale)
            self._writer.put(lambda: self._touch(stale))
        return count

    def has(self, key: bytes) -> bool:
        """Whether a segment is there or about to be."""
        return key in self._used_at or key in self._queued

    def has_room(self, num_bytes: int | None = None) -> bool:
        """Whether a segment, or so many bytes, would be written soon; a single file always is."""
        queued = [*self._queued.values()]
        is_short = not queued or sum(queued) + (num_bytes or self.segment_bytes) <= self._max_queued_bytes
        return is_short and time.monotonic() >= self._paused_until

    def save(self, key: bytes, copy: Callable[[], memoryview], depth: int, num_bytes: int | None = None) -> None:
        """Write a segment, or so many bytes, once it is copied; `depth` is how many segments come before it."""
        self._queued[key] = num_bytes or self.segment_bytes
        self._writer.put(lambda: self._write(key, copy, _use_of(depth)))

    def read(self, key: bytes, on_data: OnData, num_bytes: int | None = None) -> None:
        """Read a segment, or so many bytes; `on_data` hears of it on another thread, in the order of the calls.
        None: it is lost.
        """
        self._reader.put(lambda: on_data(self._read(key, num_bytes or self.segment_bytes)))

    def discard(self, keys: Sequence[bytes]) -> None:
        """These are not to be trusted, from now on."""
        for key in keys:
            self._used_at.pop(key, None)
        self._writer.put(lambda: self._delete(keys))

    def flush(self) -> bool:
        """Wait until all that was asked for so far is written; whether it was, in time."""
        is_done = threading.Event()
        self._writer.put(is_done.set)
        return is_done.wait(_FLUSH_S)

    def close(self) -> None:
        """Write what is queued, if that does not take long."""
        if self._is_closing:
            return
        if not self.flush():
            log.warning("%s: %d KV segments were not written in time", self._folder.path, len(self._queued))
        self._is_closing = True
        self._writer.close()
        self._reader.close()

    def _write(self, key: bytes, copy: Callable[[], memoryview], used_at: float) -> None:
        try:
            if self._is_closing or time.monotonic() < self._paused_until:
                self._stats.num_dropped += 1
            else:
                data = copy()
                assert len(data) == self._queued[key]
                file_bytes = HEADER_BYTES + len(data)
                max_bytes = self._max_bytes - file_bytes
                if self._stats.num_bytes > max_bytes or self._num_unseen_bytes > self._max_bytes // _SLACK:
                    self._look_through(max_bytes)  # every so often, too: others may write here
                self._folder.write(key, data, used_at)
                self._stats.num_bytes += file_bytes
                self._stats.num_bytes_written += file_bytes
                self._num_unseen_bytes += file_bytes
                self._used_at[key] = used_at
        except BackendError:  # what was to be saved is lost with the step that computed it
            self._stats.num_dropped += 1
        except OSError as error:
            self._stats.num_dropped += 1
            self._pause(error)
        finally:
            self._queued.pop(key, None)

    def _read(self, key: bytes, num_bytes: int) -> memoryview | None:
        if self._is_closing:
            return None
        try:
            data = self._folder.read(key, num_bytes)
        except OSError as error:
            if not isinstance(error, FileNotFoundError):  # others may delete what they like
                log.warning("%s cannot be read: %s; the KV kept there is recomputed", self._folder.path, error)
            self._used_at.pop(key, None)
            return None
        except ValueError as error:
            log.warning("%s/%s.kv is damaged, and deleted: %s", self._folder.path, key.hex(), error)
            self._stats.num_damaged += 1
            self.discard([key])
            return None
        self._stats.num_bytes_read += HEADER_BYTES + num_bytes
        return data

    def _look_through(self, max_bytes: int) -> None:
        """See what is there; the longest unused goes if that is more than may be."""
        listed, now = self._folder.list(), _use_of(0)
        ahead = {each.key for each in listed if each.used_at > now + _TOUCH_S}  # of a time when the clock was wrong
        self._touch(dict.fromkeys(ahead, now))
        found = sorted((each._replace(used_at=min(each.used_at, now)) for each in listed), reverse=True)
        if sum(segment.num_bytes for segment in found) > max_bytes:
            max_bytes -= self._max_bytes // _SLACK
        num_bytes = 0
        kept: dict[bytes, float] = {}
        for segment in found:
            if num_bytes + segment.num_bytes > max_bytes:
                self._folder.delete(segment.key)
            else:
                num_bytes += segment.num_bytes
                kept[segment.key] = segment.used_at
        self._used_at, self._stats.num_bytes, self._num_unseen_bytes = kept, num_bytes, 0

    def _touch(self, uses: Mapping[bytes, float]) -> None:
        for key, used_at in uses.items():
            with suppress(OSError):
                self._folder.touch(key, used_at)

    def _delete(self, keys: Sequence[bytes]) -> None:
        for key in keys:
            self._used_at.pop(key, None)
            with suppress(OSError):
                self._folder.delete(key)

    def _pause(self, error: OSError) -> None:
        self._paused_until = time.monotonic() + _PAUSE_S
        path, reason = self._folder.path, error.strerror or error
        log.warning("%s cannot be written to: %s; KV is kept in memory only for %.0f s", path, reason, _PAUSE_S)


def _extended(digest: "hashlib.blake2b", data: bytes) -> "hashlib.blake2b":
    longer = digest.copy()
    longer.update(data)
    return longer


def _use_of(depth: int) -> float:
    """Now, but a second earlier for each segment before it: of a prefix the end goes first, since nothing needs it. A
    clock that is set while this runs changes nothing: what is used would seem older than what is not."""
    return _STARTED_AT + time.monotonic() - depth
