"""A share of the prefill for requests that lack little, so that they do not wait for those that lack much.

Of all that is prefilled, `SHARE` may go to requests that lack at most half, in seconds, of what the first does that
would fill the step, the one that lacks least first: sessions end soonest, on average, if what is short comes first, and
the long ones keep the rest, so however many short ones come a long one takes three times as long at most. What is not
needed is saved up to half a full step, on a CPU, whose steps are small, to a full one: so one that comes alone is
prefilled at once.
"""

from hotloop.core.request import Request
from hotloop.engine.scheduler.prefill_budget import PrefillBudget

SHARE = 2 / 3


class ShortPromptShare:
    """How many tokens there are for those who lack little."""

    def __init__(self, budget: PrefillBudget, most: int, block_size: int) -> None:
        self._budget = budget
        self._block_size = block_size
        self._most = max(block_size, most)
        self.num_tokens = float(self._most)

    def choose(self, lacking: dict[Request, int], room: float) -> list[Request]:
        """Those who lack little, the least first, if one before them lacks more tokens than there is room for."""
        queue = list(lacking)
        prefill_s = {each: self._budget.rest_s(each, num_tokens) for each, num_tokens in lacking.items()}
        for i, first in enumerate(queue):
            room -= lacking[first]
            if room < 0:
                few = [each for each in queue[i + 1 :] if prefill_s[each] <= prefill_s[first] / 2]
                return sorted((each for each in few if not self._follows(each, first)), key=prefill_s.__getitem__)
        return []

    def _follows(self, request: Request, first: Request) -> bool:
        """Whether it wants what the first computes next, and so waits for that."""
        wanted = first.token_ids[: first.num_computed + self._block_size]
        return request.salt == first.salt and request.token_ids[: len(wanted)] == wanted

    def take(self, num_tokens: int) -> None:
        self.num_tokens -= num_tokens

    def earn(self, num_prefilled: int) -> None:
        self.num_tokens = min(self._most, self.num_tokens + num_prefilled * SHARE / (1 - SHARE))
