"""How much time less urgent requests have beside an interactive one on a CPU, where each row makes a step longer.

Guests are those who run beside an interactive request and are less urgent. In a step either all of them decode, and
their prompts are prefilled for as long as a step takes without them, or none has a row:

    guests have rows  <=>  owed_s <= 0   or   they had none in the last MAX_HELD steps
    owed_s  +=  row_s x (rows of guests) + (seconds of their chunks) - SHARE x took_s      with each step

lean_s is how long a step takes without guests, and row_s how much longer for each row of theirs, both learnt from steps
that prefill nothing. What a step with all of them adds is owed from the beginning, so that a first token does not wait
for it. An interactive answer then takes 1 / (1 - SHARE) times as long as alone, and no guest is held for more than
MAX_HELD steps; one whose class has waited as long as it may begins all the same, with a token. For MOMENT_S after the
last interactive request chunks stay as short: if it is back, it waits for the end of one. Which tokens a request is
given does not depend on whose rows are beside its own.
"""

import math
from collections import Counter
from collections.abc import Iterable, Sequence

from hotloop.core.request import Priority, Request
from hotloop.engine.scheduler.prefill_budget import MOMENT_S, PrefillBudget, prefills_of
from hotloop.engine.step import Slice

SHARE = 0.1
MAX_HELD = 64

_LEARNING_RATE = 0.1
_MOST = 2.0  # times as long as expected: what took longer was disturbed, and counts for no more


class GuestShare:
    """What guests owe to those beside whom they run; what they did not use of more than a step they do not get back."""

    def __init__(self) -> None:
        self.owed_s = 0.0
        self.lean_s = 0.0
        """0 until it is known."""
        self.row_s = 0.0
        self.num_held = 0
        """For how many steps in a row."""
        self.are_held = False
        """Whether who is less urgent than an interactive request has no row in this step."""
        self.chunks_s = math.inf
        """How long this step may prefill for less urgent requests."""
        self._is_beside = False
        self._interactive_at = -math.inf

    def begin(self, now: float, running: Iterable[Request], newcomers: Iterable[Request]) -> None:
        """A step begins: these run, and these may begin with it."""
        ranks = Counter(each.rank for each in running)
        is_beside = ranks[Priority.INTERACTIVE] > 0 or any(each.priority == Priority.INTERACTIVE for each in newcomers)
        if is_beside and not self._is_beside:
            self.owed_s = self.row_s * (ranks.total() - ranks[Priority.INTERACTIVE])
        self._is_beside = is_beside
        if is_beside:
            self._interactive_at = now
        may_join = (self.lean_s > 0 and self.owed_s <= 0) or self.num_held >= MAX_HELD
        self.are_held = is_beside and not may_join
        is_short = self.lean_s > 0 and now - self._interactive_at <= MOMENT_S
        self.chunks_s = 0.0 if self.are_held else self.lean_s if is_short else math.inf

    def let_go(self) -> None:
        """Nobody is beside them in this step after all."""
        self.are_held, self.chunks_s = False, math.inf

    def learn(self, parts: Sequence[Slice], took_s: float, budget: PrefillBudget) -> None:
        """A step of these took that long; one without interactive requests says nothing."""
        guests = [part for part in parts if part.request.rank != Priority.INTERACTIVE]
        if len(guests) == len(parts):
            return
        chunks = prefills_of(guests)
        num_rows = sum(part.num_tokens for part in guests) - sum(part.num_tokens for part in chunks)
        if not prefills_of(parts):
            self._learn_plain(num_rows, took_s)
        self.num_held = self.num_held + 1 if self.are_held else 0
        guests_s = self.row_s * num_rows + budget.prefill_s(chunks)
        self.owed_s = max(self.owed_s + guests_s, 0.0) - SHARE * took_s

    def _learn_plain(self, num_rows: int, took_s: float) -> None:
        if not num_rows:
            self.lean_s = _blend(self.lean_s, took_s)
        elif self.lean_s:
            self.row_s = _blend(self.row_s, max(0.0, took_s - self.lean_s) / num_rows)


def _blend(known: float, new: float) -> float:
    return known + _LEARNING_RATE * (min(new, _MOST * known) - known) if known else new
