"""Matrices in MXFP4 on the device: four bits a number, and for 32 neighbours of a row a power of two.

    values   [rows, groups * 16] bytes      byte j of a group: number j in the low half, number j + 16 in the high one
    scales   [rows, groups] bytes           the power, plus 127

That is GGML's order, in which neighbours stay neighbours. A number of four bits is a float16 of the same sign, exponent
and mantissa, times 2**14, and so is exact in bf16.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import torch
import triton
import triton.language as tl

from hotloop.backends.cuda.overlap import let_next_begin, overlap, wait_for_previous

GROUP = 32
_DEQUANTISED_GROUPS = 256  # that a program dequantises


@dataclass(frozen=True, slots=True)
class Mxfp4Matrix:
    values: torch.Tensor  # [rows, columns / 2]
    scales: torch.Tensor  # [rows, columns / GROUP]

    @classmethod
    def empty(cls, num_rows: int, num_columns: int, device: torch.device) -> Self:
        assert num_columns % GROUP == 0
        return cls(
            torch.empty(num_rows, num_columns // 2, dtype=torch.uint8, device=device),
            torch.empty(num_rows, num_columns // GROUP, dtype=torch.uint8, device=device),
        )

    def __len__(self) -> int:
        return len(self.values)

    @property
    def shape(self) -> torch.Size:
        return torch.Size((len(self.values), 2 * self.values.shape[1]))

    def split(self, sizes: Sequence[int]) -> list["Mxfp4Matrix"]:
        """By rows, in place."""
        parts = zip(self.values.split(sizes), self.scales.split(sizes), strict=True)
        return [Mxfp4Matrix(values, scales) for values, scales in parts]

    def fill(self, blocks: torch.Tensor) -> None:
        """From rows of bytes [rows, groups * 17], as GGML has them: a group's scale, then its values."""
        groups = blocks.view(len(self), -1, GROUP // 2 + 1)
        self.scales.copy_(groups[..., 0])
        self.values.copy_(groups[..., 1:].reshape(self.values.shape))

    def dequantised(self, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        out = torch.empty(self.shape, dtype=dtype, device=self.values.device)
        num_groups = self.scales.numel()
        _dequantise[(triton.cdiv(num_groups, _DEQUANTISED_GROUPS),)](
            self.values, self.scales, out, num_groups, _DEQUANTISED_GROUPS, **overlap(out.device)
        )
        return out


@triton.jit
def _dequantise(values, scales, out, num_groups, tile: tl.constexpr, is_overlapped: tl.constexpr):
    let_next_begin(is_overlapped)
    wait_for_previous(is_overlapped)
    group = tl.program_id(0).to(tl.int64) * tile + tl.arange(0, tile)
    is_group = (group < num_groups)[:, None]
    byte = tl.arange(0, 16)[None, :]
    codes = tl.load(values + group[:, None] * 16 + byte, mask=is_group, other=0)
    scale = _scale(tl.load(scales + group[:, None], mask=is_group, other=0))
    target = out + group[:, None] * 32 + byte
    tl.store(target, (low(codes) * scale).to(out.dtype.element_ty), mask=is_group)
    tl.store(target + 16, (high(codes) * scale).to(out.dtype.element_ty), mask=is_group)


@triton.jit
def column_of(byte):
    """Of the number in the low half of a byte of a row; that in the high one is 16 further on."""
    return tl.max_contiguous(byte // 16 * 32 + byte % 16, 16)


@triton.jit
def load_scales(scales, row, group, k: tl.constexpr):
    """Float32 [rows, groups]: what `low` and `high` of these groups of rows are to be multiplied by."""
    power = tl.load(scales + row[:, None] * (k // 32) + group[None, :], mask=(group < k // 32)[None, :], other=0)
    return _scale(power)


@triton.jit
def _scale(power):
    return (power.to(tl.int32) << 23).to(tl.float32, bitcast=True) * 16384.0


@triton.jit
def low(codes):
    return _number(codes & 15)


@triton.jit
def high(codes):
    return _number(codes >> 4)


@triton.jit
def _number(code):
    code = code.to(tl.int16)
    bits = ((code & 7) << 9) | ((code & 8) << 12)
    return bits.to(tl.float16, bitcast=True)
