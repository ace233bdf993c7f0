"""out = x @ w.T with matrices in four bits.

Up to some hundred rows go through the tensor cores, the numbers dequantised on the way there, two at a time. The
weights are the larger side, so they are the first factor, which the tensor cores take from registers:

    out.T [n, rows] = weights [n, k] @ x.T [k, rows]

For more rows it is quicker to dequantise a part of the weights first and leave the product to cuBLAS.
"""

from dataclasses import dataclass
from functools import cache

import torch
import triton
import triton.language as tl

from hotloop.backends.cuda.overlap import let_next_begin, overlap, wait_for_previous
from hotloop.backends.cuda.quant.int4 import (
    NUM_WORDS,
    Int4Matrix,
    centred,
    dequantise,
    is_packed,
    load_group,
    shared_shifts,
)
from hotloop.models.memory import INT4_PIECE as PIECE

_MAX_SPLIT_TILES = 1 << 15
_ALIGNMENT = 256  # of the rows dequantised at a time: cuBLAS is slow at an odd place
DEQUANTISED_WEIGHTS = 32 << 20  # weights at a time, 64 MiB in bf16


@dataclass(frozen=True, slots=True)
class Tile:
    """What a program makes for up to so many rows: so many rows of x by so many of the weights."""

    max_rows: int
    rows: int
    columns: int
    num_warps: int
    num_stages: int
    programs: int  # a processor, reached by splitting the columns of the weights
    min_pieces: int = 2  # of 256 columns that a program has
    num_ahead: int = 2  # of these that are on their way to the L2 cache before the kernel in front has ended


TILES = (  # measured on an H200
    Tile(8, 8, 64, num_warps=2, num_stages=5, programs=4, num_ahead=1),
    Tile(16, 16, 64, num_warps=2, num_stages=4, programs=4),
    Tile(32, 32, 128, num_warps=8, num_stages=3, programs=2),
    Tile(64, 64, 64, num_warps=4, num_stages=3, programs=2),
    Tile(256, 128, 128, num_warps=8, num_stages=3, programs=1, min_pieces=4),
)


