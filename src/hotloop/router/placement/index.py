"""What each replica has probably cached: prompts as chains of block hashes, in one tree for all replicas.

    root ──[h1 h2 h3]── node {a, b} ──[h4 h5]── node {a}
                              └────────[h6]──── node {b}

A hash stands for its block and all before it, so a run of them is compared by one memcmp. Invariants: who holds a node
holds those above it; siblings differ in their first hash; of what one replica holds, a node is used no longer ago than
those below it, so that its leaves are evicted first, as by its own cache.
"""

from bisect import bisect
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field

HASH_BYTES = 8


@dataclass(slots=True, eq=False)
class _Node:
    parent: "_Node | None"
    key: bytes
    holders: set[str]
    children: "dict[bytes, _Node]" = field(default_factory=dict)

    @property
    def num_blocks(self) -> int:
        return len(self.key) // HASH_BYTES


@dataclass(slots=True)
class _ReplicaNodes:
    """What one replica holds, longest unused first."""

    max_blocks: int
    nodes: "OrderedDict[_Node, None]" = field(default_factory=OrderedDict)
    num_blocks: int = 0


@dataclass(frozen=True, slots=True)
class Match:
    blocks: dict[str, int]
    """How many leading blocks of a prompt each replica holds."""
    num_blocks: int
    num_branches: int
    """How many ways other prompts go on from there."""


class PrefixIndex:
    """Prompts by replica. A key is the hashes of a prompt's blocks, one after the other."""

    def __init__(self) -> None:
        self._root: _Node = _Node(None, b"", set())
        self._replicas: dict[str, _ReplicaNodes] = {}

    def add_replica(self, replica: str, max_blocks: int) -> None:
        self._replicas[replica] = _ReplicaNodes(max_blocks)

    def remove_replica(self, replica: str) -> None:
        """Forget a replica, or what it held if it has been restarted."""
        held = self._replicas.pop(replica, None)
        while held and held.nodes:
            self._drop(replica, held, next(iter(held.nodes)))

    def resize(self, replica: str, max_blocks: int) -> None:
        """A replica can hold so many blocks after all."""
        held = self._replicas[replica]
        held.max_blocks = max_blocks
        while (num_excess := held.num_blocks - max_blocks) > 0:
            oldest = next(iter(held.nodes))
            if num_excess < oldest.num_blocks and not oldest.children and len(oldest.holders) == 1:
                oldest.key = oldest.key[: -num_excess * HASH_BYTES]  # its end is enough, and nobody else has it
                held.num_blocks = max_blocks
            else:
                self._drop(replica, held, oldest)

    def match(self, key: bytes) -> Match:
        found: dict[str, int] = {}
        node, begin = self._root, 0
        while child := node.children.get(key[begin : begin + HASH_BYTES]):
            num_common = _num_common(child.key, key, begin)
            begin += num_common * HASH_BYTES
            found.update(dict.fromkeys(child.holders, begin // HASH_BYTES))
            if num_common < child.num_blocks:
                return Match(found, begin // HASH_BYTES, 1)
            node = child
        return Match(found, begin // HASH_BYTES, len(node.children))

    def insert(self, replica: str, key: bytes) -> None:
        held = self._replicas.get(replica)
        if held is None:
            return
        for node in reversed([*self._grow(key, replica)]):  # the deepest first: those above are used no longer ago
            if replica not in node.holders:
                node.holders.add(replica)
                held.num_blocks += node.num_blocks
            held.nodes[node] = None
            held.nodes.move_to_end(node)
        self.resize(replica, held.max_blocks)

    def num_blocks(self, replica: str) -> int:
        return self._replicas[replica].num_blocks

    def check(self) -> None:
        num_blocks: dict[str, int] = dict.fromkeys(self._replicas, 0)
        nodes = [*self._root.children.values()]
        while nodes:
            node = nodes.pop()
            nodes += node.children.values()
            assert node.parent is not None
            assert node.holders, "nobody holds it"
            assert node.parent is self._root or node.holders <= node.parent.holders
            assert len(node.key) % HASH_BYTES == 0 < len(node.key)
            assert node.parent.children[node.key[:HASH_BYTES]] is node
            for replica in node.holders:
                assert node in self._replicas[replica].nodes
                num_blocks[replica] += node.num_blocks
        for replica, held in self._replicas.items():
            assert held.num_blocks == num_blocks[replica] <= held.max_blocks
            assert all(replica in node.holders for node in held.nodes)
            ages = {node: age for age, node in enumerate(held.nodes)}
            assert all(
                node.parent is self._root or ages[node.parent] > age for node, age in ages.items() if node.parent
            )

    def _grow(self, key: bytes, replica: str) -> Iterator[_Node]:
        """The nodes along a key, up to its end: what is missing is added for the replica."""
        node, begin = self._root, 0
        while begin < len(key):
            child = node.children.get(key[begin : begin + HASH_BYTES])
            if child is None:
                child = node.children[key[begin : begin + HASH_BYTES]] = _Node(node, key[begin:], set())
            elif (num_common := _num_common(child.key, key, begin)) < child.num_blocks:
                child = self._split(child, num_common)
            elif not child.children and child.holders == {replica}:  # a session goes on: no need for a node a turn
                self._replicas[replica].num_blocks += (len(key) - begin) // HASH_BYTES - child.num_blocks
                child.key = key[begin:]
            yield child
            node, begin = child, begin + len(child.key)

    def _split(self, node: _Node, num_blocks: int) -> _Node:
        """Divide an edge; the upper half takes its place in the tree, and is used by everybody now."""
        assert node.parent is not None
        size = num_blocks * HASH_BYTES
        upper = _Node(node.parent, node.key[:size], set(node.holders))
        node.parent.children[node.key[:HASH_BYTES]] = upper
        node.parent, node.key = upper, node.key[size:]
        upper.children[node.key[:HASH_BYTES]] = node
        for replica in upper.holders:
            self._touch(upper, self._replicas[replica].nodes)
        return upper

    def _touch(self, node: _Node, nodes: "OrderedDict[_Node, None]") -> None:
        while node.parent:
            nodes[node] = None
            nodes.move_to_end(node)
            node = node.parent

    def _drop(self, replica: str, held: _ReplicaNodes, node: _Node) -> None:
        del held.nodes[node]
        held.num_blocks -= node.num_blocks
        node.holders.discard(replica)
        if not node.holders:
            assert node.parent is not None
            del node.parent.children[node.key[:HASH_BYTES]]


def _num_common(edge: bytes, key: bytes, begin: int) -> int:
    num_hashes = len(edge) // HASH_BYTES
    if key.startswith(edge, begin):
        return num_hashes
    return bisect(range(1, num_hashes), False, key=lambda num: not key.startswith(edge[: num * HASH_BYTES], begin))
