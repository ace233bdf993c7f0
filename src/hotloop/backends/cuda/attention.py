"""Attention for a few rows each of many sequences over the paged KV cache, split over the keys.

What depends on the step is read from device tensors, so that a launch captured in a CUDA graph
can be replayed with other lengths; programs that find nothing to do leave at once.

    sequence s owns rows [row_begins[s], row_begins[s + 1]) and has lens[s] keys, those of its own rows the last:
    keys     0 ................................ lens[s]
    splits   [ 0      | 1      | 2      | 3     ]          each a multiple of TILE_TOKENS, the last ones maybe empty
    rows                                  [ r r r ]        row r sees the keys up to its own

Where leading keys of a sequence are taken care of elsewhere (shared.py), its splits begin after them, and are merged
with what was found there.

A sequence that pads the batch has no rows and no keys. Rows of no sequence are left as they are.
"""

import math
from dataclasses import dataclass
from functools import cache
from typing import Self

import torch
import triton
import triton.language as tl

from hotloop.backends.cuda.overlap import let_next_begin, overlap, wait_for_previous

MAX_SPLITS = 64
TILE_TOKENS = 64
_MAX_TILE_PAIRS = 128
_PROGRAMS_PER_SM = 2


@dataclass(frozen=True, slots=True)
class Workspace:
    """What each split found, until it is merged with the others. Shared by all layers; flat, so any batch uses it."""

    outs: torch.Tensor  # [row, head, split, head_dim] float32
    lses: torch.Tensor  # [row, head, split]

    @classmethod
    def allocate(
        cls, max_rows: int, num_heads: int, head_dim: int, max_splits: int, device: torch.device | str
    ) -> Self:
        """Room for `max_rows` rows in `max_splits` splits, and so for twice the rows in half the splits."""
        size = max_rows * num_heads * max_splits
        return cls(
            torch.empty(size * head_dim, dtype=torch.float32, device=device),
            torch.empty(size, dtype=torch.float32, device=device),
        )


@cache
def num_multiprocessors(device: torch.device) -> int:
    return int(torch.cuda.get_device_properties(device).multi_processor_count) if device.type == "cuda" else 1


def num_splits_for(num_sequences: int, num_kv_heads: int, num_sms: int = 132) -> int:
    """A power of two that gives every multiprocessor some programs, so that none waits long for the others."""
    wanted = triton.cdiv(_PROGRAMS_PER_SM * num_sms, num_sequences * num_kv_heads)
    return min(MAX_SPLITS, triton.next_power_of_2(wanted))


