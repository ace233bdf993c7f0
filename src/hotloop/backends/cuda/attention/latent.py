"""Latent attention (MLA) over the paged cache of latents: one key of all heads, [latent | rotary key], whose latent is
the value as well.

    q [rows, heads, nope_dim | rope_dim]     its first part is taken to the latents by what makes keys of them, and what
    cache [.., latent | rotary key]          is found, a latent, becomes a value by what makes these: `heads_product`

So all heads of a row read the same keys, once: pairs of (row, head) are a tile. What is planned, split and merged is as
in attention.py. A chunk of many rows is better off with keys and values of its own (latent_prefill.py).
"""

import math

import torch
import triton
import triton.language as tl

from hotloop.backends.cuda.attention.decode import Workspace, load_split, merge_parts
from hotloop.backends.cuda.overlap import let_next_begin, overlap, wait_for_previous
from hotloop.backends.cuda.steps.splits import SPLIT_INTS
from hotloop.models.spec import LatentSpec

_HEAD_TILE = 8
_TILE_PARTS = 16
_MERGED_DIMS = 64  # of a latent that a program merges
MAX_TILE_PAIRS, MAX_EXACT_PAIRS = 64, 16  # whose latents fit into registers and shared memory, in bf16 and float32
TILES = {16: (32, 4, 3), 32: (32, 4, 3), 64: (32, 8, 3)}
"""For so many pairs: keys, warps and stages."""
PRODUCT_TILES = {16: (32, 128, 4, 3), 32: (64, 128, 4, 3), 64: (128, 64, 4, 3)}
"""For so many rows: outputs, inputs, warps and stages."""


