"""Whether a session stays on its tier: while what is cached for it there is worth more than a smaller tier would save.

Up it goes at once, since a rule asked for more; only the way down has a price.
"""

from dataclasses import dataclass, field

from hotloop.router.tiers.config import Tier
from hotloop.wire.usage import Usage


def is_worth_staying(here: Tier, there: Tier, num_tokens: int, num_output: int, *, cached: tuple[int, int]) -> bool:
    """Whether this turn is cheaper here, given what is cached here and there. No prices, no worth."""
    num_here, num_there = (min(num_cached, num_tokens) for num_cached in cached)
    stay = here.cost(Usage(num_tokens, num_here, num_output))
    return stay < there.cost(Usage(num_tokens, num_there, num_output))


@dataclass(slots=True)
class Stay:
    """Where a session was last, and how many of its tokens each tier has cached since when. Time comes from outside."""

    tier: str = ""
    held: dict[str, tuple[int, float]] = field(default_factory=dict)

    def num_cached(self, tier: str, *, now: float, keep_s: float) -> int:
        """What the tier had of it, unless that was too long ago."""
        num_tokens, at = self.held.get(tier, (0, now))
        return num_tokens if now - at <= keep_s else 0