def decode_attention(
    q: torch.Tensor,  # [rows, num_heads, head_dim]
    k_cache: torch.Tensor,  # [num_blocks, num_kv_heads, block_size, head_dim]
    v_cache: torch.Tensor,
    row_begins: torch.Tensor,  # [num_sequences + 1]
    lens: torch.Tensor,  # [num_sequences]
    block_ids: torch.Tensor,  # ragged: sequence s has [block_begins[s], block_begins[s + 1])
    block_begins: torch.Tensor,
    out: torch.Tensor,  # [rows, num_heads, head_dim]
    workspace: Workspace | None,
    *,
    num_sequences: int,
    max_rows: int,
    num_splits: int,
    scale: float,
    lse: torch.Tensor | None = None,  # [rows, num_heads] float32, natural
    num_skipped: torch.Tensor | None = None,  # [num_sequences] leading keys, whole tiles
    num_others: torch.Tensor | None = None,  # [num_sequences] parts that were found among them
    num_parts: int = 0,
    kv_scales: torch.Tensor | None = None,  # [2 * num_kv_heads] of keys, then values, where the cache is in e4m3
) -> torch.Tensor:
    """Flash-decoding. `num_sequences`, `max_rows` (of a sequence) and `num_splits` are what a CUDA graph fixes.

    One split needs no workspace, unless keys are skipped: then a row has room for `num_parts` parts there, its splits
    first.
    """
    num_rows, num_heads, head_dim = q.shape
    _, num_kv_heads, block_size, _ = k_cache.shape
    num_pairs = max_rows * (num_heads // num_kv_heads)
    tile_pairs = min(_MAX_TILE_PAIRS, max(16, triton.next_power_of_2(num_pairs)))
    tile_tokens = TILE_TOKENS if tile_pairs == 16 or q.dtype == torch.float32 else 2 * TILE_TOKENS
    dim_tile = triton.next_power_of_2(head_dim)
    part_out, part_lse = out, lse
    num_parts = max(num_parts, num_splits)
    if num_parts > 1:
        assert workspace is not None
        assert num_rows * num_heads * num_parts <= workspace.lses.numel()
        part_out, part_lse = workspace.outs, workspace.lses
    num_stages = 1 if q.dtype == torch.float32 else 3  # a float32 stage takes twice the shared memory
    _attend[(num_sequences, num_kv_heads, triton.cdiv(num_pairs, tile_pairs) * num_splits)](
        q, k_cache, v_cache, row_begins, lens, block_ids, block_begins, num_skipped, kv_scales, part_out, part_lse,
        scale * math.log2(math.e), num_parts, num_splits, num_heads, num_kv_heads, head_dim, block_size, tile_pairs,
        tile_tokens, dim_tile, num_warps=8 if tile_pairs > 64 else 4, num_stages=num_stages,
        **overlap(q.device),
    )  # fmt: skip
    if num_parts > 1:
        part_tile = triton.next_power_of_2(num_parts)
        _merge_parts[(num_sequences, num_heads, max_rows)](
            part_out, part_lse, row_begins, lens, num_skipped, num_others, out, lse, num_splits, num_parts,
            num_heads, head_dim, tile_tokens, part_tile, dim_tile,
            num_warps=max(1, min(4, part_tile // 8)), **overlap(q.device),
        )  # fmt: skip
    return out


@triton.jit(
    do_not_specialize=["num_parts", "num_splits"],
    do_not_specialize_on_alignment=["row_begins", "lens", "block_ids", "block_begins", "num_skipped", "kv_scales"],
)
def _attend(
    q, k_cache, v_cache, row_begins, lens, block_ids, block_begins, num_skipped, kv_scales, out, lse, scale_log2,
    num_parts, num_splits,
    num_heads: tl.constexpr, num_kv_heads: tl.constexpr, head_dim: tl.constexpr, block_size: tl.constexpr,
    tile_pairs: tl.constexpr, tile_tokens: tl.constexpr, dim_tile: tl.constexpr,
    is_overlapped: tl.constexpr,
):  # fmt: skip
    """Program (sequence, kv head, tile and split): pairs of (row, one of the kv head's query heads) over some keys."""
    let_next_begin(is_overlapped)
    wait_for_previous(is_overlapped)
    sequence, kv_head = tl.program_id(0), tl.program_id(1)
    tile, split = tl.program_id(2) // num_splits, tl.program_id(2) % num_splits
    group: tl.constexpr = num_heads // num_kv_heads
    row_begin = tl.load(row_begins + sequence)
    num_rows = tl.load(row_begins + sequence + 1) - row_begin
    length = tl.load(lens + sequence)
    # pairs   (0, h) (0, h+1) .. (1, h) (1, h+1) ..     h: the group's first head
    pair = tile * tile_pairs + tl.arange(0, tile_pairs)
    position = length - num_rows + pair // group
    end_row = tl.minimum(num_rows, tl.cdiv((tile + 1) * tile_pairs, group))  # after the tile's last
    skipped = _load_count(num_skipped, sequence)
    share = _split_size(length - skipped, num_splits, tile_tokens)
    begin = skipped + split * share
    end = tl.minimum(begin + share, length - num_rows + end_row)
    if (tile * tile_pairs >= num_rows * group) | (begin >= end):
        return

    d = tl.arange(0, dim_tile)[None, :]
    is_dim = d < head_dim
    is_pair = pair < num_rows * group
    row_head = (row_begin + pair // group).to(tl.int64) * num_heads + kv_head * group + pair % group
    queries = tl.load(q + row_head[:, None] * head_dim + d, mask=is_pair[:, None] & is_dim, other=0.0)
    queries, scale_log2 = _meet_keys(queries, scale_log2, kv_scales, kv_head)
    blocks = block_ids + tl.load(block_begins + sequence)
    # The peak starts finite and so low that a real one makes whatever was summed under it vanish.
    peak = tl.full([tile_pairs], -1e30, tl.float32)
    total = tl.zeros([tile_pairs], tl.float32)
    found = tl.zeros([tile_pairs, dim_tile], tl.float32)
    for start in range(begin, end, tile_tokens):
        key = start + tl.arange(0, tile_tokens)
        block = tl.load(blocks + key // block_size, mask=key < end, other=0).to(tl.int64)
        at = ((block * num_kv_heads + kv_head) * block_size + key % block_size)[:, None] * head_dim + d
        is_in = (key < end)[:, None] & is_dim
        k = tl.load(k_cache + at, mask=is_in, other=0.0).to(queries.dtype)
        # tf32x3: what float32 needs to stay exact on tensor cores; other types know nothing of it
        logit = tl.dot(queries, tl.trans(k), input_precision="tf32x3") * scale_log2
        logit = tl.where(key[None, :] <= position[:, None], logit, -1e30)
        new_peak = tl.maximum(peak, tl.max(logit, 1))
        weight = tl.exp2(logit - new_peak[:, None])
        rescale = tl.exp2(peak - new_peak)
        v = tl.load(v_cache + at, mask=is_in, other=0.0).to(queries.dtype)
        if kv_scales is not None:  # changes no value: with it they go through shared memory as float16, not as bytes
            v = tl.where(is_in, v, 0.0)
        found = found * rescale[:, None] + tl.dot(weight.to(v.dtype), v, input_precision="tf32x3")
        total = total * rescale + tl.sum(weight, 1)
        peak = new_peak

    target = row_head * num_parts + split
    value = _weighed(found, total, kv_scales, num_kv_heads + kv_head).to(out.dtype.element_ty)
    tl.store(out + target[:, None] * head_dim + d, value, mask=is_pair[:, None] & is_dim)
    if lse is not None:
        tl.store(lse + target, (peak + tl.log2(total)) * 0.6931471805599453, mask=is_pair)


@triton.jit
def _meet_keys(queries, scale_log2, kv_scales, kv_head):
    """Queries in the type that keys and values are multiplied in, and what the products are scaled by.

    e4m3 fits into float16, and becomes it by one instruction for two numbers, where bf16 takes several.
    """
    if kv_scales is not None:
        queries = queries.to(tl.float16)
        scale_log2 *= tl.load(kv_scales + kv_head)
    return queries, scale_log2


@triton.jit
def _weighed(found, total, kv_scales, scale_index):
    """The mean of the values that `found` sums up, whose weights come to `total`."""
    value = found / total[:, None]
    if kv_scales is not None:
        value *= tl.load(kv_scales + scale_index)
    return value


@triton.jit
def _split_size(length, num_splits, tile_tokens: tl.constexpr):
    return tl.cdiv(tl.cdiv(length, tile_tokens), num_splits) * tile_tokens


@triton.jit
def _load_count(counts, sequence):
    """0 where there are none."""
    count = 0
    if counts is not None:
        count = tl.load(counts + sequence)
    return count


@triton.jit(
    do_not_specialize=["num_splits", "num_parts"],
    do_not_specialize_on_alignment=["row_begins", "lens", "num_skipped", "num_others"],
)
def _merge_parts(
    outs, lses, row_begins, lens, num_skipped, num_others, out, lse, num_splits, num_parts,
    num_heads: tl.constexpr, head_dim: tl.constexpr, tile_tokens: tl.constexpr, part_tile: tl.constexpr,
    dim_tile: tl.constexpr, is_overlapped: tl.constexpr,
):  # fmt: skip
    """Program (sequence, head, row of the sequence): the splits that hold keys this row sees, and the other parts."""
    let_next_begin(is_overlapped)
    wait_for_previous(is_overlapped)
    sequence, head, row = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    row_begin = tl.load(row_begins + sequence)
    num_rows = tl.load(row_begins + sequence + 1) - row_begin
    length = tl.load(lens + sequence)
    if (row >= num_rows) | (length == 0):
        return
    skipped = _load_count(num_skipped, sequence)
    num_keys = length - num_rows + row + 1 - skipped
    num_used = tl.cdiv(num_keys, _split_size(length - skipped, num_splits, tile_tokens))
    row_head = (row_begin + row).to(tl.int64) * num_heads + head
    part = tl.arange(0, part_tile)
    is_used = (part < num_used) | ((part >= num_splits) & (part < num_splits + _load_count(num_others, sequence)))
    d = tl.arange(0, dim_tile)
    log = tl.load(lses + row_head * num_parts + part, mask=is_used, other=float("-inf"))
    peak = tl.max(log, 0)
    weight = tl.exp(log - peak)
    total = tl.sum(weight, 0)
    at = (row_head * num_parts + part)[:, None] * head_dim + d[None, :]
    values = tl.load(outs + at, mask=is_used[:, None] & (d < head_dim)[None, :], other=0.0)
    value = tl.sum(values * weight[:, None], 0) / total
    tl.store(out + row_head * head_dim + d, value.to(out.dtype.element_ty), mask=d < head_dim)
    if lse is not None:
        tl.store(lse + row_head, peak + tl.log(total))
