"""The holds of a prefix tree's nodes, and when they end."""

import math
from collections.abc import Callable, Iterable

from hotloop.core.retention import Hold, HoldKind
from hotloop.engine.kvcache.node import TreeNode
from hotloop.engine.kvcache.retention import Retention


class Holds:
    """Sets and ends holds; `requeue` is told of each node whose hold has changed."""

    def __init__(self, retention: Retention, requeue: Callable[[TreeNode], None]) -> None:
        self.expiring: dict[TreeNode, float] = {}  # when each hold ends that does
        self._expires_at = math.inf  # no hold expires before that
        self._retention = retention
        self._requeue = requeue

    def hold(self, node: TreeNode, hold: Hold) -> None:
        """Unless what it has counts for more, or too much is pinned already."""
        if self._can_hold(node, hold):
            self.set(node, hold)

    def set(self, node: TreeNode, hold: Hold | None) -> None:
        node.hold = hold
        if hold and hold.expires_at < math.inf:
            self.expiring[node] = hold.expires_at
            self._expires_at = min(self._expires_at, hold.expires_at)
        else:
            self.expiring.pop(node, None)
        self._requeue(node)

    def expire(self) -> None:
        """Holds whose time is up mean nothing any more."""
        if self._retention.now < self._expires_at:
            return
        for node in [node for node, end in self.expiring.items() if end <= self._retention.now]:
            self.set(node, None)
        self._expires_at = min(self.expiring.values(), default=math.inf)

    def check(self, nodes: Iterable[TreeNode]) -> None:
        """These are all nodes there are."""
        ends = {node: node.hold.expires_at for node in nodes if node.hold and node.hold.expires_at < math.inf}
        assert self.expiring == ends
        assert self._expires_at <= min(ends.values(), default=math.inf)

    def _can_hold(self, node: TreeNode, hold: Hold) -> bool:
        if hold.kind is not HoldKind.PINNED:
            return node.hold is None or node.hold.kind is not HoldKind.PINNED
        pinned = {each for each in self.expiring if each.hold and each.hold.kind is HoldKind.PINNED} | {node}
        return sum(len(each.block_ids) for each in pinned) <= self._retention.max_pinned
