"""The engine at one moment, in numbers; snapshots are taken on its thread between two steps, and only on demand.

The totals of a snapshot include what the running requests have prefilled and decoded so far, and never decrease, also
when tokens are recomputed or taken back after they were counted.
"""

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from itertools import takewhile
from typing import NamedTuple

from hotloop.core.request import FinishReason, Priority, Request, Usage
from hotloop.engine.core import EngineCore
from hotloop.engine.grammar.matcher import Grammars
from hotloop.engine.kvcache.full_attention import StateStats
from hotloop.engine.offload.disk.store import DiskStats
from hotloop.engine.offload.host import CopyStats
from hotloop.engine.scheduler.scheduler import Scheduler
from hotloop.engine.sessions.index import PREFIX
from hotloop.engine.sessions.tree import SessionTree

FRESH_S = 0.5  # a snapshot that is no older is given to the next caller as well


@dataclass(frozen=True, slots=True)
class EngineStats:
    """The engine at one moment. The totals only grow; a request is part of them once it has ended."""

    num_running: int
    num_waiting: Mapping[Priority, int]
    num_blocks: int
    num_blocks_used: int
    num_blocks_cached: int
    num_steps: int
    num_draft_model_tokens: int  # that a draft model is asked for; 0: there is none, or it does not pay
    usage: Usage
    num_grammar_hits: int
    num_grammar_misses: int
    num_evicted_blocks: int
    num_preemptions: int
    num_admitted: int  # sessions under way: those that are served, and those that are expected back
    num_displaced: int  # sessions that had to make room for others, and wait in their turn
    num_finished: Mapping[FinishReason, int]
    disk: DiskStats
    num_host_blocks: int
    num_host_blocks_cached: int
    host: CopyStats  # from and to host memory
    moves: CopyStats  # from and to other servers
    states: StateStats


class BlockCount(NamedTuple):
    """Blocks of the cache: used by requests, and kept though no request uses them."""

    num_used: int
    num_kept: int


@dataclass(frozen=True, slots=True)
class EngineSnapshot:
    at_s: float  # on the clock of `time.monotonic`
    stats: EngineStats
    totals: Usage  # since the engine started, by what has ended and what runs
    requests: tuple[Request, ...]  # what runs and what waits, to be read at once: they go on
    above: Mapping[str, tuple[str, ...]]  # the sessions that a request's session works for, the root first, by its id
    blocks: Mapping[str | None, BlockCount]  # all that are not free, by session; None: several have used them


class Snapshotter:
    """Takes snapshots on demand. `stats` counts what `Engine.stats` does."""

    def __init__(self, core: EngineCore, stats: Callable[[], EngineStats]) -> None:
        self._core = core
        self._stats = stats
        self._totals = Usage(0, 0, 0)
        self._lock = threading.Lock()
        self._pending: Future[EngineSnapshot] | None = None

    def ask(self, post: Callable[[Callable[[], None]], None]) -> Future[EngineSnapshot]:
        """The next snapshot, or the last if it is fresh; callers share it. `post` has it taken between two steps."""
        with self._lock:
            pending = self._pending
            if pending and (not pending.done() or _is_fresh(pending)):
                return pending
            pending = self._pending = Future()
            pending.set_running_or_notify_cancel()  # one caller that gives up does not cancel it for others
        post(lambda: self._answer(pending))
        return pending

    def take(self) -> EngineSnapshot:
        """To be called between two steps."""
        scheduler = self._core.scheduler
        requests = (*scheduler.running.values(), *scheduler.waiting.values())
        counted = Usage.total(self._core.usage, *map(_so_far, requests))
        self._totals = Usage._make(map(max, self._totals, counted))
        above = {request.id: _above(request, scheduler.sessions.names) for request in requests}
        blocks = count_blocks(scheduler)
        return EngineSnapshot(time.monotonic(), self._stats(), self._totals, requests, above, blocks)

    def _answer(self, pending: Future[EngineSnapshot]) -> None:
        try:
            pending.set_result(self.take())
        except Exception as error:  # a failed snapshot must not stop the engine
            pending.set_exception(error)


def count_up(core: EngineCore, grammars: Grammars) -> EngineStats:
    """May be pending on any thread."""
    scheduler, host_pool = core.scheduler, core.scheduler.tree.host_pool
    waiting = [request.priority for request in list(scheduler.waiting.values())]
    return EngineStats(
        num_running=len(scheduler.running),
        num_waiting={priority: waiting.count(priority) for priority in Priority},
        num_blocks=scheduler.pool.num_blocks,
        num_blocks_used=scheduler.pool.num_used,
        num_blocks_cached=scheduler.pool.num_idle,
        num_steps=core.num_steps,
        num_draft_model_tokens=core.num_draft_model_tokens,
        usage=core.usage,
        num_grammar_hits=grammars.num_hits,
        num_grammar_misses=grammars.num_misses,
        num_evicted_blocks=scheduler.tree.num_evicted,
        num_preemptions=scheduler.num_preemptions,
        num_admitted=len(scheduler.admission.admitted),
        num_displaced=scheduler.admission.num_displaced,
        num_finished=dict(core.num_finished),
        disk=core.disk.stats() if core.disk else DiskStats(),
        num_host_blocks=host_pool.num_blocks,
        num_host_blocks_cached=host_pool.num_blocks - host_pool.num_free,
        host=core.host.stats() if core.host else CopyStats(),
        moves=core.moves.stats() if core.moves else CopyStats(),
        states=scheduler.states.stats(),
    )


def count_blocks(scheduler: Scheduler) -> dict[str | None, BlockCount]:
    """Whose the blocks are that are not free: by the tree; what is not in it yet is of the request that writes it."""
    used, kept = Counter[str | None](), Counter[str | None]()
    for node in scheduler.tree.nodes():
        if not node.is_offloaded:
            has_name = not (node.session and node.session.startswith(PREFIX))
            session, num_idle = node.session if has_name else "", scheduler.tree.num_idle(node)
            used[session] += len(node.block_ids) - num_idle
            kept[session] += num_idle
    for request in scheduler.running.values():
        own = takewhile(lambda block_id: not scheduler.pool.is_kept[block_id], reversed(request.block_ids))
        used[request.session_id] += sum(1 for _ in own)
    return {session: BlockCount(used[session], kept[session]) for session in used.keys() | kept.keys()}


def _above(request: Request, names: SessionTree) -> tuple[str, ...]:
    """A request without a session works for the session that it has named as its parent."""
    is_named = request.session_id or not request.parent_id
    return names.above(request.session_id) if is_named else (*names.above(request.parent_id), request.parent_id)


def _is_fresh(taken: Future[EngineSnapshot]) -> bool:
    return not taken.exception() and time.monotonic() - taken.result().at_s <= FRESH_S


def _so_far(request: Request) -> Usage:
    """One that was preempted has computed nothing; what it found in the cache was found all the same."""
    num_prefilled = max(min(request.num_computed, request.num_prompt), request.num_cached)
    return request.usage._replace(num_prompt=num_prefilled, num_steps=0)
