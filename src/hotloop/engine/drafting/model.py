"""Drafting with a second, smaller model of the same vocabulary, which writes a few tokens ahead of the real one.

Each request has a shadow in the draft model's own blocks: a copy of its tokens, kept as far as the two still agree. All
shadows take each small step together; one that is far behind prefills a bounded piece a call and drafts nothing
meanwhile. They share what is settled through a prefix tree: no block of it ever holds a draft. Whatever goes wrong here
costs drafts, never an answer.
"""

import logging
import math
import time
from array import array
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from hotloop.backends.backend import Backend, SampleRow, Sampling
from hotloop.core.errors import BackendError, ModelError
from hotloop.core.request import Request, SamplingParams
from hotloop.engine.batch import make_batch
from hotloop.engine.drafting.drafter import DraftRequest, Proposal
from hotloop.engine.drafting.payoff import Average, StepCost
from hotloop.engine.kvcache.blocks import BlockPool
from hotloop.engine.kvcache.radix import RadixTree
from hotloop.engine.step import Slice, Step
from hotloop.models.tokenizer import Tokenizer

log = logging.getLogger(__name__)

MIN_MATCH = 4  # a shorter match in the past makes a worse draft than a draft model
MAX_TAIL = 1024  # tokens that one of two vocabularies may have beyond the other: padding, and markers added later

_LIKELIEST = SamplingParams(temperature=0, logprobs=0)


def check_same_vocabulary(target: Tokenizer, draft: Tokenizer) -> None:
    """Raises ModelError unless both mean the same by each token id; one may have a few more at the end."""
    sizes = target.vocab_size, draft.vocab_size
    if abs(sizes[0] - sizes[1]) > MAX_TAIL:
        raise ModelError(f"the draft model has {sizes[1]} tokens and the model {sizes[0]}: they must be the same")
    for token_id in range(min(sizes)):
        if _meaning(target, token_id) != _meaning(draft, token_id):
            wanted, found = target.token_text(token_id), draft.token_text(token_id)
            raise ModelError(f"the draft model's token {token_id} is {found!r} and the model's is {wanted!r}")


def _meaning(tokenizer: Tokenizer, token_id: int) -> str | bytes:
    return tokenizer.token_text(token_id) if tokenizer.is_special(token_id) else tokenizer.token_bytes(token_id)


@dataclass(slots=True, eq=False)
class _DraftSequence:
    """A request as the draft model has it: its tokens, and the drafts that follow them, in blocks of their own."""

    copy: Request
    max_length: int = 0
    wanted_at: int = 0


