"""Attention for a few rows each of many sequences over the paged KV cache, split over the keys.

What depends on the step is read from device tensors, so that a launch captured in a CUDA graph
can be replayed with other lengths; programs that find nothing to do leave at once.

    sequence s owns rows [row_begins[s], row_begins[s + 1]) and has lens[s] keys, those of its own rows the last:
    keys     0 ................................ lens[s]
    splits   [ 0      | 1      | 2      | 3     ]          where they begin and end is planned with the step (splits.py)
    rows                                  [ r r r ]        row r sees the keys up to its own

What a split finds is a part of a row's result; all parts of a row are merged, those among shared keys (shared.py)
included. A row of one part is stored at once.

A sequence that pads the batch has no rows and no keys. Rows of no sequence are left as they are.

With a window a row sees only the last keys up to its own. A small one is read whole by one program, whatever the splits
and whatever is shared; of a large one a split that has no key in it leaves a part that weighs nothing.
A sink is one more logit of a head, whose share is lost: what a row's parts are merged with begins with it.
"""

import math
from dataclasses import dataclass
from functools import cache
from typing import Self

import torch
import triton
import triton.language as tl

from hotloop.backends.cuda.overlap import let_next_begin, overlap, wait_for_previous
from hotloop.backends.cuda.steps.splits import SPLIT_INTS

_TILE_TOKENS = 64
_MAX_TILE_PAIRS = 128
WIDE_TILE = 32  # pairs or rows of a tile, where heads are wide
_TILE_PARTS = 16
MAX_WHOLE_WINDOW = 1024  # keys that one program reads by itself
_LOG2_E = tl.constexpr(math.log2(math.e))


@dataclass(frozen=True, slots=True)
class Workspace:
    """What each split found, until it is merged with the others. Shared by all layers."""

    outs: torch.Tensor  # [part, head, head_dim] float32
    lses: torch.Tensor  # [part, head]

    @classmethod
    def allocate(cls, num_parts: int, num_heads: int, head_dim: int, device: torch.device | str) -> Self:
        outs = torch.empty(num_parts, num_heads, head_dim, dtype=torch.float32, device=device)
        return cls(outs, torch.empty(num_parts, num_heads, dtype=torch.float32, device=device))


@cache
def num_multiprocessors(device: torch.device) -> int:
    return int(torch.cuda.get_device_properties(device).multi_processor_count) if device.type == "cuda" else 1


def is_wide(dtype: torch.dtype, head_dim: int) -> bool:
    """Whether a tile of 64 rows of a head, and the keys and values it meets, would not fit into shared memory."""
    return dtype == torch.float32 and head_dim > 128


