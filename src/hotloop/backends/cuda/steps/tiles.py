"""How attention over chunks is shared among the card's multiprocessors, where its kernel runs one program on each.

A tile is 128 pairs of a row and one of a kv head's query heads; a turn reads 128 keys for it. Tiles of later rows have
more turns, so programs are dealt them by length, there and back, for every kv head:

    program   0  1  2  3        longest first, so that who begins with a long one ends with a short one
    1st       8  8  7  7
    2nd       3  4  5  6

Where that leaves programs idle, tiles are split by their keys into parts of about the same length, all of them or those
of the last round, and merged by their log-sum-exps: as many as end soonest by this count. Only integers here, made
once for all layers of a step; a graph has room for the most that a step of its shape may need.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

TILE_PAIRS = 128
TURN_KEYS = 128
TILE_INTS = 8
"""Of a tile or part: first row of its sequence, rows, keys before them, number of the tile, first and last turn, first
block, where it goes among the parts (-1: it is whole). Of a merge: first row, rows, 0, tile, first part, parts. The
first line is how many of each there are."""
_MAX_ROUNDS = 8  # on each program; where there are more, the last one is short beside them
_MAX_PARTS = 1024  # of all kv heads: 64 MB of results. The same on all cards, since one plans for several
_FIXED_TURNS = 4  # what a tile or part takes besides its turns
_MERGE_TURNS = 3  # what merging takes
_FACTORS = (2, 3, 4, 6, 8, 16)  # by how much the longest tile may be split


@dataclass(frozen=True, slots=True)
class Tiling:
    """What is fixed by the model and the card."""

    group: int
    """Query heads of a kv head."""
    num_kv_heads: int
    num_programs: int

    @property
    def max_parts(self) -> int:
        """Of each kv head."""
        return _MAX_PARTS // self.num_kv_heads

    def max_lines(self, num_rows: int, num_sequences: int) -> int:
        """Of the plan for so many rows."""
        num_tiles = -(-num_rows * self.group // TILE_PAIRS) + num_sequences
        return 1 + num_tiles + self.max_parts + self.max_parts // 2 if num_sequences else 0

    def plan(
        self,
        row_begins: NDArray[np.int32],
        num_rows: NDArray[np.int32],
        lens: NDArray[np.int32],
        block_begins: NDArray[np.int32],
        num_lines: int,
    ) -> NDArray[np.int32]:
        """[lines, TILE_INTS] of sequences of so many keys, their rows the last of them."""
        num_tiles = -(-num_rows * self.group // TILE_PAIRS)
        owner = np.repeat(np.arange(len(num_rows)), num_tiles)
        tile = np.arange(len(owner)) - np.repeat(np.cumsum(num_tiles) - num_tiles, num_tiles)
        past = (lens - num_rows)[owner]
        last_row = np.minimum(num_rows[owner], -(-(tile + 1) * TILE_PAIRS // self.group))
        turns = -(-(past + last_row) // TURN_KEYS)
        counts = self._count_parts(turns)

        line = np.repeat(np.arange(len(tile)), counts)
        number = np.arange(len(line)) - np.repeat(np.cumsum(counts) - counts, counts)
        first_part = np.cumsum(np.where(counts > 1, counts, 0)) - counts
        begin, end = (turns[line] * each // counts[line] for each in (number, number + 1))
        part = np.where(counts[line] > 1, first_part[line] + number, -1)
        columns = (row_begins[owner][line], num_rows[owner][line], past[line], tile[line], begin, end)
        lines = np.stack([*columns, block_begins[owner][line], part], 1)
        lines = lines[np.argsort(begin - end, kind="stable")]
        is_split = counts > 1
        merged, none = owner[is_split], np.zeros(int(is_split.sum()), np.int64)
        merges = np.stack(
            [row_begins[merged], num_rows[merged], none, tile[is_split], first_part[is_split], counts[is_split]], 1
        )
        plan = np.zeros((num_lines, TILE_INTS), np.int32)
        plan[0, :2] = len(lines), len(merges)
        plan[1 : 1 + len(lines)] = lines
        plan[num_lines - self.max_parts // 2 :][: len(merges), : merges.shape[1]] = merges
        return plan

    def _count_parts(self, turns: NDArray[np.int64]) -> NDArray[np.int64]:
        """Of each tile, so that the last program ends soonest."""
        best = np.ones(len(turns), np.int64)
        per_round = self.num_programs // self.num_kv_heads
        if not per_round or len(turns) > _MAX_ROUNDS * per_round:
            return best
        least = self._longest(turns, best)
        shorter = np.argsort(-turns, kind="stable")
        for num_whole in {0, (len(turns) - 1) // per_round * per_round}:  # all are split, or those of the last round
            split = shorter[num_whole:]
            for factor in _FACTORS:
                counts = np.ones_like(best)
                counts[split] = -(-turns[split] // -(-turns[split].max() // factor))
                if counts[counts > 1].sum() > self.max_parts:
                    break
                cost = self._longest(turns, counts) + _MERGE_TURNS
                if cost < least:
                    best, least = counts, cost
        return best

    def _longest(self, turns: NDArray[np.int64], counts: NDArray[np.int64]) -> int:
        """Turns of the program that ends last, as they are dealt."""
        sizes = np.repeat(-np.sort(-np.repeat(-(-turns // counts), counts)) + _FIXED_TURNS, self.num_kv_heads)
        rounds = np.zeros((-(-len(sizes) // self.num_programs), self.num_programs), np.int64)
        rounds.reshape(-1)[: len(sizes)] = sizes
        rounds[1::2] = rounds[1::2, ::-1]
        return int(rounds.sum(0).max())
