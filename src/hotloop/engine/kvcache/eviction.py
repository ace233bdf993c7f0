"""Which leaf of the prefix tree is evicted first, and what was evicted when and for whom, to explain a miss."""

import hashlib
import heapq
from collections.abc import Iterable, Iterator
from itertools import count

from cachetools import FIFOCache

from hotloop.core.retention import Eviction
from hotloop.engine.kvcache.node import TreeNode, is_leaf, path
from hotloop.engine.kvcache.retention import Rank

MAX_EVICTIONS = 4096


class Leaves:
    """The lowest rank first. Entries are stale once their leaf is ranked anew or is none; too many, and they go."""

    def __init__(self, *, is_offloaded: bool) -> None:
        self._is_hosted = is_offloaded
        self._heap: list[tuple[Rank, int, TreeNode]] = []
        self._tickets = count()
        self._max_entries = 64

    def __len__(self) -> int:
        return len(self._heap)

    def __iter__(self) -> Iterator[TreeNode]:
        return (node for rank, _, node in self._heap if self._is_fresh(rank, node))

    def push(self, leaf: TreeNode, rank: Rank) -> None:
        leaf.queued = rank
        heapq.heappush(self._heap, (rank, next(self._tickets), leaf))
        if len(self._heap) > self._max_entries:
            fresh = {id(node): (rank, ticket, node) for rank, ticket, node in self._heap if self._is_fresh(rank, node)}
            self._heap = list(fresh.values())
            heapq.heapify(self._heap)
            self._max_entries = 2 * len(self._heap) + 64

    def pop(self, most: Rank | None = None) -> TreeNode | None:
        """The first, unless it is worth more than that."""
        while self._heap:
            rank, _, leaf = self._heap[0]
            is_fresh = self._is_fresh(rank, leaf)
            if is_fresh and most is not None and rank > most:
                return None
            heapq.heappop(self._heap)
            if is_fresh:
                return leaf
        return None

    def _is_fresh(self, rank: Rank, node: TreeNode) -> bool:
        return rank == node.queued and node.is_offloaded == self._is_hosted and is_leaf(node)


class Evictions:
    """By the prefix that ends with the first block given up: the raw bytes of its tokens, in parts, and its salt."""

    def __init__(self) -> None:
        self._evictions: FIFOCache[bytes, Eviction] = FIFOCache(MAX_EVICTIONS)

    def find(self, salt: bytes, parts: Iterable[bytes]) -> Eviction | None:
        return self._evictions.get(_digest(salt, parts))

    def remember(self, leaf: TreeNode, end: int, eviction: Eviction) -> None:
        """What the first `end` bytes of a leaf's key end with was given up."""
        top, *nodes = reversed([*path(leaf)])
        assert top.parent is not None
        keys = [node.key for node in (top, *nodes)]
        self._evictions[_digest(top.parent.key, [*keys[:-1], leaf.key[:end]])] = eviction


def _digest(salt: bytes, parts: Iterable[bytes]) -> bytes:
    digest = hashlib.blake2b(salt, digest_size=16)
    for part in parts:
        digest.update(part)
    return digest.digest()
