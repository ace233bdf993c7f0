"""How much to draft, and for whom: as long as a draft is likely to save more time than it costs.

What a step of n tokens takes is learned from the steps themselves. A draft at depth i brings p^i tokens, p being how
often drafts of its kind were right lately. Of the likeliest drafts of all requests so many are added that the step
has the most tokens a second. A draft model is asked for so many tokens that the same holds with its time added, which
may be none (`payoff`). Under a grammar a draft is cut at the first token it forbids, and what it forces is added in
between.
"""

import heapq
import time
from array import array
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from hotloop.core.config import MAX_DRAFTED_FORCED
from hotloop.core.request import Request
from hotloop.engine.decode import TokenDecoder
from hotloop.engine.drafting.drafter import Drafter, DraftRequest, Proposal
from hotloop.engine.drafting.history import MAX_MATCH
from hotloop.engine.drafting.payoff import Average, DraftScenario, ModelPayoff, StepCost, best_length
from hotloop.engine.grammar.matcher import Matcher
from hotloop.engine.scheduler.scheduler import Scheduler
from hotloop.engine.step import Slice, Step

_HOPE = 0.7  # for a draft model's drafts, as long as nothing is known about them: how often they will be right
_MEMORY = 30  # drafts that an old opinion counts for
MODEL = 0  # the kind of draft that is no copy: a draft model's
_MAX_ROUNDS = 3  # a draft, and others after what the grammar forced
_MAX_DRAFTING = 32  # requests to draft for in one step
_MAX_AHEAD = 8  # requests in a step, up to which one that runs ahead of its values is looked after
_GOOD = 0.5  # how often such a draft must be right


class AcceptanceRates:
    """How often drafts were right lately, by the length of the match they came from."""

    def __init__(self) -> None:
        self._model = Average(_HOPE, _MEMORY, weight=4)  # soon found out: its drafts are dear
        self._acceptance: dict[int, float] = {}

    def __getitem__(self, kind: int) -> float:
        return self._model.mean if kind == MODEL else self._acceptance.get(kind, _hope(kind))

    @property
    def best(self) -> float:
        """Of copies, which cost nothing to make."""
        return max(self[kind] for kind in (MAX_MATCH, *self._acceptance))

    def observe(self, kind: int, *, is_right: bool) -> None:
        if kind == MODEL:
            self._model.observe(is_right)
        else:
            self._acceptance[kind] = self[kind] + (is_right - self[kind]) / _MEMORY

    def relax(self) -> None:
        """Forget a little, so that what did not pay is tried again some time."""
        for kind, odds in self._acceptance.items():
            self._acceptance[kind] = odds + 0.002 * (_hope(kind) - odds)


def _hope(match: int) -> float:
    """How often a copy will be right: the longer the match it comes from, the more often."""
    return 1 - 1 / (match + 2)


@dataclass(slots=True)
class Draft:
    """A draft in the making for one slice.

    token_ids     [ copied  copied  forced  forced  copied ... ]
    match_lengths [   3       3      None    None     1    ... ]   how long a match it was copied from; None: forced
    """

    part: Slice
    matcher: Matcher | None
    max_proposed: int
    max_tokens: int  # as many as the answer has room for, but for the one that is chosen after them
    max_steps: int = 0  # of a draft model
    is_probe: bool = False  # it is made to see how good a draft model's drafts are
    token_ids: list[int] = field(default_factory=list)
    match_lengths: list[int | None] = field(default_factory=list)
    num_proposed: int = 0
    is_open: bool = True  # whether it is worth asking for more

    def want(self) -> DraftRequest:
        request = self.part.request
        token_ids = request.token_ids + array("i", self.token_ids) if self.token_ids else request.token_ids
        return DraftRequest(request, token_ids, self.max_proposed - self.num_proposed, self.max_steps)

    def follow(self, proposal: Proposal) -> None:
        """Take a draft as far as the grammar does; open for another where the grammar led elsewhere."""
        expected = deque(proposal.token_ids)
        self.is_open = False
        while expected and self.num_proposed < self.max_proposed:
            token_id = expected.popleft()
            if self.matcher and not self.matcher.advance(token_id):
                return
            self._add(token_id, proposal.match)
            self.num_proposed += 1
            for forced_id in self._forced():
                self._add(forced_id, None)
                if expected and expected.popleft() != forced_id:
                    expected.clear()
                self.is_open = not expected
        self.is_open = self.is_open and self.num_proposed < self.max_proposed

    def undo(self) -> None:
        """Leave the matcher where the request is."""
        if self.matcher and self.token_ids:
            self.matcher.rollback(len(self.token_ids))

    def _forced(self) -> list[int]:
        """What the grammar forces after the last draft; the matcher takes it."""
        if self.matcher is None:
            return []
        room = MAX_DRAFTED_FORCED - len(self.token_ids) + self.num_proposed
        forced = self.matcher.forced()[:room]
        for token_id in forced:
            self.matcher.advance(token_id)
        return forced

    def _add(self, token_id: int, kind: int | None) -> None:
        self.token_ids.append(token_id)
        self.match_lengths.append(kind)


