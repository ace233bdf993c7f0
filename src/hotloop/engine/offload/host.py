"""KV blocks and states on their way back from host memory, on the engine's thread, while others compute.

A request that is about to be let in, and whose prefix goes on in host memory (`RadixTree.evict` sent it there), is not
scheduled (`is_loading`) until the tree has it on the device, if copying beats computing by what either took lately.
Those who want the same blocks wait for the one copy. Where a copy fails, they are computed.

    tokens   [ on the device ..... | in host memory .................. | computed ]
    blocks   [ used meanwhile      | used meanwhile, and as many new   |
"""

import logging
from array import array
from dataclasses import dataclass, replace

from hotloop.backends.backend import HostMemory, Restore
from hotloop.core.errors import BackendError, DeviceLost
from hotloop.core.request import Request
from hotloop.engine.kvcache.full_attention import OffloadedPrefix
from hotloop.engine.scheduler.scheduler import Scheduler

log = logging.getLogger(__name__)

MAX_AHEAD_BYTES = 4 << 30  # once so much is on its way, no other request's KV is sent for
SPARE_BLOCKS = 32  # so many more are freed than a copy needs, so that decoding need not wait for it
_BYTE_S = 1e-10  # to copy a byte, until it has been measured
_LEARNING_RATE = 0.2
_DOUBT = 0.9  # what was too slow is thought to be a little faster each time that it is not tried


@dataclass(slots=True)
class CopyStats:
    """Prefixes that were copied here, and bytes both ways. The totals only grow."""

    num_copies: int = 0
    num_failed: int = 0
    num_bytes_in: int = 0
    num_bytes_out: int = 0


@dataclass(slots=True)
class CopySpeed:
    """How long KV takes to copy, learnt from each copy."""

    byte_s: float
    begin_s: float = 0.0

    def beats(self, compute_s: float, num_bytes: int) -> bool:
        """Whether copying so many bytes is quicker than computing what they bring."""
        if self.begin_s + num_bytes * self.byte_s < compute_s:
            return True
        self.byte_s *= _DOUBT
        return False

    def learn(self, num_bytes: int, took_s: float) -> None:
        self.byte_s += _LEARNING_RATE * (took_s / num_bytes - self.byte_s)


@dataclass(slots=True, eq=False)
class _Load:
    """A copy under way, and the request that waits for it, unless that has ended meanwhile."""

    request: Request
    token_ids: "array[int]"  # on the device once it is over; its request may lose tokens meanwhile
    offloaded: OffloadedPrefix
    block_ids: list[int]
    slot: int | None  # of the device, for the state of a hybrid model
    copy: Restore
    used: list[int]  # all blocks of the device up to its end


