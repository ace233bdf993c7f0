"""Pools: replicas for prompts most of which are known, and replicas for all others.

Agents come back to what they have cached; single requests with long prompts of their own would push it out. So each
kind of prompt gets replicas of its own, where the file says so; a replica without a pool takes both.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from hotloop.router.placement.policy import PromptDigest, ReplicaView

Pool = Literal["prefix-heavy", "prefix-light"]
POOLS: tuple[Pool, ...] = get_args(Pool)


@dataclass(frozen=True, slots=True)
class PoolRule:
    """When a prompt is heavy in known prefixes: so much of it is cached somewhere, of so many tokens at least; or its
    session is at home in that pool already."""

    min_share: float = 0.5
    min_tokens: int = 1024

    def pool_of(self, views: Sequence[ReplicaView], prompt: PromptDigest) -> Pool:
        most = max((view.matched_tokens for view in views), default=0)
        is_heavy = most >= max(self.min_tokens, self.min_share * prompt.num_tokens)
        is_at_home = any(view.is_home and view.pool == "prefix-heavy" for view in views)
        return "prefix-heavy" if is_heavy or is_at_home else "prefix-light"

    def narrow(self, views: Sequence[ReplicaView], prompt: PromptDigest) -> Sequence[ReplicaView]:
        """Those of its pool, and those of none; all, where there is no such replica now."""
        if not any(view.pool for view in views):
            return views
        pool = self.pool_of(views, prompt)
        return [view for view in views if view.pool in ("", pool)] or views


NO_POOLS = PoolRule()
