"""How much to guess, and for whom: as long as a guess is likely to save more time than it costs.

A step of n tokens takes about `fixed + n * each` seconds, learned from the steps themselves. A guess at depth i brings
p^i tokens, p being how often guesses of its kind were right lately. The likeliest guesses of all requests are added
while the tokens a second of the step go up. Under a grammar a guess is cut at the first token it forbids, and what it
forces is added in between.
"""

import heapq
from array import array
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from hotloop.core.config import MAX_DRAFTED_FORCED
from hotloop.engine.decode import TokenDecoder
from hotloop.engine.drafting.drafter import Drafter, Guess, Want
from hotloop.engine.grammar.matcher import Matcher
from hotloop.engine.scheduler import Scheduler
from hotloop.engine.step import Slice, Step

_HOPE = 0.7  # for guesses nothing is known about: how often they will be right
_MEMORY = 30  # guesses that an old opinion counts for
_MAX_ROUNDS = 3  # a guess, and others after what the grammar forced
_MAX_DRAFTING = 32  # requests to guess for in one step
_MAX_AHEAD = 8  # requests in a step, up to which one that runs ahead of its values is looked after
_GOOD = 0.5  # how often such a guess must be right


class StepCost:
    """What a step costs: a line through the durations of recent steps, by their number of tokens."""

    def __init__(self) -> None:
        self._sums = [0.0] * 5

    def observe(self, num_tokens: int, duration_s: float) -> None:
        new = (1.0, num_tokens, duration_s, num_tokens**2, num_tokens * duration_s)
        self._sums = [0.98 * old + each for old, each in zip(self._sums, new, strict=True)]

    def marginal(self, num_tokens: int) -> float:
        """What one more token adds to a step of so many, as a share of its duration."""
        each, fixed = self._line()
        return each / (fixed + each * num_tokens)

    def _line(self) -> tuple[float, float]:
        count, *sums = self._sums
        if not sums[1]:
            return 1.0, 30.0  # nothing measured yet: as on a small machine
        mean_n, mean_t, mean_nn, mean_nt = (each / count for each in sums)
        variance = mean_nn - mean_n**2
        slope = (mean_nt - mean_n * mean_t) / variance if variance > 1 else mean_t / (30 + mean_n)
        each = min(max(slope, mean_t / (100 + mean_n)), mean_t / mean_n)
        return each, mean_t - each * mean_n


class Odds:
    """How often guesses were right lately, by the length of the match they came from."""

    def __init__(self) -> None:
        self._odds: dict[int, float] = {}

    def __getitem__(self, kind: int) -> float:
        return self._odds.get(kind, _HOPE)

    @property
    def best(self) -> float:
        return max(self._odds.values(), default=_HOPE)

    def observe(self, kind: int, *, is_right: bool) -> None:
        self._odds[kind] = self[kind] + (is_right - self[kind]) / _MEMORY

    def relax(self) -> None:
        """Forget a little, so that what did not pay is tried again some time."""
        for kind, odds in self._odds.items():
            self._odds[kind] = odds + 0.002 * (_HOPE - odds)


@dataclass(slots=True)
class Draft:
    """A guess in the making for one slice.

    token_ids  [ guess guess forced  forced  guess ... ]
    kinds      [   3     3     None    None    1   ... ]   how long a match a guess comes from; None: it follows
    """

    part: Slice
    matcher: Matcher | None
    max_guesses: int
    max_tokens: int  # as many as the answer has room for, but for the one that is chosen after them
    token_ids: list[int] = field(default_factory=list)
    kinds: list[int | None] = field(default_factory=list)
    num_guesses: int = 0
    is_open: bool = True  # whether it is worth asking for more

    def want(self) -> Want:
        request = self.part.request
        token_ids = request.token_ids + array("i", self.token_ids) if self.token_ids else request.token_ids
        return Want(request, token_ids, self.max_guesses - self.num_guesses)

    def follow(self, guess: Guess) -> None:
        """Take a guess as far as the grammar does; open for another where the grammar led elsewhere."""
        expected = deque(guess.token_ids)
        self.is_open = False
        while expected and self.num_guesses < self.max_guesses:
            token_id = expected.popleft()
            if self.matcher and not self.matcher.advance(token_id):
                return
            self._add(token_id, guess.match)
            self.num_guesses += 1
            for forced_id in self._forced():
                self._add(forced_id, None)
                if expected and expected.popleft() != forced_id:
                    expected.clear()
                self.is_open = not expected
        self.is_open = self.is_open and self.num_guesses < self.max_guesses

    def undo(self) -> None:
        """Leave the matcher where the request is."""
        if self.matcher and self.token_ids:
            self.matcher.rollback(len(self.token_ids))

    def _forced(self) -> list[int]:
        """What the grammar forces after the last guess; the matcher takes it."""
        if self.matcher is None:
            return []
        room = MAX_DRAFTED_FORCED - len(self.token_ids) + self.num_guesses
        forced = self.matcher.forced()[:room]
        for token_id in forced:
            self.matcher.advance(token_id)
        return forced

    def _add(self, token_id: int, kind: int | None) -> None:
        self.token_ids.append(token_id)
        self.kinds.append(kind)


