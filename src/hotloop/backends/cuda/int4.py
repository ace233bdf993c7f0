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

from hotloop.backends.cuda.gemv import finish, weight_rows
from hotloop.backends.cuda.overlap import let_next_begin, overlap, wait_for_previous
from hotloop.models.memory import INT4_PIECE as PIECE

_WORDS = tl.constexpr(16)  # of a piece, and columns of it that meet at a time
_NUM_SHIFTS = 8
_EXPONENT = 0x4B000000  # of 2^23 in float32
MAX_GEMV_ROWS = 2
MAX_TILE_ROWS = 256
_WIDENED = 16 << 20  # weights at a time, 32 MiB in bf16


@dataclass(frozen=True, slots=True)
class Int4Matrix:
    """(number - zero) * scale is a weight."""

    words: torch.Tensor  # [rows, 16 * pieces] int32
    scales: torch.Tensor  # [rows, groups]
    zeros: torch.Tensor  # [rows, groups] uint8
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
            torch.empty(num_rows, num_groups, dtype=torch.uint8, device=device),
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
    is_gated: bool = False,  # silu(first half) * second half, of a row or two
) -> torch.Tensor:
    """[rows, n], or [rows, n / 2] if gated."""
    num_rows = len(x)
    x = x if weight.order is None else x.index_select(1, weight.order)
    out = x.new_empty(num_rows, len(weight) // 2 if is_gated else len(weight))
    if not num_rows:
        return out
    if num_rows <= MAX_GEMV_ROWS:
        return gemv_int4(x, weight, out, bias=bias, is_gated=is_gated)
    assert not is_gated
    if num_rows <= MAX_TILE_ROWS:
        return tile_product(x, weight, out, bias=bias)
    num_widened = min(len(weight), max(1, _WIDENED // weight.num_columns))
    room = x.new_empty(num_widened, weight.num_columns)
    for begin in range(0, len(weight), num_widened):
        part = weight[begin : begin + num_widened]
        torch.mm(x, widen(part, room[: len(part)]).t(), out=out[:, begin : begin + len(part)])
    return out if bias is None else out.add_(bias)


def _shared_shifts(weight: Int4Matrix) -> int:
    """How many shifts in a row meet one group."""
    return gcd(weight.group_size, PIECE) // _WORDS.value


@cache
def _num_processors(device: torch.device) -> int:
    return int(torch.cuda.get_device_properties(device).multi_processor_count) if device.type == "cuda" else 1


def gemv_int4(
    x: torch.Tensor,  # [rows, k]
    weight: Int4Matrix,  # [n, k]
    out: torch.Tensor,  # [rows, n], or [rows, n / 2] if gated
    *,
    bias: torch.Tensor | None = None,
    is_gated: bool = False,
    tile_n: int | None = None,
    num_warps: int = 4,
) -> torch.Tensor:
    num_rows, k = x.shape
    assert k == weight.num_columns
    num_pieces = weight.words.shape[1] // _WORDS.value
    tile_p = min(8 * num_warps, triton.next_power_of_2(num_pieces))  # four words a thread
    tile_n = tile_n or (8 if num_rows == 1 and num_pieces <= tile_p else 4)
    if not x.is_cuda:
        tile_n = 64  # the interpreter takes as long for a small tile as for a large one
    is_even = num_pieces % tile_p == 0 and k % PIECE == 0
    _gemv_int4[(triton.cdiv(len(weight), tile_n),)](
        x, weight.words, weight.scales, weight.zeros, bias, out, _EXPONENT, num_rows, len(weight), k, num_pieces,
        weight.scales.shape[1], weight.group_size, _shared_shifts(weight), triton.next_power_of_2(num_rows), tile_n,
        tile_p, is_even, is_gated, num_warps=num_warps, **overlap(x.device),
    )  # fmt: skip
    return out


@triton.jit(do_not_specialize=["exponent", "num_rows"])
def _gemv_int4(
    x, words, scales, zeros, bias, out, exponent, num_rows, n, k: tl.constexpr, num_pieces: tl.constexpr,
    num_groups: tl.constexpr, group_size: tl.constexpr, shared: tl.constexpr, row_tile: tl.constexpr,
    tile_n: tl.constexpr, tile_p: tl.constexpr, is_even: tl.constexpr, is_gated: tl.constexpr,
    is_overlapped: tl.constexpr,
):  # fmt: skip
    let_next_begin(is_overlapped)
    column = weight_rows(tl.program_id(0), tile_n, n, is_gated)
    weight_row = tl.minimum(column, n - 1).to(tl.int64)
    row = tl.arange(0, row_tile)
    # All is [rows, tile_n, tile_p, 16] from the start, and a thread has four neighbours of either side.
    piece = tl.arange(0, tile_p)[None, None, :, None]
    i = tl.max_contiguous(tl.arange(0, _WORDS), 4)[None, None, None, :]
    at = words + weight_row[None, :, None, None] * (num_pieces * _WORDS) + piece * _WORDS + i
    at_x = x + row[:, None, None, None] * k + piece * (8 * _WORDS) + i
    is_row = (row < num_rows)[:, None, None, None]
    part = tl.load(at, mask=piece < num_pieces, other=0, eviction_policy="evict_first")  # read once
    wait_for_previous(is_overlapped)
    total = tl.zeros([row_tile, tile_n, tile_p, _WORDS], tl.float32)
    for begin in range(0, num_pieces, tile_p):
        following = tl.load(
            at + (begin + tile_p) * 16, mask=piece < num_pieces - tile_p - begin, other=0, eviction_policy="evict_first"
        )
        for shift in tl.static_range(8):
            if shift % shared == 0:
                at_column = tl.arange(0, tile_p) * (8 * _WORDS) + shift * _WORDS + begin * 128
                scale, zero = _load_group(scales, zeros, weight_row, at_column, num_groups, group_size)
                scale, zero = scale[None, :, :, None], zero[None, :, :, None]
                products = tl.zeros([row_tile, tile_n, tile_p, _WORDS], tl.float32)
                sums = tl.zeros([row_tile, 1, tile_p, _WORDS], tl.float32)
            is_in = is_row if is_even else is_row & (piece * (8 * _WORDS) + i + shift * _WORDS < k - begin * 128)
            values = tl.load(at_x + begin * 128 + shift * _WORDS, mask=is_in, other=0.0).to(tl.float32)
            products += values * _unshift(shift) * _numbers(part, shift, exponent)
            sums += values
            if (shift + 1) % shared == 0:
                total += (products - zero * sums) * scale
        part = following
    finish(tl.sum(tl.sum(total, 3), 2), None, bias, out, row, (row < num_rows)[:, None], column, n, is_gated)


@triton.jit
def _load_group(scales, zeros, weight_row, column, num_groups, group_size: tl.constexpr):
    """The scale and the zero point [rows, pieces] of these rows at these columns, in float32."""
    at = weight_row[:, None] * num_groups + tl.minimum(column // group_size, num_groups - 1)[None, :]
    return tl.load(scales + at).to(tl.float32), tl.load(zeros + at).to(tl.float32)


@triton.jit
def _numbers(words, shift: tl.constexpr, exponent):
    """Numbers << 4 * (shift % 5), in float32: what the bits below the exponent of 2^23 say.

    To convert them would take four times as long. Five of eight shifts fit below the exponent, so one moves the rest.
    The exponent is an argument, for with two constants ptxas makes two instructions of one.
    """
    bits = words if shift < 5 else words >> 20
    return ((bits & (15 << 4 * (shift % 5))) | exponent).to(tl.float32, bitcast=True) - 8388608.0


@triton.jit
def _unshift(shift: tl.constexpr):
    """What the other side of a product has to be multiplied by."""
    return 1.0 / (1 << 4 * (shift % 5))


@dataclass(frozen=True, slots=True)
class Tile:
    """What a program makes: so many rows of x by so many of the weights, so many pieces at a time."""

    rows: int
    columns: int
    pieces: int
    num_warps: int
    num_stages: int


_TILES = (Tile(16, 64, 4, 4, 3), Tile(32, 64, 2, 4, 3), Tile(64, 64, 2, 4, 2), Tile(128, 128, 1, 8, 2))


def tile_product(
    x: torch.Tensor,  # [rows, k]
    weight: Int4Matrix,  # [n, k]
    out: torch.Tensor,  # [rows, n]
    *,
    bias: torch.Tensor | None = None,
    tile: Tile | None = None,
    num_splits: int | None = None,
) -> torch.Tensor:
    """On the tensor cores. Where there are too few tiles for all processors, each is made in parts, and these added."""
    num_rows, k = x.shape
    n = len(weight)
    assert k == weight.num_columns
    num_pieces = weight.words.shape[1] // _WORDS.value
    tile = tile or next((each for each in _TILES if num_rows <= each.rows), _TILES[-1])
    grid = triton.cdiv(n, tile.columns), triton.cdiv(num_rows, tile.rows)
    num_steps = triton.cdiv(num_pieces, tile.pieces)
    num_splits = num_splits or min(8, num_steps, max(1, 2 * _num_processors(x.device) // (grid[0] * grid[1])))
    split_pieces = triton.cdiv(num_steps, num_splits) * tile.pieces
    num_splits = triton.cdiv(num_pieces, split_pieces)
    num_stages = tile.num_stages if x.dtype != torch.float32 else 1  # for which there is no room on small cards
    parts = out if num_splits == 1 else x.new_empty(num_splits, num_rows, n, dtype=torch.float32)
    _tile_product[(*grid, num_splits)](
        x, weight.words, weight.scales, weight.zeros, bias if num_splits == 1 else None, parts, _EXPONENT, num_rows,
        n, k, num_pieces, split_pieces, weight.scales.shape[1], weight.group_size, _shared_shifts(weight), tile.rows,
        tile.columns, tile.pieces, num_warps=tile.num_warps, num_stages=num_stages, **overlap(x.device),
    )  # fmt: skip
    if num_splits > 1:
        size = min(1024, triton.next_power_of_2(n))
        _add_parts[(num_rows, triton.cdiv(n, size))](
            parts, bias, out, num_rows, n, num_splits, size, **overlap(x.device)
        )
    return out


@triton.jit(do_not_specialize=["exponent", "num_rows", "num_pieces", "split_pieces", "num_groups"])
def _tile_product(
    x, words, scales, zeros, bias, out, exponent, num_rows, n, k, num_pieces, split_pieces, num_groups,
    group_size: tl.constexpr, shared: tl.constexpr, tile_m: tl.constexpr, tile_n: tl.constexpr, tile_p: tl.constexpr,
    is_overlapped: tl.constexpr,
):  # fmt: skip
    let_next_begin(is_overlapped)
    wait_for_previous(is_overlapped)
    column = tl.program_id(0) * tile_n + tl.arange(0, tile_n)
    weight_row = tl.minimum(column, n - 1).to(tl.int64)
    row = (tl.program_id(1) * tile_m + tl.arange(0, tile_m)).to(tl.int64)
    is_row = row < num_rows
    begin = tl.program_id(2) * split_pieces
    i = tl.arange(0, tile_p * _WORDS)
    at = words + weight_row[:, None] * (num_pieces * _WORDS) + i[None, :]
    inside = i // _WORDS * (8 * _WORDS) + i % _WORDS
    total = tl.zeros([tile_n, tile_m], tl.float32)
    for step in range(tl.cdiv(tl.minimum(split_pieces, num_pieces - begin), tile_p)):
        piece = begin + step * tile_p
        part = tl.load(at + piece * _WORDS, mask=(i < (num_pieces - piece) * _WORDS)[None, :], other=0)
        first = (piece + tl.arange(0, tile_p)) * (8 * _WORDS)
        for shift in tl.static_range(8):
            if shift % shared == 0:
                scale, zero = _load_group(scales, zeros, weight_row, first + shift * _WORDS, num_groups, group_size)
            numbers = _numbers(part.reshape(tile_n, tile_p, _WORDS), shift, exponent) * _unshift(shift)
            weight = ((numbers - zero[:, :, None]) * scale[:, :, None]).to(x.dtype.element_ty)
            at_x = piece * (8 * _WORDS) + shift * _WORDS + inside
            is_in = (at_x < k)[:, None] & is_row[None, :]
            values = tl.load(x + row[None, :] * k + at_x[:, None], mask=is_in, other=0.0)
            total = tl.dot(weight.reshape(tile_n, tile_p * _WORDS), values, total, input_precision="tf32x3")
    is_column = column < n
    if bias is not None:
        total += tl.load(bias + column, mask=is_column, other=0.0).to(tl.float32)[:, None]
    target = out + (tl.program_id(2) * num_rows + row)[None, :] * n + column[:, None]
    tl.store(target, total.to(out.dtype.element_ty), mask=is_column[:, None] & is_row[None, :])


@triton.jit(do_not_specialize=["num_rows", "num_parts"])
def _add_parts(parts, bias, out, num_rows, n, num_parts, tile: tl.constexpr, is_overlapped: tl.constexpr):
    let_next_begin(is_overlapped)
    wait_for_previous(is_overlapped)
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * tile + tl.arange(0, tile)
    is_in = column < n
    total = tl.zeros([tile], tl.float32)
    for part in range(num_parts):
        total += tl.load(parts + (part * num_rows + row) * n + column, mask=is_in, other=0.0)
    if bias is not None:
        total += tl.load(bias + column, mask=is_in, other=0.0).to(tl.float32)
    tl.store(out + row * n + column, total.to(out.dtype.element_ty), mask=is_in)


def widen(weight: Int4Matrix, out: torch.Tensor) -> torch.Tensor:
    """All of it in `out` [rows, columns], in the order it is held in."""
    num_pieces, tile_n, tile_p = weight.words.shape[1] // _WORDS.value, 16, 8
    _widen[(triton.cdiv(len(weight), tile_n), triton.cdiv(num_pieces, tile_p))](
        weight.words, weight.scales, weight.zeros, out, _EXPONENT, len(weight), weight.num_columns, num_pieces,
        weight.scales.shape[1], weight.group_size, _shared_shifts(weight), tile_n, tile_p, **overlap(out.device),
    )  # fmt: skip
    return out


@triton.jit(do_not_specialize=["exponent", "n", "num_pieces", "num_groups"])
def _widen(
    words, scales, zeros, out, exponent, n, k, num_pieces, num_groups, group_size: tl.constexpr, shared: tl.constexpr,
    tile_n: tl.constexpr, tile_p: tl.constexpr, is_overlapped: tl.constexpr,
):  # fmt: skip
    let_next_begin(is_overlapped)
    weight_row = tl.program_id(0) * tile_n + tl.arange(0, tile_n)
    is_row = (weight_row < n)[:, None, None]
    weight_row = tl.minimum(weight_row, n - 1).to(tl.int64)
    piece = tl.program_id(1) * tile_p + tl.arange(0, tile_p)
    i = tl.arange(0, _WORDS)[None, None, :]
    at = words + weight_row[:, None, None] * (num_pieces * _WORDS) + piece[None, :, None] * _WORDS + i
    part = tl.load(at, mask=(piece < num_pieces)[None, :, None], other=0)
    wait_for_previous(is_overlapped)
    for shift in tl.static_range(8):
        first = piece * (8 * _WORDS) + shift * _WORDS
        if shift % shared == 0:
            scale, zero = _load_group(scales, zeros, weight_row, first, num_groups, group_size)
        weight = (_numbers(part, shift, exponent) * _unshift(shift) - zero[:, :, None]) * scale[:, :, None]
        column = first[None, :, None] + i
        target = out + weight_row[:, None, None] * k + column
        tl.store(target, weight.to(out.dtype.element_ty), mask=is_row & (column < k))
