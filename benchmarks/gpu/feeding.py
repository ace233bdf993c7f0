"""Prompts fed to a backend in every way an engine may do it: whole, in chunks, token by token, as drafts, together."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from benchmarks.gpu.random_models import Shape
from hotloop.backends.backend import Batch, SampleRow, Sampling
from hotloop.backends.cuda.runner import BLOCK_SIZE, CudaBackend
from hotloop.core.request import Request, SamplingParams


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is compared. Every prompt is longer than its end that is decoded token by token."""

    shape: Shape = field(default_factory=Shape)
    prompt_lens: tuple[int, ...] = (33, 64, 150, 257, 300, 384, 400, 512)
    chunk: int = 50
    num_decoded: int = 32
    num_rows: int = 8
    num_requests: int = 32
    num_tokens: int = 2 * BLOCK_SIZE + 2
    """Over two blocks: one is set aside for whoever is let in, so that shorter answers never have to give way."""
    trunk_len: int = 128
    num_kv_tokens: int = 32_768
    num_scarce_tokens: int = 2048


TINY = Sizes(
    shape=Shape(2, 64, 96, 4, 2, 16, 300, 256),
    prompt_lens=(9, 34, 41),
    chunk=33,
    num_decoded=4,
    num_rows=2,
    num_requests=4,
    num_tokens=8,
    trunk_len=64,
    num_kv_tokens=2048,
    num_scarce_tokens=320,
)


class Feeder:
    """Feeds prompts to a backend step by step, and keeps the logits after every token."""

    def __init__(self, backend: CudaBackend, prompts: Sequence[Sequence[int]]) -> None:
        self.prompts = prompts
        self._backend = backend
        self._num_fed = [0] * len(prompts)
        self._logits: list[list[torch.Tensor]] = [[] for _ in prompts]
        ends = np.cumsum([0, *(-(-len(prompt) // BLOCK_SIZE) for prompt in prompts)])
        self._tables = [np.arange(begin, end, dtype=np.int32) for begin, end in itertools.pairwise(ends)]

    def feed(self, counts: Mapping[int, int]) -> None:
        """One step: so many more tokens of each of these prompts."""
        flight = self._backend.launch(self._batch(counts))
        parts = flight.logits.clone().split(list(counts.values()))
        request = Request("parity", [0], SamplingParams(temperature=0))
        flight.sample(Sampling([SampleRow(request, 1)] * sum(counts.values())))
        flight.wait()
        for (i, count), logits in zip(counts.items(), parts, strict=True):
            self._num_fed[i] += count
            self._logits[i].append(logits)

    def logits(self) -> list[torch.Tensor]:
        return [torch.cat(parts) for parts in self._logits]

    def _batch(self, counts: Mapping[int, int]) -> Batch:
        pasts = [self._num_fed[i] for i in counts]
        ranges = [np.arange(past, past + count) for past, count in zip(pasts, counts.values(), strict=True)]
        tables = [self._tables[i] for i in counts]
        token_ids = [np.array(self.prompts[i], np.int64)[at] for i, at in zip(counts, ranges, strict=True)]
        return Batch(
            token_ids=np.concatenate(token_ids),
            positions=np.concatenate(ranges),
            past_lens=np.array(pasts, np.int32),
            begins=np.cumsum([0, *counts.values()]).astype(np.int32),
            block_ids=np.concatenate(tables),
            block_begins=np.cumsum([0, *map(len, tables)]).astype(np.int32),
            wanted=np.arange(sum(counts.values())),
        )


def feed_whole(feeder: Feeder, sizes: Sizes) -> None:
    for i, prompt in enumerate(feeder.prompts):
        feeder.feed({i: len(prompt)})


def feed_chunks(feeder: Feeder, sizes: Sizes) -> None:
    for i, prompt in enumerate(feeder.prompts):
        for begin in range(0, len(prompt), sizes.chunk):
            feeder.feed({i: min(sizes.chunk, len(prompt) - begin)})


def feed_batch(feeder: Feeder, sizes: Sizes) -> None:
    feeder.feed({i: len(prompt) for i, prompt in enumerate(feeder.prompts)})


def feed_tokens(feeder: Feeder, sizes: Sizes) -> None:
    for i, prompt in enumerate(feeder.prompts):
        feeder.feed({i: len(prompt) - sizes.num_decoded})
        for _ in range(sizes.num_decoded):
            feeder.feed({i: 1})


def feed_tokens_of_all(feeder: Feeder, sizes: Sizes) -> None:
    _feed_ends(feeder, sizes, 1)


def feed_drafts(feeder: Feeder, sizes: Sizes) -> None:
    _feed_ends(feeder, sizes, sizes.num_rows)


def _feed_ends(feeder: Feeder, sizes: Sizes, num_rows: int) -> None:
    feeder.feed({i: len(prompt) - sizes.num_decoded for i, prompt in enumerate(feeder.prompts)})
    for _ in range(sizes.num_decoded // num_rows):
        feeder.feed(dict.fromkeys(range(len(feeder.prompts)), num_rows))


VARIANTS: dict[str, tuple[Callable[[Feeder, Sizes], None], bool]] = {
    "whole prompt": (feed_whole, False),
    "in chunks": (feed_chunks, False),
    "ragged batch": (feed_batch, False),
    "decoded alone": (feed_tokens, True),
    "decoded in a batch": (feed_tokens_of_all, True),
    "drafts verified": (feed_drafts, True),
}
"""How the prompts are fed, and whether only their ends are compared."""
