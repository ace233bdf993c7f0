"""KV blocks on their way back from host memory, on the engine's thread, while others compute.

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
from hotloop.engine.scheduler import Scheduler

log = logging.getLogger(__name__)

MAX_AHEAD_BYTES = 4 << 30  # once so much is on its way, no other request's KV is sent for
SPARE_BLOCKS = 32  # so many more are freed than a copy needs, so that decoding need not wait for it
_BYTE_S = 1e-10  # to copy a byte, until it has been measured
_LEARNING_RATE = 0.2
_DOUBT = 0.9  # what was too slow is thought to be a little faster each time that it is not tried


@dataclass(slots=True)
class HostStats:
    """What is in host memory, and what went there and came back."""

    num_blocks: int = 0
    num_blocks_cached: int = 0
    num_bytes_out: int = 0
    num_bytes_in: int = 0
    num_restores: int = 0


@dataclass(slots=True, eq=False)
class _Load:
    """A copy under way, and the request that waits for it, unless that has ended meanwhile."""

    request: Request
    token_ids: "array[int]"  # on the device once it is over; its request may lose tokens meanwhile
    known: list[int]
    host_ids: list[int]
    block_ids: list[int]
    copy: Restore


class HostTier:
    """Between the scheduler's blocks and host memory."""

    def __init__(self, memory: HostMemory, block_bytes: int, scheduler: Scheduler) -> None:
        self._memory = memory
        self._block_bytes = block_bytes
        self._scheduler = scheduler
        self._loads: list[_Load] = []
        self._byte_s = _BYTE_S
        self._num_spare = min(SPARE_BLOCKS, scheduler.pool.num_blocks // 64)
        self._stats = HostStats(memory.num_blocks)
        scheduler.host = self

    @property
    def is_busy(self) -> bool:
        """Whether anything is on its way, even for a request that has ended."""
        return bool(self._loads)

    def is_coming(self, request: Request) -> bool:
        """Whether another's copy brings what a request needs next, or too much is on its way already."""
        host_ids = self._known(request)
        if not host_ids:
            return False
        num_bytes = sum(load.copy.num_bytes for load in self._loads)
        return num_bytes >= MAX_AHEAD_BYTES or self._scheduler.tree.host_pool.num_users[host_ids[0]] > 0

    def fetch(self, request: Request) -> bool:
        """Bring back what a request has here, if that is quicker than to compute it, and there is room."""
        host_ids = self._known(request)
        if not host_ids or not self._is_worth_it(len(host_ids)):
            return False
        tree, pool = self._scheduler.tree, self._scheduler.pool
        known = tree.peek(request.token_ids[: request.num_tokens - 1], request.salt)
        pool.use(known)  # so that they are not given up for what follows them
        tree.host_pool.use(host_ids)
        block_ids = tree.allocate(len(host_ids), request.id, num_spare=self._num_spare)
        copy = self._begin(host_ids, block_ids) if block_ids else None
        used = known + (block_ids or [])
        if not block_ids or copy is None:
            pool.release(used)
            tree.host_pool.release(host_ids)
            return False
        token_ids = request.token_ids[: len(used) * self._scheduler.block_size]
        self._loads.append(_Load(request, token_ids, known, host_ids, block_ids, copy))
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

    def stats(self) -> HostStats:
        tree = self._scheduler.tree
        num_cached = tree.host_pool.num_blocks - tree.host_pool.num_free
        num_bytes_out = tree.num_offloaded * self._block_bytes
        return replace(self._stats, num_blocks_cached=num_cached, num_bytes_out=num_bytes_out)

    def check(self) -> None:
        pool = self._scheduler.tree.host_pool
        pool.check()
        users = [host_id for load in self._loads for host_id in load.host_ids]
        assert len(users) == len(set(users)) == pool.num_used
        assert all(pool.num_users[host_id] == 1 for host_id in users)
        assert self._scheduler.copying == [load.known + load.block_ids for load in self._loads]
        assert all(load.request.is_loading for load in self._loads)

    def _known(self, request: Request) -> list[int]:
        """What host memory has of a request; the last token is always left to compute, for its logits."""
        pool = self._scheduler.tree.host_pool
        if pool.num_free == pool.num_blocks:
            return []
        return self._scheduler.states.peek_hosted(request)

    def _is_worth_it(self, num_blocks: int) -> bool:
        copy_s = num_blocks * self._block_bytes * self._byte_s
        if copy_s < num_blocks * self._scheduler.block_size * self._scheduler.retention.token_s:
            return True
        self._byte_s *= _DOUBT
        return False

    def _begin(self, host_ids: list[int], block_ids: list[int]) -> Restore | None:
        try:
            return self._memory.restore(host_ids, block_ids)
        except DeviceLost:
            raise
        except BackendError as error:
            log.warning("KV could not be copied back from host memory (%s); it is computed instead", error)
            return None

    def _await(self, load: _Load) -> float | None:
        """How long a copy took; None if it failed."""
        try:
            return load.copy.wait()
        except BackendError as error:
            log.warning("KV was not copied back from host memory (%s); it is computed instead", error)
            return None

    def _end(self, load: _Load) -> None:
        """A copy is over: have the tree keep it on the device, and let its request wait for its turn."""
        request, tree, pool = load.request, self._scheduler.tree, self._scheduler.pool
        self._scheduler.copying.pop(self._loads.index(load))
        self._loads.remove(load)
        took_s = self._await(load)
        if took_s is not None:
            self._byte_s += _LEARNING_RATE * (took_s / load.copy.num_bytes - self._byte_s)
            shared = tree.insert(load.token_ids, load.known + load.block_ids, request.salt, request.line)
            num_own = len({*load.block_ids}.intersection(shared))  # others may have brought the rest back meanwhile
            self._stats.num_bytes_in += len(load.block_ids) * self._block_bytes
            self._stats.num_restores += 1
        pool.release(load.known + load.block_ids)
        tree.host_pool.release(load.host_ids)
        if took_s is None:
            tree.forget(load.token_ids, request.salt)
        elif not request.is_finished:
            request.num_from_host += num_own * self._scheduler.block_size
            self._scheduler.seating.keep(request)
        request.is_loading, request.is_awaited = False, True
