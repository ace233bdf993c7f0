"""Snapshots of the engine, taken between two steps, so that nothing is counted twice and nothing missed.

They are taken on the engine's thread, and only on demand. The totals include what the running requests have prefilled
and decoded so far. They never decrease: a preempted request recomputes what was counted, and an aborted answer may lose
tokens that were never published; the totals then stand still until they are made up for.
"""

import threading
import time
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from itertools import takewhile

from hotloop.core.request import Request, Usage
from hotloop.engine.blocks import BlockPool
from hotloop.engine.core import EngineCore
from hotloop.engine.lines import PREFIX
from hotloop.engine.node import TreeNode
from hotloop.engine.radix import RadixTree
from hotloop.engine.scheduler import Scheduler
from hotloop.engine.stats import EngineStats

FRESH_S = 0.5  # a snapshot that is no older is given to the next caller as well


@dataclass(frozen=True, slots=True)
class BlockCount:
    """Blocks of the cache: used by requests, and kept though no request uses them."""

    num_used: int
    num_kept: int


@dataclass(frozen=True, slots=True)
class EngineSnapshot:
    at_s: float  # on the clock of `time.monotonic`
    stats: EngineStats
    totals: Usage  # since the engine started, by what has ended and what runs
    requests: tuple[Request, ...]
    """What runs and what waits. They go on: to be read at once, and not to be changed."""
    blocks: Mapping[str | None, BlockCount]
    """By session; None are those that several sessions have used. Together they are all that is not free."""


class Snapshotter:
    """Takes snapshots on demand. `stats` counts what `Engine.stats` does."""

    def __init__(self, core: EngineCore, stats: Callable[[], EngineStats]) -> None:
        self._core = core
        self._stats = stats
        self._totals = Usage(0, 0, 0)
        self._lock = threading.Lock()
        self._asked: Future[EngineSnapshot] | None = None

    def ask(self, post: Callable[[Callable[[], None]], None]) -> Future[EngineSnapshot]:
        """The next snapshot, or the last if it is fresh; callers share it. `post` has it taken between two steps."""
        with self._lock:
            asked = self._asked
            if asked is not None and (not asked.done() or _is_fresh(asked)):
                return asked
            asked = self._asked = Future()
            asked.set_running_or_notify_cancel()  # one caller that gives up does not cancel it for others
        post(lambda: self._answer(asked))
        return asked

    def take(self) -> EngineSnapshot:
        """To be called between two steps."""
        scheduler = self._core.scheduler
        requests = (*scheduler.running.values(), *scheduler.waiting.values())
        counted = Usage.total(self._core.usage, *map(_so_far, requests))
        self._totals = Usage._make(map(max, self._totals, counted))
        return EngineSnapshot(time.monotonic(), self._stats(), self._totals, requests, count_blocks(scheduler))

    def _answer(self, asked: Future[EngineSnapshot]) -> None:
        try:
            asked.set_result(self.take())
        except Exception as error:  # a failed snapshot must not stop the engine
            asked.set_exception(error)


def count_blocks(scheduler: Scheduler) -> dict[str | None, BlockCount]:
    """Whose the blocks are that are not free: by the tree; what is not in it yet is of the request that writes it."""
    tree, num_own = scheduler.tree, {each.id: _num_own(each, scheduler.pool) for each in scheduler.running.values()}
    prefixes = [
        (each.token_ids[: (len(each.block_ids) - num_own[each.id]) * scheduler.block_size], each.salt)
        for each in scheduler.running.values()
    ]
    used = _by_name(_num_along(tree, prefixes))
    kept = _by_name(tree.num_owned) - used
    for request in scheduler.running.values():
        used[request.session_id] += num_own[request.id]
    return {session: BlockCount(used[session], kept[session]) for session in used.keys() | kept.keys()}


def _num_along(tree: RadixTree, prefixes: Iterable[tuple["array[int]", str]]) -> Counter[str | None]:
    """How many blocks these prefixes, each with its salt, have on the device together, by whose they are."""
    reached: dict[TreeNode, int] = {}
    for token_ids, salt in prefixes:
        for node, num_blocks in tree.trace(token_ids, salt):
            reached[node] = 0 if node.is_hosted else max(reached.get(node, 0), num_blocks)
    found = Counter[str | None]()
    for node, num_blocks in reached.items():
        found[node.session] += num_blocks
    return found


def _by_name(blocks: Counter[str | None]) -> Counter[str | None]:
    """Sessions that have no name are one."""
    named = Counter[str | None]()
    for session, num_blocks in blocks.items():
        named["" if session and session.startswith(PREFIX) else session] += num_blocks
    return named


def _num_own(request: Request, pool: BlockPool) -> int:
    """Blocks at its end that the tree does not keep, or not yet."""
    return sum(1 for _ in takewhile(lambda block_id: not pool.is_kept(block_id), reversed(request.block_ids)))


def _is_fresh(asked: Future[EngineSnapshot]) -> bool:
    return asked.exception() is None and time.monotonic() - asked.result().at_s < FRESH_S


def _so_far(request: Request) -> Usage:
    """One that was preempted has computed nothing; what it found in the cache was found all the same."""
    num_prefilled = max(min(request.num_computed, request.num_prompt), request.num_cached)
    return request.usage._replace(num_prompt=num_prefilled, num_steps=0)