def multiply(
    x: torch.Tensor,  # [rows, k]
    weight: Int4Matrix,  # [n, k]
    bias: torch.Tensor | None = None,  # [n]
    *,
    is_gated: bool = False,  # silu(first half) * second half, where `is_tiled`
) -> torch.Tensor:
    """[rows, n], or [rows, n / 2] if gated."""
    num_rows = len(x)
    x = x if weight.order is None else x.index_select(1, weight.order)
    if num_rows and is_tiled(num_rows, weight):
        out = x.new_empty(num_rows, len(weight) // 2 if is_gated else len(weight))
        return tile_product(x, weight, out, bias=bias, is_gated=is_gated)
    assert not is_gated
    out = x.new_empty(num_rows, len(weight))
    num_parts = triton.cdiv(len(weight) * weight.num_columns, DEQUANTISED_WEIGHTS)
    num_dequantised = triton.cdiv(len(weight), num_parts * _ALIGNMENT) * _ALIGNMENT
    room = x.new_empty(min(len(weight), num_dequantised), weight.num_columns)
    for begin in range(0, len(weight) if num_rows else 0, num_dequantised):
        part = weight[begin : begin + num_dequantised]
        torch.mm(x, dequantise(part, room[: len(part)]).t(), out=out[:, begin : begin + len(part)])
    return out if bias is None else out.add_(bias)


def is_tiled(num_rows: int, weight: Int4Matrix) -> bool:
    """Whether so many rows go through `tile_product`, which can pass a gate. Groups of less than 32 columns do not."""
    return num_rows <= TILES[-1].max_rows and shared_shifts(weight) > 0


@cache
def _num_processors(device: torch.device) -> int:
    return int(torch.cuda.get_device_properties(device).multi_processor_count) if device.type == "cuda" else 1


@cache
def _num_stages(tile: Tile, device: torch.device, dtype: torch.dtype) -> int:
    """As many as the tile has and shared memory holds: small cards have less than half of an H200's."""
    if device.type != "cuda" or dtype == torch.float32:
        return 1
    room = torch.cuda.get_device_properties(device).shared_memory_per_block_optin
    words, values = tile.columns * PIECE // 2, tile.rows * PIECE * dtype.itemsize
    held = (num for num in range(tile.num_stages, 1, -1) if (num - 1) * words + num * values <= room)
    return next(held, 1)


@cache
def _counters(device: torch.device) -> torch.Tensor:
    """How many parts of a tile are there. Every kernel leaves it as it was: zero."""
    return torch.zeros(_MAX_SPLIT_TILES, dtype=torch.int32, device=device)


def tile_product(
    x: torch.Tensor,  # [rows, k]
    weight: Int4Matrix,  # [n, k]
    out: torch.Tensor,  # [rows, n], or [rows, n / 2] if gated
    *,
    bias: torch.Tensor | None = None,
    is_gated: bool = False,
    tile: Tile | None = None,
    num_splits: int | None = None,
) -> torch.Tensor:
    """On the tensor cores. Where there are too few tiles for all processors, each is made in parts, and these added."""
    num_rows, k = x.shape
    n = len(weight)
    assert k == weight.num_columns
    tile = tile or next((each for each in TILES if num_rows <= each.max_rows), TILES[-1])
    num_pieces = weight.words.shape[1] // NUM_WORDS.value
    grid = triton.cdiv(n, tile.columns), triton.cdiv(num_rows, tile.rows)
    if num_splits is None:
        wanted = tile.programs * _num_processors(x.device) // (grid[0] * grid[1])
        num_splits = max(1, min(wanted, num_pieces // tile.min_pieces))
    split_pieces = triton.cdiv(num_pieces, num_splits)
    num_splits = triton.cdiv(num_pieces, split_pieces)
    has_parts = num_splits > 1 or is_gated
    assert not has_parts or grid[0] * grid[1] <= _MAX_SPLIT_TILES
    parts = x.new_empty(num_splits, num_rows, n, dtype=torch.float32) if has_parts else None
    _tile_product[(*grid, num_splits)](
        x, weight.words, weight.scales, weight.zeros, bias, out, parts, _counters(x.device), num_rows, n, k,
        num_pieces, split_pieces, weight.scales.shape[1], weight.group_size, shared_shifts(weight), tile.rows,
        tile.columns, tile.num_ahead, is_gated, is_packed(x.device, x.dtype),
        num_warps=tile.num_warps, num_stages=_num_stages(tile, x.device, x.dtype), **overlap(x.device),
    )  # fmt: skip
    return out


@triton.jit(do_not_specialize=["num_rows", "num_pieces", "split_pieces", "num_groups"])
def _tile_product(
    x, words, scales, zeros, bias, out, parts, counters, num_rows, n, k, num_pieces, split_pieces, num_groups,
    group_size: tl.constexpr, shared: tl.constexpr, tile_m: tl.constexpr, tile_n: tl.constexpr,
    num_ahead: tl.constexpr, is_gated: tl.constexpr, is_packed: tl.constexpr,
    is_overlapped: tl.constexpr,
):  # fmt: skip
    """The sums of a group are scaled, not its weights: numbers of four bits are exact."""
    let_next_begin(is_overlapped)
    column = _tile_columns(tl.program_id(0), tile_n, n, is_gated)
    weight_row = tl.minimum(column, n - 1).to(tl.int64)
    row = (tl.program_id(1) * tile_m + tl.arange(0, tile_m)).to(tl.int64)
    is_row = row < num_rows
    begin = tl.program_id(2) * split_pieces
    end = tl.minimum(begin + split_pieces, num_pieces)
    i = tl.arange(0, NUM_WORDS)
    at = words + weight_row[:, None] * (num_pieces * NUM_WORDS) + i[None, :]
    at_x = x + row[None, :] * k + i[:, None]
    if is_packed:
        for ahead in tl.static_range(num_ahead):
            _prefetch(words + (weight_row * num_pieces + tl.minimum(begin + ahead, num_pieces - 1)) * NUM_WORDS)
        if num_ahead:
            group = tl.minimum(begin * (8 * NUM_WORDS) // group_size, num_groups - 1)
            _prefetch(scales + weight_row * num_groups + group)
            _prefetch(zeros + weight_row * num_groups + group)
    wait_for_previous(is_overlapped)
    total = tl.zeros([tile_n, tile_m], tl.float32)
    for piece in range(begin, end):
        part = tl.load(at + piece * NUM_WORDS)
        for shift in tl.static_range(8):
            first = (piece * 8 + shift) * NUM_WORDS
            if shift % shared == 0:
                scale, zero = load_group(scales, zeros, weight_row, first, num_groups, group_size)
                sums = tl.zeros([tile_n, tile_m], tl.float32)
            weights = centred(part, zero[:, None], shift, x.dtype.element_ty, is_packed)
            is_in = (first + i < k)[:, None] & is_row[None, :]
            sums = tl.dot(weights, tl.load(at_x + first, mask=is_in, other=0.0), sums, input_precision="tf32x3")
            if (shift + 1) % shared == 0:
                total += sums * scale.to(tl.float32)[:, None]
    is_in = (column < n)[:, None] & is_row[None, :]
    if parts is None:
        if bias is not None:
            total += tl.load(bias + column, mask=column < n, other=0.0).to(tl.float32)[:, None]
        tl.store(out + row[None, :] * n + column[:, None], total.to(out.dtype.element_ty), mask=is_in)
    else:
        at_part = parts + (tl.program_id(2) * num_rows + row)[None, :] * n + column[:, None]
        tl.store(at_part, total, mask=is_in)
        _finish_last(parts, bias, out, counters, row, is_row, num_rows, n, tile_n, is_gated)


@triton.jit
def _prefetch(at):
    tl.inline_asm_elementwise(
        "prefetch.global.L2 [$1]; mov.b32 $0, 0;", "=r,l", [at.to(tl.int64)], dtype=tl.int32, is_pure=False, pack=1
    )


@triton.jit
def _tile_columns(tile, tile_n: tl.constexpr, n, is_gated: tl.constexpr):
    """The rows of the weights that a tile has: if gated, one half of the tile is of the first half of them."""
    j = tl.arange(0, tile_n)
    if is_gated:
        half: tl.constexpr = tile_n // 2
        column = tile * half + j % half
        return tl.where(column < n // 2, column + j // half * (n // 2), n)
    return tile * tile_n + j


@triton.jit
def _finish_last(parts, bias, out, counters, row, is_row, num_rows, n, tile_n: tl.constexpr, is_gated: tl.constexpr):
    """Whoever is the last to make a part of a tile adds them all, in their order."""
    counter = counters + tl.program_id(1) * tl.num_programs(0) + tl.program_id(0)
    tl.debug_barrier()
    num_parts = tl.num_programs(2)
    if tl.atomic_add(counter, 1, sem="acq_rel") == num_parts - 1:
        tl.store(counter, 0)
        if is_gated:
            column = tl.program_id(0) * (tile_n // 2) + tl.arange(0, tile_n // 2)
            is_in = is_row[:, None] & (column < n // 2)[None, :]
            gate = _sum_parts(parts, bias, row, column, is_in, num_rows, n, num_parts)
            up = _sum_parts(parts, bias, row, column + n // 2, is_in, num_rows, n, num_parts)
            value = gate * tl.sigmoid(gate) * up
            at = out + row[:, None] * (n // 2) + column[None, :]
        else:
            column = tl.program_id(0) * tile_n + tl.arange(0, tile_n)
            is_in = is_row[:, None] & (column < n)[None, :]
            value = _sum_parts(parts, bias, row, column, is_in, num_rows, n, num_parts)
            at = out + row[:, None] * n + column[None, :]
        tl.store(at, value.to(out.dtype.element_ty), mask=is_in)


@triton.jit
def _sum_parts(parts, bias, row, column, is_in, num_rows, n, num_parts):
    total = tl.zeros([row.shape[0], column.shape[0]], tl.float32)
    for part in range(num_parts):
        at = parts + (part * num_rows + row)[:, None] * n + column[None, :]
        total += tl.load(at, mask=is_in, other=0.0, cache_modifier=".cg")  # of other processors
    if bias is not None:
        total += tl.load(bias + column, mask=column < n, other=0.0).to(tl.float32)[None, :]
    return total