def programs_to_fill(device: torch.device, num_kv_heads: int, per_sm: int) -> int:
    """How many splits, of all kv heads each, the card works on at a time."""
    return -(-per_sm * num_multiprocessors(device) // num_kv_heads)


def decode_attention(
    q: torch.Tensor,  # [rows, num_heads, head_dim]
    k_cache: torch.Tensor,  # [num_blocks, num_kv_heads, block_size, head_dim]
    v_cache: torch.Tensor,
    row_begins: torch.Tensor,  # [num_sequences + 1]
    lens: torch.Tensor,  # [num_sequences]
    block_ids: torch.Tensor,  # ragged: sequence s has [block_begins[s], block_begins[s + 1])
    block_begins: torch.Tensor,
    splits: torch.Tensor,  # [num_splits * SPLIT_INTS]
    part_begins: torch.Tensor,  # [rows that have sequences + 1]
    out: torch.Tensor,  # [rows, num_heads, head_dim]
    workspace: Workspace,
    *,
    max_rows: int,
    usual_rows: int,
    scale: float,
    kv_scales: torch.Tensor | None = None,  # [2 * num_kv_heads] of keys, then values, where the cache is in e4m3
    window: int | None = None,
    sinks: torch.Tensor | None = None,  # [num_heads]
) -> torch.Tensor:
    """Flash-decoding. The number of sequences, of splits and `max_rows` (of a sequence) are what a CUDA graph fixes.

    A sequence with more rows than the usual may load its keys more than once.
    """
    _, num_heads, head_dim = q.shape
    _, num_kv_heads, block_size, _ = k_cache.shape
    group = num_heads // num_kv_heads
    is_whole = window is not None and window <= MAX_WHOLE_WINDOW
    num_splits = len(lens) if is_whole else len(splits) // SPLIT_INTS
    dim_tile = triton.next_power_of_2(head_dim)
    most = WIDE_TILE if is_wide(q.dtype, head_dim) else _MAX_TILE_PAIRS
    tile_pairs = min(most, max(16, triton.next_power_of_2(usual_rows * group)))
    is_small = tile_pairs == 16 or dim_tile > 128 or q.dtype == torch.float32  # or twice as many would not fit
    tile_tokens = _TILE_TOKENS if is_small else 2 * _TILE_TOKENS
    num_stages = 1 if q.dtype == torch.float32 else 3  # a float32 stage takes twice the shared memory
    _attend[(num_kv_heads, num_splits, triton.cdiv(max_rows * group, tile_pairs))](
        q, k_cache, v_cache, row_begins, lens, block_ids, block_begins, splits, kv_scales, sinks, out, workspace.outs,
        workspace.lses, scale * math.log2(math.e), SPLIT_INTS, num_heads, num_kv_heads, head_dim, block_size,
        tile_pairs, tile_tokens, dim_tile, window, is_whole, num_warps=8 if tile_pairs > 64 else 4,
        num_stages=num_stages, **overlap(q.device),
    )  # fmt: skip
    if is_whole:
        return out
    merge_parts[(len(part_begins) - 1, num_heads)](
        workspace.outs, workspace.lses, part_begins, sinks, out, num_heads, head_dim, _TILE_PARTS, dim_tile,
        num_warps=2, **overlap(q.device),
    )  # fmt: skip
    return out


@triton.jit(
    do_not_specialize_on_alignment=["row_begins", "lens", "block_ids", "block_begins", "splits", "kv_scales"],
)
def _attend(
    q, k_cache, v_cache, row_begins, lens, block_ids, block_begins, splits, kv_scales, sinks, out, outs, lses,
    scale_log2, split_ints: tl.constexpr, num_heads: tl.constexpr, num_kv_heads: tl.constexpr, head_dim: tl.constexpr,
    block_size: tl.constexpr, tile_pairs: tl.constexpr, tile_tokens: tl.constexpr, dim_tile: tl.constexpr,
    window: tl.constexpr, is_whole: tl.constexpr, is_overlapped: tl.constexpr,
):  # fmt: skip
    """Program (kv head, split, tile): pairs of (row, one of the kv head's query heads) over some keys."""
    let_next_begin(is_overlapped)
    wait_for_previous(is_overlapped)
    kv_head, tile = tl.program_id(0), tl.program_id(2)
    group: tl.constexpr = num_heads // num_kv_heads
    sequence, begin, end, part, num_parts = load_split(splits, lens, tl.program_id(1), split_ints, is_whole)
    row_begin = tl.load(row_begins + sequence)
    num_rows = tl.load(row_begins + sequence + 1) - row_begin
    if (tile * tile_pairs >= num_rows * group) | (begin >= end):
        return
    length = tl.load(lens + sequence)
    # pairs   (0, h) (0, h+1) .. (1, h) (1, h+1) ..     h: the group's first head
    pair = tile * tile_pairs + tl.arange(0, tile_pairs)
    end_row = tl.minimum(num_rows, tl.cdiv((tile + 1) * tile_pairs, group))  # after the tile's last
    end = tl.minimum(end, length - num_rows + end_row)
    own = length - num_rows + pair // group  # a row's own key, and the last that it sees
    last = tl.minimum(end - 1, own)
    begin = _in_window(begin, length - num_rows + tile * tile_pairs // group, window, block_size)

    d = tl.arange(0, dim_tile)[None, :]
    is_dim, is_pair = d < head_dim, pair < num_rows * group
    head = kv_head * group + pair % group
    row_head = (row_begin + pair // group).to(tl.int64) * num_heads + head
    queries = tl.load(q + row_head[:, None] * head_dim + d, mask=is_pair[:, None] & is_dim, other=0.0)
    queries, scale_log2 = _meet_keys(queries, scale_log2, kv_scales, kv_head)
    blocks = block_ids + tl.load(block_begins + sequence)
    peak, total = start_softmax(sinks, head, num_parts == 1)
    found = tl.zeros([tile_pairs, dim_tile], tl.float32)
    for start in range(begin, end, tile_tokens):
        key = start + tl.arange(0, tile_tokens)
        block = tl.load(blocks + key // block_size, mask=key < end, other=0).to(tl.int64)
        at = ((block * num_kv_heads + kv_head) * block_size + key % block_size)[:, None] * head_dim + d
        is_in = (key < end)[:, None] & is_dim
        k = tl.load(k_cache + at, mask=is_in, other=0.0).to(queries.dtype)
        # tf32x3: what float32 needs to stay exact on tensor cores; other types know nothing of it
        logit = tl.dot(queries, tl.trans(k), input_precision="tf32x3") * scale_log2
        logit = tl.where(key[None, :] <= last[:, None], logit, -1e30)
        logit = within(logit, key, own, window)
        new_peak = tl.maximum(peak, tl.max(logit, 1))
        weight, rescale = tl.exp2(logit - new_peak[:, None]), tl.exp2(peak - new_peak)
        v = tl.load(v_cache + at, mask=is_in, other=0.0).to(queries.dtype)
        if kv_scales is not None:  # changes no value: with it they go through shared memory as float16, not as bytes
            v = tl.where(is_in, v, 0.0)
        found = found * rescale[:, None] + tl.dot(weight.to(v.dtype), v, input_precision="tf32x3")
        total = total * rescale + tl.sum(weight, 1)
        peak = new_peak

    if window is not None:
        total = tl.maximum(total, 1e-30)  # of a split that has no key in the window
    value = _weighed(found, total, kv_scales, num_kv_heads + kv_head)
    if num_parts == 1:
        tl.store(out + row_head[:, None] * head_dim + d, value.to(out.dtype.element_ty), mask=is_pair[:, None] & is_dim)
    else:
        target = (part + pair // group * num_parts).to(tl.int64) * num_heads + head
        tl.store(outs + target[:, None] * head_dim + d, value, mask=is_pair[:, None] & is_dim)
        tl.store(lses + target, peak + tl.log2(total), mask=is_pair)


@triton.jit
def load_split(splits, lens, i, split_ints: tl.constexpr, is_whole: tl.constexpr):
    """The sequence, the first and last key, where the part of its first row goes, how many parts a row has."""
    if is_whole:
        sequence, begin, end, part, num_parts = i, 0 * i, tl.load(lens + i), 0 * i, 0 * i + 1
    else:
        split = splits + i * split_ints
        sequence, begin, end = tl.load(split), tl.load(split + 1), tl.load(split + 2)
        part, num_parts = tl.load(split + 3), tl.load(split + 4)
    return sequence, begin, end, part, num_parts


@triton.jit
def start_softmax(sinks, head, has_sink):
    """The largest logit, and the sum of weights, before any key was seen, of rows with these heads.

    The former is finite and so low that a real one makes whatever was summed under it vanish; or it is a sink's.
    """
    peak = tl.full(head.shape, -1e30, tl.float32)
    total = tl.zeros(head.shape, tl.float32)
    if sinks is not None:
        sink = tl.load(sinks + head).to(tl.float32) * _LOG2_E
        peak, total = tl.where(has_sink, sink, peak), tl.where(has_sink, 1.0, total)
    return peak, total


@triton.jit
def _in_window(begin, own, window: tl.constexpr, block_size: tl.constexpr):
    """`begin`, or the first key of the first block that a row with this key sees.

    Without a window even a maximum with 0 would take registers, and with them programs that run at a time.
    """
    if window is not None:
        begin = tl.maximum(begin, tl.maximum(own - window + 1, 0) // block_size * block_size)
    return begin


@triton.jit
def within(logit, key, own, window: tl.constexpr):
    """Logits [rows, keys] of the keys in the window that ends with a row's own."""
    if window is not None:
        logit = tl.where(key[None, :] > own[:, None] - window, logit, -1e30)
    return logit


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


@triton.jit(do_not_specialize_on_alignment=["part_begins"])
def merge_parts(
    outs, lses, part_begins, sinks, out,
    num_heads: tl.constexpr, head_dim: tl.constexpr, tile_parts: tl.constexpr, dim_tile: tl.constexpr,
    is_overlapped: tl.constexpr,
):  # fmt: skip
    """Program (row, head, tile of its result). A row without parts has its result already, or is of no sequence."""
    let_next_begin(is_overlapped)
    wait_for_previous(is_overlapped)
    row, head = tl.program_id(0), tl.program_id(1)
    begin, end = tl.load(part_begins + row), tl.load(part_begins + row + 1)
    if begin >= end:
        return
    d = tl.program_id(2) * dim_tile + tl.arange(0, dim_tile)
    peak = -1e30
    total = 0.0
    if sinks is not None:
        peak, total = tl.load(sinks + head).to(tl.float32) * _LOG2_E, 1.0
    found = tl.zeros([dim_tile], tl.float32)
    for start in range(begin, end, tile_parts):
        part = start + tl.arange(0, tile_parts)
        at = part.to(tl.int64) * num_heads + head
        log = tl.load(lses + at, mask=part < end, other=float("-inf"))
        is_in = (part < end)[:, None] & (d < head_dim)[None, :]
        values = tl.load(outs + at[:, None] * head_dim + d[None, :], mask=is_in, other=0.0)
        new_peak = tl.maximum(peak, tl.max(log, 0))
        weight = tl.exp2(log - new_peak)
        rescale = tl.exp2(peak - new_peak)
        found = found * rescale + tl.sum(values * weight[:, None], 0)
        total = total * rescale + tl.sum(weight, 0)
        peak = new_peak
    row_head = row.to(tl.int64) * num_heads + head
    tl.store(out + row_head * head_dim + d, (found / total).to(out.dtype.element_ty), mask=d < head_dim)
