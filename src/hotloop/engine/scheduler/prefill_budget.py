"""How long a step may prefill, so that no request waits long for the next one. Seconds only, and learnt from the steps:

    took_s - plain_s  =  token_s x (tokens prefilled)  +  pair_s x (tokens prefilled x tokens before each)
    took_s - lean_s   =  row_s x (rows of guests)         of steps that prefill nothing beside an interactive request

1. No step prefills for longer than a decoding step takes, times the prompts that wait and one that may come: beside
   few, new ones are soon served; of many, none gains by smaller steps. Where nobody decodes it may take
   `NOBODY_DECODES` of them at least. (On a CPU for longer, see below.)
2. Beside those who decode, prompts have the share of time that makes the sum of slow-downs least, as if one at a time
   were served: one that is prefilled in p seconds counts (d / p)^2, one that decodes 1, d being what `OUTPUT_TOKENS`
   take. So what is short goes first and what is long is prefilled beside the others, in four ninths of the time at
   least.
3. Who is less urgent than one that runs has a share of the time, but for first tokens once its class's wait is over:

       left_s  =  min(left_s, 0)  +  share / (1 - share) x (what a step takes without it)  -  (what it took)

   with each step, and nothing more once that is not above 0. A class has `ClassLimits.max_share` for its prompts. On a
   CPU, where each row makes a step longer, all who are less urgent than an interactive request are its guests: they
   have 1 - `ClassLimits.min_share` together, for their rows as well. Those are in a step all or none, and in one of
   MAX_HELD + 1 at least; what they add is owed when it comes, so that its first token does not wait for it. A chunk of
   theirs takes no longer than a step without them, however few tokens that is, nor for MOMENT_S after it. Who has rows
   beside whom changes no token.

Who is alone, and was for a moment, has all the time there is; where small steps are nearly as quick as large ones, on a
CPU, `Backend.max_solo_prefill` times what a decoding step takes, so that one who comes does not wait for seconds.
There a prompt of the first class that takes no more than half of that, or than `AT_ONCE_S`, is prefilled whole, as far
as its share allows it beside those who decode: an agent's next turn. And where all are longer and nobody decodes, a
step is as long as that. In pieces they would take longer, and bring no token sooner.
"""

import math
from collections import Counter
from collections.abc import Iterable, Sequence

from hotloop.core.config import ClassLimits, EngineConfig
from hotloop.core.request import Priority, Request
from hotloop.engine.step import Slice

OUTPUT_TOKENS = 50
"""So many a decoding request is taken to have before it: about what agents' turns have."""
LEAST = 0.8
"""So many times as long as a step takes that prefills nothing, prompts are prefilled in each, on average, at least."""
PER_PROMPT = 1.0
"""So many times as long a step may prefill at most, for each prompt that waits and for one more."""
NOBODY_DECODES = 6
"""So many times as long it may where nobody decodes: smaller steps are slower, and only serve who may come."""
AT_ONCE_S = 0.2
"""So long a step may prefill the rest of a prompt, on a CPU, however quick decoding is: nobody minds that."""
MOMENT_S = 1.0
"""So long after others were served beside a prompt steps stay short: they may be back."""
PROBE_S = 1.0
"""So often, while requests decode, a step prefills nothing, to see how long that takes now."""
MAX_HELD = 64
"""For so many steps in a row guests have no rows, at most."""

_LEARNING_RATE = 0.1
_MOST = 2.0  # times as long as expected: what took longer beside guests was disturbed, and counts for no more
_MORE = 1.01  # than it takes: a token too few would be left for a step of its own
_FADE = 0.02  # of what was learnt from the steps before is forgotten with each one
_FEW = 128  # tokens; of more than that not twice as many as ever before are prefilled in a step that others wait for


