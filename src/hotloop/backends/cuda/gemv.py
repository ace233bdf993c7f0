"""out = x @ w.T for a row or two, on the ordinary cores: such a product is nothing but reading its weights.

Every program owns a few rows of the weights and reads them from end to end, so there is nothing to merge and the order
of the sum is always the same. The next tile is on its way while one is summed, and the first of them is fetched
before the kernel in front has ended: weights depend on nobody.
"""

import torch
import triton
import triton.language as tl

from hotloop.backends.cuda.overlap import let_next_begin, overlap, wait_for_previous

_TILE_K = 2048
_LANE_BYTES = 16  # of weights, that a thread reads and sums by itself


def gemv(
    x: torch.Tensor,  # [rows, k]
    w: torch.Tensor,  # [n, k]
    out: torch.Tensor,  # [rows, n], or [rows, n / 2] if gated
    *,
    bias: torch.Tensor | None = None,  # [n]
    is_gated: bool = False,  # out = silu(first half) * second half
) -> torch.Tensor:
    num_rows, k = x.shape
    n = len(w)
    tile_n = 2 if num_rows == 1 and not is_gated else 4  # measured on an H200
    if not x.is_cuda:
        tile_n = 64  # the interpreter takes as long for a small tile as for a large one
    tile_k = min(_TILE_K, triton.next_power_of_2(k))
    _gemv[(triton.cdiv(n, tile_n),)](
        x, w, bias, out, num_rows, n, k, triton.next_power_of_2(num_rows), tile_n, tile_k,
        min(_LANE_BYTES // w.element_size(), tile_k), is_gated, num_warps=8, **overlap(x.device),
    )  # fmt: skip
    return out


@triton.jit(do_not_specialize=["num_rows"])
def _gemv(
    x, w, bias, out, num_rows, n, k: tl.constexpr, row_tile: tl.constexpr,
    tile_n: tl.constexpr, tile_k: tl.constexpr, lane: tl.constexpr,
    is_gated: tl.constexpr, is_overlapped: tl.constexpr,
):  # fmt: skip
    let_next_begin(is_overlapped)
    column = _weight_rows(tl.program_id(0), tile_n, n, is_gated)
    i = tl.arange(0, tile_k)
    at = w + tl.minimum(column, n - 1).to(tl.int64)[:, None] * k + i[None, :]
    row = tl.arange(0, row_tile)
    is_row = (row < num_rows)[:, None]
    part = _load_tile(at, i, k)
    wait_for_previous(is_overlapped)
    total = tl.zeros([row_tile, tile_n, tile_k // lane], tl.float32)
    for begin in range(0, k, tile_k):
        values = tl.load(x + row[:, None] * k + begin + i[None, :], mask=is_row & (begin + i < k)[None, :], other=0.0)
        values = values.to(tl.float32).reshape(row_tile, 1, tile_k // lane, lane)
        weights = part.to(tl.float32).reshape(1, tile_n, tile_k // lane, lane)
        part = _load_tile(at + begin + tile_k, begin + tile_k + i, k)
        total += tl.sum(values * weights, 3)
    _finish(tl.sum(total, 2), bias, out, row, is_row, column, n, is_gated)


@triton.jit
def _load_tile(at, i, k: tl.constexpr):
    """Nothing past the end. Read once, so the cache need not keep it."""
    return tl.load(at, mask=(i < k)[None, :], other=0.0, eviction_policy="evict_first")


@triton.jit
def _weight_rows(tile, tile_n: tl.constexpr, n, is_gated: tl.constexpr):
    """The rows of the weights that a tile has. If gated, every second one is of the second half:

    g0 u0 g1 u1 g2 u2 ...
    """
    j = tl.arange(0, tile_n)
    if is_gated:
        column = tile * (tile_n // 2) + j // 2
        return tl.where(column < n // 2, column + j % 2 * (n // 2), n)
    return tile * tile_n + j


@triton.jit
def _finish(total, bias, out, row, is_row, column, n, is_gated: tl.constexpr):
    """Add the bias to the sums [rows, tile_n] float32, pass the gate if there is one, and store."""
    is_column = column < n
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
