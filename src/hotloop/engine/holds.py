"""The holds of a prefix tree's nodes: whose they are by kind, and when they end."""

import heapq
from collections.abc import Callable, Iterable
from itertools import count

from hotloop.core.retention import Hold, HoldKind
from hotloop.engine.node import TreeNode
from hotloop.engine.retention import Retention


class Holds:
    """Sets and ends holds; `rank_anew` is told of each node whose hold has changed."""

    def __init__(self, retention: Retention, rank_anew: Callable[[TreeNode], None]) -> None:
        self.pinned: set[TreeNode] = set()
        self.in_tool_gap: set[TreeNode] = set()
        self._retention = retention
        self._rank_anew = rank_anew
        self._expiring: list[tuple[float, int, TreeNode]] = []
        self._tickets = count()

    def __len__(self) -> int:
        """How many are watched."""
        return len(self._expiring)

    def hold(self, node: TreeNode, hold: Hold) -> None:
        """Unless what it has counts for more, or too much is pinned already."""
        if self._can_hold(node, hold):
            self.set(node, hold)
            self._watch(node)
            self.expire()

    def set(self, node: TreeNode, hold: Hold | None) -> None:
        node.hold = hold
        for kind, nodes in ((HoldKind.PINNED, self.pinned), (HoldKind.TOOL_GAP, self.in_tool_gap)):
            if hold and hold.kind is kind:
                nodes.add(node)
            else:
                nodes.discard(node)
        self._rank_anew(node)

    def expire(self) -> None:
        """Holds whose time is up mean nothing any more."""
        while self._expiring and self._expiring[0][0] <= self._retention.now:
            at, _, node = heapq.heappop(self._expiring)
            if at != node.looked_at:
                continue
            node.looked_at = None
            expires_at = self._retention.expires_at(node.hold) if node.hold else None
            if expires_at is not None and expires_at <= self._retention.now:
                self.set(node, None)
            else:  # it was used meanwhile
                self._watch(node)

    def check(self, nodes: Iterable[TreeNode]) -> None:
        """These are all nodes there are."""
        held = [(node, node.hold.kind) for node in nodes if node.hold]
        assert self.pinned == {node for node, kind in held if kind is HoldKind.PINNED}
        assert self.in_tool_gap == {node for node, kind in held if kind is HoldKind.TOOL_GAP}

    def _watch(self, node: TreeNode) -> None:
        """See to it that its hold expires. Who is to be looked at before that need not be queued again."""
        expires_at = self._retention.expires_at(node.hold) if node.hold else None
        if expires_at is not None and (node.looked_at is None or expires_at < node.looked_at):
            node.looked_at = expires_at
            heapq.heappush(self._expiring, (expires_at, next(self._tickets), node))

    def _can_hold(self, node: TreeNode, hold: Hold) -> bool:
        if hold.kind is not HoldKind.PINNED:
            return node.hold is None or node.hold.kind is not HoldKind.PINNED
        num_pinned = sum(len(pinned.block_ids) for pinned in self.pinned if pinned is not node)
        return num_pinned + len(node.block_ids) <= self._retention.max_pinned
