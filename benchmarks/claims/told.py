"""A drafter that is told what will come: the price of a draft model's steps, with guesses that are right as often as
one wishes. Random weights accept nothing that a draft model of random weights says, so this is what can be measured."""

import random
from collections.abc import Sequence

from hotloop.backends.backend import Backend, SampleRow, Sampling
from hotloop.engine.batch import make_batch
from hotloop.engine.drafting.model import ModelDrafter
from hotloop.engine.step import Slice, Step
from hotloop.models.tokenizer import Tokenizer

_KEY = 16  # tokens of a prompt by which it is known


class ToldDrafter(ModelDrafter):
    def __init__(self, backend: Backend, target: Tokenizer, odds: float = 1.0) -> None:
        super().__init__(backend, target)
        self.odds = odds
        self._told: dict[tuple[int, ...], list[int]] = {}
        self._dice = random.Random(0)

    def tell(self, prompt: Sequence[int], answer: Sequence[int]) -> None:
        self._told[tuple(prompt[:_KEY])] = [*prompt, *answer]

    def _step(self, slices: list[Slice]) -> None:
        """A step of the draft model, whose token is replaced by what was told, or by a wrong one."""
        level = [part.request for part in slices if part.wants_token]
        flight = self._backend.launch(make_batch(Step(slices), self._block_size))
        flight.sample(Sampling([SampleRow(copy, copy.num_tokens) for copy in level]))
        flight.wait()
        for part in slices:
            part.request.num_computed = part.end
        for copy in level:
            told = self._told.get(tuple(copy.token_ids[:_KEY]), [])
            if copy.num_tokens < len(told):
                right = told[copy.num_tokens]
                copy.token_ids.append(right if self._dice.random() < self.odds else (right + 1) % self._num_known)
