"""How much is read for those who are less urgent, so that those who are more urgent hardly notice.

    somebody more urgent runs       a chunk, then none until the time it took is but a share of all that went by
    somebody did a moment ago       a chunk a step: whoever comes back does not wait for a long one
    else                            as much as fits a step

A step takes as long as what is read in it, for all that it carries: without this, one who waits for the next word would
wait for everybody's prompts. Debts are paid by time alone, so nobody is kept from reading for ever.
"""

import math
from collections.abc import Iterable

from hotloop.core.request import Priority

CHUNK_S = 0.05
"""How long a chunk of the less urgent should take to read."""
MOMENT_S = 2.0

_NOBODY = len(Priority)
_LEARNING_RATE = 0.1


class Courtesy:
    """By rank, in seconds and tokens. Told of every step, and of everybody who joins it."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._now = 0.0
        self._plain_s = 0.0  # how long a step takes, lately, that reads nothing for the less urgent
        self._lead = _NOBODY  # the most urgent in this step
        self._guest = _NOBODY  # the most urgent of those for whom something is read though others are more urgent
        self._planned: list[tuple[int, int]] = []  # lead and guest of steps whose time is not known yet
        self._ran_at = [-math.inf] * len(Priority)
        self._debts_s = [0.0] * len(Priority)
        self._left = [0.0] * len(Priority)

    def begin(self, ranks: Iterable[int], now: float, token_s: float, num_flying: int = 0) -> None:
        """A step begins, in which these are running; reading a token takes that long. Of those before it all are over
        but the last so many, so what went by since is the time of the one before those.
        """
        since_s, self._now = now - self._now, now
        self._planned.append((self._lead, self._guest))
        num_over = len(self._planned) - num_flying
        leader, guest = self._planned[num_over - 1] if num_over > 0 else (_NOBODY, _NOBODY)
        del self._planned[: max(0, num_over)]
        self._lead = _NOBODY
        for rank in ranks:
            self.see(rank)
        if self._lead <= leader < _NOBODY:  # or else there may have been no step all the while
            self._learn(since_s, guest)
        self._pay(since_s)
        self._guest = _NOBODY
        self._left = [max(self._block_size, CHUNK_S / token_s)] * len(Priority)

    def see(self, rank: int) -> None:
        """Somebody of this rank runs in this step."""
        self._lead = min(self._lead, rank)
        self._ran_at[rank] = self._now

    def room(self, rank: int) -> float:
        """How many tokens may be read for one of this rank, in this step."""
        if self._lead < rank and self._debts_s[rank]:
            return 0
        led_at = max(self._ran_at[:rank], default=-math.inf)
        return self._left[rank] // 1 if self._now - led_at <= MOMENT_S else math.inf

    def take(self, rank: int, num_tokens: int) -> None:
        """So many are read for one of this rank: so many less for others of it, and for those below."""
        if num_tokens and self._lead < rank:
            self._guest = min(self._guest, rank)
        for lower in range(rank, len(Priority)):
            self._left[lower] = max(0.0, self._left[lower] - num_tokens)

    def _learn(self, since_s: float, guest: int) -> None:
        """A step took that long: as it is without guests, or longer because of them."""
        if guest == _NOBODY:
            self._plain_s += (_LEARNING_RATE if self._plain_s else 1.0) * (since_s - self._plain_s)
        for rank in range(guest, len(Priority)):
            self._debts_s[rank] += max(0.0, since_s - self._plain_s)

    def _pay(self, since_s: float) -> None:
        for priority in Priority:
            share = priority.max_share if self._lead < priority else 1.0
            self._debts_s[priority] = max(0.0, self._debts_s[priority] - share * since_s)
