"""An edge of the prefix tree, and the ways along edges. Only the tree changes one."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from hotloop.core.retention import Hold
from hotloop.engine.retention import Rank


@dataclass(slots=True, eq=False)
class Node:
    """An edge and where it ends: the tokens of some whole blocks, and the blocks. A root has its salt for a key."""

    parent: "Node | None"
    key: bytes
    block_ids: list[int]
    last_used: int
    used_at: float = 0.0
    session: str | None = ""
    """Whose it is; None once several sessions have used it."""
    hold: Hold | None = None
    """What is known about the prefix that ends here."""
    queued: Rank | None = None
    """Its place in the queue of leaves, if it has one; entries of another rank are stale."""
    looked_at: float | None = None
    """When it is next seen whether its hold has expired; entries of another time are stale."""
    children: "dict[bytes, Node]" = field(default_factory=dict)


def path(node: Node) -> Iterator[Node]:
    """A node and those above it, but for the root."""
    above: Node | None = node
    while above and above.parent:
        yield above
        above = above.parent


def root_of(node: Node) -> Node:
    while node.parent:
        node = node.parent
    return node


def last_id(node: Node) -> int | None:
    return node.block_ids[-1] if node.block_ids else None


def subtree(top: Node) -> Iterator[Node]:
    stack = [top]
    while stack:
        node = stack.pop()
        yield node
        stack.extend(node.children.values())
