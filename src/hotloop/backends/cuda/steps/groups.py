"""Which sequences of a step begin with the same blocks, and how their rows are attended to together over those.

    sequence a   [ 1 2 3 4 | 5 ]       a group shares leading blocks that all its rows see the whole of: 1 2 3 4
    sequence b   [ 1 2 3 4 | 6 7 ]     the rest is each one's own
    sequence c   [ 8 9 ]               in no group

    folded       [ a a b | . . ]       the groups' rows, one group after the other
    items        (rows [0, 2), blocks [0, 2), part 0), (rows [0, 2), blocks [2, 4), part 1), (rows [2, 3), ...

An item is a tile of rows over a range of keys; each of its rows gets a part, to be merged with those of its other items
and with what the row finds among its own keys. There are as many items as were asked for, the last ones maybe empty,
so that a CUDA graph fits every step. Only integers here: nothing knows of a device.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hotloop.backends.backend import Batch

ITEM_INTS = 5  # the first and last row, the first and last block, the part
_ID_BYTES = 4
_MIN_ITEM_BLOCKS = 4  # a partial result is stored and loaded once more, which costs as much as a block
_MAX_BLOCKS = 512  # of a sequence that are compared
_MAX_SPLITS = 32
_SPARE_ITEMS = 4  # for groups whose last tile is not full


class PrefixGroup(NamedTuple):
    members: NDArray[np.intp]  # sequences of the batch
    num_blocks: int  # that they begin with in common

    @property
    def num_saved(self) -> int:
        """Blocks that need not be loaded once for each sequence."""
        return (len(self.members) - 1) * self.num_blocks


class SharedPlan(NamedTuple):
    """What the kernels want to know of the groups of a step."""

    num_skipped: NDArray[np.int64]  # [sequences] keys that the items take care of
    num_parts: NDArray[np.int64]  # [sequences] what the items leave for each of its rows
    folded: NDArray[np.int64]  # rows
    items: NDArray[np.int64]  # [items, ITEM_INTS]; the blocks by where they stand in the batch's `block_ids`


@dataclass(frozen=True, slots=True)
class Sharing:
    """What is fixed by the model and the card."""

    block_size: int
    tile_rows: int
    num_programs: int  # items that fill the card
    min_saved: int  # blocks that a step must save in all, or sharing costs more than it brings
    split_rows: int  # rows times parts that there is room for, half of it for the rows' own keys

    def find(self, batch: Batch, max_rows: int) -> list[PrefixGroup]:
        """The groups of a step, the most worthwhile first; none if they are not worth it. Sequences with more rows than
        that are left out.
        """
        num_rows = batch.query_starts[1:] - batch.query_starts[:-1]
        is_short = num_rows <= max_rows
        if not self.max_splits(int(num_rows @ is_short)):
            return []
        num_whole = (np.minimum(batch.past_lens // self.block_size, _MAX_BLOCKS) * is_short).tolist()
        starts = _starts(batch, num_whole)
        if len({start[:_ID_BYTES] for start in starts.values()}) == len(starts):
            return []
        order = sorted(starts, key=starts.__getitem__)  # as bytes: any order will do that puts the like side by side
        segments = _segments(_in_common([starts[i] for i in order]), max(2, self.min_saved // 8))
        groups = [PrefixGroup(np.array(order[a:b]), count) for a, b, count in segments]
        groups.sort(key=lambda group: -group.num_saved)
        return groups if sum(group.num_saved for group in groups) >= self.min_saved else []

    def num_items(self, num_rows: int) -> int:
        """For steps of up to so many rows."""
        return max(self.num_programs, -(-num_rows // self.tile_rows) + _SPARE_ITEMS)

    def max_splits(self, num_rows: int) -> int:
        """Most parts of a row, a power of two, for steps of so many rows; 0 if there is room for none."""
        room = self.split_rows // 2 // max(1, num_rows)
        return min(_MAX_SPLITS, 1 << (room.bit_length() - 1)) if room else 0

    def plan(
        self, groups: list[PrefixGroup], begins: NDArray[np.int32], block_begins: NDArray[np.int32], num_rows: int
    ) -> SharedPlan:
        """For a step of so many rows, padding included. Groups that find no items left are left out."""
        num_items, num_sequences = self.num_items(num_rows), len(begins) - 1
        group_of = np.full(num_sequences, len(groups))
        for i, group in enumerate(groups):
            group_of[group.members] = i
        group_of_row = np.repeat(group_of, begins[1:] - begins[:-1])
        rows_of = np.bincount(group_of_row, minlength=len(groups))[: len(groups)]
        tiles_of = -(-rows_of // self.tile_rows)
        num_used = int((np.cumsum(tiles_of) <= num_items).sum())
        tiles_of = tiles_of[:num_used]
        blocks_of = np.array([group.num_blocks for group in groups[:num_used]])
        size = _item_blocks(tiles_of, blocks_of, num_items, self.max_splits(num_rows))
        splits_of = -(-blocks_of // size)

        items = np.zeros((num_items, ITEM_INTS), np.int64)
        row_begin = item = 0
        for i, (num_tiles, num_splits) in enumerate(zip(tiles_of.tolist(), splits_of.tolist(), strict=True)):
            row_end = row_begin + int(rows_of[i])
            block_begin = block_begins[groups[i].members[0]]
            part = np.arange(num_splits)
            block = block_begin + np.arange(num_splits + 1) * groups[i].num_blocks // num_splits
            row = row_begin + self.tile_rows * np.arange(num_tiles)[:, None]
            new = items[item : item + num_tiles * num_splits].reshape(num_tiles, num_splits, ITEM_INTS)
            new[..., 0] = row
            new[..., 1] = np.minimum(row + self.tile_rows, row_end)
            new[..., 2], new[..., 3], new[..., 4] = block[:-1], block[1:], part
            row_begin, item = row_end, item + num_tiles * num_splits
        nothing = np.zeros(len(groups) - num_used + 1, np.int64)
        num_skipped = np.append(blocks_of * self.block_size, nothing)[group_of]
        num_parts = np.append(splits_of, nothing)[group_of]
        folded = np.argsort(group_of_row, kind="stable")[:row_begin]
        return SharedPlan(num_skipped, num_parts, folded, items)


def _starts(batch: Batch, num_whole: list[int]) -> dict[int, bytes]:
    """The leading blocks of every sequence that has any, as bytes."""
    raw, begins = batch.block_ids.astype(np.int32, copy=False).tobytes(), batch.block_begins.tolist()
    return {
        i: raw[_ID_BYTES * begins[i] : _ID_BYTES * (begins[i] + count)] for i, count in enumerate(num_whole) if count
    }


def _in_common(starts: list[bytes]) -> list[int]:
    """How many blocks each begins with in common with the next."""
    found, count = [], 0
    for one, other in pairwise(starts):
        at = _ID_BYTES * count
        if one[:at] != other[:at] or one[at : at + _ID_BYTES] == other[at : at + _ID_BYTES]:  # not as many as before
            count = _count_common(one, other)
        found.append(count)
    return found


def _count_common(one: bytes, other: bytes) -> int:
    low, high = 0, min(len(one), len(other)) // _ID_BYTES
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if one[: _ID_BYTES * middle] == other[: _ID_BYTES * middle] else (low, middle - 1)
    return low


def _segments(heights: list[int], min_saved: int) -> list[tuple[int, int, int]]:
    """Runs of neighbours [begin, end) and how many blocks all of a run have in common: what saves most, then what is
    left on either side of it. Saved is the area of a rectangle under the histogram of what neighbours have in
    common.
    """
    pending, found = [(0, len(heights))], []
    while pending:
        low, high = pending.pop()
        area, begin, end = _largest_rectangle(heights, low, high)
        if area < min_saved:
            continue
        found.append((begin, end + 1, min(heights[begin:end])))
        # the bars next to it join a member of the run to one that is outside
        pending += [(a, b) for a, b in ((low, begin - 1), (end + 1, high)) if a < b]
    return found


def _largest_rectangle(heights: list[int], low: int, high: int) -> tuple[int, int, int]:
    """Its area, and the bars [begin, end) of heights[low:high] that it covers."""
    best = (0, low, low)
    rising: list[tuple[int, int]] = []  # (where a bar could begin, its height)
    for i in range(low, high + 1):
        height = heights[i] if i < high else 0
        if rising and rising[-1][1] == height:
            continue
        begin = i
        while rising and rising[-1][1] > height:
            begin, tallest = rising.pop()
            best = max(best, (tallest * (i - begin), begin, i))
        rising.append((begin, height))
    return best


def _item_blocks(num_tiles: NDArray[np.intp], num_blocks: NDArray[np.intp], num_items: int, max_splits: int) -> int:
    """The fewest blocks an item can have, so that the items suffice."""
    size = max(_MIN_ITEM_BLOCKS, -(-int(num_blocks.max()) // max_splits), int(num_tiles @ num_blocks) // num_items)
    while int(num_tiles @ -(-num_blocks // size)) > num_items:
        size += 1
    return size
