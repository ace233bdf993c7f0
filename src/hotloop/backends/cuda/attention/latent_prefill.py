"""Latent attention for chunks of many rows: latents of the whole past are made into keys and values of every head.

    a pair of row and key    keys and values  2 * (nope_dim + rope_dim + value_dim)      320 dimensions of DeepSeek's
                             latents          2 * (kv_rank + rope_dim + kv_rank)        1088
    a key, once              2 * kv_rank * (nope_dim + value_dim)

so that pays from some 170 rows of a sequence on. The latents are gathered first, those of all sequences side by side
and each as long as the longest; of so many heads at a time as there is room for.
"""

import math

import torch
import triton
import triton.language as tl

from hotloop.backends.cuda.attention.prefill import _take
from hotloop.models.spec import LatentSpec

MIN_ROWS = 256
MAX_MADE_ITEMS = 1 << 27  # of keys and values at a time
TILE, WIDE_TILE = (128, 64, 8, 3), (128, 32, 8, 3)
"""Rows, keys, warps and stages; of heads with more dimensions there is room for fewer."""


def made_attention(
    q: torch.Tensor,  # [rows, num_heads, nope_dim + rope_dim], rotated
    cache: torch.Tensor,  # [num_blocks, 1, block_size, kv_rank + rope_dim]
    up: torch.Tensor,  # [num_heads * (nope_dim + value_dim), kv_rank]
    row_begins: torch.Tensor,  # [num_sequences + 1]
    lens: torch.Tensor,  # [num_sequences], the new rows included
    table: torch.Tensor,  # [num_sequences, blocks of the longest]
    out: torch.Tensor,  # [rows, num_heads, value_dim]
    latent: LatentSpec,
    *,
    max_rows: int,
) -> torch.Tensor:
    """Sequence s owns rows [row_begins[s], row_begins[s + 1]), the last of its lens[s] keys."""
    num_heads, head_dim = q.shape[1:]
    kept = torch.index_select(cache, 0, table.reshape(-1)).view(-1, latent.width)
    made_dim = latent.nope_dim + latent.value_dim
    dims = [max(16, triton.next_power_of_2(dim)) for dim in (latent.nope_dim, latent.rope_dim, latent.value_dim)]
    tile_rows, tile_keys, num_warps, num_stages = TILE if dims[0] + dims[2] <= 256 else WIDE_TILE
    size = max(1, min(num_heads, MAX_MADE_ITEMS // (len(kept) * made_dim)))
    for first in range(0, num_heads, size):
        count = min(size, num_heads - first)
        made = kept[:, : latent.kv_rank] @ up[first * made_dim : (first + count) * made_dim].t()
        _prefill_made[(triton.cdiv(max_rows, tile_rows), count, len(lens))](
            q, made, kept, row_begins, lens, out, latent.scale * math.log2(math.e), q.stride(0), first,
            table.shape[1] * cache.shape[2], num_heads, count, head_dim, latent.nope_dim, latent.rope_dim,
            latent.value_dim, latent.kv_rank, tile_rows, tile_keys,
            *dims, num_warps=num_warps, num_stages=1 if q.dtype == torch.float32 else num_stages,
        )  # fmt: skip
    return out


@triton.jit(do_not_specialize=["first_head", "max_keys"], do_not_specialize_on_alignment=["row_begins", "lens"])
def _prefill_made(
    q, made, kept, row_begins, lens, out, scale_log2, q_stride, first_head, max_keys,
    num_heads: tl.constexpr, num_made: tl.constexpr, head_dim: tl.constexpr, nope_dim: tl.constexpr,
    rope_dim: tl.constexpr, value_dim: tl.constexpr, rank: tl.constexpr, tile_rows: tl.constexpr,
    tile_keys: tl.constexpr, nope_tile: tl.constexpr, rope_tile: tl.constexpr, value_tile: tl.constexpr,
):  # fmt: skip
    """Program (tile of rows, head, sequence). The last tiles have the most keys, so they go first."""
    sequence, place = tl.program_id(2), tl.program_id(1)
    row_begin = tl.load(row_begins + sequence)
    num_rows = tl.load(row_begins + sequence + 1) - row_begin
    tile = tl.cdiv(num_rows, tile_rows) - 1 - tl.program_id(0)
    if tile < 0:
        return
    past = tl.load(lens + sequence) - num_rows
    row = tile * tile_rows + tl.arange(0, tile_rows)
    is_row = (row < num_rows)[:, None]
    n, e, v = tl.arange(0, nope_tile), tl.arange(0, rope_tile), tl.arange(0, value_tile)
    at_row = q + ((row_begin + row).to(tl.int64) * q_stride + (first_head + place) * head_dim)[:, None]
    queries = tl.load(at_row + n[None, :], mask=is_row & (n < nope_dim)[None, :], other=0.0)
    turned = tl.load(at_row + nope_dim + e[None, :], mask=is_row & (e < rope_dim)[None, :], other=0.0)

    first = sequence.to(tl.int64) * max_keys
    made_dim: tl.constexpr = nope_dim + value_dim
    made += (first * num_made + place) * made_dim
    kept += first * (rank + rope_dim) + rank
    num_whole = (past + tile * tile_rows + 1) // tile_keys * tile_keys
    end = past + tl.minimum(num_rows, (tile + 1) * tile_rows)
    peak = tl.full([tile_rows], -1e30, tl.float32)
    total = tl.zeros([tile_rows], tl.float32)
    found = tl.zeros([tile_rows, value_tile], tl.float32)
    for start in range(0, end, tile_keys):
        key = start + tl.arange(0, tile_keys)
        is_key = (key < end)[:, None]
        at = made + (key * num_made * made_dim).to(tl.int64)[:, None]
        k = tl.load(at + n[None, :], mask=is_key & (n < nope_dim)[None, :], other=0.0)
        rotary = tl.load(
            kept + (key * (rank + rope_dim)).to(tl.int64)[:, None] + e[None, :],
            mask=is_key & (e < rope_dim)[None, :], other=0.0,
        )  # fmt: skip
        values = tl.load(at + nope_dim + v[None, :], mask=is_key & (v < value_dim)[None, :], other=0.0)
        logit = tl.dot(queries, tl.trans(k), input_precision="tf32x3")
        logit = tl.dot(turned, tl.trans(rotary), logit, input_precision="tf32x3") * scale_log2
        if start >= num_whole:
            logit = tl.where(key[None, :] <= past + row[:, None], logit, -1e30)
        peak, total, found = _take(logit, values, peak, total, found)
    value = found / total[:, None]
    target = ((row_begin + row).to(tl.int64) * num_heads + first_head + place)[:, None] * value_dim + v[None, :]
    tl.store(out + target, value.to(out.dtype.element_ty), mask=is_row & (v < value_dim)[None, :])