class ModelDrafter:
    """Runs the draft model greedily, until it has drafted enough or is no longer sure."""

    def __init__(
        self,
        backend: Backend,
        target: Tokenizer,
        *,
        max_read_tokens: int = 256,
        least_chance: float = 0.4,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.model = self
        self._clock = clock
        self._cost = StepCost()
        self._sure = Average(0.8, memory=30, weight=4)
        self._backend = backend
        self._block_size = backend.block_size
        self._max_read_tokens = max_read_tokens
        self._least_chance = least_chance  # a token that is less likely than this is not drafted
        self._num_known = min(backend.vocab_size, target.vocab_size)
        self._eos_ids = target.eos_ids
        self._pool = BlockPool(backend.num_blocks)
        self._tree = RadixTree(self._pool, backend.block_size)
        self._sequences: dict[Request, _DraftSequence] = {}  # least recently wanted first
        self._num_calls = 0
        self.has_failed = False

    def propose(self, wants: Sequence[DraftRequest]) -> list[Proposal]:
        if self.has_failed or not wants:
            return [Proposal() for _ in wants]
        self._num_calls += 1
        shadows = [self._follow(want) for want in wants]
        try:
            writing = [shadow for shadow in shadows if shadow]
            while slices := self._plan(writing):
                self._step(slices)
                writing = [shadow for shadow in writing if self._may_go_on(shadow)]
        except BackendError as error:
            log.warning("the draft model failed and is disabled: %s", error)
            self.has_failed = True
            return [Proposal() for _ in wants]
        return [
            Proposal(shadow.copy.token_ids[len(want.token_ids) : shadow.max_length].tolist() if shadow else [])
            for want, shadow in zip(wants, shadows, strict=True)
        ]

    def learn(self, request: Request) -> None:
        """Its shadow goes; what that has computed stays in the tree for the next turn."""
        if shadow := self._sequences.get(request):
            _level(shadow.copy, request.token_ids)
            self._share(shadow.copy, shadow.copy.num_computed)
            self._drop(request)

    def close(self) -> None:
        self.has_failed = True
        self._backend.close()

    @property
    def sure(self) -> float:
        return self._sure.mean

    def step_s(self, num_requests: int) -> float:
        return self._cost.seconds(num_requests) if self._cost.is_known else 0.0

    def read_s(self, request: Request) -> float:
        if self.has_failed or request.num_tokens >= self._backend.max_context:
            return math.inf
        if not self._cost.is_known:
            return 0.0
        shadow = self._sequences.get(request)
        known = self._tree.peek(request.token_ids, request.salt) if shadow is None else ()
        num_computed = shadow.copy.num_computed if shadow else len(known) * self._block_size
        num_pieces, num_left = divmod(max(1, request.num_tokens - num_computed), self._max_read_tokens)
        return num_pieces * self._cost.seconds(self._max_read_tokens) + self._cost.seconds(num_left) - self.step_s(1)

    def check(self) -> None:
        self._tree.check()
        copies = [shadow.copy for shadow in self._sequences.values()]
        assert all(copy.num_computed <= len(copy.block_ids) * self._block_size for copy in copies)
        self._pool.check(Counter(block_id for copy in copies for block_id in copy.block_ids))

    def _follow(self, want: DraftRequest) -> _DraftSequence | None:
        """The request's shadow, level with its tokens; None if the draft model has no such tokens, or no time."""
        max_length = len(want.token_ids) + min(want.max_tokens, want.max_steps)
        largest_id = np.frombuffer(want.token_ids, np.int32).max()
        if not want.max_steps or max_length > self._backend.max_context or largest_id >= self._backend.vocab_size:
            return None
        request = want.request
        shadow = self._sequences.pop(request, None)
        if shadow is None:
            shadow = _DraftSequence(Request(request.id, want.token_ids, _LIKELIEST, salt=request.salt))
        self._sequences[request] = shadow
        shadow.max_length, shadow.wanted_at = max_length, self._num_calls
        _level(shadow.copy, want.token_ids)
        self._share(shadow.copy, min(shadow.copy.num_computed, request.num_tokens - 1))
        if shadow.copy.num_uncomputed > self._block_size:
            self._adopt(shadow.copy)
        return shadow

    def _plan(self, shadows: list[_DraftSequence]) -> list[Slice]:
        """What the next step computes: all that is missing of those who lack little, and a bounded piece of others."""
        slices = []
        budget = max(self._block_size, self._max_read_tokens)
        for shadow in sorted(shadows, key=lambda shadow: shadow.copy.num_uncomputed):
            begin, count = shadow.copy.num_computed, shadow.copy.num_uncomputed
            if count > self._block_size:
                count = min(count, budget)
                budget -= count
            end = begin + count
            if end < shadow.copy.num_tokens:  # pieces end where blocks end, so that others can follow
                end -= end % self._block_size
            if end > begin and self._make_room(shadow.copy, end):
                slices.append(Slice(shadow.copy, begin, end, end == shadow.copy.num_tokens))
        return slices

    def _step(self, slices: list[Slice]) -> None:
        """Compute these and add the likeliest token to those who are level, if it is likely enough."""
        level = [part.request for part in slices if part.wants_token]
        began_at = self._clock()
        flight = self._backend.launch(make_batch(Step(slices), self._block_size))
        flight.sample(Sampling([SampleRow(copy, copy.num_tokens) for copy in level]))
        chosen = flight.wait()
        self._cost.observe(sum(part.num_tokens for part in slices), self._clock() - began_at)
        for part in slices:
            part.request.num_computed = part.end
        for row, copy in enumerate(level):
            token_id = chosen.token(row)
            chance = math.exp(chosen.logprob(row, token_id, 0).logprob)
            is_sure = token_id < self._num_known and chance >= self._least_chance
            self._sure.observe(is_sure)
            if is_sure:
                copy.token_ids.append(token_id)

    def _may_go_on(self, shadow: _DraftSequence) -> bool:
        """Whether a token was just added to it, and another may be."""
        copy = shadow.copy
        has_room = copy.num_tokens < shadow.max_length
        return copy.num_uncomputed == 1 and has_room and copy.token_ids[-1] not in self._eos_ids

    def _make_room(self, copy: Request, num_tokens: int) -> bool:
        """With blocks that are free, or idle in the tree, or held by shadows not asked for now."""
        num_uncomputed = max(0, -(-num_tokens // self._block_size) - len(copy.block_ids))
        while (block_ids := self._tree.allocate(num_uncomputed)) is None:
            request, shadow = next(iter(self._sequences.items()))
            if shadow.wanted_at == self._num_calls:
                return False
            self._drop(request)
        copy.block_ids.extend(block_ids)
        return True

    def _adopt(self, copy: Request) -> None:
        """Use what the tree has beyond what this one has computed; the last token is always left, for its logits."""
        if len(copy.block_ids) * self._block_size != copy.num_computed:
            return
        adopted = self._tree.match(copy.token_ids[:-1], copy.salt)[len(copy.block_ids) :]
        self._pool.use(adopted)
        copy.block_ids.extend(adopted)
        copy.num_computed = len(copy.block_ids) * self._block_size

    def _share(self, copy: Request, num_tokens: int) -> None:
        num_full = num_tokens // self._block_size
        if num_full and not self._pool.is_kept[copy.block_ids[num_full - 1]]:
            self._tree.share(copy.token_ids[: num_full * self._block_size], copy.block_ids, copy.salt)

    def _drop(self, request: Request) -> None:
        self._pool.release(self._sequences.pop(request).copy.block_ids)


def _level(copy: Request, token_ids: "array[int]") -> None:
    """Give a copy these tokens; what it has computed counts as far as they agree with the ones it had."""
    size = min(len(copy.token_ids), len(token_ids))
    differs = np.flatnonzero(
        np.frombuffer(copy.token_ids, np.int32)[:size] != np.frombuffer(token_ids, np.int32)[:size]
    )
    num_agreed = int(differs[0]) if len(differs) else size
    copy.num_computed = min(copy.num_computed, num_agreed, len(token_ids) - 1)
    copy.token_ids = token_ids[:]
