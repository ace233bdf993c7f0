"""A mixture of experts: the products of those that rows go to (routing.py), of which only the chosen ones are read.

A row and one of its experts are a pair; row r has the pairs [r * num_chosen, (r + 1) * num_chosen). Where there are few
rows, each pair reads its expert by itself. Where there are more, the pairs of an expert are put side by side, so that a
tile of them reads it once:

    order   expert 0 [ 3 17 20 . . ]   expert 1 [ . . . . . ]   expert 2 [ 1 9 . . . ]      pairs
    tiles            [ 0   ][ 1    ]                                     [ 2 ]              whose they are follows from
    counts             3                        0                          2                the counts

The order of an expert's pairs is left to chance: each is a product by itself, and those of a row are summed in its own
order. How many tiles there are is known only to the device, so as many programs are launched as there could be, and
those without a tile leave at once: a launch captured in a CUDA graph serves every step. Rows that pad go to no expert.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from hotloop.backends.cuda.layers.expert_weights import ExpertWeights, Matrices
from hotloop.backends.cuda.layers.kernels import add_gated
from hotloop.backends.cuda.layers.linear import gated, linear
from hotloop.backends.cuda.layers.routing import Routed, route
from hotloop.backends.cuda.overlap import let_next_begin, overlap, wait_for_previous
from hotloop.backends.cuda.quant.mxfp4 import Mxfp4Matrix, column_of, high, load_scales, low
from hotloop.models.spec import ExpertsSpec

_MAX_FEW_ROWS = 4
_MIN_DEQUANTISED_ROWS = 1024  # of a step, for which MXFP4 is dequantised first
_LANE = 8  # weights in a row that a thread reads at a time
_FEW_GATED, _FEW_MIXED = (4, 4), (4, 4)  # rows of an expert that a program has, and its warps


class Tiles(NamedTuple):
    """What a program of a product computes, for so many pairs an expert on average."""

    max_pairs: float
    pairs: int
    outs: int
    depth: int
    num_warps: int
    num_stages: int


_TILES = (
    Tiles(8, 16, 64, 128, 4, 4),
    Tiles(24, 32, 64, 128, 4, 4),
    Tiles(96, 64, 64, 64, 4, 4),
    Tiles(float("inf"), 128, 128, 64, 8, 3),
)


def mix(
    x: torch.Tensor,  # [rows, hidden]
    weights: ExpertWeights,
    spec: ExpertsSpec,
    slots: torch.Tensor,  # [rows]; -1: a row that pads
    counts: torch.Tensor,  # [experts] zeros
) -> torch.Tensor:
    """[rows, hidden]: what each row's experts come to, weighed by their scores."""
    logits, bias = linear(x, weights.router), weights.router_bias
    if len(x) <= _MAX_FEW_ROWS:
        out = few_products(x, weights, spec, route(logits, bias, spec, slots, counts, is_few=True))
    else:
        out = grouped_products(x, weights, spec, route(logits, bias, spec, slots, counts))
    if weights.shared_gate_up is None or weights.shared_down is None:
        return out
    shared = linear(gated(x, weights.shared_gate_up), weights.shared_down)
    if weights.shared_router is None:
        return out.add_(shared)
    return add_gated(out, shared, x, weights.shared_router)


def few_products(x: torch.Tensor, weights: ExpertWeights, spec: ExpertsSpec, routed: Routed) -> torch.Tensor:
    """Each pair by itself, on the ordinary cores, as `gemv` does it."""
    num_rows, hidden_size = x.shape
    hidden = x.new_empty(num_rows * spec.num_chosen, spec.size)
    out = torch.empty_like(x)
    gate_up, down = _parts(weights.gate_up), _parts(weights.down)
    tile_outs, num_warps = _FEW_GATED if x.is_cuda else (64, 4)
    tile_in = min(32 * num_warps * _LANE, triton.next_power_of_2(hidden_size))
    _few_gated[(triton.cdiv(spec.size, tile_outs), len(hidden))](
        x, *gate_up, weights.gate_up_bias, routed.ids, hidden, hidden_size, spec.size, spec.num_chosen, tile_outs,
        tile_in, spec.gate_limit, spec.gate_slope,
        num_warps=num_warps, **overlap(x.device),
    )  # fmt: skip
    tile_outs, num_warps = _FEW_MIXED if x.is_cuda else (64, 4)
    tile_in = min(32 * num_warps * _LANE, triton.next_power_of_2(spec.size))
    _few_mixed[(triton.cdiv(hidden_size, tile_outs), num_rows)](
        hidden, *down, weights.down_bias, routed.ids, routed.scores, out, hidden_size, spec.size, spec.num_chosen,
        tile_outs, tile_in, num_warps=num_warps, **overlap(x.device),
    )  # fmt: skip
    return out


