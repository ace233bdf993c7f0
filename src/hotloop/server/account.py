"""Where the tokens of one prompt came from: pure arithmetic on what it has in common with an earlier one.

    earlier   [ common ................................. | ...
    current   [ cached ....... | evicted, capacity | block | diverged, new, diverged ... | new ]
              0                C                       M                                 P

Invariant: every token of a prompt is cached, new or recomputed, and each that was recomputed has one cause.
"""

from dataclasses import dataclass
from typing import Literal

from hotloop.chat.compare import Comparison, Divergence
from hotloop.core.retention import Eviction

Reason = Literal["cold", "diverged", "retokenised", "evicted", "capacity", "block"]
"""Why tokens are recomputed; `cold` is not: there was nothing like the prompt, so its tokens are new."""


@dataclass(frozen=True, slots=True)
class Cause:
    """Why so many tokens were computed. Where a prompt departs is told even if nothing was recomputed for it."""

    reason: Reason
    num_tokens: int
    divergence: Divergence | None = None
    eviction: Eviction | None = None


@dataclass(frozen=True, slots=True)
class PromptAccount:
    num_prompt: int
    num_cached: int
    causes: tuple[Cause, ...] = ()

    @property
    def num_recomputed(self) -> int:
        return sum(cause.num_tokens for cause in self.causes if cause.reason != "cold")

    @property
    def num_new(self) -> int:
        return self.num_prompt - self.num_cached - self.num_recomputed

    @property
    def num_block(self) -> int:
        """Recomputed in any case: blocks are kept whole, and the last token of a prompt is always computed."""
        return sum(cause.num_tokens for cause in self.causes if cause.reason == "block")


def account_for(
    comparison: Comparison | None, num_prompt: int, num_cached: int, block_size: int, eviction: Eviction | None = None
) -> PromptAccount:
    """`comparison` is with the earlier prompt that is most like this one, if there is one."""
    if comparison is None:
        num_new = num_prompt - num_cached
        return PromptAccount(num_prompt, num_cached, (Cause("cold", num_new),) if num_new else ())
    num_common, divergence = comparison.num_common, comparison.divergence
    num_keepable = min(num_common, num_prompt - 1) // block_size * block_size
    num_lost = max(num_keepable - num_cached, 0)
    lost = Cause("evicted" if eviction else "capacity", num_lost, eviction=eviction)
    block = Cause("block", max(num_common - max(num_keepable, num_cached), 0))
    recomputed = Cause(
        divergence.change if divergence else "diverged", comparison.num_recomputed(num_cached), divergence
    )
    causes = [cause for cause in (recomputed, lost, block) if cause.num_tokens or cause.divergence]
    return PromptAccount(num_prompt, num_cached, tuple(causes))