class HostTier:
    """Between the scheduler's blocks and host memory."""

    def __init__(self, memory: HostMemory, block_bytes: int, state_bytes: int, scheduler: Scheduler) -> None:
        self._memory = memory
        self._block_bytes, self._state_bytes = block_bytes, state_bytes
        self._scheduler = scheduler
        self._loads: list[_Load] = []
        self._speed = CopySpeed(_BYTE_S)
        self._num_spare = min(SPARE_BLOCKS, scheduler.pool.num_blocks // 64)
        self._stats = CopyStats()
        scheduler.host = self

    @property
    def is_busy(self) -> bool:
        """Whether anything is on its way, even for a request that has ended."""
        return bool(self._loads)

    def is_coming(self, request: Request) -> bool:
        """Whether another's copy brings what a request needs next, or too much is on its way already."""
        offloaded = self._scheduler.states.peek_offloaded(request)
        if offloaded is None:
            return False
        num_bytes = sum(load.copy.num_bytes for load in self._loads)
        return num_bytes >= MAX_AHEAD_BYTES or self._is_used(offloaded)

    def fetch(self, request: Request) -> bool:
        """Bring back what a request has here, if that is quicker than to compute it, and there is room."""
        offloaded = self._scheduler.states.peek_offloaded(request)
        if offloaded is None or not self._is_worth_it(offloaded):
            return False
        tree, pool, states = self._scheduler.tree, self._scheduler.pool, self._scheduler.states
        pool.use(offloaded.known)  # so that they are not given up for what follows them
        tree.host_pool.use(offloaded.host_ids)
        slot = states.begin_copy(request, offloaded.state) if offloaded.state else None
        has_slot = slot is not None or not offloaded.state
        num_blocks = len(offloaded.host_ids)
        block_ids = tree.allocate(num_blocks, request.id, num_spare=self._num_spare) if has_slot else None
        copy = self._begin(offloaded, block_ids, slot) if block_ids is not None else None
        used = offloaded.known + (block_ids or [])
        if block_ids is None or copy is None:
            pool.release(used)
            tree.host_pool.release(offloaded.host_ids)
            if offloaded.state and slot is not None:
                states.end_copy(offloaded.state, slot, is_there=False)
            return False
        token_ids = request.token_ids[: len(used) * self._scheduler.block_size]
        self._loads.append(_Load(request, token_ids, offloaded, block_ids, slot, copy, used))
        self._scheduler.copying.append(used)
        request.is_loading = True
        return True

    def poll(self, now: float) -> None:
        """Let those whose copy is there wait for their turn."""
        for load in [*self._loads]:
            if load.copy.is_done:
                self._end(load)

    def reset(self) -> None:
        """Trust nothing, after a failed step. Nothing is copied any more when this returns."""
        loads, self._loads = self._loads, []
        self._scheduler.copying.clear()
        for load in loads:
            self._await(load)
            load.request.is_loading = False

    def stats(self) -> CopyStats:
        tree = self._scheduler.tree
        num_bytes_out = tree.num_offloaded * self._block_bytes + tree.states.num_offloaded * self._state_bytes
        return replace(self._stats, num_bytes_out=num_bytes_out)

    def check(self) -> None:
        pool = self._scheduler.tree.host_pool
        pool.check()
        users = [host_id for load in self._loads for host_id in load.offloaded.host_ids]
        assert len(users) == len(set(users)) == pool.num_used
        assert all(pool.num_users[host_id] == 1 for host_id in users)
        assert all(any(each is load.used for each in self._scheduler.copying) for load in self._loads)
        assert self._scheduler.tree.states.copying == [load.slot for load in self._loads if load.slot is not None]
        assert all(load.request.is_loading for load in self._loads)

    def _is_used(self, offloaded: OffloadedPrefix) -> bool:
        """Whether a copy of it is under way."""
        tree = self._scheduler.tree
        is_state_used = offloaded.state is not None and not tree.states.is_idle(offloaded.state)
        return is_state_used or any(tree.host_pool.num_users[host_id] for host_id in offloaded.host_ids[:1])

    def _is_worth_it(self, offloaded: OffloadedPrefix) -> bool:
        num_states = offloaded.state is not None and offloaded.state.is_offloaded
        num_bytes = len(offloaded.host_ids) * self._block_bytes + num_states * self._state_bytes
        return self._speed.beats(self._scheduler.compute_s(offloaded.num_gained), num_bytes)

    def _begin(self, offloaded: OffloadedPrefix, block_ids: list[int], slot: int | None) -> Restore | None:
        state = offloaded.state
        states = (state.slot, slot) if state and state.is_offloaded and slot is not None else None
        try:
            return self._memory.restore(offloaded.host_ids, block_ids, states)
        except DeviceLost:
            raise
        except BackendError as error:
            log.warning("KV could not be copied back from host memory (%s); it is recomputed", error)
            return None

    def _await(self, load: _Load) -> float | None:
        """How long a copy took; None if it failed."""
        try:
            return load.copy.wait()
        except BackendError as error:
            log.warning("KV was not copied back from host memory (%s); it is recomputed", error)
            return None

    def _end(self, load: _Load) -> None:
        """A copy is over: have the tree keep it on the device, and let its request wait for its turn."""
        request, tree, offloaded = load.request, self._scheduler.tree, load.offloaded
        copying = self._scheduler.copying
        copying[:] = [each for each in copying if each is not load.used]
        self._loads.remove(load)
        took_s = self._await(load)
        num_gained = offloaded.num_gained
        if took_s is not None:
            self._speed.learn(load.copy.num_bytes, took_s)
            shared = tree.insert(load.token_ids, load.used, request.salt, request.session)
            num_others = len({*load.block_ids}.difference(shared))  # others may have brought these back meanwhile
            num_gained -= num_others
            self._stats.num_bytes_in += load.copy.num_bytes
            self._stats.num_copies += 1
        self._scheduler.pool.release(load.used)
        tree.host_pool.release(offloaded.host_ids)
        if offloaded.state and load.slot is not None:
            self._scheduler.states.end_copy(offloaded.state, load.slot, is_there=took_s is not None)
        if took_s is None:
            tree.forget(load.token_ids, request.salt)
        elif not request.is_finished:
            request.num_from_host += num_gained * self._scheduler.block_size
            self._scheduler.sessions.keep(request)
        request.is_loading, request.has_held_prefix = False, True