def norm_rows(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """rmsnorm(x) * weight; x [rows, size] may be columns of something wider."""
    out = x.new_empty(x.shape)
    size = x.shape[1]
    _norm_rows[(len(x),)](x, weight, out, x.stride(0), eps, size, triton.next_power_of_2(size), **overlap(x.device))
    return out


@triton.jit
def _norm_rows(x, weight, out, stride, eps, size: tl.constexpr, tile: tl.constexpr, is_overlapped: tl.constexpr):
    let_next_begin(is_overlapped)
    wait_for_previous(is_overlapped)
    row = tl.program_id(0).to(tl.int64)
    normed = _normed(x + row * stride, weight, eps, size, tile)
    i = tl.arange(0, tile)
    tl.store(out + row * size + i, normed.to(out.dtype.element_ty), mask=i < size)


@triton.jit
def _normed(x, weight, eps, size: tl.constexpr, tile: tl.constexpr):
    i = tl.arange(0, tile)
    value = tl.load(x + i, mask=i < size, other=0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(value * value, 0) / size + eps)
    return value * scale * tl.load(weight + i, mask=i < size, other=0.0).to(tl.float32)


def rotate_and_keep(
    q: torch.Tensor,  # [rows, num_heads, nope_dim + rope_dim]; rows may be columns of something wider
    kept: torch.Tensor,  # [rows, kv_rank + rope_dim], the same
    cache: torch.Tensor,  # [num_blocks, 1, block_size, kv_rank + rope_dim]
    positions: torch.Tensor,  # [rows]
    slots: torch.Tensor,  # [rows] int64: block_id * block_size + offset; -1: not stored
    cos_sin: torch.Tensor,  # [max_positions, rope_dim] float32: the cosines of the pairs, then their sines
    norm: torch.Tensor,  # [kv_rank]
    latent: LatentSpec,
) -> None:
    """Rotate queries in place, normalise latents, rotate keys, and put both into their block."""
    num_rows, num_heads, head_dim = q.shape
    _rotate_and_keep[(num_rows, 1 + triton.cdiv(num_heads, _HEAD_TILE))](
        q, kept, cache, positions, slots, cos_sin, norm, latent.norm_eps, q.stride(0), kept.stride(0), num_heads,
        head_dim, latent.kv_rank, latent.rope_dim, _HEAD_TILE, triton.next_power_of_2(latent.kv_rank),
        triton.next_power_of_2(latent.rope_dim // 2), num_warps=1, **overlap(q.device),
    )  # fmt: skip


@triton.jit(do_not_specialize_on_alignment=["positions", "slots"])
def _rotate_and_keep(
    q, kept, cache, positions, slots, cos_sin, norm, eps, q_stride, kept_stride,
    num_heads: tl.constexpr, head_dim: tl.constexpr, rank: tl.constexpr, rope_dim: tl.constexpr,
    head_tile: tl.constexpr, rank_tile: tl.constexpr, half_tile: tl.constexpr, is_overlapped: tl.constexpr,
):  # fmt: skip
    """Program (row, the latent and its key, or a tile of heads)."""
    let_next_begin(is_overlapped)
    wait_for_previous(is_overlapped)
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    half: tl.constexpr = rope_dim // 2
    i = tl.arange(0, half_tile)
    angles = cos_sin + tl.load(positions + row).to(tl.int64) * rope_dim + i
    cos = tl.load(angles, mask=i < half, other=0.0)
    sin = tl.load(angles + half, mask=i < half, other=0.0)
    if part == 0:
        slot = tl.load(slots + row)
        if slot >= 0:
            source, target = kept + row * kept_stride, cache + slot * (rank + rope_dim)
            r = tl.arange(0, rank_tile)
            normed = _normed(source, norm, eps, rank, rank_tile)
            tl.store(target + r, normed.to(cache.dtype.element_ty), mask=r < rank)
            _turn(source + rank + i, target + rank + i, cos, sin, half, i < half)
    else:
        head = (part - 1) * head_tile + tl.arange(0, head_tile)
        at = q + row * q_stride + (head * head_dim + head_dim - rope_dim)[:, None] + i[None, :]
        _turn(at, at, cos[None, :], sin[None, :], half, (head < num_heads)[:, None] & (i < half)[None, :])


@triton.jit
def _turn(source, target, cos, sin, half: tl.constexpr, mask):
    first = tl.load(source, mask=mask, other=0.0).to(tl.float32)
    second = tl.load(source + half, mask=mask, other=0.0).to(tl.float32)
    tl.store(target, (first * cos - second * sin).to(target.dtype.element_ty), mask=mask)
    tl.store(target + half, (second * cos + first * sin).to(target.dtype.element_ty), mask=mask)


def heads_product(x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    """out [rows, heads, n] of x [rows, heads, k] and a matrix of each head [heads, k, n], which may be a view."""
    num_rows, num_heads, k = x.shape
    n = weight.shape[2]
    assert weight.shape[1] == k
    tile_rows = min(64, max(16, triton.next_power_of_2(num_rows)))
    tile_n, tile_k, num_warps, num_stages = PRODUCT_TILES[tile_rows]
    tile_k = max(16, min(tile_k, triton.next_power_of_2(k)))
    if num_rows:
        _heads_product[(triton.cdiv(n, tile_n), num_heads, triton.cdiv(num_rows, tile_rows))](
            x, weight, out, num_rows, x.stride(0), x.stride(1), *weight.stride(), out.stride(0), out.stride(1), n, k,
            tile_rows, tile_n, tile_k, num_warps=num_warps, num_stages=1 if x.dtype == torch.float32 else num_stages,
            **overlap(x.device),
        )  # fmt: skip
    return out


@triton.jit(do_not_specialize=["num_rows"])
def _heads_product(
    x, w, out, num_rows, x_row, x_head, w_head: tl.constexpr, w_k: tl.constexpr, w_n: tl.constexpr, out_row, out_head,
    n: tl.constexpr, k: tl.constexpr, tile_rows: tl.constexpr, tile_n: tl.constexpr, tile_k: tl.constexpr,
    is_overlapped: tl.constexpr,
):  # fmt: skip
    """Program (tile of outputs, head, tile of rows)."""
    let_next_begin(is_overlapped)
    head = tl.program_id(1)
    column = tl.program_id(0) * tile_n + tl.arange(0, tile_n)
    row = tl.program_id(2).to(tl.int64) * tile_rows + tl.arange(0, tile_rows)
    i = tl.arange(0, tile_k)
    at_x = x + row[:, None] * x_row + head * x_head
    at_w = w + head * w_head + column[None, :] * w_n
    wait_for_previous(is_overlapped)
    total = tl.zeros([tile_rows, tile_n], tl.float32)
    for begin in range(0, k, tile_k):
        j = begin + i
        rows = tl.load(at_x + j[None, :], mask=(row < num_rows)[:, None] & (j < k)[None, :], other=0.0)
        part = tl.load(at_w + j[:, None] * w_k, mask=(j < k)[:, None] & (column < n)[None, :], other=0.0)
        total = tl.dot(rows, part, total, input_precision="tf32x3")
    target = out + row[:, None] * out_row + head * out_head + column[None, :]
    tl.store(target, total.to(out.dtype.element_ty), mask=(row < num_rows)[:, None] & (column < n)[None, :])


def latent_attention(
    latents: torch.Tensor,  # [rows, num_heads, kv_rank]: queries, taken to latents
    q: torch.Tensor,  # [rows, num_heads, nope_dim + rope_dim], rotated
    cache: torch.Tensor,  # [num_blocks, 1, block_size, kv_rank + rope_dim]
    row_begins: torch.Tensor,  # [num_sequences + 1]
    lens: torch.Tensor,  # [num_sequences]
    block_ids: torch.Tensor,  # ragged: sequence s has [block_begins[s], block_begins[s + 1])
    block_begins: torch.Tensor,
    out: torch.Tensor,  # [rows, num_heads, kv_rank]
    *,
    max_rows: int,
    usual_rows: int,
    scale: float,
    splits: torch.Tensor | None = None,  # [num_splits * SPLIT_INTS]; None: a program reads all keys that its tile sees
    part_begins: torch.Tensor | None = None,  # [rows that have sequences + 1]
    workspace: Workspace | None = None,
) -> torch.Tensor:
    """As `decode_attention` does it, or with no splits for chunks."""
    _, num_heads, rank = latents.shape
    most = MAX_EXACT_PAIRS if q.dtype == torch.float32 else MAX_TILE_PAIRS
    tile_pairs = min(most, max(16, triton.next_power_of_2(usual_rows * num_heads)))
    tile_tokens, num_warps, num_stages = TILES[tile_pairs]
    num_splits = len(lens) if splits is None else len(splits) // SPLIT_INTS
    head_dim, rope_dim = q.shape[2], cache.shape[3] - rank
    parts = (workspace.outs, workspace.lses) if workspace else (out, out)  # nothing is written to these
    _attend_latents[(triton.cdiv(max_rows * num_heads, tile_pairs), num_splits)](
        latents, q, cache, row_begins, lens, block_ids, block_begins, splits, out, *parts, scale * math.log2(math.e),
        q.stride(0), SPLIT_INTS, num_heads, head_dim, rank, rope_dim, cache.shape[2], tile_pairs, tile_tokens,
        triton.next_power_of_2(rank), max(16, triton.next_power_of_2(rope_dim)), splits is None, num_warps=num_warps,
        num_stages=1 if q.dtype == torch.float32 else num_stages, **overlap(q.device),
    )  # fmt: skip
    if part_begins is not None:
        merge_parts[(len(part_begins) - 1, num_heads, triton.cdiv(rank, _MERGED_DIMS))](
            *parts, part_begins, None, out, num_heads, rank, _TILE_PARTS, _MERGED_DIMS, num_warps=1, **overlap(q.device)
        )
    return out


@triton.jit(do_not_specialize_on_alignment=["row_begins", "lens", "block_ids", "block_begins", "splits"])
def _attend_latents(
    latents, q, cache, row_begins, lens, block_ids, block_begins, splits, out, outs, lses, scale_log2, q_stride,
    split_ints: tl.constexpr, num_heads: tl.constexpr, head_dim: tl.constexpr, rank: tl.constexpr,
    rope_dim: tl.constexpr, block_size: tl.constexpr, tile_pairs: tl.constexpr, tile_tokens: tl.constexpr,
    rank_tile: tl.constexpr, rope_tile: tl.constexpr, is_whole: tl.constexpr, is_overlapped: tl.constexpr,
):  # fmt: skip
    """Program (tile, split): pairs of (row, head) over some keys. The last tiles have the most, so they go first."""
    let_next_begin(is_overlapped)
    wait_for_previous(is_overlapped)
    sequence, begin, end, part, num_parts = load_split(splits, lens, tl.program_id(1), split_ints, is_whole)
    row_begin = tl.load(row_begins + sequence)
    num_rows = tl.load(row_begins + sequence + 1) - row_begin
    tile = tl.cdiv(num_rows * num_heads, tile_pairs) - 1 - tl.program_id(0)
    if (tile < 0) | (begin >= end):
        return
    past = tl.load(lens + sequence) - num_rows
    pair = tile * tile_pairs + tl.arange(0, tile_pairs)
    end_row = tl.minimum(num_rows, tl.cdiv((tile + 1) * tile_pairs, num_heads))  # after the tile's last
    end = tl.minimum(end, past + end_row)
    last = tl.minimum(end - 1, past + pair // num_heads)

    is_pair = pair < num_rows * num_heads
    head = pair % num_heads
    row = (row_begin + pair // num_heads).to(tl.int64)
    r, e = tl.arange(0, rank_tile)[None, :], tl.arange(0, rope_tile)[None, :]
    at_row = (row * num_heads + head)[:, None] * rank + r
    is_in = is_pair[:, None] & (r < rank)
    queries = tl.load(latents + at_row, mask=is_in, other=0.0)
    at_turned = q + (row * q_stride + head * head_dim + head_dim - rope_dim)[:, None] + e
    turned = tl.load(at_turned, mask=is_pair[:, None] & (e < rope_dim), other=0.0)

    blocks = block_ids + tl.load(block_begins + sequence)
    peak = tl.full([tile_pairs], -1e30, tl.float32)
    total = tl.zeros([tile_pairs], tl.float32)
    found = tl.zeros([tile_pairs, rank_tile], tl.float32)
    block = tl.load(blocks + begin // block_size).to(tl.int64)
    for start in range(begin, end, tile_tokens):  # a tile is of one block, and which one is next is looked up before
        key = start + tl.arange(0, tile_tokens)
        at = cache + (block * block_size + key % block_size)[:, None] * (rank + rope_dim)
        following = start + tile_tokens
        block = tl.load(blocks + following // block_size, mask=following < end, other=0).to(tl.int64)
        is_key = (key < end)[:, None]
        kept = tl.load(at + r, mask=is_key & (r < rank), other=0.0)
        rotary = tl.load(at + rank + e, mask=is_key & (e < rope_dim), other=0.0)
        logit = tl.dot(queries, tl.trans(kept), input_precision="tf32x3")
        logit = tl.dot(turned, tl.trans(rotary), logit, input_precision="tf32x3") * scale_log2
        logit = tl.where(key[None, :] <= last[:, None], logit, -1e30)
        new_peak = tl.maximum(peak, tl.max(logit, 1))
        weight, rescale = tl.exp2(logit - new_peak[:, None]), tl.exp2(peak - new_peak)
        found = tl.dot(weight.to(kept.dtype), kept, found * rescale[:, None], input_precision="tf32x3")
        total = total * rescale + tl.sum(weight, 1)
        peak = new_peak

    value = found / total[:, None]
    if num_parts == 1:
        tl.store(out + at_row, value.to(out.dtype.element_ty), mask=is_in)
    else:
        target = (part + pair // num_heads * num_parts).to(tl.int64) * num_heads + head
        tl.store(outs + target[:, None] * rank + r, value, mask=is_in)
        tl.store(lses + target, peak + tl.log2(total), mask=is_pair)