class Speculator:
    def __init__(self, drafter: Drafter, decoder: TokenDecoder, *, max_draft_tokens: int) -> None:
        self._drafter = drafter
        self._decoder = decoder
        self._max_draft_tokens = max_draft_tokens
        self._pace = StepCost()
        self._odds = Odds()

    def draft(self, step: Step, scheduler: Scheduler) -> None:
        """Extend the slices of a step by what is worth computing ahead."""
        num_tokens = step.num_tokens
        level = [part for part in step.slices if part.wants_token]
        drafts = self._promising([part for part in level if not part.request.num_pending], len(level), num_tokens)
        for _ in range(_MAX_ROUNDS):
            drafting = [draft for draft in drafts if draft.is_open]
            if not drafting:
                break
            for draft, guess in zip(drafting, self._drafter.propose([draft.want() for draft in drafting]), strict=True):
                draft.follow(guess)
        for draft, worth in zip(drafts, self._worth(drafts, num_tokens, len(level)), strict=True):
            draft.undo()
            count = min(worth, draft.max_tokens)
            if count:
                scheduler.extend(draft.part, draft.token_ids[:count], draft.kinds[:count])
        for part in level:
            part.request.has_guess = bool(part.draft_ids)

    def learn(self, step: Step, duration_s: float) -> None:
        self._pace.observe(step.num_tokens, duration_s)
        self._odds.relax()
        for part in step.slices:
            num_tried = min(part.num_accepted + 1, len(part.draft_ids))
            for i, kind in enumerate(part.kinds[:num_tried]):
                if kind is not None:
                    self._odds.observe(kind, is_right=i < part.num_accepted)
        self._look_ahead([part for part in step.slices if part.wants_token])

    def _look_ahead(self, level: Sequence[Slice]) -> None:
        """Where few run, and one repeats something, it is better to wait for its values and guess than to run ahead."""
        running = (part.request for part in level if not part.request.is_finished)
        ahead = [request for request in running if request.num_pending and request.sampling.shortcuts]
        if not ahead or len(level) > _MAX_AHEAD:
            return
        wants = [Want(request, request.token_ids, 1) for request in ahead]
        for request, guess in zip(ahead, self._drafter.propose(wants), strict=True):
            request.has_guess = bool(guess.token_ids) and self._odds[guess.match] > _GOOD

    def _promising(self, parts: Sequence[Slice], num_level: int, num_tokens: int) -> list[Draft]:
        """Those to guess for, if the best of guesses would pay for any."""
        if not parts or self._odds.best / num_level <= self._pace.marginal(num_tokens):
            return []
        drafts = [self._open(part) for part in parts]
        return [draft for draft in drafts if draft][:_MAX_DRAFTING]

    def _open(self, part: Slice) -> Draft | None:
        request = part.request
        guide = self._decoder.guides.get(request.id)
        max_tokens = request.max_tokens - request.num_output - 1
        if not request.sampling.shortcuts or max_tokens <= 0 or (guide and guide.forced):
            return None
        return Draft(part, guide.matcher if guide else None, min(self._max_draft_tokens, max_tokens), max_tokens)

    def _worth(self, drafts: Sequence[Draft], num_tokens: int, num_level: int) -> list[int]:
        """How much of each draft to compute: the likeliest tokens of all, while the tokens a second go up."""
        counts = [0] * len(drafts)
        expected = float(num_level)
        chances = [(-self._chance(draft, 0, 1.0), i) for i, draft in enumerate(drafts) if draft.token_ids]
        heapq.heapify(chances)
        while chances:
            negative, i = heapq.heappop(chances)
            if -negative / expected <= self._pace.marginal(num_tokens):
                break
            counts[i] += 1
            expected -= negative
            num_tokens += 1
            if counts[i] < len(drafts[i].token_ids):
                heapq.heappush(chances, (-self._chance(drafts[i], counts[i], -negative), i))
        return counts

    def _chance(self, draft: Draft, index: int, chance_before: float) -> float:
        kind = draft.kinds[index]
        return chance_before if kind is None else chance_before * self._odds[kind]
