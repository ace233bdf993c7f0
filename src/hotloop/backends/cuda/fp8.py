"""e4m3: numbers of eight bits, three of them fraction, and a scale for each row of a matrix that is held in them.

Weights become so once, when they are loaded. A product of many rows makes its input so too, row by row, and runs on the
tensor cores at twice the speed of bf16; one of a row or two (see gemv) widens the weights and leaves its input alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import torch
import triton
import triton.language as tl

from hotloop.backends.cuda.overlap import let_next_begin, overlap, wait_for_previous

E4M3 = torch.float8_e4m3fn
_LARGEST = tl.constexpr(448.0)
_LEAST_SCALE = tl.constexpr(1e-12)


@dataclass(frozen=True, slots=True)
class Fp8Matrix:
    """values[i] * scales[i] is row i."""

    values: torch.Tensor  # [rows, columns] e4m3
    scales: torch.Tensor  # [rows] float32

    @classmethod
    def empty(cls, num_rows: int, num_columns: int, device: torch.device) -> Self:
        return cls(
            torch.empty(num_rows, num_columns, dtype=E4M3, device=device),
            torch.empty(num_rows, dtype=torch.float32, device=device),
        )

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, rows: slice) -> "Fp8Matrix":
        return Fp8Matrix(self.values[rows], self.scales[rows])

    @property
    def shape(self) -> torch.Size:
        return self.values.shape

    @property
    def nbytes(self) -> int:
        return self.values.nbytes + self.scales.nbytes

    def split(self, sizes: Sequence[int]) -> list["Fp8Matrix"]:
        """By rows, in place."""
        parts = zip(self.values.split(sizes), self.scales.split(sizes), strict=True)
        return [Fp8Matrix(values, scales) for values, scales in parts]

    def widened(self) -> torch.Tensor:
        """In float32."""
        return self.values.float() * self.scales[:, None]


def quantise(x: torch.Tensor, out: Fp8Matrix | None = None) -> Fp8Matrix:
    """Each row [columns] by the scale that makes its largest number e4m3's largest."""
    num_rows, size = x.shape
    out = out or Fp8Matrix.empty(num_rows, size, x.device)
    if not x.is_cuda:  # the interpreter forgets a carry when it rounds to e4m3
        out.scales.copy_(x.abs().amax(1).float().div(_LARGEST.value).clamp_(_LEAST_SCALE.value))
        out.values.copy_(x.float() / out.scales[:, None])
        return out
    tile = triton.next_power_of_2(size)
    num_warps = min(16, max(4, tile // 1024))
    _quantise[(num_rows,)](x, out.values, out.scales, size, tile, num_warps=num_warps, **overlap(x.device))
    return out


@triton.jit
def _quantise(x, values, scales, size: tl.constexpr, tile: tl.constexpr, is_overlapped: tl.constexpr):
    let_next_begin(is_overlapped)
    wait_for_previous(is_overlapped)
    row = tl.program_id(0).to(tl.int64)
    i = tl.arange(0, tile)
    value = tl.load(x + row * size + i, mask=i < size, other=0.0).to(tl.float32)
    scale = tl.maximum(tl.max(tl.abs(value), 0) / _LARGEST, _LEAST_SCALE)
    tl.store(values + row * size + i, (value / scale).to(values.dtype.element_ty), mask=i < size)
    tl.store(scales + row, scale)


def multiply(x: torch.Tensor, weight: Fp8Matrix) -> torch.Tensor:
    """[rows, out] of x [rows, in] and a weight [out, in]. On the card, sizes are multiples of 16."""
    x_fp8 = quantise(x)
    if not x.is_cuda:
        return (x_fp8.widened() @ weight.widened().t()).to(x.dtype)
    out = torch._scaled_mm(
        x_fp8.values, weight.values.t(), scale_a=x_fp8.scales[:, None], scale_b=weight.scales[None, :],
        out_dtype=torch.bfloat16, use_fast_accum=True,
    )  # fmt: skip
    return out.to(x.dtype)
