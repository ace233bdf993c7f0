"""GGML's blocks as numbers, computed where the bytes lie: on the GPU, so that a quantised file travels as it is.

A row is a whole number of blocks. A block of the plain kinds has 32 weights, one of the K kinds 256 in groups of 16 or
32 with a small scale each. Every kind gives the very float32 numbers that the `gguf` package gives.
"""

from collections.abc import Callable

import torch
from torch import Tensor


def dequantise(data: Tensor, kind: str) -> Tensor:
    """Rows of bytes [rows, bytes] as rows of numbers: float32, or as they are stored if that is a kind of float."""
    if kind in FLOATS:
        return data.view(FLOATS[kind])
    block_bytes, unpack = _BLOCKS[kind]
    return unpack(data.reshape(-1, block_bytes)).reshape(data.shape[0], -1)


def can_dequantise(kind: str) -> bool:
    return kind in FLOATS or kind in _BLOCKS


# Blocks are [blocks, bytes]; what is cut out of them is named as in GGML: d the scale, m or dmin the offset, qs the low
# bits of the weights, qh the high ones.


def _q4_0(blocks: Tensor) -> Tensor:
    d, qs = _cut(blocks, 2, 16)
    return _half(d) * (_fields(qs, 16, 4).float() - 8)


def _q4_1(blocks: Tensor) -> Tensor:
    d, m, qs = _cut(blocks, 2, 2, 16)
    return _half(d) * _fields(qs, 16, 4).float() + _half(m)


def _q5_0(blocks: Tensor) -> Tensor:
    d, qh, qs = _cut(blocks, 2, 4, 16)
    return _half(d) * (_five_bits(qs, qh).float() - 16)


def _q5_1(blocks: Tensor) -> Tensor:
    d, m, qh, qs = _cut(blocks, 2, 2, 4, 16)
    return _half(d) * _five_bits(qs, qh).float() + _half(m)


def _q8_0(blocks: Tensor) -> Tensor:
    d, qs = _cut(blocks, 2, 32)
    return _half(d) * qs.view(torch.int8).float()


def _q2_k(blocks: Tensor) -> Tensor:
    scales, qs, d, dmin = _cut(blocks, 16, 64, 2, 2)
    scale, offset = _half(d) * (scales & 15).float(), _half(dmin) * (scales >> 4).float()
    return _scaled(_fields(qs, 32, 2), scale, offset)


def _q3_k(blocks: Tensor) -> Tensor:
    hmask, qs, scales, d = _cut(blocks, 32, 64, 12, 2)
    low, high = _fields(scales[:, :8], 8, 4), _fields(scales[:, 8:], 4, 2)
    scale = _half(d) * ((low | high << 4).float() - 32)
    q = (_fields(qs, 32, 2) | _fields(hmask, 32, 1) << 2).float() - 4
    return _scaled(q, scale)


def _q4_k(blocks: Tensor) -> Tensor:
    d, dmin, scales, qs = _cut(blocks, 2, 2, 12, 128)
    return _scaled(_fields(qs, 32, 4), *_scales_and_offsets(d, dmin, scales))


def _q5_k(blocks: Tensor) -> Tensor:
    d, dmin, scales, qh, qs = _cut(blocks, 2, 2, 12, 32, 128)
    q = _fields(qs, 32, 4) | _fields(qh, 32, 1) << 4
    return _scaled(q, *_scales_and_offsets(d, dmin, scales))


def _q6_k(blocks: Tensor) -> Tensor:
    ql, qh, scales, d = _cut(blocks, 128, 64, 16, 2)
    q = (_fields(ql, 64, 4) | _fields(qh, 32, 2) << 4).float() - 32
    return _scaled(q, _half(d) * scales.view(torch.int8).float())


def _scales_and_offsets(d: Tensor, dmin: Tensor, packed: Tensor) -> tuple[Tensor, Tensor]:
    """Eight scales and eight offsets, six bits each, of which the later four have their high bits with the earlier:

    bytes 0-3: 2 bits of scale 4+i | scale i    4-7: the same of offsets    8-11: 4 bits of offset 4+i | of scale 4+i
    """
    scale, offset, late = packed[:, :4], packed[:, 4:8], packed[:, 8:]
    scales = torch.cat([scale & 63, late & 15 | scale >> 6 << 4], 1)
    offsets = torch.cat([offset & 63, late >> 4 | offset >> 6 << 4], 1)
    return _half(d) * scales.float(), _half(dmin) * offsets.float()


def _scaled(q: Tensor, scale: Tensor, offset: Tensor | None = None) -> Tensor:
    """Weights [blocks, 256] times the scale of their group [blocks, groups], less its offset."""
    grouped = q.float().reshape(*scale.shape, -1) * scale[..., None]
    return (grouped if offset is None else grouped - offset[..., None]).reshape(q.shape)


def _fields(packed: Tensor, width: int, num_bits: int) -> Tensor:
    """Unpack bytes: of each run of `width` bytes first the lowest bits of all, then the next, and so on."""
    shifts = torch.arange(0, 8, num_bits, dtype=torch.uint8, device=packed.device)
    runs = packed.reshape(len(packed), -1, 1, width) >> shifts[:, None]
    return (runs & (1 << num_bits) - 1).reshape(len(packed), -1)


def _five_bits(qs: Tensor, qh: Tensor) -> Tensor:
    """Four low bits from one place, the fifth from a mask of 32."""
    return _fields(qs, 16, 4) | _fields(qh, 1, 1) << 4


def _half(scale: Tensor) -> Tensor:
    """Two bytes a block, a float16."""
    return scale.contiguous().view(torch.float16).float()


def _cut(blocks: Tensor, *sizes: int) -> list[Tensor]:
    return list(blocks.split(sizes, 1))


FLOATS = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
"""Kinds whose numbers are stored one by one, not in blocks."""
_BLOCKS: dict[str, tuple[int, Callable[[Tensor], Tensor]]] = {
    "Q4_0": (18, _q4_0),
    "Q4_1": (20, _q4_1),
    "Q5_0": (22, _q5_0),
    "Q5_1": (24, _q5_1),
    "Q8_0": (34, _q8_0),
    "Q2_K": (84, _q2_k),
    "Q3_K": (110, _q3_k),
    "Q4_K": (144, _q4_k),
    "Q5_K": (176, _q5_k),
    "Q6_K": (210, _q6_k),
}