def _parts(matrix: Matrices) -> tuple[torch.Tensor, torch.Tensor | None]:
    """What kernels are given. They know MXFP4 by the type of its values."""
    return (matrix, None) if isinstance(matrix, torch.Tensor) else (matrix.values, matrix.scales)


@triton.jit
def _few_gated(
    x, w, scales, bias, ids, out, k: tl.constexpr, size: tl.constexpr, num_chosen: tl.constexpr,
    tile_outs: tl.constexpr, tile_in: tl.constexpr, limit: tl.constexpr, slope: tl.constexpr,
    is_overlapped: tl.constexpr,
):  # fmt: skip
    """Program (tile of an expert's rows, pair): gated."""
    let_next_begin(is_overlapped)
    wait_for_previous(is_overlapped)
    pair = tl.program_id(1).to(tl.int64)
    expert = tl.load(ids + pair)
    if expert < 0:
        return
    n = tl.program_id(0) * tile_outs + tl.arange(0, tile_outs)
    at = expert.to(tl.int64) * 2 * size + tl.minimum(n, size - 1)
    at_x = x + pair // num_chosen * k
    gate = _sums(w, scales, at, at_x, k, tile_in)
    up = _sums(w, scales, at + size, at_x, k, tile_in)
    if bias is not None:
        gate += tl.load(bias + at).to(tl.float32)
        up += tl.load(bias + at + size).to(tl.float32)
    tl.store(out + pair * size + n, _gated(gate, up, limit, slope).to(out.dtype.element_ty), mask=n < size)


@triton.jit
def _few_mixed(
    x, w, scales, bias, ids, scores, out, hidden_size: tl.constexpr, k: tl.constexpr, num_chosen: tl.constexpr,
    tile_outs: tl.constexpr, tile_in: tl.constexpr, is_overlapped: tl.constexpr,
):  # fmt: skip
    """Program (tile of the experts' rows, row): over all experts of the row."""
    let_next_begin(is_overlapped)
    wait_for_previous(is_overlapped)
    row = tl.program_id(1).to(tl.int64)
    n = tl.program_id(0) * tile_outs + tl.arange(0, tile_outs)
    total = tl.zeros([tile_outs], tl.float32)
    for j in tl.static_range(num_chosen):
        pair = row * num_chosen + j
        expert = tl.maximum(tl.load(ids + pair), 0).to(tl.int64)
        at = expert * hidden_size + tl.minimum(n, hidden_size - 1)
        value = _sums(w, scales, at, x + pair * k, k, tile_in)
        if bias is not None:
            value += tl.load(bias + at).to(tl.float32)
        total += value * tl.load(scores + pair)
    tl.store(out + row * hidden_size + n, total.to(out.dtype.element_ty), mask=n < hidden_size)


