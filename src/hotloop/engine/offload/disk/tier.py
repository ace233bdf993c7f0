"""KV blocks on their way to disk and back, on the engine's thread, a few segments a step.

Out: whatever a step completed is copied and written behind. In: a request whose prefix the disk knows further than the
tree does is not scheduled (`is_loading`) until the tree has it; of those who want the same segments one reads and the
others follow. Whatever goes wrong, it computes what it did not get, at the latest when the disk says nothing for long.

    tokens   [ known to the tree ...... | read from disk ......................... | computed ]
    segments [ 0           | 1          | begin       | ...         |

Of a hybrid model the recurrent states are written too, as the tree is given them, with the KV from the last segment up
to each. A prefix is then read as far as the deepest state, that last; until it is there nobody can go on from the KV
before it, so its load keeps the blocks in use.
"""

import logging
from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from hotloop.backends.backend import Backend
from hotloop.core.config import EngineConfig, parse_bytes
from hotloop.core.errors import ConfigError
from hotloop.core.request import Request
from hotloop.engine.offload.disk.folder import HEADER_BYTES, Folder
from hotloop.engine.offload.disk.store import SEGMENT_TOKENS, DiskStats, Keys, KvStore, Segments
from hotloop.engine.scheduler.scheduler import Scheduler
from hotloop.engine.step import Slice

log = logging.getLogger(__name__)

PATIENCE_S = 2.0
_MAX_AHEAD_BYTES = 64 << 20  # read from disk and not yet in blocks

Post = Callable[[Callable[[], None]], None]


def open_store(config: EngineConfig, backend: Backend) -> KvStore | None:
    if not config.kv_dir:
        return None
    segments = segments_of(backend)
    least_bytes = HEADER_BYTES + segments.num_bytes + backend.state_bytes
    if parse_bytes(config.kv_dir_size) < least_bytes:
        raise ConfigError(f"kv_dir_size {config.kv_dir_size} is too small: one segment takes {least_bytes:,} bytes")
    return KvStore(
        Folder(Path(config.kv_dir).expanduser()),
        layout=f"{backend.kv_layout} {backend.state_bytes}" if backend.num_states else backend.kv_layout,
        segment_bytes=segments.num_bytes,
        segment_tokens=segments.num_tokens,
        max_bytes=parse_bytes(config.kv_dir_size),
    )


