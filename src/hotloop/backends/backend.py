"""The seam to the hardware: one ragged batch in, the wanted rows of logits out."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Batch:
    """One step as arrays. Sequence i computes its tokens [past_lens[i], past_lens[i] + its share of `token_ids`).

    token_ids   [ a a a a a | b | c c c ]     a: a chunk, b: one token, c: a token and its drafts
    begins      [ 0           5   6       9 ]
    block_ids   [ a0 a1 a2 | b0 b1 | c0 ]     the blocks that hold each sequence, new tokens included
    block_begins[ 0          3       5    6 ]
    wanted      [ 4, 5, 6, 7, 8 ]             rows of `token_ids` whose logits are wanted
    """

    token_ids: NDArray[np.int64]
    positions: NDArray[np.int64]
    past_lens: NDArray[np.int32]
    begins: NDArray[np.int32]
    block_ids: NDArray[np.int32]
    block_begins: NDArray[np.int32]
    wanted: NDArray[np.int64]


class Backend(Protocol):
    """Hardware that holds `num_blocks` KV blocks of `block_size` tokens each and computes batches over them."""

    block_size: int
    num_blocks: int
    vocab_size: int
    max_context: int
    block_bytes: int
    kv_layout: str
    """What the bytes of a block depend on beside its tokens: the model, the precision, who computes and stores them."""

    def run(self, batch: Batch) -> NDArray[np.float32]:
        """Write the KV of every token of the batch into its blocks; return logits [len(wanted), vocab_size].

        The array is valid until the next call. Raises BackendError if the hardware fails.
        """
        ...

    def read_blocks(self, block_ids: Sequence[int]) -> NDArray[np.uint8]:
        """A copy of these blocks' KV, `block_bytes` each, in an order of the backend's own."""
        ...

    def write_blocks(self, block_ids: Sequence[int], data: memoryview) -> None:
        """Put back what `read_blocks` gave, into as many blocks."""
        ...

    def close(self) -> None:
        """Give the memory back."""
        ...
