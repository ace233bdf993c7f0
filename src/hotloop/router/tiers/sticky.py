"""Whether a session stays on its tier: while what is cached for it there is worth more than a smaller tier would save.

Up it goes at once, since a rule asked for more; only the way down has a price. Bounded: the longest unused goes.
"""

from collections import OrderedDict
from dataclasses import dataclass, field

from hotloop.router.tiers.config import Tier, Tokens

MAX_SESSIONS = 50_000


def is_worth_staying(here: Tier, there: Tier, num_tokens: int, num_output: int, *, cached: tuple[int, int]) -> bool:
    """Whether this turn is cheaper here, given what is cached here and there. No prices, no worth."""
    num_here, num_there = (min(num_cached, num_tokens) for num_cached in cached)
    stay = here.cost(Tokens(num_tokens, num_here, num_output))
    return stay < there.cost(Tokens(num_tokens, num_there, num_output))


@dataclass(slots=True)
class _Stay:
    """Where a session was last, and what each tier has read of it, with the time of that."""

    tier: str = ""
    held: dict[str, tuple[int, float]] = field(default_factory=dict)


class Sessions:
    """Where sessions have been. Time comes from outside."""

    def __init__(self, max_sessions: int = MAX_SESSIONS) -> None:
        self._max_sessions = max_sessions
        self._stays: OrderedDict[str, _Stay] = OrderedDict()

    def __len__(self) -> int:
        return len(self._stays)

    def tier_of(self, session: str) -> str:
        """Where it was last; empty if that is not known."""
        stay = self._stays.get(session)
        return stay.tier if stay else ""

    def num_cached(self, session: str, tier: str, *, now: float, keep_s: float) -> int:
        """What the tier had of it, unless that was too long ago."""
        stay = self._stays.get(session)
        num_tokens, at = stay.held.get(tier, (0, now)) if stay else (0, now)
        return num_tokens if now - at <= keep_s else 0

    def remember(self, session: str, tier: str, num_tokens: int, now: float) -> None:
        """The tier has read so much of the session."""
        if not session:
            return
        stay = self._stays.setdefault(session, _Stay())
        stay.tier = tier
        stay.held[tier] = (num_tokens, now)
        self._stays.move_to_end(session)
        if len(self._stays) > self._max_sessions:
            self._stays.popitem(last=False)
