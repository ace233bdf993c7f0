"""How the keys of sequences with few rows are split, so that all of the card is busy until the last are read.

    sequence a   [ 0       | 1       | 2       ]     splits are about as long, whatever the sequences' lengths,
    sequence b   [ 0     ]                           and the longest come first: what ends last is short
    sequence c   [ 0       | 1     ]

Each split leaves a part of a row's result, beside those that are found among shared keys (groups.py):

    parts of a row   [ shared 0 | shared 1 | .. | own 0 | own 1 | .. ]      merged by their log-sum-exps

A row that has one part only needs no merging, and no room for it. There are as many splits as were asked for, the last
ones maybe empty, so that a CUDA graph fits every step. Only integers here: nothing knows of a device.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

SPLIT_INTS = 5  # the sequence, the first and last key, where the part of its first row goes, how many parts a row has
_MIN_BLOCKS = 8  # of a split, if shorter ones are not needed to fill the card
_NUM_ROUNDS = 6  # splits that follow each other on a processor: what is left idle at the end is a part of one
_WHOLE_SHARE = 2 / 3  # of what a processor reads in all; a sequence as short as that is not split


class SplitPlan(NamedTuple):
    splits: NDArray[np.int64]  # [splits, SPLIT_INTS]
    part_begins: NDArray[np.int64]  # [rows + 1]


@dataclass(frozen=True, slots=True)
class Splitting:
    """What is fixed by the model and the card."""

    block_size: int
    num_programs: int
    """Splits that fill the card once."""
    num_slots: int
    """Parts that there is room for."""

    def max_splits(self, num_sequences: int) -> int:
        """Of a step of up to so many sequences. One alone is split evenly, and needs fewer."""
        num_rounds = _NUM_ROUNDS if num_sequences > 1 else 2
        return num_rounds * self.num_programs + num_sequences if num_sequences else 0

    def plan(
        self,
        lens: NDArray[np.int32],
        num_rows: NDArray[np.int32],
        num_skipped: NDArray[np.int64] | int = 0,
        num_shared: NDArray[np.int64] | int = 0,
    ) -> SplitPlan:
        """For sequences of so many keys, those of their rows the last. Of each the first keys may be taken care of
        elsewhere, which leaves so many parts.
        """
        # Every row sees keys of every split: the last one begins before the first row.
        num_blocks = (lens - num_skipped - num_rows) // self.block_size + 1
        first, num_others = (np.full(len(lens), each, np.int64) for each in (num_skipped, num_shared))
        num_splits = self._count(num_blocks, num_rows, num_others)
        num_parts = num_splits + num_others
        part_begins = np.zeros(int(num_rows.sum()) + 1, np.int64)
        np.cumsum(np.repeat(np.where(num_parts > 1, num_parts, 0), num_rows), out=part_begins[1:])

        order = np.argsort(-num_blocks / num_splits, kind="stable")
        counts = num_splits[order]
        owner = np.repeat(order, counts)
        number = np.arange(len(owner)) - np.repeat(np.cumsum(counts) - counts, counts)
        splits = np.empty((len(owner), SPLIT_INTS), np.int64)
        splits[:, 0] = owner
        splits[:, 1] = first[owner] + number * num_blocks[owner] // num_splits[owner] * self.block_size
        splits[:, 2] = first[owner] + (number + 1) * num_blocks[owner] // num_splits[owner] * self.block_size
        is_last = number + 1 == num_splits[owner]
        splits[is_last, 2] = lens[owner[is_last]]
        first_rows = np.cumsum(num_rows) - num_rows
        splits[:, 3] = part_begins[first_rows[owner]] + num_others[owner] + number
        splits[:, 4] = num_parts[owner]
        return SplitPlan(splits, part_begins)

    def _count(
        self, num_blocks: NDArray[np.int64], num_rows: NDArray[np.int32], num_others: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """Splits of each sequence."""
        total = int(num_blocks.sum())
        num_rounds = _NUM_ROUNDS if len(num_blocks) > 1 else 2
        size = max(1, min(total // self.num_programs, max(_MIN_BLOCKS, -(-total // (num_rounds * self.num_programs)))))
        is_split = num_blocks > (_WHOLE_SHARE * total / self.num_programs if len(num_blocks) > 1 else 1)
        while True:
            num_splits: NDArray[np.int64] = np.where(is_split, -(-num_blocks // size), 1)
            num_parts = num_splits + num_others
            if not is_split.any() or int(np.where(num_parts > 1, num_parts, 0) @ num_rows) <= self.num_slots:
                return num_splits
            size *= 2
            is_split &= num_blocks > size
