"""Which leaf of the prefix tree is evicted first, which are held until when, and what was evicted when and for whom."""

import hashlib
import heapq
import math
from collections.abc import Iterable, Iterator
from itertools import count

from cachetools import FIFOCache

from hotloop.core.retention import Eviction, Hold, HoldKind
from hotloop.engine.kvcache.node import TreeNode, is_leaf, path, subtree
from hotloop.engine.kvcache.retention import Rank, Retention

MAX_EVICTIONS = 4096


class Leaves:
    """The lowest rank first. Entries are stale once their leaf is ranked anew or is none; too many, and they go."""

    def __init__(self, *, is_offloaded: bool) -> None:
        self._is_offloaded = is_offloaded
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
        return rank == node.queued and node.is_offloaded == self._is_offloaded and is_leaf(node)


class EvictionOrder:
    """The leaves of a tree, those on the device and those in host memory, each in the order in which they are evicted;
    and the holds of its nodes, on which that depends. With `has_states`, nobody goes on from a node without a state.
    """

    def __init__(self, retention: Retention, block_size: int, *, has_states: bool) -> None:
        self.retention = retention
        self.expiring: dict[TreeNode, float] = {}  # when each hold ends that does
        self._expires_at = math.inf  # no hold expires before that
        self._block_size = block_size
        self._has_states = has_states
        self._leaves, self._host_leaves = Leaves(is_offloaded=False), Leaves(is_offloaded=True)

    def __len__(self) -> int:
        return len(self._leaves)

    def push(self, node: TreeNode) -> None:
        """Put a leaf into its queue, by its rank as it is now."""
        if is_leaf(node):
            (self._host_leaves if node.is_offloaded else self._leaves).push(node, self._rank(node))

    def requeue(self, node: TreeNode) -> None:
        """Something about a node has changed that its place in the queue depends on, or that of the leaf above it."""
        self.push(node)
        above = next((each for each in path(node) if not each.is_offloaded), node)
        if above is not node:
            self.push(above)

    def pop(self, most: Rank | None = None) -> TreeNode | None:
        """The leaf of the device that is least worth keeping, with what follows it in host memory; None if there is
        none worth at most that."""
        while leaf := self._leaves.pop(most):
            rank = max(map(self._rank, subtree(leaf))) if leaf.children else leaf.queued
            if rank is None or rank == leaf.queued:
                return leaf
            self._leaves.push(leaf, rank)
        return None

    def pop_offloaded(self, most: Rank) -> TreeNode | None:
        return self._host_leaves.pop(most)

    def hold(self, node: TreeNode, hold: Hold) -> None:
        """Unless what it has counts for more, or too much is pinned already."""
        if self._can_hold(node, hold):
            self.set_hold(node, hold)

    def set_hold(self, node: TreeNode, hold: Hold | None) -> None:
        node.hold = hold
        if hold and hold.expires_at < math.inf:
            self.expiring[node] = hold.expires_at
            self._expires_at = min(self._expires_at, hold.expires_at)
        else:
            self.expiring.pop(node, None)
        self.requeue(node)

    def expire(self) -> None:
        """Holds whose time is up mean nothing any more."""
        if self.retention.now < self._expires_at:
            return
        for node in [node for node, end in self.expiring.items() if end <= self.retention.now]:
            self.set_hold(node, None)
        self._expires_at = min(self.expiring.values(), default=math.inf)

    def check(self, nodes: Iterable[TreeNode]) -> None:
        """These are all nodes there are."""
        assert {*filter(is_leaf, nodes)} == {*self._leaves, *self._host_leaves}, "a leaf cannot be evicted"
        ends = {node: node.hold.expires_at for node in nodes if node.hold and node.hold.expires_at < math.inf}
        assert self.expiring == ends
        assert self._expires_at <= min(ends.values(), default=math.inf)

    def _can_hold(self, node: TreeNode, hold: Hold) -> bool:
        if hold.kind is not HoldKind.PINNED:
            return node.hold is None or node.hold.kind is not HoldKind.PINNED
        pinned = {each for each in self.expiring if each.hold and each.hold.kind is HoldKind.PINNED} | {node}
        return sum(len(each.block_ids) for each in pinned) <= self.retention.max_pinned

    def _rank(self, node: TreeNode) -> Rank:
        if self._has_states and not node.state:
            return HoldKind.FINISHED, 0, 0.0, node.last_used
        depth = sum(len(above.block_ids) for above in path(node)) * self._block_size
        return self.retention.rank(node.hold, node.used_at, node.last_used, depth)


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
