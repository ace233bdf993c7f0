"""What each replica has probably read: prompts as chains of block hashes, in one tree for all replicas.

    root ──[h1 h2 h3]── node {a, b} ──[h4 h5]── node {a}
                              └────────[h6]──── node {b}

A hash stands for its block and all before it, so a run of them is compared by one memcmp. Invariants: who holds a node
holds those above it; siblings differ in their first hash; of what one replica holds, a node is used no longer ago than
those below it. So a replica that holds too much loses its leaves first, as its own cache would. Bytes only.
"""

from collections import OrderedDict
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from typing import Generic, TypeVar

HASH_BYTES = 8

R = TypeVar("R", bound=Hashable)


@dataclass(slots=True, eq=False)
class _Node(Generic[R]):
    """An edge and where it ends."""

    parent: "_Node[R] | None"
    key: bytes
    holders: set[R]
    children: "dict[bytes, _Node[R]]" = field(default_factory=dict)

    @property
    def num_blocks(self) -> int:
        return len(self.key) // HASH_BYTES


@dataclass(slots=True)
class _Shelf(Generic[R]):
    """What one replica holds, longest unused first."""

    max_blocks: int
    nodes: "OrderedDict[_Node[R], None]" = field(default_factory=OrderedDict)
    num_blocks: int = 0


