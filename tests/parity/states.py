"""One prompt of a hybrid in every manner a step can have it: states are carried on, left behind and gone on from."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

import numpy as np
from tests.backends.batches import batch
from tests.parity.manners import Array, Run
from tests.parity.models import EXPECTED, KEPT, NUM_TOKENS, token_ids

from hotloop.backends.backend import Batch
from hotloop.engine.kvcache.recurrent import EMPTY

OWN, SECOND, THIRD = ([0, 1, 2], [3, 4, 5], [6, 7, 8])


def differences(name: str, run: Run) -> Iterator[tuple[str, float, float]]:
    """(manner, largest difference of a logit, share of positions with the same top token)"""
    with np.load(EXPECTED) as kept:
        logits, top = kept[f"{name}, logits"], kept[f"{name}, top"]
    for manner, begin, got in manners(run):
        places = [(i, position - begin) for i, position in enumerate(KEPT) if position >= begin]
        off = max(float(np.abs(got[row] - logits[i]).max()) for i, row in places)
        yield manner, off, float((got.argmax(1) == top[begin:]).mean())


def step(*parts: tuple[list[int], int, list[int], int, int]) -> Batch:
    """Parts are (tokens, how many came before them, blocks, the slot that is read, the slot that is written)."""
    made = batch(*(part[:3] for part in parts))
    return replace(made, states=np.array([part[3:] for part in parts], np.int32))


def manners(run_step: Run) -> Iterator[tuple[str, int, Array]]:
    """(manner, the position of its first row, logits from there on)"""
    prompt, other = token_ids(), token_ids(seed=1, count=41)

    def run(*parts: tuple[list[int], int, list[int], int, int]) -> Array:
        return run_step(step(*parts))

    yield "plain", 0, run((prompt, 0, OWN, EMPTY, 0))
    chunks = [
        run((prompt[a:b], a, SECOND, EMPTY if a == 0 else 1, 1)) for a, b in pairwise([0, 33, 34, 60, NUM_TOKENS])
    ]
    yield "chunked", 0, np.concatenate(chunks)
    run((prompt[:64], 0, OWN, EMPTY, 2))
    run((other, 0, SECOND, EMPTY, 3))
    yield "cached", 64, run((prompt[64:], 64, OWN, 2, 4))
    yield "cached again", 64, run((prompt[64:], 64, OWN, 2, 0))
    rows = [run((prompt[64:65], 64, OWN, 2, 4))]
    rows += [run((prompt[i : i + 1], i, OWN, 4, 4)) for i in range(65, NUM_TOKENS)]
    yield "decoded", 64, np.concatenate(rows)
    run(([*prompt[64:66], *other[:3]], 64, OWN, 2, 5))  # a draft that is wrong from its second token on
    yield "drafted", 64, run((prompt[64:], 64, OWN, 2, 4))
    first = run((other, 0, SECOND, EMPTY, 3), (prompt[:50], 0, THIRD, EMPTY, 5), (prompt[64:65], 64, OWN, 2, 6))
    rest = run((prompt[50:], 50, THIRD, 5, 5), (other[-1:], 40, SECOND, 3, 3))
    yield "batched", 0, np.concatenate([first[41:91], rest[: NUM_TOKENS - 50]])