class Speculator:
    def __init__(
        self,
        drafter: Drafter,
        decoder: TokenDecoder,
        *,
        max_draft_tokens: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._drafter = drafter
        self._decoder = decoder
        self._max_draft_tokens = max_draft_tokens
        self._clock = clock
        self._cost = StepCost()
        self._acceptance = AcceptanceRates()
        self._payoff = ModelPayoff(drafter.model, self._cost, max_draft_tokens) if drafter.model else None
        self._drafting_s = 0.0  # since the last step was settled

    @property
    def model_length(self) -> int:
        """How many tokens a draft model is asked for now; 0: it does not pay."""
        return self._payoff.length if self._payoff else 0

    def draft(self, step: Step, scheduler: Scheduler) -> None:
        """Extend the slices of a step by what is worth computing ahead."""
        began_at, num_tokens = self._clock(), step.num_tokens
        level = [part for part in step.slices if part.wants_token]
        drafts = self._promising([part for part in level if not part.request.num_pending], len(level), num_tokens)
        for _ in range(_MAX_ROUNDS):
            drafting = [draft for draft in drafts if draft.is_open]
            if not drafting:
                break
            proposals = self._drafter.propose([draft.want() for draft in drafting])
            for draft, proposal in zip(drafting, proposals, strict=True):
                draft.follow(proposal)
        drafting_s = self._clock() - began_at
        self._drafting_s += drafting_s
        for draft, worth in zip(drafts, self._worth(drafts, num_tokens, len(level)), strict=True):
            draft.undo()
            count = min(len(draft.token_ids) if draft.is_probe else worth, draft.max_tokens)
            if count:
                scheduler.extend(draft.part, draft.token_ids[:count], draft.match_lengths[:count])
            elif draft.token_ids and draft.match_lengths[0] is not None:
                draft.part.unused = draft.token_ids[0], draft.match_lengths[0]
        if self._payoff and any(draft.is_probe for draft in drafts):
            self._payoff.spend(drafting_s, num_tokens, step.num_tokens)
        for part in level:
            part.request.has_draft = bool(part.draft_ids)

    def learn(self, step: Step, duration_s: float, host_s: float = 0.0) -> None:
        """`host_s`: what the host did of that time; if steps may overlap, it does so while the next is computed."""
        if any(part.request.is_guided or part.request.sampling.has_penalties for part in step.slices):
            host_s = 0.0  # they did not overlap, drafts or not
        self._cost.observe_host(max(0.0, host_s - self._drafting_s))
        is_plain = not any(part.draft_ids for part in step.slices)
        own_s = self._drafting_s if is_plain else max(self._drafting_s, host_s)
        self._cost.observe(step.num_tokens, max(duration_s - own_s, duration_s / 100))
        self._drafting_s = 0.0
        if self._payoff:
            self._payoff.learn(step, duration_s)
        self._acceptance.relax()
        for part in step.slices:
            self._judge(part)
        self._look_ahead([part for part in step.slices if part.wants_token])

    def _judge(self, part: Slice) -> None:
        """Learn from the drafts up to the first wrong one; or from one that was not computed, by the token written."""
        num_tried = min(part.num_accepted + 1, len(part.draft_ids))
        for i, kind in enumerate(part.match_lengths[:num_tried]):
            if kind is not None:
                self._acceptance.observe(kind, is_right=i < part.num_accepted)
        if part.unused and part.is_kept:
            token_id, kind = part.unused
            self._acceptance.observe(kind, is_right=part.request.token_ids[part.end] == token_id)

    def _look_ahead(self, level: Sequence[Slice]) -> None:
        """Where few run, and one repeats something, it is better to wait for its values and draft than to run ahead."""
        running = (part.request for part in level if not part.request.is_finished)
        ahead = [request for request in running if request.num_pending and request.sampling.shortcuts]
        if not ahead or len(level) > _MAX_AHEAD:
            return
        wants = [DraftRequest(request, request.token_ids, 1) for request in ahead]
        proposals = self._drafter.propose(wants)
        good = [bool(proposal.token_ids) and self._acceptance[proposal.match] > _GOOD for proposal in proposals]
        pays = any(good) and self._may_copies_pay(sum(good), len(level), len(level))
        for request, is_good in zip(ahead, good, strict=True):
            request.has_draft = pays and is_good
        for request in self._lengths(ahead, len(level)):
            request.has_draft = True

    def _promising(self, parts: Sequence[Slice], num_level: int, num_tokens: int) -> list[Draft]:
        """Those to draft for, if the best of drafts would pay; now and then a step is measured without any."""
        drafts = [draft for part in parts if (draft := self._open(part))][:_MAX_DRAFTING]
        if not drafts or (num_tokens == num_level and self._cost.is_due(num_tokens)):
            return []
        lengths = self._lengths([draft.part.request for draft in drafts], num_level)
        for draft in drafts:
            draft.max_steps = lengths.get(draft.part.request, 0)
            draft.is_probe = draft.max_steps > 0 and self._payoff is not None and self._payoff.is_probing
        return drafts if lengths or self._may_copies_pay(len(drafts), num_level, num_tokens) else []

    def _lengths(self, requests: Sequence[Request], num_level: int) -> dict[Request, int]:
        """For whom a draft model is asked, and for how many tokens."""
        return self._payoff.lengths(requests, self._acceptance[MODEL], num_level) if self._payoff else {}

    def _may_copies_pay(self, num_drafts: int, num_level: int, num_tokens: int) -> bool:
        """If all are of the best, for one request or for each."""
        ways = (DraftScenario(count, self._acceptance.best, stall_s=self._cost.stall_s) for count in (1, num_drafts))
        longest = self._max_draft_tokens
        return any(best_length(self._cost.optimistic_s, num_tokens, num_level, way, longest)[0] for way in ways)

    def _open(self, part: Slice) -> Draft | None:
        request = part.request
        guide = self._decoder.guides.get(request.id)
        max_tokens = request.max_tokens - request.num_output - 1
        if not request.sampling.shortcuts or max_tokens <= 0 or (guide and guide.forced):
            return None
        return Draft(part, guide.matcher if guide else None, min(self._max_draft_tokens, max_tokens), max_tokens)

    def _worth(self, drafts: Sequence[Draft], num_tokens: int, num_level: int) -> list[int]:
        """How much of each draft to compute: so many of the likeliest tokens of all that most are written a second."""
        counts = [0] * len(drafts)
        best, expected = [*counts], float(num_level)
        base_s = self._cost.optimistic_s(num_tokens)
        best_rate = expected / base_s
        chances = [(-self._chance(draft, 0, 1.0), i) for i, draft in enumerate(drafts) if draft.token_ids]
        heapq.heapify(chances)
        while chances:
            negative, i = heapq.heappop(chances)
            counts[i] += 1
            expected -= negative
            num_tokens += 1
            rate = expected / (self._cost.stall_s + max(base_s, self._cost.optimistic_s(num_tokens)))
            if rate > best_rate:
                best, best_rate = [*counts], rate
            if counts[i] < len(drafts[i].token_ids):
                heapq.heappush(chances, (-self._chance(drafts[i], counts[i], -negative), i))
        return best

    def _chance(self, draft: Draft, index: int, chance_before: float) -> float:
        kind = draft.match_lengths[index]
        return chance_before if kind is None else chance_before * self._acceptance[kind]
