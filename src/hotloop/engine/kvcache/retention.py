"""Which of the idle prefixes to give up first: the one least likely to save work. Numbers only; the tree asks.

    FINISHED   the run has ended; the longest ago first
    ORDINARY   chance of return (down by e every `FADE_S`) x cost of recomputing it, least first; so is what is overdue
    TOOL_GAP   expected back; the less urgent class, then the one that returns last, goes first
    PINNED     asked for; the one that expires first goes first

Holds are soft: they decide who goes first, never whether new work finds room. Pinned blocks may be a share of the pool
at most; what is asked for beyond that is ordinary.
"""

import math

from hotloop.core.retention import Hold, HoldKind

FADE_S = 60.0
ATTENTION_TOKENS = 4000.0  # before a token, that make it cost twice as much

_TOKEN_S = 0.0003  # to prefill a token, until it has been measured
_LEARNING_RATE = 0.2
_MANY = 256  # tokens prefilled in one step tell as much as more would

Rank = tuple[int, int, float, int]


class Retention:
    """Ranks prefixes, and knows what giving them up costs. `now` is set by the caller."""

    def __init__(self, max_pinned: int, *, is_on: bool = True) -> None:
        self.now = 0.0
        self.is_on = is_on  # if not, nothing is held, and the longest unused goes first whatever it is
        self.max_pinned = max_pinned  # most blocks that may be pinned
        self.token_s = _TOKEN_S  # how long it takes to prefill a token, lately

    def learn(self, num_tokens: int, duration_s: float) -> None:
        rate = _LEARNING_RATE * min(1.0, num_tokens / _MANY)
        self.token_s += rate * (duration_s / num_tokens - self.token_s)

    def rank(self, hold: Hold | None, used_at: float, last_used: int, depth: int, *, num_tokens: int = 1) -> Rank:
        """Lowest goes first; `depth` is the number of tokens up to the prefix's end, `num_tokens` of those are lost."""
        if not self.is_on:
            return HoldKind.ORDINARY, 0, 0.0, last_used
        kind = self.kind(hold)
        if kind is HoldKind.ORDINARY:
            worth = used_at / FADE_S + math.log1p(depth / ATTENTION_TOKENS) + math.log(num_tokens)
            return kind, 0, round(worth, 1), last_used  # what is nearly equal goes by its last use
        assert hold
        if kind is HoldKind.TOOL_GAP:
            return kind, -hold.rank, hold.ttl_s - hold.until, last_used
        return kind, 0, hold.until, last_used

    def most_for_waiting(self, rank: int) -> Rank:
        """What one of that class may have given up before its turn has come: not what is kept for more urgent ones."""
        return HoldKind.TOOL_GAP, -rank, math.inf, 0

    def after_use(self, hold: Hold) -> Hold | None:
        """What is left of a hold once its prefix was used again."""
        if hold.kind is HoldKind.PINNED and self.now < hold.until:
            return Hold(hold.kind, self.now + hold.ttl_s, hold.ttl_s)
        return None

    def kind(self, hold: Hold | None) -> HoldKind:
        return hold.kind if hold and self.now < hold.expires_at else HoldKind.ORDINARY
