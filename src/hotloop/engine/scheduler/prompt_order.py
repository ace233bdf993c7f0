"""In which order prompts of one class are prefilled: the shortest remaining first, with a share for the first in turn.

    next  =  the first in turn            if  owed >= the least that is worth a step
             argmin over prompts rest_s   otherwise

    owed  =  (1 - SHARE) x (tokens prefilled)  -  (tokens prefilled of the first in turn)

`rest_s` is what the rest of a prompt takes, in seconds, so prompts of like length are finished one after the other, and
what is short does not wait for what is long: of all orders that one makes the mean time to the first token least. The
first in turn is the one that the queue has first (`Fairness`, then arrival). However many shorter ones come, it has its
share of all that is prefilled, so it takes 1 / (1 - SHARE) times as long as alone, and then the next one is the first.

A step that brings first tokens is not filled up with prompts that lack more than twice as much, if it pays:

    (such first tokens) x (what is left of the step, in seconds)  >  (prompts behind them) x plain_s
"""

from collections.abc import Mapping, Sequence

from hotloop.core.request import Request
from hotloop.engine.scheduler.prefill_budget import PrefillBudget

SHARE = 0.5


class PromptOrder:
    """What the first in turn is owed, in tokens."""

    def __init__(self, budget: PrefillBudget, most: int) -> None:
        self._budget = budget
        self._most = most
        self.owed = 0.0

    def sort(self, queue: Sequence[Request], lacking: Mapping[Request, int]) -> list[Request]:
        """The queue with those of the first class at its head that lack a known number of tokens in order."""
        first = queue[0]
        own_class = [each for each in queue if each.rank == first.rank and each in lacking]
        own_class.sort(key=lambda each: self._budget.rest_s(each, lacking[each]))
        if self.owed >= self._budget.least and first in lacking:
            own_class.remove(first)
            own_class.insert(0, first)
        chosen = set(own_class)
        return [*own_class, *(each for each in queue if each not in chosen)]

    def settle(self, num_prefilled: int, num_of_first: int) -> None:
        """So many tokens were prefilled, so many of them for the first in turn."""
        self.owed += (1 - SHARE) * num_prefilled - num_of_first
        self.owed = max(-self._most, min(self._most, self.owed))
