"""What tiers save against always asking the largest: money by its prices, time by what its own answers took.

The largest is taken to need as many tokens. Its time for them is an estimate, from the mean its own answers took for as
much work: unknown until it has answered once.
"""

from dataclasses import dataclass

from hotloop.router.placement.placement import OUTPUT_COST
from hotloop.router.tiers.config import Tier
from hotloop.wire.usage import Usage


@dataclass(slots=True)
class Tally:
    num_answers: int = 0
    num_discarded: int = 0
    """Answers that a cascade did not take, and steps of a classifier."""
    cost: float = 0.0
    large_cost: float = 0.0
    """What the largest tier would have cost for the answers."""
    latency_s: float = 0.0
    work_tokens: float = 0.0
    """Of the answers: prompt tokens that were not cached, and output tokens at their weight."""


class Saved:
    """Running totals, a tally a tier; the last tier is the largest."""

    def __init__(self, tiers: tuple[Tier, ...]) -> None:
        self._tiers = {tier.name: tier for tier in tiers}
        self.tallies = {tier.name: Tally() for tier in tiers}

    def record(self, name: str, usage: Usage, latency_s: float, *, is_answer: bool = True) -> None:
        """An answer that reached its client, or one that was thrown away and only cost."""
        *_, largest = self._tiers.values()
        tally = self.tallies[name]
        tally.cost += self._tiers[name].cost(usage)
        tally.latency_s += latency_s
        if not is_answer:
            tally.num_discarded += 1
            return
        tally.num_answers += 1
        tally.large_cost += largest.cost(usage)
        tally.work_tokens += usage.num_prompt - (usage.num_cached or 0) + OUTPUT_COST * usage.num_output

    @property
    def money(self) -> float:
        return sum(tally.large_cost - tally.cost for tally in self.tallies.values())

    @property
    def time_s(self) -> float:
        """0 while the largest has not answered yet."""
        tallies = list(self.tallies.values())
        if not tallies or not tallies[-1].work_tokens:
            return 0.0
        large_s_per_token = tallies[-1].latency_s / tallies[-1].work_tokens
        return sum(tally.work_tokens * large_s_per_token - tally.latency_s for tally in tallies)