class PrefillBudget:
    """Learns from every step; says how many tokens of whose prompts the next one prefills."""

    def __init__(
        self,
        token_s: float,
        least: int = 1,
        max_solo_prefill: float = math.inf,
        limits: Sequence[ClassLimits] = EngineConfig().class_limits,
    ) -> None:
        self.plain_s = 0.0
        """How long a step takes, lately, that prefills nothing; 0 until there was one."""
        self.token_s = token_s
        self.pair_s = 0.0
        self.least = least
        """Tokens: a step prefills as many or none, since fewer take as long."""
        self.lean_s = 0.0
        """How long a step takes without guests; 0 until it is known."""
        self.row_s = 0.0
        """How much longer for each of their rows."""
        self.are_held = False
        """Whether guests have no rows in this step."""
        self.limit(limits)
        self._left_s = math.inf
        self._class_left_s = [math.inf] * len(Priority)  # below 0: they had more than their share
        self._guests_left_s = 0.0
        self._num_held = 0
        self._is_beside = False  # whether there are guests
        self._interactive_at = -math.inf
        self._is_short = False  # whether prompts of guests are, or would be
        self._plain_ago_s = 0.0  # since a step prefilled nothing, without the time that lay idle
        self._shared_at = -math.inf
        self._max_solo_prefill = max_solo_prefill
        self._most = _FEW
        self._sums = (0.0, 0.0, 0.0, 0.0, 0.0)

    def limit(self, limits: Sequence[ClassLimits]) -> None:
        self._shares = [each.max_share for each in limits]
        self._guest_share = 1 - limits[Priority.INTERACTIVE].min_share

    def learn(self, parts: Sequence[Slice], took_s: float) -> int:
        """A step of these took that long; returns how many tokens it prefilled."""
        self._plain_ago_s += took_s
        prefills = prefills_of(parts)
        if self._max_solo_prefill < math.inf:
            self._learn_rows(parts, took_s, is_plain=not prefills)
        if not prefills:
            rate = max(_LEARNING_RATE, min(1.0, self._plain_ago_s / PROBE_S)) if self.plain_s else 1.0
            self.plain_s += rate * (took_s - self.plain_s)
            self._plain_ago_s = 0.0
            return 0
        num_tokens = sum(part.num_tokens for part in prefills)
        num_pairs = sum(part.num_tokens * (part.begin + part.num_tokens / 2) for part in prefills)
        self._most = max(self._most, num_tokens)
        self.plain_s = min(self.plain_s, took_s)  # without its prefills it would not have taken longer
        if num_tokens >= self.least:
            self._fit(num_tokens, num_pairs, took_s - self.plain_s)
        return num_tokens

    def hold(self, now: float, running: Iterable[Request], startable: Iterable[Request]) -> None:
        """A step begins: these run, and these may begin with it. Are guests held? Only where rows make steps longer."""
        if self._max_solo_prefill == math.inf:
            return
        ranks = Counter(each.rank for each in running)
        is_beside = ranks[Priority.INTERACTIVE] > 0 or any(each.priority == Priority.INTERACTIVE for each in startable)
        if not is_beside:
            self._guests_left_s = 0.0
        elif not self._is_beside:
            self._guests_left_s = -self.row_s * (ranks.total() - ranks[Priority.INTERACTIVE])
        self._is_beside = is_beside
        if is_beside:
            self._interactive_at = now
            self._guests_left_s = min(self._guests_left_s, 0.0) + _share_s(self._guest_share, self.lean_s)
        may_join = (self.lean_s > 0 and self._guests_left_s > 0) or self._num_held >= MAX_HELD
        self.are_held = is_beside and not may_join
        self._is_short = self.lean_s > 0 and now - self._interactive_at <= MOMENT_S

    def release(self) -> None:
        """Nobody is beside them in this step after all."""
        self.are_held = self._is_short = False

    def begin(
        self, now: float, decoding: list[int], waiting: list[tuple[int, float]], num_waiting: int, lead: int
    ) -> None:
        """Prompts have a part of this step: ranks of those who decode; rank and seconds of prefill of the first who do
        not yet and have a place, and how many do not in all; the most urgent rank that runs.
        """
        if len(decoding) + num_waiting > 1:
            self._shared_at = now
        self._left_s = self._max_solo_prefill * self.plain_s if self.plain_s else math.inf
        is_shared = now - self._shared_at <= MOMENT_S
        if decoding and self._plain_ago_s > PROBE_S:
            self._left_s = 0.0
        elif self.plain_s:
            if is_shared:
                most = PER_PROMPT * (1 + num_waiting)
                self._left_s = (most if decoding else max(most, NOBODY_DECODES)) * self.plain_s
            if self._max_solo_prefill < math.inf:
                is_free = is_shared and not decoding
                self._left_s = max(self._left_s, self._at_once_s(waiting, is_free=is_free))
        for priority in Priority:
            share_s = self._share_s(priority, decoding, waiting, lead)
            debt_s = min(0.0, self._class_left_s[priority]) if share_s < math.inf else 0.0
            self._class_left_s[priority] = debt_s + share_s

    def rest(self) -> None:
        """A step begins in which nothing is prefilled, since nobody has a prompt: nothing is owed any more."""
        self._class_left_s = [math.inf] * len(Priority)

    def least_for(self, rank: int) -> int:
        """Tokens: a step prefills as many for one of this rank or none. Beside an interactive request each counts."""
        return 1 if rank != Priority.INTERACTIVE and self._is_beside else self.least

    def has_room(self, rank: int) -> bool:
        """Whether this step may prefill any more for one of this rank."""
        return self._room_s(rank) > 0

    def num_tokens(self, rank: int, begin: int) -> float:
        """How many tokens behind the first `begin` it may still prefill for one of this rank."""
        room_s = max(0.0, self._room_s(rank))
        if room_s == math.inf:
            return math.inf
        linear_s = self.token_s + self.pair_s * begin
        sum_s = linear_s + math.sqrt(linear_s**2 + 2 * self.pair_s * room_s)
        return min(2 * room_s / sum_s if sum_s else math.inf, 2 * self._most)

    def take(self, rank: int, begin: int, num_tokens: int) -> None:
        """So many are prefilled for one of this rank: those below it are not alone any more."""
        cost_s = self.cost_s(begin, num_tokens)
        self._left_s -= cost_s
        self._class_left_s[rank] -= cost_s
        if rank != Priority.INTERACTIVE:
            self._guests_left_s -= cost_s
        for lower in range(rank + 1, len(Priority)):
            self._class_left_s[lower] = min(self._class_left_s[lower], self._guest_s(Priority(lower)))

    def is_worth_a_step(self, request: Request, num_left: int, num_short: int, num_behind: int) -> bool:
        """Whether the first tokens of so many shorter prompts had better not wait for this one and those behind it:
        they come sooner by what is left of the step, and all those later by a step that decodes.
        """
        if self.num_tokens(request.rank, request.num_computed) < self.least:
            return True
        rest_s = min(self._room_s(request.rank), self.cost_s(request.num_computed, num_left))
        return num_short * rest_s > num_behind * self.plain_s

    def close(self) -> None:
        """Nothing more is prefilled in this step."""
        self._left_s = 0.0

    def step_s(self, parts: Sequence[Slice]) -> float:
        """How long a step of these is expected to take."""
        prefill_s = self.prefill_s(parts)
        if not self.lean_s:
            return self.plain_s + prefill_s
        return self.lean_s + self.row_s * num_guest_rows(parts) + prefill_s

    def prefill_s(self, parts: Iterable[Slice]) -> float:
        """How much longer a step of these is expected to take for what it prefills."""
        return sum(self.cost_s(part.begin, part.num_tokens) for part in prefills_of(parts))

    def cost_s(self, begin: int, num_tokens: int) -> float:
        """What it takes to prefill so many tokens behind the first `begin`."""
        return num_tokens * (self.token_s + self.pair_s * (begin + num_tokens / 2))

    def rest_s(self, request: Request, num_tokens: int) -> float:
        """What the last so many tokens of a request take."""
        return self.cost_s(request.num_tokens - num_tokens, num_tokens)

    def _room_s(self, rank: int) -> float:
        room_s = min(self._left_s, self._class_left_s[rank])
        if rank == Priority.INTERACTIVE or not (self.are_held or self._is_short):
            return room_s
        return 0.0 if self.are_held else min(room_s, self.lean_s + self._guests_left_s)

    def _at_once_s(self, waiting: list[tuple[int, float]], *, is_free: bool) -> float:
        """On a CPU: what the first prompt takes or, if that is long, the shortest of its class; if all are, what is not
        yet long, unless others wait for it.
        """
        long_s = max(self._max_solo_prefill / 2 * self.plain_s, AT_ONCE_S)
        short_s = [each_s for rank, each_s in waiting if rank == waiting[0][0] and each_s <= long_s]
        if not short_s:
            return long_s if is_free else 0.0
        return _MORE * (waiting[0][1] if waiting[0][1] <= long_s else min(short_s))

    def _share_s(self, priority: Priority, decoding: list[int], waiting: list[tuple[int, float]], lead: int) -> float:
        """How long a step prefills for this class, if it is to have its share of the time and no more."""
        share_s = self._guest_s(priority) if lead < priority else math.inf
        num_decoding = sum(rank <= priority for rank in decoding)
        if num_decoding and self.plain_s:
            output_s = OUTPUT_TOKENS * self.plain_s
            counts = ((output_s / (self.plain_s + prefill_s)) ** 2 for rank, prefill_s in waiting if rank == priority)
            share_s = min(share_s, self.plain_s * max(LEAST, sum(counts) / num_decoding))
        return share_s

    def _guest_s(self, priority: Priority) -> float:
        """The same beside a more urgent request."""
        return _share_s(self._shares[priority], self.plain_s) if self.plain_s else math.inf

    def _learn_rows(self, parts: Sequence[Slice], took_s: float, *, is_plain: bool) -> None:
        """What guests add, and owe for it; a step without interactive requests says nothing."""
        if all(part.request.rank != Priority.INTERACTIVE for part in parts):
            return
        num_rows = num_guest_rows(parts)
        if is_plain and not num_rows:
            self.lean_s = _blend(self.lean_s, took_s)
        elif is_plain and self.lean_s:
            self.row_s = _blend(self.row_s, max(0.0, took_s - self.lean_s) / num_rows)
        self._num_held = self._num_held + 1 if self.are_held else 0
        self._guests_left_s -= self.row_s * num_rows

    def _fit(self, num_tokens: float, num_pairs: float, took_s: float) -> None:
        """Least squares over the latest steps; what they cannot tell apart counts as the tokens' own."""
        new = (num_tokens**2, num_tokens * num_pairs, num_pairs**2, num_tokens * took_s, num_pairs * took_s)
        kept = 1 - min(_FADE, new[0] / (self._sums[0] or math.inf))  # a few tokens do not tell as much as many
        nn, np, pp, nt, pt = (kept * old + each for old, each in zip(self._sums, new, strict=True))
        self._sums = nn, np, pp, nt, pt
        determinant = nn * pp - np * np
        if determinant > 1e-3 * nn * pp:
            token_s, pair_s = (nt * pp - pt * np) / determinant, (pt * nn - nt * np) / determinant
            if token_s >= 0 and pair_s >= 0:
                self.token_s, self.pair_s = token_s, pair_s
                return
        self.token_s, self.pair_s = nt / nn, 0.0


def prefills_of(parts: Iterable[Slice]) -> list[Slice]:
    """Those of a step that are chunks of prompts."""
    return [part for part in parts if part.end - part.begin > 1 and part.begin < part.request.num_prompt]


def num_guest_rows(parts: Iterable[Slice]) -> int:
    """How many tokens of answers a step computes for who is less urgent than an interactive request."""
    guests = [part for part in parts if part.request.rank != Priority.INTERACTIVE]
    return sum(part.num_tokens for part in guests) - sum(part.num_tokens for part in prefills_of(guests))


def _share_s(share: float, rest_s: float) -> float:
    """Seconds that are this share of what they make together with the rest."""
    return rest_s * share / (1 - share) if share < 1 else math.inf


def _blend(known: float, new: float) -> float:
    return known + _LEARNING_RATE * (min(new, _MOST * known) - known) if known else new