@triton.jit
def _sums(w, scales, row, at_x, k: tl.constexpr, tile_in: tl.constexpr):
    """[rows of the weights]: their products with one row."""
    if w.dtype.element_ty == tl.uint8:
        found = _mxfp4_sums(w, scales, row, at_x, k, tile_in // 32)
    else:
        found = _plain_sums(w, scales, row, at_x, k, tile_in)
    return found


@triton.jit
def _plain_sums(w, scales, row, at_x, k: tl.constexpr, tile_in: tl.constexpr):
    lane: tl.constexpr = 8 if tile_in >= 8 else tile_in
    i = tl.max_contiguous(tl.arange(0, tile_in), lane)
    total = tl.zeros([row.shape[0], tile_in], tl.float32)
    for begin in tl.static_range(0, k, tile_in):
        is_in = (begin + i < k)[None, :]
        at = w + row[:, None] * k + begin + i[None, :]
        part = tl.load(at, mask=is_in, other=0.0, eviction_policy="evict_first")
        total += part.to(tl.float32) * tl.load(at_x + begin + i[None, :], mask=is_in, other=0.0).to(tl.float32)
    found = tl.sum(total, 1)
    if scales is not None:
        found *= tl.load(scales + row)
    return found


@triton.jit
def _mxfp4_sums(w, scales, row, at_x, k: tl.constexpr, tile_groups: tl.constexpr):
    """A thread has whole groups: of each its bytes in one piece, and one scale."""
    total = tl.zeros([row.shape[0], tile_groups], tl.float32)
    byte = tl.arange(0, 16)[None, None, :]
    for begin in tl.static_range(0, k // 32, tile_groups):
        group = begin + tl.arange(0, tile_groups)
        is_in = (group < k // 32)[None, :, None]
        at = w + row[:, None, None] * (k // 2) + group[None, :, None] * 16 + byte
        codes = tl.load(at, mask=is_in, other=0, eviction_policy="evict_first")
        at_low = tl.broadcast_to(at_x + group[None, :, None] * 32 + byte, codes.shape)  # loaded as codes are
        found = low(codes).to(tl.float32) * tl.load(at_low, mask=is_in, other=0.0).to(tl.float32)
        found += high(codes).to(tl.float32) * tl.load(at_low + 16, mask=is_in, other=0.0).to(tl.float32)
        total += tl.sum(found, 2) * load_scales(scales, row, group, k)
    return tl.sum(total, 1)


@triton.jit
def _gated(gate, up, limit: tl.constexpr, slope: tl.constexpr):
    if limit is None:
        gated = gate * tl.sigmoid(gate) * up
    else:
        gate, up = tl.minimum(gate, limit), tl.minimum(tl.maximum(up, -limit), limit)
        gated = gate * tl.sigmoid(gate * slope) * (up + 1)
    return gated


def tiles_for(num_pairs: int, num_experts: int, dtype: torch.dtype) -> Tiles:
    """For float32 nothing larger than what fits into the registers."""
    usual = num_pairs / num_experts
    tiles = next(tiles for tiles in _TILES if usual <= tiles.max_pairs)
    return _TILES[-2] if tiles is _TILES[-1] and dtype == torch.float32 else tiles


def grouped_products(
    x: torch.Tensor, weights: ExpertWeights, spec: ExpertsSpec, routed: Routed, tiles: Tiles | None = None
) -> torch.Tensor:
    """Tiles of pairs that have an expert in common, on the tensor cores."""
    num_rows, hidden_size = x.shape
    num_pairs = num_rows * spec.num_chosen
    tiles = tiles or tiles_for(num_pairs, spec.num_experts, x.dtype)
    num_tiles = num_pairs // tiles.pairs + min(num_pairs, spec.num_experts)
    hidden, mixed = x.new_empty(num_pairs, spec.size), x.new_empty(num_pairs, hidden_size)
    for source, matrix, bias, target, is_gated in (
        (x, weights.gate_up, weights.gate_up_bias, hidden, True),
        (hidden, weights.down, weights.down_bias, mixed, False),
    ):
        if isinstance(matrix, Mxfp4Matrix) and num_rows >= _MIN_DEQUANTISED_ROWS:
            matrix = matrix.dequantised(x.dtype)  # once, not for every tile of pairs
        num_out, k = target.shape[1], source.shape[1]
        _grouped[(triton.cdiv(num_out, tiles.outs), num_tiles)](
            source, *_parts(matrix), bias, routed.counts, routed.order, target, num_rows, num_out, k, spec.num_experts,
            spec.num_chosen, triton.next_power_of_2(spec.num_experts), tiles.pairs, tiles.outs, tiles.depth, is_gated,
            spec.gate_limit, spec.gate_slope,
            num_warps=tiles.num_warps, num_stages=1 if x.dtype == torch.float32 else tiles.num_stages,
            **overlap(x.device),
        )  # fmt: skip
    out = torch.empty_like(x)
    tile = min(1024, triton.next_power_of_2(hidden_size))
    _sum_pairs[(num_rows, triton.cdiv(hidden_size, tile))](
        mixed, routed.ids, routed.scores, out, hidden_size, spec.num_chosen, tile, **overlap(x.device)
    )
    return out


@triton.jit(do_not_specialize=["num_rows"], do_not_specialize_on_alignment=["counts"])
def _grouped(
    x, w, scales, bias, counts, order, out, num_rows,
    num_out: tl.constexpr, k: tl.constexpr, num_experts: tl.constexpr, num_chosen: tl.constexpr,
    expert_tile: tl.constexpr, tile_pairs: tl.constexpr, tile_outs: tl.constexpr, tile_in: tl.constexpr,
    is_gated: tl.constexpr, limit: tl.constexpr, slope: tl.constexpr, is_overlapped: tl.constexpr,
):  # fmt: skip
    """Program (tile of an expert's rows, tile of its pairs). Weights are the first factor, as in `int8_logits`.

    Gated, x has a row for all pairs of a row, and the weights of an expert are gate and up.
    """
    let_next_begin(is_overlapped)
    wait_for_previous(is_overlapped)
    tile = tl.program_id(1)
    expert_ids = tl.arange(0, expert_tile)
    count = tl.load(counts + expert_ids, mask=expert_ids < num_experts, other=0)
    ends = tl.cumsum(tl.cdiv(count, tile_pairs), 0)
    expert = tl.sum((ends <= tile).to(tl.int32), 0)
    if expert >= num_experts:
        return
    first = tl.sum(tl.where(expert_ids == expert, ends - tl.cdiv(count, tile_pairs), 0), 0)
    place = (tile - first) * tile_pairs + tl.arange(0, tile_pairs)
    is_pair = place < tl.sum(tl.where(expert_ids == expert, count, 0), 0)
    pair = tl.load(order + expert.to(tl.int64) * num_rows + place, mask=is_pair, other=0).to(tl.int64)

    n = tl.program_id(0) * tile_outs + tl.arange(0, tile_outs)
    num_parts: tl.constexpr = 2 if is_gated else 1
    at = expert.to(tl.int64) * num_parts * num_out + tl.minimum(n, num_out - 1)
    at_x = x + (pair // num_chosen if is_gated else pair)[:, None] * k
    total = tl.zeros([tile_outs, tile_pairs], tl.float32)
    second = tl.zeros([tile_outs, tile_pairs], tl.float32)
    if w.dtype.element_ty == tl.uint8:
        for begin in range(0, k // 2, tile_in // 2):
            byte = begin + tl.arange(0, tile_in // 2)
            is_in = is_pair[:, None] & (byte < k // 2)[None, :]
            at_low = at_x + column_of(byte)[None, :]
            low_rows = tl.trans(tl.load(at_low, mask=is_in, other=0.0))
            high_rows = tl.trans(tl.load(at_low + 16, mask=is_in, other=0.0))
            total = _mxfp4_dots(w, scales, at, begin, low_rows, high_rows, total, k)
            if is_gated:
                second = _mxfp4_dots(w, scales, at + num_out, begin, low_rows, high_rows, second, k)
    else:
        i = tl.arange(0, tile_in)[None, :]
        at_w = w + at[:, None] * k + i
        for begin in range(0, k, tile_in):
            is_in = begin + i < k
            rows = tl.trans(tl.load(at_x + begin + i, mask=is_pair[:, None] & is_in, other=0.0))
            part = tl.load(at_w + begin, mask=is_in, other=0.0).to(rows.dtype)
            total = tl.dot(part, rows, total, input_precision="tf32x3")
            if is_gated:
                part = tl.load(at_w + num_out * k + begin, mask=is_in, other=0.0).to(rows.dtype)
                second = tl.dot(part, rows, second, input_precision="tf32x3")
        if scales is not None:
            total *= tl.load(scales + at)[:, None]
            if is_gated:
                second *= tl.load(scales + at + num_out)[:, None]
    if bias is not None:
        total += tl.load(bias + at).to(tl.float32)[:, None]
        if is_gated:
            second += tl.load(bias + at + num_out).to(tl.float32)[:, None]
    if is_gated:
        total = _gated(total, second, limit, slope)
    target = out + pair[None, :] * num_out + n[:, None]
    tl.store(target, total.to(out.dtype.element_ty), mask=is_pair[None, :] & (n < num_out)[:, None])


@triton.jit
def _mxfp4_dots(w, scales, at, begin, low_rows, high_rows, total, k: tl.constexpr):
    num_bytes: tl.constexpr = low_rows.shape[0]
    byte = begin + tl.arange(0, num_bytes)
    codes = tl.load(w + at[:, None] * (k // 2) + byte[None, :], mask=(byte < k // 2)[None, :], other=0)
    scale = load_scales(scales, at, begin // 16 + tl.arange(0, num_bytes // 16), k)
    scale = tl.broadcast_to(scale[:, :, None], [at.shape[0], num_bytes // 16, 16]).reshape(codes.shape)
    total = tl.dot((low(codes) * scale).to(low_rows.dtype), low_rows, total, input_precision="tf32x3")
    return tl.dot((high(codes) * scale).to(high_rows.dtype), high_rows, total, input_precision="tf32x3")


@triton.jit
def _sum_pairs(
    mixed, ids, scores, out, size: tl.constexpr, num_chosen: tl.constexpr, tile: tl.constexpr,
    is_overlapped: tl.constexpr,
):  # fmt: skip
    """Program (row, tile)."""
    let_next_begin(is_overlapped)
    wait_for_previous(is_overlapped)
    row = tl.program_id(0).to(tl.int64)
    if tl.load(ids + row * num_chosen) < 0:
        return
    i = tl.program_id(1) * tile + tl.arange(0, tile)
    total = tl.zeros([tile], tl.float32)
    for j in tl.static_range(num_chosen):
        pair = row * num_chosen + j
        value = tl.load(mixed + pair * size + i, mask=i < size, other=0.0).to(tl.float32)
        total += value * tl.load(scores + pair)
    tl.store(out + row * size + i, total.to(out.dtype.element_ty), mask=i < size)
