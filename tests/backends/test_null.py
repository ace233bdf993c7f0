"""The backend without a model is a strict one: what it was not told it does not know."""

import numpy as np
import pytest

from hotloop.backends.backend import Batch
from hotloop.backends.null import NullBackend


def batch(token_ids: list[int], past: int, block_ids: list[int]) -> Batch:
    return Batch(
        token_ids=np.array(token_ids),
        positions=np.arange(past, past + len(token_ids)),
        past_lens=np.array([past], np.int32),
        query_starts=np.array([0, len(token_ids)], np.int32),
        block_ids=np.array(block_ids, np.int32),
        block_begins=np.array([0, len(block_ids)], np.int32),
        logit_rows=np.array([len(token_ids) - 1]),
    )


def test_chunks_and_other_blocks_give_the_same_token() -> None:
    backend = NullBackend(block_size=2, num_blocks=8, vocab_size=100)
    whole = backend.run(batch([5, 6, 7], 0, [0, 1])).argmax()
    backend.run(batch([5, 6], 0, [7]))
    assert backend.run(batch([7], 2, [7, 3])).argmax() == whole
    assert backend.run(batch([8], 2, [7, 3])).argmax() != whole


def test_a_token_that_was_never_computed_is_noticed() -> None:
    with pytest.raises(AssertionError, match="before it was computed"):
        NullBackend(block_size=2, num_blocks=8).run(batch([7], 2, [0, 1]))


def test_blocks_can_be_taken_out_and_put_back_elsewhere() -> None:
    backend = NullBackend(block_size=2, num_blocks=8, vocab_size=100)
    whole = backend.run(batch([5, 6, 7, 8, 9], 0, [0, 1, 2])).argmax()
    kept = backend.read_blocks([0, 1]).wait()
    assert kept.nbytes == 2 * backend.block_bytes
    other = NullBackend(block_size=2, num_blocks=8, vocab_size=100)
    other.write_blocks([6, 4], kept)
    assert other.run(batch([9], 4, [6, 4, 5])).argmax() == whole
