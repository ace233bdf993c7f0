"""Matrices in four bits, and out = x @ w.T with them.

One layout, whoever made the checkpoint. A row is cut into pieces of 128 columns, each of 16 words; word i of a piece
has the columns i, 16 + i, 32 + i, ... 112 + i, the first in its lowest four bits. So the words of a piece, shifted
alike, are 16 neighbours that meet 16 neighbours of x, and no number has to change hands:

    piece     | 0 .......... 15 | 16 ......... 31 | ... | 112 ...... 127 |
    words &   | 0x0000000f      | 0x000000f0      | ... | 0xf0000000     |

A row or two are summed on the ordinary cores, as in `gemv`: that is nothing but reading the weights. Some more go
through the tensor cores, the weights widened on the way there. For many it is quicker to widen some rows of weights
first, into room that the L2 cache holds, and leave the product to cuBLAS.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from math import gcd
from typing import Self

import torch
import triton
import triton.language as tl

from hotloop.backends.cuda.overlap import let_next_begin, overlap, wait_for_previous
from hotloop.models.memory import INT4_PIECE as PIECE

_WORDS = tl.constexpr(32)  # of a piece, and columns of it that meet at a time
_NUM_SHIFTS = 8
_MAX_SPLIT_TILES = 1 << 15
_ALIGNMENT = 256  # of the rows widened at a time: cuBLAS is slow at an odd place
WIDENED = 32 << 20  # weights at a time, 64 MiB in bf16
WIDEN_ROWS, WIDEN_WARPS = 64, 4  # of a program


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


TILES = (
    Tile(16, 16, 64, 2, 4, 6),
    Tile(32, 32, 64, 2, 4, 6),
    Tile(64, 64, 64, 4, 3, 4),
    Tile(256, 128, 128, 8, 3, 2),
)


@dataclass(frozen=True, slots=True)
class Int4Matrix:
    """(number - zero) * scale is a weight."""

    words: torch.Tensor  # [rows, 32 * pieces] int32
    scales: torch.Tensor  # [rows, groups]
    zeros: torch.Tensor  # [rows, groups] bf16, from 0 to 15
    num_columns: int
    group_size: int
    order: torch.Tensor | None = None
    """[columns]: column i of these is order[i] of the matrix. None if they are in its own order."""

    @classmethod
    def empty(
        cls,
        num_rows: int,
        num_columns: int,
        group_size: int | None,
        *,
        device: torch.device,
        scale_dtype: torch.dtype = torch.float16,
        order: torch.Tensor | None = None,
    ) -> Self:
        num_pieces = -(-num_columns // PIECE)
        group_size = group_size or num_pieces * PIECE
        num_groups = -(-num_columns // group_size)
        return cls(
            torch.empty(num_rows, num_pieces * _WORDS.value, dtype=torch.int32, device=device),
            torch.empty(num_rows, num_groups, dtype=scale_dtype, device=device),
            torch.empty(num_rows, num_groups, dtype=torch.bfloat16, device=device),
            num_columns,
            group_size,
            order,
        )

    def __len__(self) -> int:
        return len(self.words)

    def __getitem__(self, rows: slice) -> "Int4Matrix":
        return self._with(self.words[rows], self.scales[rows], self.zeros[rows])

    @property
    def shape(self) -> torch.Size:
        return torch.Size((len(self.words), self.num_columns))

    @property
    def nbytes(self) -> int:
        return self.words.nbytes + self.scales.nbytes + self.zeros.nbytes

    def split(self, sizes: Sequence[int]) -> list["Int4Matrix"]:
        """By rows, in place."""
        parts = zip(self.words.split(sizes), self.scales.split(sizes), self.zeros.split(sizes), strict=True)
        return [self._with(*part) for part in parts]

    def fill(self, numbers: torch.Tensor, zeros: torch.Tensor | int, scales: torch.Tensor) -> None:
        """From numbers [rows, columns], one a byte and in the order held, and zero points and scales [rows, groups]."""
        padding = self.words.shape[1] * _NUM_SHIFTS - self.num_columns
        padded = torch.nn.functional.pad(numbers.contiguous(), (0, padding))
        pieces = padded.unflatten(1, (-1, _NUM_SHIFTS, _WORDS.value))
        words = self.words.zero_().unflatten(1, (-1, _WORDS.value))
        for shift in range(_NUM_SHIFTS):
            words |= pieces[:, :, shift].int() << 4 * shift
        self.scales.copy_(scales)
        self.zeros.fill_(zeros) if isinstance(zeros, int) else self.zeros.copy_(zeros)

    def widened(self) -> torch.Tensor:
        """In float32, and in the matrix's own order."""
        shifts = torch.arange(0, 4 * _NUM_SHIFTS, 4, dtype=torch.int32, device=self.words.device)
        pieces = self.words.unflatten(1, (-1, 1, _WORDS.value)) >> shifts[:, None] & 15
        numbers = pieces.flatten(1)[:, : self.num_columns].float()
        groups = torch.arange(self.num_columns, device=self.words.device) // self.group_size
        weights = (numbers - self.zeros[:, groups]) * self.scales[:, groups].float()
        if self.order is None:
            return weights
        return torch.empty_like(weights).index_copy_(1, self.order, weights)

    def _with(self, words: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor) -> "Int4Matrix":
        return Int4Matrix(words, scales, zeros, self.num_columns, self.group_size, self.order)


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
    num_parts = triton.cdiv(len(weight) * weight.num_columns, WIDENED)
    num_widened = triton.cdiv(len(weight), num_parts * _ALIGNMENT) * _ALIGNMENT
    room = x.new_empty(min(len(weight), num_widened), weight.num_columns)
    for begin in range(0, len(weight) if num_rows else 0, num_widened):
        part = weight[begin : begin + num_widened]
        torch.mm(x, widen(part, room[: len(part)]).t(), out=out[:, begin : begin + len(part)])
    return out if bias is None else out.add_(bias)


