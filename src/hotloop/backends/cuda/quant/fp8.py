"""e4m3: numbers of eight bits, three of them fraction, and a scale for each row of a matrix that is held in them; for a
head, whose errors are the logits', int8 in the same way.

Weights become so once, when they are loaded. A product of many rows makes its input so too, row by row, and runs on the
tensor cores at twice the speed of bf16; one of a row or two (see gemv) dequantises the weights only.

Keys and values can be so as well, by a scale for each layer and head that never changes, for blocks are shared.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import torch
import triton
import triton.language as tl

from hotloop.backends.cuda.overlap import let_next_begin, overlap, wait_for_previous
from hotloop.core.config import Precision
from hotloop.core.errors import ConfigError

ALIGNMENT = 16
"""What both sizes of a matrix are multiples of: the library multiplies no others."""
E4M3 = torch.float8_e4m3fn
FP8_CAPABILITY = (8, 9)
_LARGEST = {E4M3: 448.0, torch.int8: 127.0}
_LEAST_SCALE = tl.constexpr(1e-12)
_TILE_TOKENS = 128
_TILE_K = 128
TILE_ROWS = (16, 64, 128)


def check_device(what: str, precision: Precision) -> None:
    """Refuse `what`, a setting, where e4m3 is not supported."""
    if precision == "exact":
        raise ConfigError(f"{what}=fp8 cannot be combined with precision=exact")
    capability = torch.cuda.get_device_capability()
    if capability < FP8_CAPABILITY:
        name = torch.cuda.get_device_name()
        raise ConfigError(
            f"{what} fp8 needs a GPU of compute capability 8.9; {name} has {'.'.join(map(str, capability))}"
        )


@dataclass(frozen=True, slots=True)
class ScaledMatrix:
    """values[i] * scales[i] is row i."""

    values: torch.Tensor  # [rows, columns] e4m3 or int8
    scales: torch.Tensor  # [rows] float32

    @classmethod
    def empty(cls, num_rows: int, num_columns: int, device: torch.device, dtype: torch.dtype = E4M3) -> Self:
        return cls(
            torch.empty(num_rows, num_columns, dtype=dtype, device=device),
            torch.empty(num_rows, dtype=torch.float32, device=device),
        )

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, rows: slice) -> "ScaledMatrix":
        return ScaledMatrix(self.values[rows], self.scales[rows])

    @property
    def shape(self) -> torch.Size:
        return self.values.shape

    @property
    def nbytes(self) -> int:
        return self.values.nbytes + self.scales.nbytes

    def split(self, sizes: Sequence[int]) -> list["ScaledMatrix"]:
        """By rows, in place."""
        parts = zip(self.values.split(sizes), self.scales.split(sizes), strict=True)
        return [ScaledMatrix(values, scales) for values, scales in parts]

    def dequantised(self) -> torch.Tensor:
        return self.values.float() * self.scales[:, None]


def quantise(x: torch.Tensor, out: ScaledMatrix | None = None) -> ScaledMatrix:
    """Each row [columns] by the scale that makes its largest number the type's largest."""
    num_rows, size = x.shape
    out = out or ScaledMatrix.empty(num_rows, size, x.device)
    largest = _LARGEST[out.values.dtype]
    if not x.is_cuda:  # the interpreter forgets a carry when it rounds to e4m3
        out.scales.copy_(x.abs().amax(1).float().div(largest).clamp_(_LEAST_SCALE.value))
        scaled = x.float() / out.scales[:, None]
        out.values.copy_(scaled if out.values.dtype == E4M3 else scaled.round())
        return out
    tile = triton.next_power_of_2(size)
    num_warps = min(16, max(4, tile // 1024))
    _quantise[(num_rows,)](x, out.values, out.scales, size, tile, largest, num_warps=num_warps, **overlap(x.device))
    return out


@triton.jit
def _quantise(
    x, values, scales, size: tl.constexpr, tile: tl.constexpr, largest: tl.constexpr, is_overlapped: tl.constexpr
):
    let_next_begin(is_overlapped)
    wait_for_previous(is_overlapped)
    row = tl.program_id(0).to(tl.int64)
    i = tl.arange(0, tile)
    value = tl.load(x + row * size + i, mask=i < size, other=0.0).to(tl.float32)
    scale = tl.maximum(tl.max(tl.abs(value), 0) / largest, _LEAST_SCALE)
    value /= scale
    if values.dtype.element_ty == tl.int8:
        value += tl.where(value < 0, -0.5, 0.5)  # what follows cuts
    tl.store(values + row * size + i, value.to(values.dtype.element_ty), mask=i < size)
    tl.store(scales + row, scale)


def keep_fp8(values: torch.Tensor, scales: torch.Tensor, groups: torch.Tensor, out: ScaledMatrix) -> None:
    """From e4m3 [rows, columns] and scales [rows, groups], where `groups` [columns] says which a column has.

    A row has the largest of its scales for all: numbers that had it stay what they were, and those with a smaller one
    are rounded once more, unless the two differ by a power of two.
    """
    largest = scales.amax(1)
    ratios = scales / largest.clamp(_LEAST_SCALE.value)[:, None]
    out.scales.copy_(largest)
    out.values.copy_(values if scales.shape[1] == 1 else values.float() * ratios[:, groups])


def multiply(x: torch.Tensor, weight: ScaledMatrix) -> torch.Tensor:
    """[rows, out] of x [rows, in] and a weight [out, in], whose sizes are multiples of ALIGNMENT."""
    x_fp8 = quantise(x)
    if not x.is_cuda:
        return (x_fp8.dequantised() @ weight.dequantised().t()).to(x.dtype)
    out = torch._scaled_mm(
        x_fp8.values, weight.values.t(), scale_a=x_fp8.scales[:, None], scale_b=weight.scales[None, :],
        out_dtype=torch.bfloat16, use_fast_accum=True,
    )  # fmt: skip
    return out.to(x.dtype)


def int8_logits(x: torch.Tensor, head: ScaledMatrix) -> torch.Tensor:
    """[rows, vocabulary] float32 of x [rows, hidden]: the head is dequantised on the way to the tensor cores, and
    rows stay what they are. It is the larger side, so the first factor, which the tensor cores take from registers:

    out.T [vocabulary, rows] = head [vocabulary, hidden] @ x.T [hidden, rows]
    """
    num_rows, k = x.shape
    out = torch.empty(num_rows, len(head), dtype=torch.float32, device=x.device)
    if not num_rows:
        return out
    if not x.is_cuda:
        x = x.float()  # the interpreter multiplies the bits of bf16
    tile_rows = next((size for size in TILE_ROWS if num_rows <= size), TILE_ROWS[-1])
    grid = (triton.cdiv(num_rows, tile_rows), triton.cdiv(len(head), _TILE_TOKENS))
    _int8_logits[grid](
        x, head.values, head.scales, out, num_rows, len(head), k, tile_rows, _TILE_TOKENS, _TILE_K,
        num_warps=8 if tile_rows > 64 else 4, num_stages=1 if x.dtype == torch.float32 else 4,
    )  # fmt: skip
    return out


@triton.jit(do_not_specialize=["num_rows"])
def _int8_logits(
    x, head, scales, out, num_rows, num_tokens, k: tl.constexpr, tile_rows: tl.constexpr,
    tile_tokens: tl.constexpr, tile_k: tl.constexpr,
):  # fmt: skip
    """Program (tile of rows, tile of tokens): neighbours read the same weights."""
    row = tl.program_id(0) * tile_rows + tl.arange(0, tile_rows)
    token = tl.program_id(1) * tile_tokens + tl.arange(0, tile_tokens)
    is_row, is_token = row < num_rows, token < num_tokens
    i = tl.arange(0, tile_k)
    at_x = x + row.to(tl.int64)[:, None] * k + i[None, :]
    at_head = head + token.to(tl.int64)[:, None] * k + i[None, :]
    total = tl.zeros([tile_tokens, tile_rows], tl.float32)
    for begin in range(0, k, tile_k):
        is_in = (begin + i < k)[None, :]
        rows = tl.load(at_x + begin, mask=is_row[:, None] & is_in, other=0.0)
        weights = tl.load(at_head + begin, mask=is_token[:, None] & is_in, other=0)
        total = tl.dot(weights.to(rows.dtype), tl.trans(rows), total, input_precision="tf32x3")
    total *= tl.load(scales + token, mask=is_token, other=0.0)[:, None]
    at_out = out + row.to(tl.int64)[None, :] * num_tokens + token[:, None]
    tl.store(at_out, total, mask=is_token[:, None] & is_row[None, :])


def kv_scales(
    weights: torch.Tensor,  # [keys and values, num_kv_heads, head_dim, hidden] float32, times the norm in front
    bias: torch.Tensor | None,  # [keys and values, num_kv_heads, head_dim]
    key_norm: torch.Tensor | None,  # [head_dim]
) -> torch.Tensor:
    """[2 * num_kv_heads] float32: what keys and values of each head are divided by to become e4m3.

    They follow from the weights, so no text has to be measured, and none can exceed them. What a norm leaves has the
    length sqrt(hidden), so a row w makes at most |w| sqrt(hidden) of it, and rotated at most what a pair of rows does
    together. That is e4m3's largest number. Usual values, about |w|, are smaller by sqrt(hidden), 64 or 90, and e4m3
    is as precise down to a 28,000th.
    """
    head_dim, hidden_size = weights.shape[2:]
    keys, values = weights.norm(dim=-1) * math.sqrt(hidden_size) + (0 if bias is None else bias.abs())
    if key_norm is not None:
        keys = (key_norm.abs() * math.sqrt(head_dim)).expand_as(keys)
    first, second = keys.chunk(2, -1)
    largest = torch.cat((torch.hypot(first, second).amax(-1), values.amax(-1)))
    return largest.div(_LARGEST[E4M3]).clamp_(_LEAST_SCALE.value)
