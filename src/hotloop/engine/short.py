"""A share of what is read for those who lack little, so that they do not wait for those who lack much.

Of all that is read, one part in `SHARE` may go to requests that lack at most half of what the first in the queue does,
the one that lacks least first. What is not needed is saved up to half a full step, so one that comes alone is read at
once; and however many come, the first in the queue is slowed down by that share and no more.
"""

from collections.abc import Callable, Iterable

from hotloop.core.request import Request

SHARE = 5


class ShortShare:
    """How many tokens there are for those who lack little."""

    def __init__(self, max_step_tokens: int, block_size: int) -> None:
        self._most = max(block_size, max_step_tokens // 2)
        self.num_tokens = float(self._most)

    def choose(self, first: Request, others: Iterable[Request], num_lacking: Callable[[Request], int]) -> list[Request]:
        """Those of the others who lack little, the least first."""
        lacking = {each: num_lacking(each) for each in others}
        few = num_lacking(first) / 2
        return sorted((each for each in lacking if lacking[each] <= few), key=lacking.__getitem__)

    def take(self, num_tokens: int) -> None:
        self.num_tokens -= num_tokens

    def earn(self, num_read: int) -> None:
        """So many tokens were read for others."""
        self.num_tokens = min(self._most, self.num_tokens + num_read / (SHARE - 1))
