"""An edge of the prefix tree, and the ways along edges. Only the tree changes one.

`size` is the number of bytes of a block's tokens in a key.
"""

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from hotloop.core.retention import Hold
from hotloop.engine.kvcache.retention import Rank


@dataclass(slots=True, eq=False)
class Checkpoint:
    """A recurrent state that is kept, for hybrid models; see `StateCache`."""

    slot: int
    used_at: float
    is_offloaded: bool = False  # whether the slot is one of host memory; its blocks may be in the other


@dataclass(slots=True, eq=False)
class TreeNode:
    """An edge and where it ends: the tokens of some whole blocks, and the blocks. A root has its salt for a key."""

    parent: "TreeNode | None"
    key: bytes
    block_ids: list[int]  # of the device, or of host memory
    last_used: int
    used_at: float = 0.0
    session: str | None = ""  # whose it is; None once several sessions have used it
    is_offloaded: bool = False  # whether its blocks are in host memory; then so are those of all nodes below it
    hold: Hold | None = None  # what is known about the prefix that ends here
    state: Checkpoint | None = None  # what a hybrid model carries beyond the prefix that ends here, if it was saved
    queued: Rank | None = None  # its place in the queue of leaves; entries of another rank are stale
    children: "dict[bytes, TreeNode]" = field(default_factory=dict)

    @property
    def names(self) -> list[int]:
        """Its blocks as others are told of them: those in host memory have negative numbers."""
        return [~block_id for block_id in self.block_ids] if self.is_offloaded else list(self.block_ids)

    @property
    def last_name(self) -> int | None:
        return self.names[-1] if self.block_ids else None


def is_leaf(node: TreeNode) -> bool:
    """Whether it has blocks, and nothing in the same memory hangs below it."""
    return bool(node.block_ids) and not any(child.is_offloaded == node.is_offloaded for child in node.children.values())


def path(node: TreeNode) -> Iterator[TreeNode]:
    """A node and those above it, but for the root."""
    above: TreeNode | None = node
    while above and above.parent:
        yield above
        above = above.parent


def subtree(top: TreeNode) -> Iterator[TreeNode]:
    stack = [top]
    while stack:
        node = stack.pop()
        yield node
        stack.extend(node.children.values())


def trace(root: TreeNode | None, key: bytes, size: int) -> Iterator[tuple[TreeNode, int]]:
    """Each node along the key, and how many of its blocks the key has."""
    node, begin = root, 0
    while node and (child := node.children.get(key[begin : begin + size])):
        if not key.startswith(child.key, begin):
            yield child, num_common(child.key, key, begin, size)
            return
        yield child, len(child.block_ids)
        node, begin = child, begin + len(child.key)


def num_common(edge: bytes, key: bytes, begin: int, size: int) -> int:
    """How many whole blocks of `edge` stand at `key[begin:]`."""
    ends = range(size, len(edge) + 1, size)
    return bisect_left(ends, True, key=lambda end: not key.startswith(edge[:end], begin))


def split(node: TreeNode, num_blocks: int, size: int) -> TreeNode:
    """Divide an edge after that many blocks; returns the upper half, which takes the old place in the tree."""
    assert node.parent is not None
    key, block_ids = node.key[: num_blocks * size], node.block_ids[:num_blocks]
    upper = replace(node, key=key, block_ids=block_ids, hold=None, state=None, queued=None, children={})
    node.parent.children[node.key[:size]] = upper
    node.parent, node.key, node.block_ids = upper, node.key[num_blocks * size :], node.block_ids[num_blocks:]
    upper.children[node.key[:size]] = node
    return upper


def join(node: TreeNode, size: int) -> bool:
    """Make a node and its only child, which alone is left, one edge, if nothing tells them apart but where it ends."""
    if len(node.children) != 1 or node.hold or node.state or node.parent is None:
        return False
    [child] = node.children.values()
    if (node.is_offloaded, node.session, node.last_used) != (child.is_offloaded, child.session, child.last_used):
        return False
    node.parent.children[node.key[:size]] = child
    child.parent, child.key, child.block_ids = node.parent, node.key + child.key, node.block_ids + child.block_ids
    node.block_ids = []  # for the queue of leaves, which may still know it
    return True


def check_node(node: TreeNode, size: int) -> None:
    assert node.parent is not None
    assert len(node.key) == len(node.block_ids) * size > 0
    assert node.parent.children[node.key[:size]] is node
    assert node.parent.parent is None or node.parent.last_used >= node.last_used
    assert node.is_offloaded or not node.parent.is_offloaded, "a block of the device follows one that is in host memory"
