"""From a step (integers) to a batch (arrays): the one place where the two worlds meet."""

from collections.abc import Iterable
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from hotloop.backends.backend import Batch
from hotloop.engine.scheduler import Step


def make_batch(step: Step, block_size: int) -> Batch:
    slices = step.slices
    lengths = [part.end - part.begin for part in slices]
    tables = [part.request.block_ids[: -(-part.end // block_size)] for part in slices]
    past_lens = np.array([part.begin for part in slices], np.int32)
    begins = _begins(lengths)
    return Batch(
        token_ids=_join(part.request.token_ids[part.begin : part.end].tobytes() for part in slices).astype(np.int64),
        positions=np.arange(begins[-1], dtype=np.int64) + np.repeat(past_lens - begins[:-1], lengths),
        past_lens=past_lens,
        begins=begins,
        block_ids=_join(table.tobytes() for table in tables),
        block_begins=_begins(map(len, tables)),
        wanted=begins[1:][[part.wants_token for part in slices]].astype(np.int64) - 1,
    )


def _begins(lengths: Iterable[int]) -> NDArray[np.int32]:
    return np.array([*accumulate(lengths, initial=0)], np.int32)


def _join(parts: Iterable[bytes]) -> NDArray[np.int32]:
    return np.frombuffer(b"".join(parts), np.int32)
