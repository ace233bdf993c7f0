"""Weights as OpenVINO constants: int8 a row, int4 a group, bf16 or float32.

Compressed matrices are written as Constant -> Convert -> Multiply, which the CPU plugin keeps compressed in memory and
unpacks inside the matmul. A constant must not share memory with its tensor, which only borrows that of an array.
"""

import numpy as np
import openvino as ov
import openvino.opset13 as op
from numpy.typing import NDArray

from hotloop.core.config import WeightFormat
from hotloop.models.memory import INT4_GROUP


def compress(matrix: NDArray[np.float32], weight_format: WeightFormat, *, is_lookup: bool = False) -> ov.Node:
    """A [rows, columns] matrix as a float32 node. A lookup table (the embedding) is never held below int8."""
    if weight_format == "int4" and not is_lookup and matrix.shape[1] % INT4_GROUP == 0:
        return _int4(matrix)
    if weight_format in ("int8", "int4"):
        return _int8(matrix)
    if weight_format == "bf16":
        return op.convert(_bf16(matrix), "f32")
    return op.constant(matrix)


def _int8(matrix: NDArray[np.float32]) -> ov.Node:
    scale = (np.abs(matrix).max(1, keepdims=True) / 127).astype(np.float16)
    scale[scale == 0] = 1
    quantised = np.clip(np.rint(matrix / scale.astype(np.float32)), -127, 127).astype(np.int8)
    return op.convert(op.multiply(op.convert(op.constant(quantised), "f16"), op.constant(scale)), "f32")


def _int4(matrix: NDArray[np.float32]) -> ov.Node:
    """Asymmetric, one scale and zero point for each group of a row."""
    rows, columns = matrix.shape
    groups = matrix.reshape(rows, columns // INT4_GROUP, INT4_GROUP)
    low, high = groups.min(2, keepdims=True), groups.max(2, keepdims=True)
    low, high = np.minimum(low, 0), np.maximum(high, 0)
    scale = ((high - low) / 15).astype(np.float16)
    scale[scale == 0] = 1
    zero = np.clip(np.rint(-low / scale.astype(np.float32)), 0, 15)
    quantised = np.clip(np.rint(groups / scale.astype(np.float32)) + zero, 0, 15)
    shifted = op.subtract(op.convert(_u4(quantised), "f16"), op.convert(_u4(zero), "f16"))
    unpacked = op.reshape(op.multiply(shifted, op.constant(scale)), op.constant(np.array([rows, columns])), False)
    return op.convert(unpacked, "f32")


def _u4(values: NDArray[np.float32]) -> ov.Node:
    """Two values a byte, the first in the low half, as OpenVINO packs u4."""
    flat = values.astype(np.uint8).reshape(-1)
    if flat.size % 2:
        flat = np.append(flat, np.uint8(0))
    packed = flat[0::2] | (flat[1::2] << 4)
    return op.constant(ov.Tensor(packed, ov.Shape(values.shape), ov.Type.u4), shared_memory=False)


def _bf16(matrix: NDArray[np.float32]) -> ov.Node:
    """Rounded to nearest even by hand: numpy has no bfloat16."""
    bits = matrix.view(np.uint32)
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return op.constant(ov.Tensor(rounded, ov.Shape(matrix.shape), ov.Type.bf16), shared_memory=False)
