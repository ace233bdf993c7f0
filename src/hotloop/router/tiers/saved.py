"""What tiers save against always asking the largest: money by its prices, time by what its own answers took.

The largest is taken to read and write as many tokens as were read and written. Its time for them is an estimate, from
the mean its own answers took for as much work: unknown until it has answered once.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hotloop.router.placement.placement import OUTPUT_COST
from hotloop.router.tiers.config import Tier, Tokens


@dataclass(slots=True)
class Tally:
    """Everything one tier did."""

    num_answers: int = 0
    num_discarded: int = 0
    """Answers that a cascade did not take, and steps of a classifier."""
    cost: float = 0.0
    large_cost: float = 0.0
    """What the largest tier would have taken for the answers."""
    latency_s: float = 0.0
    work_tokens: float = 0.0
    """Of the answers: what was read, and what was written as so many times as much."""


@dataclass(frozen=True, slots=True)
class Savings:
    """All tiers together. Shares are of what always-large would have taken."""

    num_answers: int
    num_discarded: int
    cost: float
    large_cost: float
    latency_s: float
    large_latency_s: float | None
    """None while the largest has not answered yet."""

    @property
    def money(self) -> float:
        return self.large_cost - self.cost

    @property
    def money_share(self) -> float:
        return self.money / self.large_cost if self.large_cost else 0.0

    @property
    def time_s(self) -> float:
        return self.large_latency_s - self.latency_s if self.large_latency_s is not None else 0.0

    @property
    def time_share(self) -> float:
        return self.time_s / self.large_latency_s if self.large_latency_s else 0.0


class Saved:
    """Running totals, a tally a tier; the last tier is the largest."""

    def __init__(self, tiers: tuple[Tier, ...]) -> None:
        self._tiers = {tier.name: tier for tier in tiers}
        self._largest = tiers[-1]
        self.tallies = {tier.name: Tally() for tier in tiers}

    def record(self, tier: str, tokens: Tokens, latency_s: float, *, is_answer: bool = True) -> None:
        """An answer that reached its client, or one that was thrown away and only cost."""
        tally = self.tallies[tier]
        tally.cost += self._tiers[tier].cost(tokens)
        tally.latency_s += latency_s
        if not is_answer:
            tally.num_discarded += 1
            return
        tally.num_answers += 1
        tally.large_cost += self._largest.cost(tokens)
        tally.work_tokens += tokens.num_prompt - tokens.num_cached + OUTPUT_COST * tokens.num_output

    def savings(self) -> Savings:
        tallies = self.tallies.values()
        return Savings(
            num_answers=sum(tally.num_answers for tally in tallies),
            num_discarded=sum(tally.num_discarded for tally in tallies),
            cost=sum(tally.cost for tally in tallies),
            large_cost=sum(tally.large_cost for tally in tallies),
            latency_s=sum(tally.latency_s for tally in tallies),
            large_latency_s=self._large_latency_s(),
        )

    def _large_latency_s(self) -> float | None:
        large = self.tallies[self._largest.name]
        if not large.work_tokens:
            return None
        others = sum(tally.work_tokens for tally in self.tallies.values()) - large.work_tokens
        return large.latency_s * (1 + others / large.work_tokens)


def tokens_of(answer: Mapping[str, Any]) -> Tokens:
    """As a chat completion's usage tells them; nothing where it does not."""
    match answer:
        case {"usage": {"prompt_tokens": int(num_prompt), "completion_tokens": int(num_output), **rest}}:
            details = rest.get("prompt_tokens_details")
            num_cached = details.get("cached_tokens") if isinstance(details, dict) else 0
            return Tokens(num_prompt, num_cached or 0, num_output)
    return Tokens()
