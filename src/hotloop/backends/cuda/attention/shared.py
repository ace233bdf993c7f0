"""Attention of many sequences' rows over blocks that all of them begin with: read once for a tile of rows, not once for
every sequence.

What it finds are parts of a row's result, the first ones, before those that the splits over the row's own keys leave
(attention.py).

Which rows, which blocks and which part is read from the items of the step (groups.py), so a launch captured in a CUDA
graph serves every step; items that hold no rows leave at once.
"""

import math

import torch
import triton
import triton.language as tl

from hotloop.backends.cuda.attention.decode import Workspace, _meet_keys, _weighed
from hotloop.backends.cuda.attention.prefill import _load_block, _take
from hotloop.backends.cuda.overlap import let_next_begin, overlap, wait_for_previous
from hotloop.backends.cuda.steps.groups import ITEM_INTS

TILE_PAIRS = 64


def tile_rows_for(num_heads: int, num_kv_heads: int) -> int:
    """Rows of a tile of pairs (row, one of a kv head's query heads)."""
    return max(1, TILE_PAIRS // (num_heads // num_kv_heads))


def shared_attention(
    q: torch.Tensor,  # [rows, num_heads, head_dim]
    k_cache: torch.Tensor,  # [num_blocks, num_kv_heads, block_size, head_dim]
    v_cache: torch.Tensor,
    block_ids: torch.Tensor,
    folded: torch.Tensor,  # rows of q
    items: torch.Tensor,  # [num_items * ITEM_INTS]
    part_begins: torch.Tensor,  # [rows + 1]
    workspace: Workspace,
    *,
    scale: float,
    kv_scales: torch.Tensor | None = None,  # [2 * num_kv_heads] of keys, then values, where the cache is in e4m3
) -> None:
    """Into the workspace, to be merged by `decode_attention`."""
    _, num_heads, head_dim = q.shape
    _, num_kv_heads, block_size, _ = k_cache.shape
    tile_pairs = max(TILE_PAIRS, triton.next_power_of_2(num_heads // num_kv_heads))
    _attend_shared[(len(items) // ITEM_INTS, num_kv_heads)](
        q, k_cache, v_cache, block_ids, folded, items, part_begins, kv_scales, workspace.outs, workspace.lses,
        scale * math.log2(math.e), num_heads, num_kv_heads, head_dim, block_size, ITEM_INTS,
        tile_pairs, triton.next_power_of_2(head_dim), num_warps=4, num_stages=1 if q.dtype == torch.float32 else 3,
        **overlap(q.device),
    )  # fmt: skip


@triton.jit(do_not_specialize_on_alignment=["block_ids", "folded", "items", "part_begins", "kv_scales"])
def _attend_shared(
    q, k_cache, v_cache, block_ids, folded, items, part_begins, kv_scales, outs, lses, scale_log2,
    num_heads: tl.constexpr, num_kv_heads: tl.constexpr, head_dim: tl.constexpr, block_size: tl.constexpr,
    item_ints: tl.constexpr, tile_pairs: tl.constexpr, dim_tile: tl.constexpr,
    is_overlapped: tl.constexpr,
):  # fmt: skip
    """Program (item, kv head). Every row sees every key, so nothing is masked."""
    let_next_begin(is_overlapped)
    wait_for_previous(is_overlapped)
    item, kv_head = items + tl.program_id(0) * item_ints, tl.program_id(1)
    group: tl.constexpr = num_heads // num_kv_heads
    row_begin, row_end = tl.load(item), tl.load(item + 1)
    if row_begin >= row_end:
        return
    begin, end, part = tl.load(item + 2), tl.load(item + 3), tl.load(item + 4)
    pair = tl.arange(0, tile_pairs)
    is_pair = row_begin + pair // group < row_end
    row = tl.load(folded + row_begin + pair // group, mask=is_pair, other=0).to(tl.int64)
    row_head = row * num_heads + kv_head * group + pair % group
    d = tl.arange(0, dim_tile)[None, :]
    is_dim = d < head_dim
    is_in = is_pair[:, None] & is_dim
    queries = tl.load(q + row_head[:, None] * head_dim + d, mask=is_in, other=0.0)
    queries, scale_log2 = _meet_keys(queries, scale_log2, kv_scales, kv_head)

    block_stride: tl.constexpr = num_kv_heads * block_size * head_dim
    in_block = (kv_head * block_size + tl.arange(0, block_size))[:, None] * head_dim + d
    peak = tl.full([tile_pairs], -1e30, tl.float32)
    total = tl.zeros([tile_pairs], tl.float32)
    found = tl.zeros([tile_pairs, dim_tile], tl.float32)
    block = tl.load(block_ids + begin).to(tl.int64)
    for i in range(begin, end):
        at = block * block_stride + in_block
        block = tl.load(block_ids + i + 1, mask=i + 1 < end, other=0).to(tl.int64)
        k, v = _load_block(k_cache + at, v_cache + at, is_dim, head_dim == dim_tile)
        logit = tl.dot(queries, tl.trans(k.to(queries.dtype)), input_precision="tf32x3") * scale_log2
        peak, total, found = _take(logit, v.to(queries.dtype), peak, total, found)
    target = (tl.load(part_begins + row, mask=is_pair, other=0) + part) * num_heads + kv_head * group + pair % group
    value = _weighed(found, total, kv_scales, num_kv_heads + kv_head)
    tl.store(outs + target[:, None] * head_dim + d, value, mask=is_in)
    tl.store(lses + target, peak + tl.log2(total), mask=is_pair)
