"""Attention for chunks: many new rows of a few sequences over the paged KV cache, in one launch.

    keys   0 ........ seen by every row of a tile ........ | diagonal |        past the tile's last row: not read
    loop   [ whole blocks, no mask ........................ ][ masked  ]

cuDNN is a quarter faster on a shape it has met, but makes a plan for each new one, which takes 50 to 85 ms, and agents
bring a new length with every turn. So this kernel does all of it and reads the blocks where they lie: one block is one
tile of keys, and which block is next is looked up a turn ahead, so that nothing waits for it.
"""

import math

import torch
import triton
import triton.language as tl

from hotloop.backends.cuda.attention.decode import WIDE_TILE, _meet_keys, _weighed, is_wide, start_softmax, within

TILE_ROWS = 64


def prefill_attention(
    q: torch.Tensor,  # [rows, num_heads, head_dim]
    k_cache: torch.Tensor,  # [num_blocks, num_kv_heads, block_size, head_dim]
    v_cache: torch.Tensor,
    row_begins: torch.Tensor,  # [num_sequences + 1]
    lens: torch.Tensor,  # [num_sequences], the new rows included
    block_ids: torch.Tensor,
    block_begins: torch.Tensor,
    out: torch.Tensor,  # [rows, num_heads, head_dim]
    *,
    num_sequences: int,
    max_rows: int,
    scale: float,
    kv_scales: torch.Tensor | None = None,  # [2 * num_kv_heads] of keys, then values, where the cache is in e4m3
    window: int | None = None,  # keys that a row sees, its own the last
    sinks: torch.Tensor | None = None,  # [num_heads]
) -> torch.Tensor:
    """Sequence s owns rows [row_begins[s], row_begins[s + 1]), the last of its lens[s] keys."""
    _, num_heads, head_dim = q.shape
    _, num_kv_heads, block_size, _ = k_cache.shape
    tile_rows = WIDE_TILE if is_wide(q.dtype, head_dim) else TILE_ROWS
    _prefill[(triton.cdiv(max_rows, tile_rows), num_heads, num_sequences)](
        q, k_cache, v_cache, row_begins, lens, block_ids, block_begins, kv_scales, sinks, out,
        scale * math.log2(math.e), num_heads, num_kv_heads, head_dim, block_size, tile_rows,
        triton.next_power_of_2(head_dim), window,
        num_warps=4, num_stages=1 if q.dtype == torch.float32 else 3,
    )  # fmt: skip
    return out


@triton.jit(do_not_specialize_on_alignment=["row_begins", "lens", "block_ids", "block_begins", "kv_scales"])
def _prefill(
    q, k_cache, v_cache, row_begins, lens, block_ids, block_begins, kv_scales, sinks, out, scale_log2,
    num_heads: tl.constexpr, num_kv_heads: tl.constexpr, head_dim: tl.constexpr, block_size: tl.constexpr,
    tile_rows: tl.constexpr, dim_tile: tl.constexpr, window: tl.constexpr,
):  # fmt: skip
    """Program (tile of rows, head, sequence). The last tiles have the most keys, so they go first."""
    sequence, head = tl.program_id(2), tl.program_id(1)
    row_begin = tl.load(row_begins + sequence)
    num_rows = tl.load(row_begins + sequence + 1) - row_begin
    tile = tl.cdiv(num_rows, tile_rows) - 1 - tl.program_id(0)
    if tile < 0:
        return
    past = tl.load(lens + sequence) - num_rows
    row = tile * tile_rows + tl.arange(0, tile_rows)
    d = tl.arange(0, dim_tile)
    is_dim = (d < head_dim)[None, :]
    is_row = (row < num_rows)[:, None] & is_dim
    at_row = ((row_begin + row).to(tl.int64) * num_heads + head)[:, None] * head_dim + d[None, :]
    queries = tl.load(q + at_row, mask=is_row, other=0.0)
    kv_head = head // (num_heads // num_kv_heads)
    queries, scale_log2 = _meet_keys(queries, scale_log2, kv_scales, kv_head)

    blocks = block_ids + tl.load(block_begins + sequence)
    block_stride: tl.constexpr = num_kv_heads * block_size * head_dim
    in_block = tl.arange(0, block_size)[:, None] * head_dim + d[None, :]
    in_block += kv_head * block_size * head_dim
    num_whole = (past + tile * tile_rows + 1) // block_size
    end = past + tl.minimum(num_rows, (tile + 1) * tile_rows)

    peak, total = start_softmax(sinks, tl.full([tile_rows], head, tl.int32), row < num_rows)
    found = tl.zeros([tile_rows, dim_tile], tl.float32)
    if window is not None:  # all of it masked, from the first block that the tile's first row sees
        num_whole = tl.maximum(past + tile * tile_rows - window + 1, 0) // block_size
    block = tl.load(blocks).to(tl.int64)
    for i in range(0 if window is None else num_whole, num_whole):
        at = block * block_stride + in_block
        block = tl.load(blocks + i + 1, mask=(i + 1) * block_size < end, other=0).to(tl.int64)
        k, v = _load_block(k_cache + at, v_cache + at, is_dim, head_dim == dim_tile)
        logit = tl.dot(queries, tl.trans(k.to(queries.dtype)), input_precision="tf32x3") * scale_log2
        peak, total, found = _take(logit, v.to(queries.dtype), peak, total, found)
    for i in range(num_whole, tl.cdiv(end, block_size)):
        key = i * block_size + tl.arange(0, block_size)
        at = tl.load(blocks + i).to(tl.int64) * block_stride + in_block
        is_key = (key < end)[:, None] & is_dim
        k, v = tl.load(k_cache + at, mask=is_key, other=0.0), tl.load(v_cache + at, mask=is_key, other=0.0)
        logit = tl.dot(queries, tl.trans(k.to(queries.dtype)), input_precision="tf32x3") * scale_log2
        logit = tl.where(key[None, :] <= past + row[:, None], logit, -1e30)
        logit = within(logit, key, past + row, window)
        peak, total, found = _take(logit, v.to(queries.dtype), peak, total, found)
    value = _weighed(found, total, kv_scales, num_kv_heads + kv_head)
    tl.store(out + at_row, value.to(out.dtype.element_ty), mask=is_row)


@triton.jit
def _take(logit, v, peak, total, found):
    """Fold some keys into what was found so far."""
    new_peak = tl.maximum(peak, tl.max(logit, 1))
    weight = tl.exp2(logit - new_peak[:, None])
    rescale = tl.exp2(peak - new_peak)
    found = tl.dot(weight.to(v.dtype), v, found * rescale[:, None], input_precision="tf32x3")
    return new_peak, total * rescale + tl.sum(weight, 1), found


@triton.jit
def _load_block(at_k, at_v, is_dim, is_whole: tl.constexpr):
    """Masked only where the head is no power of two."""
    if is_whole:
        return tl.load(at_k), tl.load(at_v)
    return tl.load(at_k, mask=is_dim, other=0.0), tl.load(at_v, mask=is_dim, other=0.0)
