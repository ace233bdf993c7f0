"""How tiles of chunks are dealt to programs: each turn of each tile once, and the last program ends soon."""

import random
from collections import defaultdict

import numpy as np
import pytest

from hotloop.backends.cuda.steps.tiles import TILE_PAIRS, TURN_KEYS, Tiling

EDGES = (1, 31, 32, 33, 64, 127, 128, 129, 500, 2048, 8192)
PASTS = (0, 1, 63, 64, 127, 128, 2000, 60_000)


def plan_of(tiling: Tiling, rows: list[int], lens: list[int], num_spare: int = 0) -> np.ndarray:
    begins = np.cumsum([0, *rows])[:-1].astype(np.int32)
    blocks = 10 * np.arange(len(rows), dtype=np.int32)
    num_lines = tiling.max_lines(sum(rows) + num_spare, len(rows))
    return tiling.plan(begins, np.array(rows, np.int32), np.array(lens, np.int32), blocks, num_lines)


def turns_of(tiling: Tiling, rows: int, past: int, tile: int) -> int:
    """By the keys that the last pair of the tile sees."""
    last_pair = min((tile + 1) * TILE_PAIRS, rows * tiling.group) - 1
    return -(-(past + last_pair // tiling.group + 1) // TURN_KEYS)


def longest(tiling: Tiling, lines: np.ndarray) -> int:
    """Turns of the busiest program, dealt there and back."""
    busy = [0] * tiling.num_programs
    sizes = [int(line[5] - line[4]) for line in lines for _ in range(tiling.num_kv_heads)]
    for i, size in enumerate(sizes):
        nth, place = divmod(i, tiling.num_programs)
        busy[place if nth % 2 == 0 else tiling.num_programs - 1 - place] += size
    return max(busy)


@pytest.mark.parametrize("tiling", [Tiling(4, 8, 132), Tiling(7, 4, 132), Tiling(1, 32, 114), Tiling(16, 1, 132)])
def test_every_turn_of_every_tile_is_in_one_line(tiling: Tiling) -> None:
    rng = random.Random(0)
    for _ in range(60):
        rows, pasts = zip(*((rng.choice(EDGES), rng.choice(PASTS)) for _ in range(rng.randint(1, 16))), strict=True)
        lens = [num + past for num, past in zip(rows, pasts, strict=True)]
        plan = plan_of(tiling, [*rows], lens, rng.choice((0, 300)))
        num_lines, num_merges = plan[0, :2]
        lines, merges = plan[1 : 1 + num_lines], plan[len(plan) - tiling.max_parts // 2 :]
        seen, parts = defaultdict(list), {}
        for row_begin, num_rows, past, tile, begin, end, block, part in lines.tolist():
            sequence = block // 10
            assert (row_begin, num_rows, past) == (sum(rows[:sequence]), rows[sequence], pasts[sequence])
            assert begin < end
            seen[sequence, tile].append((begin, end))
            if part >= 0:
                assert parts.setdefault(part, (row_begin, tile)) == (row_begin, tile)
        for sequence, (num, past) in enumerate(zip(rows, pasts, strict=True)):
            for tile in range(-(-num * tiling.group // TILE_PAIRS)):
                spans = sorted(seen.pop((sequence, tile)))
                assert [begin for begin, _ in spans] == [0, *(end for _, end in spans[:-1])]
                assert spans[-1][1] == turns_of(tiling, num, past, tile)
        assert not seen
        assert len(parts) <= tiling.max_parts
        assert not merges[num_merges:].any()
        merged = [
            ((row_begin, tile), first + i)
            for row_begin, _, _, tile, first, count, *_ in merges[:num_merges].tolist()
            for i in range(count)
        ]
        assert sorted(part for _, part in merged) == sorted(parts) == list(range(len(parts)))
        assert all(parts[part] == where for where, part in merged)


@pytest.mark.parametrize(
    ("rows", "past", "most"), [(64, 60_000, 1.1), (512, 2000, 1.1), (640, 6000, 1.1), (1024, 0, 1.2), (8192, 0, 1.05)]
)
def test_no_program_has_much_more_than_its_share(rows: int, past: int, most: float) -> None:
    tiling = Tiling(4, 8, 132)
    plan = plan_of(tiling, [rows], [past + rows])
    lines = plan[1 : 1 + plan[0, 0]]
    share = sum(int(line[5] - line[4]) for line in lines) * tiling.num_kv_heads / tiling.num_programs
    assert longest(tiling, lines) <= max(most * share, share + 3)


def test_no_rows_have_no_plan() -> None:
    assert Tiling(4, 8, 132).max_lines(64, 0) == 0
