"""Matrices in four bits: how they are held, and how they are dequantised. Products with them are in `int4_product`.

One layout, whoever made the checkpoint. A row is cut into pieces of 256 columns, each of 32 words; word i of a piece
has the columns i, 32 + i, 64 + i, ... 224 + i, the first in its lowest four bits. So the words of a piece, shifted
alike, are 32 neighbours that meet 32 neighbours of x, and no number has to change hands:

    piece     | 0 .......... 31 | 32 ......... 63 | ... | 224 ...... 255 |
    words &   | 0x0000000f      | 0x000000f0      | ... | 0xf0000000     |
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

NUM_WORDS = tl.constexpr(32)  # of a piece, and columns of it that meet at a time
_NUM_SHIFTS = 8
DEQUANTISED_ROWS, WIDEN_WARPS = 16, 4  # of a program


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
            torch.empty(num_rows, num_pieces * NUM_WORDS.value, dtype=torch.int32, device=device),
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
        pieces = padded.unflatten(1, (-1, _NUM_SHIFTS, NUM_WORDS.value))
        words = self.words.zero_().unflatten(1, (-1, NUM_WORDS.value))
        for shift in range(_NUM_SHIFTS):
            words |= pieces[:, :, shift].int() << 4 * shift
        self.scales.copy_(scales)
        self.zeros.fill_(zeros) if isinstance(zeros, int) else self.zeros.copy_(zeros)

    def dequantised(self) -> torch.Tensor:
        """In float32, and in the matrix's own order."""
        shifts = torch.arange(0, 4 * _NUM_SHIFTS, 4, dtype=torch.int32, device=self.words.device)
        pieces = self.words.unflatten(1, (-1, 1, NUM_WORDS.value)) >> shifts[:, None] & 15
        numbers = pieces.flatten(1)[:, : self.num_columns].float()
        groups = torch.arange(self.num_columns, device=self.words.device) // self.group_size
        weights = (numbers - self.zeros[:, groups]) * self.scales[:, groups].float()
        if self.order is None:
            return weights
        return torch.empty_like(weights).index_copy_(1, self.order, weights)

    def _with(self, words: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor) -> "Int4Matrix":
        return Int4Matrix(words, scales, zeros, self.num_columns, self.group_size, self.order)


def shared_shifts(weight: Int4Matrix) -> int:
    """How many shifts in a row meet one group; 0 if not even one does."""
    return gcd(weight.group_size, PIECE) // NUM_WORDS.value


@cache
def is_packed(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether two numbers are dequantised at once, by instructions that Ampere was the first to have."""
    return dtype == torch.bfloat16 and device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 0)


def dequantise(weight: Int4Matrix, out: torch.Tensor) -> torch.Tensor:
    """All of it in `out` [rows, columns], in the order it is held in."""
    num_pieces = weight.words.shape[1] // NUM_WORDS.value
    _dequantise[(num_pieces, triton.cdiv(len(weight), DEQUANTISED_ROWS))](
        weight.words, weight.scales, weight.zeros, out, len(weight), weight.num_columns, num_pieces,
        weight.scales.shape[1], weight.group_size, shared_shifts(weight), DEQUANTISED_ROWS,
        is_packed(out.device, out.dtype), num_warps=WIDEN_WARPS, **overlap(out.device),
    )  # fmt: skip
    return out


@triton.jit(do_not_specialize=["n", "num_pieces", "num_groups"])
def _dequantise(
    words, scales, zeros, out, n, k, num_pieces, num_groups, group_size: tl.constexpr, shared: tl.constexpr,
    tile_n: tl.constexpr, is_packed: tl.constexpr, is_overlapped: tl.constexpr,
):  # fmt: skip
    let_next_begin(is_overlapped)
    piece = tl.program_id(0)
    row = tl.program_id(1) * tile_n + tl.arange(0, tile_n)
    is_row = (row < n)[:, None]
    row = tl.minimum(row, n - 1).to(tl.int64)[:, None]
    i = tl.max_contiguous(tl.arange(0, NUM_WORDS), 4)[None, :]  # of four words, so that the numbers stay where they are
    part = tl.load(words + row * (num_pieces * NUM_WORDS) + piece * NUM_WORDS + i)
    wait_for_previous(is_overlapped)
    for shift in tl.static_range(8):
        first = (piece * 8 + shift) * NUM_WORDS
        if shared == 0:
            scale, zero = load_group(scales, zeros, row, first + i, num_groups, group_size)
        elif shift % shared == 0:
            scale, zero = load_group(scales, zeros, row, first, num_groups, group_size)
        weight = scaled(centred(part, zero, shift, out.dtype.element_ty, is_packed), scale, is_packed)
        tl.store(out + row * k + first + i, weight, mask=is_row & (first + i < k))


@triton.jit
def load_group(scales, zeros, weight_row, column, num_groups, group_size: tl.constexpr):
    """The scale and the zero point of these rows at these columns."""
    at = weight_row * num_groups + tl.minimum(column // group_size, num_groups - 1)
    return tl.load(scales + at), tl.load(zeros + at)


@triton.jit
def centred(words, zero, shift: tl.constexpr, dtype: tl.constexpr, is_packed: tl.constexpr):
    """Number - zero of [rows, 32] words at a shift, exact in whatever it is held in.

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
def scaled(numbers, scale, is_packed: tl.constexpr):
    """Numbers * scale, rounded once. Packed: by the scale in two parts, as it has more digits than bf16."""
    scale = scale.to(tl.float32)
    if is_packed:
        high = scale.to(tl.bfloat16)
        return tl.inline_asm_elementwise(
            """{
            .reg .b32 nothing, rest;
            mov.b32 nothing, 0x80008000;
            fma.rn.bf16x2 rest, $1, $3, nothing;
            fma.rn.bf16x2 $0, $1, $2, rest;
            }""",
            "=r,r,r,r",
            [numbers, high, (scale - high.to(tl.float32)).to(tl.bfloat16)],
            dtype=tl.bfloat16,
            is_pure=True,
            pack=2,
        )
    return (numbers.to(tl.float32) * scale).to(numbers.dtype)
