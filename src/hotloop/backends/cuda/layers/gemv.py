"""out = x @ w.T for a row or two, on the ordinary cores: such a product is nothing but reading its weights.

Every program owns a few rows of the weights and reads them from end to end, so there is nothing to merge and the order
of the sum is always the same. The next tile is on its way while one is summed, and the first of them is fetched
before the kernel in front has ended: weights depend on nobody.
"""

import torch
import triton
import triton.language as tl

from hotloop.backends.cuda.overlap import let_next_begin, overlap, wait_for_previous
from hotloop.backends.cuda.quant.fp8 import ScaledMatrix

_LANE = 8  # weights in a row that a thread reads at a time
_NUM_WARPS = 8


def gemv(
    x: torch.Tensor,  # [rows, k]
    weight: torch.Tensor | ScaledMatrix,  # [n, k]
    out: torch.Tensor,  # [rows, n], or [rows, n / 2] if gated
    *,
    bias: torch.Tensor | None = None,  # [n]
    is_gated: bool = False,  # out = silu(first half) * second half
) -> torch.Tensor:
    num_rows, k = x.shape
    n = len(weight)
    w, scales = (weight.values, weight.scales) if isinstance(weight, ScaledMatrix) else (weight, None)
    assert w.shape[1] == k
    num_warps = _NUM_WARPS
    tile_n = 2 if num_rows == 1 and not is_gated else 4  # measured on an H200
    if scales is not None:  # widening takes instructions: fewer threads, each with more to sum, have fewer to merge
        num_warps = _NUM_WARPS // 2 if k <= 8192 else _NUM_WARPS
        tile_n = 8 if num_rows == 1 and not is_gated and k <= 8192 else 4
    if not x.is_cuda:
        tile_n = 64  # the interpreter takes as long for a small tile as for a large one
    tile_k = min(32 * num_warps * _LANE, triton.next_power_of_2(k))
    _gemv[(triton.cdiv(n, tile_n),)](
        x, w, scales, bias, out, num_rows, n, k, triton.next_power_of_2(num_rows), tile_n, tile_k,
        min(_LANE, tile_k), k % tile_k == 0, is_gated, num_warps=num_warps, **overlap(x.device),
    )  # fmt: skip
    return out


@triton.jit(do_not_specialize=["num_rows"])
def _gemv(
    x, w, scales, bias, out, num_rows, n, k: tl.constexpr, row_tile: tl.constexpr,
    tile_n: tl.constexpr, tile_k: tl.constexpr, lane: tl.constexpr, is_even: tl.constexpr,
    is_gated: tl.constexpr, is_overlapped: tl.constexpr,
):  # fmt: skip
    let_next_begin(is_overlapped)
    column = weight_rows(tl.program_id(0), tile_n, n, is_gated)
    # A thread has as many neighbours of e4m3 as of bf16, or the weights would have to change hands to meet x.
    i = tl.max_contiguous(tl.arange(0, tile_k), lane)
    at = w + tl.minimum(column, n - 1).to(tl.int64)[:, None] * k + i[None, :]
    row = tl.arange(0, row_tile)
    is_row = (row < num_rows)[:, None]
    at_x = x + row[:, None] * k + i[None, :]
    part = _load_tile(at, i, k, is_even)
    wait_for_previous(is_overlapped)
    total = 0.0
    for begin in tl.static_range(0, k, tile_k):
        following = part
        if begin + tile_k < k:
            following = _load_tile(at + begin + tile_k, begin + tile_k + i, k, is_even)
        total += _products(part, at_x + begin, is_row & (begin + i < k)[None, :], lane)
        part = following
    finish(tl.sum(tl.sum(total, 3), 2), scales, bias, out, row, is_row, column, n, is_gated)


@triton.jit
def _products(part, at_x, is_in, lane: tl.constexpr):
    """[rows, tile_n, tile_k / lane, lane]"""
    row_tile: tl.constexpr = at_x.shape[0]
    tile_n: tl.constexpr = part.shape[0]
    num_lanes: tl.constexpr = part.shape[1] // lane
    values = tl.load(at_x, mask=is_in, other=0.0).to(tl.float32).reshape(row_tile, 1, num_lanes, lane)
    return values * part.to(tl.float32).reshape(1, tile_n, num_lanes, lane)


@triton.jit
def _load_tile(at, i, k: tl.constexpr, is_even: tl.constexpr):
    """Nothing past the end. Read once, so the cache need not keep it."""
    if is_even:
        return tl.load(at, eviction_policy="evict_first")
    return tl.load(at, mask=(i < k)[None, :], other=0.0, eviction_policy="evict_first")


@triton.jit
def weight_rows(tile, tile_n: tl.constexpr, n, is_gated: tl.constexpr):
    """The rows of the weights that a tile has. If gated, every second one is of the second half:

    g0 u0 g1 u1 g2 u2 ...
    """
    j = tl.arange(0, tile_n)
    if is_gated:
        column = tile * (tile_n // 2) + j // 2
        return tl.where(column < n // 2, column + j % 2 * (n // 2), n)
    return tile * tile_n + j


@triton.jit
def finish(total, scales, bias, out, row, is_row, column, n, is_gated: tl.constexpr):
    """Scale the sums [rows, tile_n] float32, add the bias, pass the gate if there is one, and store."""
    is_column = column < n
    if scales is not None:
        total *= tl.load(scales + column, mask=is_column, other=0.0)[None, :]
    if bias is not None:
        total += tl.load(bias + column, mask=is_column, other=0.0).to(tl.float32)[None, :]
    if is_gated:
        rows: tl.constexpr = total.shape[0]
        pairs: tl.constexpr = total.shape[1] // 2
        gate, up = tl.split(total.reshape(rows, pairs, 2))
        first, _ = tl.split(column.reshape(pairs, 2))
        value = gate * tl.sigmoid(gate) * up
        target = out + row.to(tl.int64)[:, None] * (n // 2) + first[None, :]
        tl.store(target, value.to(out.dtype.element_ty), mask=is_row & (first < n // 2)[None, :])
    else:
        target = out + row.to(tl.int64)[:, None] * n + column[None, :]
        tl.store(target, total.to(out.dtype.element_ty), mask=is_row & is_column[None, :])
