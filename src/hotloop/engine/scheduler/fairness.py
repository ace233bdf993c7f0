"""Whose turn it is among the waiting: classes first, then who is awaited, then sessions by the service they have had.

Within a class those go first whose prefix was kept for them, then the session that was served least; service is
forgotten with time, and what is done for another session counts as that one's. For each `promotion_s` of waiting a
request counts as one class more urgent, also once it runs, and nobody who is awaited goes before it any more, so
nothing waits for ever.

A class is held back while more urgent requests run, for its `max_wait_s` at most: who would be late at the next step is
due in this one.

    waiting_since              now          now + step_s        the next step begins
    |------------ held back ----|----------------|
                                          |  due if this is behind waiting_since + max_wait_s
"""

import math
from collections.abc import Iterable

from cachetools import FIFOCache

from hotloop.core.config import EngineConfig
from hotloop.core.request import Request

HALF_LIFE_S = 60.0
AGEING_TOKENS_PER_S = 500.0
MAX_SESSIONS = 4096
_FADE = 0.98  # of the longest step lately, a step


class Fairness:
    """Service attained by each root session, in tokens, bounded in number and fading with time."""

    def __init__(self, config: EngineConfig = EngineConfig()) -> None:
        self._attained: FIFOCache[str, tuple[float, float]] = FIFOCache(MAX_SESSIONS)
        self.limit(config)
        self.now = 0.0
        self.step_s = 0.0
        """How long it may be until the next step begins."""

    def limit(self, config: EngineConfig) -> None:
        self._limits = config.class_limits
        self._promotion_s = config.promotion_s

    def begin_step(self, now: float, *, is_busy: bool) -> None:
        """`is_busy`: somebody ran in the step before."""
        self.step_s = max(now - self.now, _FADE * self.step_s) if is_busy else 0.0
        self.now = now

    def due_at(self, request: Request) -> float:
        """When its class's wait is over."""
        return request.waiting_since + self._limits[request.priority].max_wait_s

    def is_due(self, request: Request) -> bool:
        """Whether its class's wait is over before another step begins."""
        return self.now + self.step_s >= self.due_at(request)

    def charge(self, request: Request, num_tokens: int) -> None:
        tokens = self.attained(request.root) + num_tokens
        self._attained[request.root] = (tokens, self.now)

    def attained(self, root: str) -> float:
        tokens, at = self._attained.get(root, (0.0, self.now))
        return tokens * math.exp2((at - self.now) / HALF_LIFE_S)

    def order(self, waiting: Iterable[Request], running: Iterable[Request]) -> list[Request]:
        """The waiting who may join now, by class. One is held back while more urgent requests run, until one of its own
        is due: then all of it joins, as one batch.
        """
        by_class: dict[int, list[Request]] = {}
        for request in waiting:
            num_promoted = max(0, int((self.now - request.waiting_since) / self._promotion_s))
            request.rank = max(0, request.priority - num_promoted)
            by_class.setdefault(request.rank, []).append(request)
        most_urgent = min((request.rank for request in running), default=None)
        ordered: list[Request] = []
        for rank in sorted(by_class):
            requests = by_class[rank]
            is_held = most_urgent is not None and most_urgent < rank
            if is_held and not any(map(self.is_due, requests)):
                continue
            ordered += sorted(requests, key=self._score)
        return ordered

    def _score(self, request: Request) -> tuple[bool, float, float]:
        waited_s = self.now - request.arrived_at
        served = self.attained(request.root) - waited_s * AGEING_TOKENS_PER_S
        is_newcomer = not request.has_held_prefix and self.now - request.waiting_since < self._promotion_s
        return is_newcomer, served, request.arrived_at


def urgency(request: Request) -> tuple[int, float, str]:
    """Smaller goes first; the largest gives way first."""
    return request.rank, request.arrived_at, request.id
