"""One prompt in every manner a step can have it: all must come to what transformers says."""

from collections.abc import Callable, Iterator
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from tests.backends.batches import batch
from tests.parity.models import EXPECTED, KEPT, NUM_TOKENS, token_ids

from hotloop.backends.backend import Batch

Array = NDArray[np.float32]
Run = Callable[[Batch], Array]
"""Logits after every token of a step."""


def differences(name: str, run: Run, block_size: int, *, is_quick: bool = False) -> Iterator[tuple[str, float, float]]:
    """(manner, largest difference of a logit, share of positions with the same top token)"""
    with np.load(EXPECTED) as kept:
        logits, top = kept[f"{name}, logits"], kept[f"{name}, top"]
    for manner, begin, got in manners(run, block_size, is_quick=is_quick):
        places = [(i, position - begin) for i, position in enumerate(KEPT) if position >= begin]
        off = max(float(np.abs(got[row] - logits[i]).max()) for i, row in places)
        yield manner, off, float((got.argmax(1) == top[begin:]).mean())


def manners(run: Run, block_size: int, *, is_quick: bool = False) -> Iterator[tuple[str, int, Array]]:
    """(manner, the position of its first row, logits from there on); quick: all at once, and beside others."""
    prompt, other = token_ids(), token_ids(seed=1, count=41)
    width = -(-NUM_TOKENS // block_size)
    own, second, third = (list(range(i * width, (i + 1) * width)) for i in range(3))
    yield "plain", 0, run(batch((prompt, 0, own)))
    if not is_quick:
        yield from _over_blocks(run, block_size, prompt, own, second)
    first = run(batch((other, 0, second), (prompt[:50], 0, third), (prompt[-1:], NUM_TOKENS - 1, own)))
    rest = run(batch((prompt[50:], 50, third), (other[-1:], 40, second)))
    yield "batched", 0, np.concatenate([first[41:91], rest[: NUM_TOKENS - 50]])


def _over_blocks(
    run: Run, block_size: int, prompt: list[int], own: list[int], second: list[int]
) -> Iterator[tuple[str, int, Array]]:
    """Over blocks that are there already: those of the prompt read at once, or its own."""
    yield "decoded", NUM_TOKENS - 1, run(batch((prompt[-1:], NUM_TOKENS - 1, own)))
    yield "drafted", NUM_TOKENS - 5, run(batch((prompt[-5:], NUM_TOKENS - 5, own)))
    chunks = [run(batch((prompt[a:b], a, second))) for a, b in pairwise([0, 33, 50, NUM_TOKENS])]
    yield "chunked", 0, np.concatenate(chunks)
    num_shared = NUM_TOKENS // block_size
    past = num_shared * block_size
    yield "cached", past, run(batch((prompt[past:], past, [*own[:num_shared], *second[num_shared:]])))