class PrefixIndex(Generic[R]):
    """Prompts by replica. A key is the hashes of a prompt's blocks, one after the other."""

    def __init__(self) -> None:
        self._root: _Node[R] = _Node(None, b"", set())
        self._shelves: dict[R, _Shelf[R]] = {}

    def add_replica(self, replica: R, max_blocks: int) -> None:
        """A replica that can hold so many blocks, and holds none that we know of."""
        self._shelves[replica] = _Shelf(max_blocks)

    def remove_replica(self, replica: R) -> None:
        """Forget a replica, or what it held if it has been restarted."""
        shelf = self._shelves.pop(replica, None)
        while shelf and shelf.nodes:
            self._drop_oldest(replica, shelf)

    def resize(self, replica: R, max_blocks: int) -> None:
        """A replica can hold so many blocks after all."""
        shelf = self._shelves[replica]
        shelf.max_blocks = max_blocks
        while shelf.num_blocks > shelf.max_blocks:
            self._trim_oldest(replica, shelf)

    def match(self, key: bytes) -> dict[R, int]:
        """How many leading blocks of a prompt each replica holds; who holds none is left out."""
        found: dict[R, int] = {}
        node, begin = self._root, 0
        while child := node.children.get(key[begin : begin + HASH_BYTES]):
            num_common = self._num_common(child.key, key, begin)
            end = begin + num_common * HASH_BYTES
            found.update(dict.fromkeys(child.holders, end // HASH_BYTES))
            if num_common < child.num_blocks:
                break
            node, begin = child, end
        return found

    def find(self, key: bytes) -> tuple[int, int]:
        """How many leading blocks of a prompt anybody holds, and how many ways others go on from there."""
        node, begin = self._root, 0
        while child := node.children.get(key[begin : begin + HASH_BYTES]):
            num_common = self._num_common(child.key, key, begin)
            begin += num_common * HASH_BYTES
            if num_common < child.num_blocks:
                return begin // HASH_BYTES, 1
            node = child
        return begin // HASH_BYTES, len(node.children)

    def insert(self, replica: R, key: bytes) -> None:
        """A replica has read this prompt, or is about to."""
        shelf = self._shelves.get(replica)
        if shelf is None:
            return
        path = [*self._walk(key, replica)]
        for node in reversed(path):  # the deepest first, so that those above it are used no longer ago
            if replica not in node.holders:
                node.holders.add(replica)
                shelf.num_blocks += node.num_blocks
            shelf.nodes[node] = None
            shelf.nodes.move_to_end(node)
        self.resize(replica, shelf.max_blocks)

    def forget(self, replica: R, key: bytes) -> None:
        """A replica has lost the last block of this prompt, and all that builds on it."""
        path = [*self._walk(key)]
        shelf = self._shelves.get(replica)
        if shelf is None or not path or sum(len(node.key) for node in path) < len(key):
            return
        lost = path[-1]
        if lost.num_blocks > 1:
            self._split(lost, lost.num_blocks - 1)  # which leaves it the last block
        for node in [*_subtree(lost)]:
            if replica in node.holders:
                self._drop(replica, shelf, node)

    def num_blocks(self, replica: R) -> int:
        return self._shelves[replica].num_blocks

    def check(self) -> None:
        held: dict[R, int] = dict.fromkeys(self._shelves, 0)
        for node in _subtree(self._root):
            if node is self._root:
                continue
            assert node.parent is not None
            assert node.holders, "nobody holds it"
            assert node.parent is self._root or node.holders <= node.parent.holders
            assert len(node.key) % HASH_BYTES == 0 < len(node.key)
            assert node.parent.children[node.key[:HASH_BYTES]] is node
            for replica in node.holders:
                assert node in self._shelves[replica].nodes
                held[replica] += node.num_blocks
        for replica, shelf in self._shelves.items():
            assert shelf.num_blocks == held[replica] <= shelf.max_blocks
            assert all(replica in node.holders for node in shelf.nodes)
            ages = {node: age for age, node in enumerate(shelf.nodes)}
            assert all(
                node.parent is self._root or ages[node.parent] > age for node, age in ages.items() if node.parent
            )

    def _walk(self, key: bytes, grower: R | None = None) -> Iterator[_Node[R]]:
        """The nodes along a key. With a grower they end where it ends: what is missing is added for that replica."""
        node, begin = self._root, 0
        while begin < len(key):
            child = node.children.get(key[begin : begin + HASH_BYTES])
            if child is None:
                if grower is None:
                    return
                child = node.children[key[begin : begin + HASH_BYTES]] = _Node(node, key[begin:], set())
            elif (num_common := self._num_common(child.key, key, begin)) < child.num_blocks:
                child = self._split(child, num_common)
            elif not child.children and child.holders == {grower}:  # a session goes on: no need for a node a turn
                assert grower is not None
                self._shelves[grower].num_blocks += (len(key) - begin) // HASH_BYTES - child.num_blocks
                child.key = key[begin:]
            yield child
            node, begin = child, begin + len(child.key)

    def _split(self, node: _Node[R], num_blocks: int) -> _Node[R]:
        """Divide an edge; the upper half takes its place in the tree, and is used by everybody now."""
        assert node.parent is not None
        size = num_blocks * HASH_BYTES
        upper = _Node(node.parent, node.key[:size], set(node.holders))
        node.parent.children[node.key[:HASH_BYTES]] = upper
        node.parent, node.key = upper, node.key[size:]
        upper.children[node.key[:HASH_BYTES]] = node
        for replica in upper.holders:
            self._put_behind(replica, upper)
        return upper

    def _put_behind(self, replica: R, upper: _Node[R]) -> None:
        """A new half is as recent as can be; those above it must be no less so."""
        nodes = self._shelves[replica].nodes
        node: _Node[R] | None = upper
        while node and node.parent:
            nodes[node] = None
            nodes.move_to_end(node)
            node = node.parent

    def _trim_oldest(self, replica: R, shelf: _Shelf[R]) -> None:
        """Give up what was used longest ago, from its end if that is enough and nobody else minds."""
        node = next(iter(shelf.nodes))
        num_excess = shelf.num_blocks - shelf.max_blocks
        if num_excess < node.num_blocks and not node.children and len(node.holders) == 1:
            node.key = node.key[: -num_excess * HASH_BYTES]
            shelf.num_blocks -= num_excess
        else:
            self._drop(replica, shelf, node)

    def _drop_oldest(self, replica: R, shelf: _Shelf[R]) -> None:
        self._drop(replica, shelf, next(iter(shelf.nodes)))

    def _drop(self, replica: R, shelf: _Shelf[R], node: _Node[R]) -> None:
        del shelf.nodes[node]
        shelf.num_blocks -= node.num_blocks
        node.holders.discard(replica)
        if not node.holders:
            assert node.parent is not None
            del node.parent.children[node.key[:HASH_BYTES]]

    @staticmethod
    def _num_common(edge: bytes, key: bytes, begin: int) -> int:
        """How many hashes of `edge` stand at `key[begin:]`; the first is known to."""
        if key.startswith(edge, begin):
            return len(edge) // HASH_BYTES
        low, high = 1, min(len(edge), len(key) - begin) // HASH_BYTES
        while low < high:
            middle = (low + high + 1) // 2
            if key.startswith(edge[: middle * HASH_BYTES], begin):
                low = middle
            else:
                high = middle - 1
        return low


def _subtree(top: _Node[R]) -> Iterator[_Node[R]]:
    stack = [top]
    while stack:
        node = stack.pop()
        yield node
        stack.extend(node.children.values())