def is_tiled(num_rows: int, weight: Int4Matrix) -> bool:
    """Whether so many rows go through `tile_product`, which can pass a gate."""
    return num_rows <= TILES[-1].max_rows and _shared_shifts(weight) > 0


def _shared_shifts(weight: Int4Matrix) -> int:
    """How many shifts in a row meet one group; 0 if not even one does."""
    return gcd(weight.group_size, PIECE) // _WORDS.value


@cache
def _num_processors(device: torch.device) -> int:
    return int(torch.cuda.get_device_properties(device).multi_processor_count) if device.type == "cuda" else 1


@cache
def _counters(device: torch.device) -> torch.Tensor:
    """How many parts of a tile are there. Every kernel leaves it as it was: zero."""
    return torch.zeros(_MAX_SPLIT_TILES, dtype=torch.int32, device=device)


@cache
def _is_packed(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether two numbers are widened at once, by instructions that Ampere was the first to have."""
    return dtype == torch.bfloat16 and device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 0)


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
    num_pieces = weight.words.shape[1] // _WORDS.value
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
        num_pieces, split_pieces, weight.scales.shape[1], weight.group_size,
        _shared_shifts(weight), tile.rows, tile.columns, tile.num_ahead, is_gated, _is_packed(x.device, x.dtype),
        num_warps=tile.num_warps, num_stages=1 if x.dtype == torch.float32 else tile.num_stages, **overlap(x.device),
    )  # fmt: skip
    return out


@triton.jit(do_not_specialize=["num_rows", "num_pieces", "split_pieces", "num_groups"])
def _tile_product(
    x, words, scales, zeros, bias, out, parts, counters, num_rows, n, k, num_pieces, split_pieces, num_groups,
    group_size: tl.constexpr, shared: tl.constexpr, tile_m: tl.constexpr,
    tile_n: tl.constexpr, num_ahead: tl.constexpr, is_gated: tl.constexpr, is_packed: tl.constexpr, is_overlapped: tl.constexpr,
):  # fmt: skip
    """Sums of a group are scaled, not its numbers: those are exact in whatever x is held in."""
    let_next_begin(is_overlapped)
    column = _tile_columns(tl.program_id(0), tile_n, n, is_gated)
    weight_row = tl.minimum(column, n - 1).to(tl.int64)
    row = (tl.program_id(1) * tile_m + tl.arange(0, tile_m)).to(tl.int64)
    is_row = row < num_rows
    begin = tl.program_id(2) * split_pieces
    end = tl.minimum(begin + split_pieces, num_pieces)
    i = tl.arange(0, _WORDS)
    at = words + weight_row[:, None] * (num_pieces * _WORDS) + i[None, :]
    at_x = x + row[None, :] * k + i[:, None]
    if is_packed:
        for ahead in tl.static_range(num_ahead):
            _prefetch(words + (weight_row * num_pieces + tl.minimum(begin + ahead, num_pieces - 1)) * _WORDS)
        if num_ahead:
            group = tl.minimum(begin * (8 * _WORDS) // group_size, num_groups - 1)
            _prefetch(scales + weight_row * num_groups + group)
            _prefetch(zeros + weight_row * num_groups + group)
    wait_for_previous(is_overlapped)
    total = tl.zeros([tile_n, tile_m], tl.float32)
    for piece in range(begin, end):
        part = tl.load(at + piece * _WORDS)
        for shift in tl.static_range(8):
            first = (piece * 8 + shift) * _WORDS
            if shift % shared == 0:
                scale, zero = _load_group(scales, zeros, weight_row, first, num_groups, group_size)
                sums = tl.zeros([tile_n, tile_m], tl.float32)
            numbers = _numbers(part, zero[:, None], shift, x.dtype.element_ty, is_packed)
            is_in = (first + i < k)[:, None] & is_row[None, :]
            sums = tl.dot(numbers, tl.load(at_x + first, mask=is_in, other=0.0), sums, input_precision="tf32x3")
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
def _load_group(scales, zeros, weight_row, column, num_groups, group_size: tl.constexpr):
    """The scale and the zero point of these rows at these columns."""
    at = weight_row * num_groups + tl.minimum(column // group_size, num_groups - 1)
    return tl.load(scales + at), tl.load(zeros + at)


@triton.jit
def _numbers(words, zero, shift: tl.constexpr, dtype: tl.constexpr, is_packed: tl.constexpr):
    """Number - zero of [rows, 16] words at a shift, both exact.

    Packed: the low or high halves of two words side by side, four bits of either below the exponent of 128 in bf16,
    and 128 + zero taken off again.
    """
    if is_packed:
        offset = (-128.0 - zero.to(tl.float32)).to(tl.bfloat16)
        return tl.inline_asm_elementwise(
            """{
            .reg .b32 pair, one;
            mov.b32 one, 0x3f803f80;
            prmt.b32 pair, $1, $2, $4;
            shr.b32 pair, pair, $6;
            lop3.b32 pair, pair, 0x000f000f, 0x43004300, 0xea;
            fma.rn.bf16x2 $0, pair, one, $3;
            }""",
            "=r,r,r,r,r,r,r,r",
            [words, offset, 0x5410 if shift < 4 else 0x7632, 4 * (shift % 4)],
            dtype=tl.bfloat16,
            is_pure=True,
            pack=2,
        )
    return ((words >> 4 * shift & 15).to(tl.float32) - zero.to(tl.float32)).to(dtype)


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
def _finish_last(
    parts, bias, out, counters, row, is_row, num_rows, n, tile_n: tl.constexpr, is_gated: tl.constexpr
):
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


def widen(weight: Int4Matrix, out: torch.Tensor) -> torch.Tensor:
    """All of it in `out` [rows, columns], in the order it is held in."""
    num_pieces = weight.words.shape[1] // _WORDS.value
    _widen[(num_pieces, triton.cdiv(len(weight), WIDEN_ROWS))](
        weight.words, weight.scales, weight.zeros, out, len(weight), weight.num_columns, num_pieces,
        weight.scales.shape[1], weight.group_size, _shared_shifts(weight), WIDEN_ROWS,
        _is_packed(out.device, out.dtype), num_warps=WIDEN_WARPS, **overlap(out.device),
    )  # fmt: skip
    return out


@triton.jit(do_not_specialize=["n", "num_pieces", "num_groups"])
def _widen(
    words, scales, zeros, out, n, k, num_pieces, num_groups, group_size: tl.constexpr, shared: tl.constexpr,
    tile_n: tl.constexpr, is_packed: tl.constexpr, is_overlapped: tl.constexpr,
):  # fmt: skip
    let_next_begin(is_overlapped)
    piece = tl.program_id(0)
    row = tl.program_id(1) * tile_n + tl.arange(0, tile_n)
    is_row = (row < n)[:, None]
    row = tl.minimum(row, n - 1).to(tl.int64)[:, None]
    i = tl.max_contiguous(tl.arange(0, _WORDS), 4)[None, :]  # of four words, so that the numbers stay where they are
    part = tl.load(words + row * (num_pieces * _WORDS) + piece * _WORDS + i)
    wait_for_previous(is_overlapped)
    for shift in tl.static_range(8):
        first = (piece * 8 + shift) * _WORDS
        if shared == 0:
            scale, zero = _load_group(scales, zeros, row, first + i, num_groups, group_size)
        elif shift % shared == 0:
            scale, zero = _load_group(scales, zeros, row, first, num_groups, group_size)
        numbers = _numbers(part, zero, shift, out.dtype.element_ty, is_packed)
        weight = (numbers.to(tl.float32) * scale.to(tl.float32)).to(out.dtype.element_ty)
        tl.store(out + row * k + first + i, weight, mask=is_row & (first + i < k))
