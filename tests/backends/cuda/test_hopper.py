"""The kernel for Hopper beside the portable one, on a card that has both."""

import random
from collections.abc import Sequence

import numpy as np
import pytest
import torch

from hotloop.backends.cuda.attention.hopper import can_attend, chunk_attention, tiling_for
from hotloop.backends.cuda.attention.prefill import prefill_attention

EDGES = (1, 2, 31, 33, 63, 64, 65, 127, 128, 129, 200, 500)
PASTS = (0, 1, 62, 63, 64, 65, 127, 128, 129, 300, 2000, 9000)
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def make_cache(num_blocks: int, num_kv_heads: int) -> torch.Tensor:
    return torch.randn(2, num_blocks, num_kv_heads, 64, 128, dtype=torch.bfloat16, device=DEVICE)


def difference(rows: Sequence[int], lens: Sequence[int], heads: tuple[int, int], scale: float) -> float:
    """Between both kernels, for sequences of so many new rows and keys, in blocks in any order."""
    num_heads, num_kv_heads = heads
    width = -(-max(lens) // 64)
    cache = make_cache(len(lens) * width, num_kv_heads)
    q = torch.randn(sum(rows), num_heads, 128, dtype=torch.bfloat16, device=DEVICE)
    begins = np.cumsum([0, *rows]).astype(np.int32), np.arange(len(lens), dtype=np.int32) * width
    sizes = np.array(rows, np.int32), np.array(lens, np.int32)
    block_ids = torch.randperm(len(lens) * width, device=DEVICE).int()
    tiling = tiling_for(*heads, torch.device(DEVICE))
    plan = tiling.plan(begins[0][:-1], *sizes, begins[1], tiling.max_lines(sum(rows), len(rows)))
    tiles, row_begins, block_begins, device_lens = (
        torch.from_numpy(each).to(DEVICE) for each in (plan.reshape(-1), *begins, sizes[1])
    )
    right, found = torch.empty_like(q), torch.empty_like(q)
    chunk_attention(q, *cache, block_ids, tiles, found, tiling=tiling, scale=scale)
    prefill_attention(
        q, *cache, row_begins, device_lens, block_ids, block_begins, right,
        num_sequences=len(lens), max_rows=max(rows), scale=scale,
    )  # fmt: skip
    return float((found - right).float().norm() / right.float().norm())


@pytest.mark.skipif(not can_attend(make_cache(1, 1)), reason="there is no Hopper card")
@pytest.mark.parametrize("scale", [128**-0.5, 1 / 16])  # how hidden scores are rounded depends on it
@pytest.mark.parametrize("heads", [(32, 8), (28, 4), (8, 8), (16, 1)])
def test_chunks_are_attended_to_as_by_the_portable_kernel(heads: tuple[int, int], scale: float) -> None:
    rng = random.Random(0)
    for _ in range(12):
        rows, pasts = zip(*((rng.choice(EDGES), rng.choice(PASTS)) for _ in range(rng.randint(1, 6))), strict=True)
        lens = [num + past for num, past in zip(rows, pasts, strict=True)]
        assert difference(rows, lens, heads, scale) < 0.01, (rows, pasts)


@pytest.mark.skipif(not can_attend(make_cache(1, 1)), reason="there is no Hopper card")
@pytest.mark.parametrize("rows", [[90], [300], [416], [600], [1000], [64] * 20, [300, 16, 250]])
def test_splits_in_several_waves_are_merged(rows: list[int]) -> None:
    """Of 132 programs a wave: one split of 300 rows leaves 52 of them idle, three splits of them 24 of two waves."""
    lens = [num + 6000 + 777 * i for i, num in enumerate(rows)]
    assert difference(rows, lens, (32, 8), 128**-0.5) < 0.01


def test_it_is_for_hopper_cards_alone() -> None:
    assert not can_attend(torch.zeros(2, 1, 1, 64, 128, dtype=torch.bfloat16))