def segments_of(backend: Backend) -> Segments:
    num_blocks = max(1, SEGMENT_TOKENS // backend.block_size)
    return Segments(backend.kv_layout, num_blocks * backend.block_size, num_blocks * backend.block_bytes)


@dataclass(slots=True, eq=False)
class _Load:
    """The segments from `begin` on, being read for one request; and a state after its first `place` tokens, if any."""

    request: Request
    begin: int
    keys: Sequence[bytes]
    place: int = 0
    num_known: int = 0  # tokens that it could go on from without this state
    num_requested: int = 0
    num_placed: int = 0
    followers: list[Request] = field(default_factory=list)
    used: list[int] = field(default_factory=list)  # blocks that are kept until the state is there

    def is_state(self, number: int) -> bool:
        """Whether that of its keys is the state's."""
        return self.place > 0 and number == len(self.keys) - 1


@dataclass(slots=True)
class _Progress:
    """How much of a request's computed segments was offered to the store."""

    keys: Keys
    num_full: int = 0
    num_saved: int = 0


class SegmentTier:
    """Between the scheduler's blocks and segments of so many tokens that are elsewhere. `post` brings a call to the
    engine's thread."""

    def __init__(
        self, num_tokens: int, backend: Backend, scheduler: Scheduler, post: Post, clock: Callable[[], float]
    ) -> None:
        self._backend = backend
        self._scheduler = scheduler
        self._post = post
        self._clock = clock
        self._segment_blocks = num_tokens // scheduler.block_size

    def _count_known(self, token_ids: "array[int]", salt: str) -> tuple[int, int]:
        """How many blocks of these tokens are on the device, and behind them in host memory."""
        on_device, in_host = (self._scheduler.tree.peek(token_ids, salt, is_offloaded=each) for each in (False, True))
        return len(on_device), len(in_host)


class DiskTier(SegmentTier):
    def __init__(
        self, store: KvStore, backend: Backend, scheduler: Scheduler, post: Post, clock: Callable[[], float]
    ) -> None:
        super().__init__(store.segment_tokens, backend, scheduler, post, clock)
        self.store = store
        self._max_ahead = max(2, _MAX_AHEAD_BYTES // store.segment_bytes)
        self._num_skipped = 0  # segments that were never copied, since too many waited to be written
        self._num_ahead = 0
        self._heard_at = 0.0
        self._is_stalled = False
        self._progress: dict[str, _Progress] = {}
        self._loads: list[_Load] = []
        self._loading: dict[bytes, _Load] = {}
        if backend.num_states:
            scheduler.tree.states.on_keep = self._save_state

    def add(self, request: Request) -> None:
        """Let a request wait for its turn, once what is known of its prefix is in memory."""
        self._progress[request.id] = _Progress(self.store.keys(request.salt))
        self._scheduler.add(request)
        request.is_loading = self._restore(request)

    def let_all_go(self) -> None:
        for load in self._loads:
            self._release(load)
            for request in (load.request, *load.followers):
                request.is_loading = False
        self._loads.clear()
        self._loading.clear()

    def reset(self) -> None:
        """Trust nothing, after a failed step: the blocks are nobody's any more."""
        self._scheduler.copying.clear()
        for load in self._loads:
            load.used = []

    def poll(self, now: float) -> None:
        """Nobody waits for ever for a disk that does not answer."""
        if self._loads and now - self._heard_at > PATIENCE_S:
            log.warning("the KV directory has not responded for %.0f s; prompts are prefilled instead", PATIENCE_S)
            self._is_stalled = True
            self.let_all_go()

    def save(self, slices: Iterable[Slice]) -> None:
        """Copy what these slices completed, and a little of what was not copied when it could have been."""
        parts = [part for part in slices if part.is_kept and not part.error]
        budget = 2 + sum(part.num_tokens for part in parts) // self.store.segment_tokens
        for part in parts:
            budget -= self._save(part.request, budget)

    def forget(self, request: Request, *, is_trusted: bool) -> None:
        """A request has ended. If its computation failed, what is on disk of it may be to blame."""
        progress = self._progress.pop(request.id, None)
        if progress is None:  # it was never added
            return
        self._num_skipped += progress.num_full - progress.num_saved
        if not is_trusted:
            num_segments = request.num_tokens // self.store.segment_tokens
            self.store.discard(progress.keys.first(num_segments, request.token_ids))
            self._discard_states(request, range(0, request.num_tokens, self._scheduler.block_size), progress)

    def stats(self) -> DiskStats:
        stats = self.store.stats()
        return replace(stats, num_dropped=stats.num_dropped + self._num_skipped)

    def check(self) -> None:
        assert set(self._loading.values()) <= set(self._loads)
        assert all(request.is_loading for load in self._loads for request in (load.request, *load.followers))
        assert all(any(each is load.used for each in self._scheduler.copying) for load in self._loads if load.used)

    def _save(self, request: Request, budget: int) -> int:
        """Copy at most that many segments; returns how many it were."""
        progress = self._progress[request.id]
        progress.num_full = request.num_settled // self.store.segment_tokens
        if progress.num_saved >= progress.num_full:
            return 0
        num_copied = 0
        for key in progress.keys.first(progress.num_full, request.token_ids)[progress.num_saved :]:
            if not self.store.has(key):
                if num_copied == budget or not self.store.has_room():
                    break
                begin = progress.num_saved * self._segment_blocks
                block_ids = request.block_ids[begin : begin + self._segment_blocks]
                self.store.save(key, self._backend.read_blocks(block_ids).wait, progress.num_saved)
                num_copied += 1
            progress.num_saved += 1
        return num_copied

    def _save_state(self, request: Request, place: int, slot: int, passed: Sequence[int]) -> None:
        """Copy a state that the tree keeps from now on; those at the places that its session has passed go."""
        progress = self._progress[request.id]
        key = progress.keys.state(place, request.token_ids)
        num_bytes, depth = self._num_state_bytes(place), place // self.store.segment_tokens
        if not self.store.has(key):
            if not self.store.has_room(num_bytes):
                self._num_skipped += 1
                return
            tail = request.block_ids[depth * self._segment_blocks : place // self._scheduler.block_size]
            copies = [self._backend.read_blocks(tail)] if tail else []
            copies.append(self._backend.read_state(slot))
            self.store.save(key, lambda: memoryview(b"".join(copy.wait() for copy in copies)), depth, num_bytes)
        self._discard_states(request, passed, progress)

    def _num_state_bytes(self, place: int) -> int:
        """Of a state and of the blocks between it and the last segment before it."""
        num_blocks = place // self._scheduler.block_size % self._segment_blocks
        return num_blocks * self._backend.block_bytes + self._backend.state_bytes

    def _discard_states(self, request: Request, places: Iterable[int], progress: _Progress) -> None:
        if self._backend.num_states:
            keys = [progress.keys.state(place, request.token_ids) for place in places]
            self.store.discard([key for key in keys if self.store.has(key)])

    def _restore(self, request: Request) -> bool:
        """Whether a request waits here for what the disk knows of its prefix and the tree does not."""
        keys = self._progress[request.id].keys
        wanted = keys.first(request.num_tokens // self.store.segment_tokens, request.token_ids)
        num_stored = self.store.num_leading(wanted)
        if self._is_stalled:
            return False
        plan = self._plan_state if self._backend.num_states else self._plan
        load = plan(request, wanted[:num_stored])
        if load is None:
            return False
        leader = self._loading.get(load.keys[0])
        if leader:
            leader.followers.append(request)
        else:
            self._loading.update(dict.fromkeys(load.keys, load))
            if not self._loads:
                self._heard_at = self._clock()
            self._loads.append(load)
        self._ask()
        return True

    def _plan(self, request: Request, stored: list[bytes]) -> _Load | None:
        """What is to be read of these segments."""
        token_ids = request.token_ids[: len(stored) * self.store.segment_tokens]
        num_known, num_in_host = self._count_known(token_ids, request.salt)
        begin = num_known // self._segment_blocks
        num_gained = len(stored) * self._segment_blocks - num_known - num_in_host
        if begin >= len(stored) or num_gained < num_in_host:
            return None
        return _Load(request, begin, stored[begin:])

    def _plan_state(self, request: Request, stored: list[bytes]) -> _Load | None:
        """What is to be read of these segments, up to the deepest state that is stored, and that."""
        keys, block_size = self._progress[request.id].keys, self._scheduler.block_size
        num_known = self._scheduler.states.num_reachable(request) * block_size
        last = min((len(stored) + 1) * self.store.segment_tokens, request.num_tokens) - 1
        for place in range(last // block_size * block_size, num_known, -block_size):
            key = keys.state(place, request.token_ids)
            if self.store.num_leading([key]):
                known = self._scheduler.tree.peek(request.token_ids[:place], request.salt)
                begin = len(known) // self._segment_blocks
                segments = stored[begin : place // self.store.segment_tokens]
                return _Load(request, begin, [*segments, key], place, num_known)
        return None

    def _ask(self) -> None:
        """Have the most urgent segments read, as many as may be under way."""
        while self._num_ahead < self._max_ahead:
            loads = [load for load in self._loads if load.num_requested < len(load.keys)]
            if not loads:
                return
            load = min(loads, key=lambda load: load.request.priority)
            self._num_ahead += 1
            num_bytes = self._num_state_bytes(load.place) if load.is_state(load.num_requested) else None
            self.store.read(load.keys[load.num_requested], partial(self._bring, load), num_bytes)
            load.num_requested += 1

    def _bring(self, load: _Load, data: memoryview | None) -> None:
        self._post(lambda: self._arrive(load, data))

    def _arrive(self, load: _Load, data: memoryview | None) -> None:
        """The next segment of a load was read, or is lost."""
        self._num_ahead -= 1
        self._heard_at = self._clock()
        self._is_stalled = False
        if load in self._loads:  # it may have been let go meanwhile
            is_placed = data is not None and not load.request.is_finished and self._place(load, data)
            if not is_placed or load.num_placed == len(load.keys):
                self._end(load)
        self._ask()

    def _place(self, load: _Load, data: memoryview) -> bool:
        """Put a segment, or a state and what leads to it, into memory and the tree; False if there is no room, or the
        tree lost what comes before it.
        """
        begin = (load.begin + load.num_placed) * self._segment_blocks
        is_state = load.is_state(load.num_placed)
        end = load.place // self._scheduler.block_size if is_state else begin + self._segment_blocks
        num_bytes = (end - begin) * self._backend.block_bytes
        if not self._place_blocks(load, begin, end, data[:num_bytes]):
            return False
        if is_state:
            write = partial(self._backend.write_state, data=data[num_bytes:])
            if not self._scheduler.states.put(load.request, load.place, write):
                return False
            load.request.num_restored += load.place - load.num_known
        load.num_placed += 1
        return True

    def _place_blocks(self, load: _Load, begin: int, end: int, data: memoryview) -> bool:
        request = load.request
        num_new = place_blocks(self._scheduler, self._backend, request, begin, end, data)
        if num_new is not None and load.place:
            token_ids = request.token_ids[: end * self._scheduler.block_size]
            self._keep(load, self._scheduler.tree.peek(token_ids, request.salt))
        elif num_new is not None:
            request.num_restored += num_new * self._scheduler.block_size
        return num_new is not None

    def _keep(self, load: _Load, block_ids: list[int]) -> None:
        """Use these blocks, and no others, until a load is over."""
        self._scheduler.pool.use(block_ids)
        self._release(load)
        load.used = block_ids
        self._scheduler.copying.append(block_ids)

    def _release(self, load: _Load) -> None:
        copying = self._scheduler.copying
        copying[:] = [each for each in copying if each is not load.used]
        self._scheduler.pool.release(load.used)
        load.used = []

    def _end(self, load: _Load) -> None:
        """Let the request wait for its turn; those who followed it see what is left for them to read."""
        self._release(load)
        self._loads.remove(load)
        self._loading = {key: other for key, other in self._loading.items() if other is not load}
        if load.request.has_held_prefix and not load.request.is_finished:
            self._scheduler.sessions.keep(load.request)
        load.request.is_loading = False
        for request in load.followers:
            request.is_loading = not request.is_finished and self._restore(request)


def place_blocks(
    scheduler: Scheduler, backend: Backend, request: Request, begin: int, end: int, data: memoryview
) -> int | None:
    """Put the KV of a request's blocks from `begin` to `end` into memory and the tree. How many of them the tree
    lacked; None if there is no room, or the tree lost what comes before them.
    """
    pool, tree = scheduler.pool, scheduler.tree
    token_ids = request.token_ids[: end * scheduler.block_size]
    known = tree.peek(token_ids, request.salt)
    if len(known) < begin:
        return None
    pool.use(known)  # so that they are not given up for what follows them
    most = scheduler.retention.most_for_waiting(request.priority)  # it may not run for long
    block_ids = tree.allocate(end - begin, request.id, most=most) if len(known) < end else []
    if block_ids:
        backend.write_blocks(block_ids, data)
        tree.insert(token_ids, known[:begin] + block_ids, request.salt, request.session)
        pool.release(block_ids)
    pool.release(known)
    return None if block_ids is None else end - len(known)
