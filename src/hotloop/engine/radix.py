"""The prefix tree: which token sequences have their KV in which blocks. Integers and bytes only.

Each edge carries whole blocks, as the raw bytes of their token ids: a long common run is compared by one memcmp.

    root ──[sys sys sys sys]── node ──[user a]── leaf
                                 └────[user b]── leaf

Invariants: siblings differ in their first block; what the tree keeps is computed, never about to be; a request that
uses a block uses all before it. So a leaf can be given up from its end as far as its blocks are idle, least recently
used leaf first.
"""

import heapq
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count

from hotloop.engine.blocks import BlockPool

_TOKEN_BYTES = array("i").itemsize


@dataclass(slots=True, eq=False)
class Node:
    """An edge and where it ends: the tokens of some whole blocks, and the blocks."""

    parent: "Node | None"
    key: bytes
    block_ids: list[int]
    last_used: int
    children: "dict[bytes, Node]" = field(default_factory=dict)


class RadixTree:
    """Prefixes shared by all requests. It takes blocks from nobody: it keeps them in the pool beside their users."""

    def __init__(self, pool: BlockPool, block_size: int) -> None:
        self._pool = pool
        self._block_bytes = block_size * _TOKEN_BYTES
        self._root = Node(None, b"", [], 0)
        self._clock = 0
        self._num_nodes = 0
        self._oldest: list[tuple[int, int, Node]] = []
        self._tickets = count()
        self.num_blocks = 0
        self.num_evicted = 0

    def match(self, token_ids: "array[int]") -> list[int]:
        """The blocks of the longest known prefix, in order. The caller uses them before anything else happens."""
        return [block_id for node in self._walk(token_ids.tobytes()) for block_id in node.block_ids]

    def insert(self, token_ids: "array[int]", block_ids: list[int]) -> list[int]:
        """Remember that these whole blocks hold these tokens; returns the blocks the tree now has for them.

        Where the tree knew a block already, its own block is kept and the caller's copy is superfluous: the two lists
        differ there. New blocks are kept from now on.
        """
        assert len(token_ids) * _TOKEN_BYTES == len(block_ids) * self._block_bytes
        key = token_ids.tobytes()
        known: list[int] = []
        node = self._root
        for node in self._walk(key):
            known += node.block_ids
        new_ids = block_ids[len(known) :]
        if new_ids:
            self._append(node, key[len(known) * self._block_bytes :], new_ids)
        return known + new_ids

    def forget(self, token_ids: "array[int]") -> None:
        """Give up whatever builds on the first block along these tokens that nobody uses: all of it is idle."""
        for node in self._walk(token_ids.tobytes()):
            num_used = sum(self._pool.num_users(block_id) > 0 for block_id in node.block_ids)
            if num_used < len(node.block_ids):
                if num_used:
                    self._split(node, num_used)
                self._cut(node)
                return

    def evict(self, num_wanted: int) -> int:
        """Give up at least that many blocks, oldest leaves first; returns how many could be freed."""
        freed = 0
        in_use: list[Node] = []
        while freed < num_wanted and self._oldest:
            last_used, _, node = heapq.heappop(self._oldest)
            if node.children or not node.block_ids or node.last_used != last_used:
                continue
            freed += self._trim(node, num_wanted - freed)
            if not node.block_ids:
                self._remove(node)
            elif freed < num_wanted:
                in_use.append(node)
            else:
                self._remember_leaf(node)
        for node in in_use:
            self._remember_leaf(node)
        self.num_evicted += freed
        return freed

    def check(self) -> None:
        num_blocks = num_nodes = 0
        seen: set[int] = set()
        for node in self._nodes():
            num_nodes += 1
            num_blocks += len(node.block_ids)
            assert node.parent is not None
            assert len(node.key) == len(node.block_ids) * self._block_bytes > 0
            assert node.parent.children[node.key[: self._block_bytes]] is node
            assert node.parent is self._root or node.parent.last_used >= node.last_used
            assert all(self._pool.is_kept(block_id) for block_id in node.block_ids)
            assert seen.isdisjoint(node.block_ids), "a block is in the tree twice"
            seen.update(node.block_ids)
        assert (num_blocks, num_nodes) == (self.num_blocks, self._num_nodes)
        known = {id(node) for last_used, _, node in self._oldest if last_used == node.last_used}
        assert all(node.children or id(node) in known for node in self._nodes()), "a leaf cannot be evicted"

    def _walk(self, key: bytes) -> Iterator[Node]:
        """Each node along the key, marked as used now; an edge the key leaves midway is split, and its rest ages on."""
        self._clock += 1
        size = self._block_bytes
        node, begin = self._root, 0
        while child := node.children.get(key[begin : begin + size]):
            if not key.startswith(child.key, begin):
                child = self._split(child, self._num_common(child.key, key, begin))
            child.last_used = self._clock
            if not child.children:
                self._remember_leaf(child)
            yield child
            node, begin = child, begin + len(child.key)

    def _num_common(self, edge: bytes, key: bytes, begin: int) -> int:
        """How many whole blocks of `edge`, though not all of them, stand at `key[begin:]`."""
        size = self._block_bytes
        low, high = 1, min(len(edge), len(key) - begin) // size  # the first block is known to match
        while low < high:
            middle = (low + high + 1) // 2
            if key.startswith(edge[: middle * size], begin):
                low = middle
            else:
                high = middle - 1
        return low

    def _append(self, parent: Node, key: bytes, block_ids: list[int]) -> None:
        """New blocks after `parent`: its own edge grows if nothing hangs below it yet, else a new leaf."""
        self._pool.keep(block_ids)
        self.num_blocks += len(block_ids)
        if parent is not self._root and not parent.children:
            parent.key += key
            parent.block_ids += block_ids
            return
        leaf = Node(parent, key, list(block_ids), self._clock)
        parent.children[key[: self._block_bytes]] = leaf
        self._num_nodes += 1
        self._remember_leaf(leaf)

    def _split(self, node: Node, num_blocks: int) -> Node:
        """Divide an edge after that many blocks; returns the upper half, which takes the old place in the tree."""
        assert node.parent is not None
        size = num_blocks * self._block_bytes
        upper = Node(node.parent, node.key[:size], node.block_ids[:num_blocks], node.last_used)
        node.parent.children[node.key[: self._block_bytes]] = upper
        node.parent, node.key, node.block_ids = upper, node.key[size:], node.block_ids[num_blocks:]
        upper.children[node.key[: self._block_bytes]] = node
        self._num_nodes += 1
        return upper

    def _trim(self, leaf: Node, num_wanted: int) -> int:
        """Give up at most that many blocks from the end of a leaf, as long as nobody uses them."""
        keep = len(leaf.block_ids)
        least = max(0, keep - num_wanted)
        while keep > least and self._pool.num_users(leaf.block_ids[keep - 1]) == 0:
            keep -= 1
        freed = leaf.block_ids[keep:]
        self._pool.drop(freed)
        self.num_blocks -= len(freed)
        del leaf.block_ids[keep:]
        if keep:
            leaf.key = leaf.key[: keep * self._block_bytes]
        return len(freed)

    def _remove(self, leaf: Node) -> None:
        assert leaf.parent is not None
        del leaf.parent.children[leaf.key[: self._block_bytes]]
        self._num_nodes -= 1
        if leaf.parent is not self._root and not leaf.parent.children:
            self._remember_leaf(leaf.parent)

    def _cut(self, top: Node) -> None:
        """Give up a node and all below it."""
        for node in list(_subtree(top)):
            self._pool.drop(node.block_ids)
            self.num_blocks -= len(node.block_ids)
            node.block_ids = []  # for the queue of leaves, which may still know it
            self._num_nodes -= node is not top
        self._remove(top)

    def _remember_leaf(self, leaf: Node) -> None:
        """Queue a leaf for eviction. Entries are stale once their leaf is used again; too many, and all are remade."""
        heapq.heappush(self._oldest, (leaf.last_used, next(self._tickets), leaf))
        if len(self._oldest) > 2 * self._num_nodes + 64:
            self._oldest = [(node.last_used, next(self._tickets), node) for node in self._nodes() if not node.children]
            heapq.heapify(self._oldest)

    def _nodes(self) -> Iterator[Node]:
        for child in self._root.children.values():
            yield from _subtree(child)


def _subtree(top: Node) -> Iterator[Node]:
    stack = [top]
    while stack:
        node = stack.pop()
        yield node
        stack.extend(node.children.values())
