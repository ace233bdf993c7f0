"""Whose turn it is among the waiting: classes first, then who is awaited, then sessions by the service they have had.

Within a class those go first whose prefix was kept for them, then the session that was served least; service is
forgotten with time. For each `PROMOTE_S` of waiting a request counts as one class more urgent, also once it runs, and
nobody who is awaited goes before it any more, so nothing waits for ever.
"""

import math
from collections.abc import Iterable

from cachetools import FIFOCache

from hotloop.core.request import Request

PROMOTE_S = 30.0
HALF_LIFE_S = 60.0
AGEING_TOKENS_PER_S = 500.0
MAX_SESSIONS = 4096


class Fairness:
    """Service attained by each session, in tokens, bounded in number and fading with time."""

    def __init__(self) -> None:
        self._attained: FIFOCache[str, tuple[float, float]] = FIFOCache(MAX_SESSIONS)
        self.now = 0.0

    def charge(self, request: Request, num_tokens: int) -> None:
        tokens = self.attained(request.session_id) + num_tokens
        self._attained[request.session_id] = (tokens, self.now)

    def attained(self, session_id: str) -> float:
        tokens, at = self._attained.get(session_id, (0.0, self.now))
        return tokens * math.exp2((at - self.now) / HALF_LIFE_S)

    def order(self, waiting: Iterable[Request], running: Iterable[Request]) -> list[Request]:
        """The waiting who may join now, by class. One is held back while more urgent requests run, until one of its own
        has waited its class's time: then all of it joins, as one batch.
        """
        by_class: dict[int, list[Request]] = {}
        for request in waiting:
            num_promoted = max(0, int((self.now - request.waiting_since) / PROMOTE_S))
            request.rank = max(0, request.priority - num_promoted)
            by_class.setdefault(request.rank, []).append(request)
        most_urgent = min((request.rank for request in running), default=None)
        ordered: list[Request] = []
        for rank in sorted(by_class):
            requests = by_class[rank]
            is_held = most_urgent is not None and most_urgent < rank
            if is_held and all(self.now - r.waiting_since < r.priority.max_wait_s for r in requests):
                continue
            ordered += sorted(requests, key=self._score)
        return ordered

    def _score(self, request: Request) -> tuple[bool, float, float]:
        waited_s = self.now - request.arrived_at
        served = self.attained(request.session_id) - waited_s * AGEING_TOKENS_PER_S
        is_newcomer = not request.has_held_prefix and self.now - request.waiting_since < PROMOTE_S
        return is_newcomer, served, request.arrived_at


def urgency(request: Request) -> tuple[int, float, str]:
    """Smaller goes first; the largest gives way first."""
    return request.rank, request.arrived_at, request.id
