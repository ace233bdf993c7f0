"""A model and a draft model that are nothing but what they cost and how often they agree, on a clock of their own."""

import random
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

from tests.engine.tiny import greedy, make_request

from hotloop.core.request import FinishReason, Request
from hotloop.engine.decode import TokenDecoder
from hotloop.engine.drafting.drafter import DraftRequest, Proposal
from hotloop.engine.drafting.speculation import Speculator
from hotloop.engine.scheduler.scheduler import Scheduler
from hotloop.engine.step import Slice, Step

MAX_LENGTH = 8


@dataclass(frozen=True)
class Pair:
    """A step of the model takes a second, and more with more tokens."""

    chance: float
    step_s: float = 0.1  # of the draft model
    sure: float = 1.0
    jump_s: float = 0.0  # for the second token
    row_s: float = 0.0  # for each
    read_s: float = 0.0  # of the draft model, for a token it has not read

    def seconds(self, num_tokens: float) -> float:
        rows = min(num_tokens - 1, 16) + max(0.0, num_tokens - 17) / 8
        return 1 + self.jump_s * min(1.0, num_tokens - 1) + self.row_s * rows

    def token_s(self, length: int) -> float:
        """What a token takes with drafts of that length."""
        reached = [self.sure**i for i in range(length + 1)]
        making_s = self.step_s * sum(reached[:-1])
        verifying_s = sum(
            (reached[i] - (reached[i + 1] if i < length else 0)) * self.seconds(1 + i) for i in range(length + 1)
        )
        return (making_s + verifying_s) / sum((self.sure * self.chance) ** i for i in range(length + 1))

    @property
    def best_token_s(self) -> float:
        return min(self.token_s(length) for length in range(MAX_LENGTH + 1))


class Simulation:
    """Requests one after the other. As a drafter, and as its model, it knows each answer as well as the pair says."""

    def __init__(self, pair: Pair, seed: int = 0) -> None:
        self.pair = pair
        self.now = 0.0
        self.num_read = 0
        self.model = self
        self.sure = 0.8
        self._is_known = False
        self._num_answers = 0
        self._rng = random.Random(seed)
        self._num_known: dict[str, int] = {}
        self.speculator = Speculator(
            self, TokenDecoder([], can_force=True), max_draft_tokens=MAX_LENGTH, clock=lambda: self.now
        )

    def step_s(self, num_requests: int) -> float:
        return self.pair.step_s if self._is_known else 0.0

    def read_s(self, request: Request) -> float:
        return self._reading_s(request) if self._is_known else 0.0

    def propose(self, wants: Sequence[DraftRequest]) -> list[Proposal]:
        return [self._propose(want) if want.max_steps else Proposal() for want in wants]

    def learn(self, request: Request) -> None: ...

    def close(self) -> None: ...

    def ratio(self, num_prompt: int, num_output: int, *, learning_s: float = 400, taken_s: float = 400) -> float:
        """What answers take compared to what they would without drafts, after some time to learn."""
        while self.now < learning_s:
            self.answer(num_prompt, num_output)
        began_at, num_answers = self.now, 0
        while self.now < began_at + taken_s:
            self.answer(num_prompt, num_output)
            num_answers += 1
        return (self.now - began_at) / (num_answers * self.plain_s(num_prompt, num_output))

    def answer(self, num_prompt: int, num_output: int) -> float:
        """How long an answer takes."""
        began_at = self.now
        self._num_answers += 1
        request = make_request([1] * num_prompt, f"r{self._num_answers}", sampling=greedy(num_output))
        request.max_tokens = num_output
        num_computed = 0
        while not request.is_finished:
            num_computed = self._step(request, num_computed)
        return self.now - began_at

    def plain_s(self, num_prompt: int, num_output: int) -> float:
        return self.pair.seconds(num_prompt) + num_output - 1

    def _step(self, request: Request, num_computed: int) -> int:
        part = Slice(request, num_computed, request.num_tokens, wants_token=True)
        step, began_at = Step([part]), self.now
        self.speculator.draft(step, cast(Scheduler, _Extending()))
        self.now += self.pair.seconds(step.num_tokens)
        right = [_token(part.end + i) == token_id for i, token_id in enumerate(part.draft_ids)]
        part.num_accepted = [*right, False].index(False)
        request.token_ids.extend(_token(part.end + i) for i in range(part.num_accepted + 1))
        if request.num_output >= request.max_tokens:
            request.finish_reason = FinishReason.LENGTH
        self.speculator.learn(step, self.now - began_at)
        return part.end + part.num_accepted

    def _reading_s(self, request: Request) -> float:
        num_new = max(0, request.num_tokens - self._num_known.get(request.id, 0) - MAX_LENGTH)
        return self.pair.read_s * num_new

    def _propose(self, want: DraftRequest) -> Proposal:
        self.now += self._reading_s(want.request)
        self.num_read += len(want.token_ids) - self._num_known.get(want.request.id, 0)
        self._num_known[want.request.id] = len(want.token_ids)
        token_ids = array("i")
        while len(token_ids) < min(want.max_tokens, want.max_steps):
            self.now += self.pair.step_s
            self._is_known = True
            is_sure = self._rng.random() < self.pair.sure
            self.sure += (is_sure - self.sure) / 30
            if not is_sure:
                break
            is_right = self._rng.random() < self.pair.chance
            token_ids.append(_token(len(want.token_ids) + len(token_ids)) + (not is_right))
        return Proposal(token_ids.tolist())


class _Extending:
    def extend(self, part: Slice, draft_ids: Sequence[int], match_lengths: Any) -> None:
        part.draft_ids, part.match_lengths = draft_ids, match_lengths


def _token(position: int) -> int:
    return position * 7 % 100 * 2  # never one more than another
