"""Matrices in FP8 (e4m3), as DeepSeek, Qwen and llm-compressor write them into safetensors.

    fp8, by blocks       weight [out, in]    weight_scale_inv [out / 128, in / 128], the last of each maybe cut
    fp8                  weight [out, in]    weight_scale [] or [1]
    compressed-tensors   weight [out, in]    weight_scale [] or [1], [out, 1], or of blocks as above

A weight is its number times its scale, whatever the name of that. Which matrices are so, the files show. What was made
for inputs that are rounded by scales of the files (static) is refused, as is whatever else is quantised.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hotloop.core.errors import ModelError
from hotloop.models.int4 import Shape, demand, only_scheme
from hotloop.models.spec import FileTensor, Fp8Spec, Fp8Stored

E4M3 = Fp8Stored.kind
_FORMATS = ("float-quantized", "naive-quantized")


def parse_fp8(config: Mapping[str, Any], path: Path) -> Fp8Spec | None:
    """What config.json says of weights in FP8; None if it says that they are in none, or in something else."""
    said = config.get("quantization_config")
    if not isinstance(said, dict):
        return None
    method = said.get("quant_method")
    where = f"{path}: {method} weights"
    if method == "fp8":
        said = {"fmt": "e4m3", "activation_scheme": "dynamic"} | said
        demand(where, said, fmt=("e4m3",), activation_scheme=("dynamic",))
        block = said.get("weight_block_size")
        return Fp8Spec("weight_scale") if block is None else Fp8Spec("weight_scale_inv", _block(where, block))
    if method == "compressed-tensors" and said.get("format") in _FORMATS:
        return _parse_compressed(where, said)
    return None


def _parse_compressed(where: str, said: Mapping[str, Any]) -> Fp8Spec:
    scheme = only_scheme(where, said)
    weights, inputs = scheme["weights"], scheme.get("input_activations") or {"dynamic": True}
    if said.get("kv_cache_scheme") or not isinstance(inputs, dict):
        raise ModelError(f"{where} in FP8 are supported if nothing but weights and inputs is quantised")
    demand(f"{where} in FP8 of inputs", inputs, dynamic=(True,))
    weights = {"symmetric": True, "dynamic": False} | weights
    demand(where, weights, type=("float",), num_bits=(8,), symmetric=(True,), dynamic=(False,))
    demand(where, weights, strategy=("tensor", "channel", "block"))
    is_block = weights["strategy"] == "block"
    return Fp8Spec("weight_scale", _block(where, weights.get("block_structure")) if is_block else None)


def _block(where: str, said: object) -> tuple[int, int]:
    if not isinstance(said, list) or len(said) != 2 or any(type(size) is not int or size < 1 for size in said):
        raise ModelError(f"{where}: a block should be rows and columns, not {said!r:.60}")
    return said[0], said[1]


def scales_of(fp8: Fp8Spec, hf_name: str, shape: Shape, located: Mapping[str, FileTensor]) -> tuple[str, Shape]:
    """What the files call the scales of the matrix [out, in] of that name, and the shape they must have."""
    num_out, num_in = shape
    name = hf_name.removesuffix("weight") + fp8.scales
    if fp8.block:
        rows, columns = fp8.block
        return name, (-(-num_out // rows), -(-num_in // columns))
    found = located[name].shape if name in located else None
    return name, found if found in ((), (1,)) else (num_out, 1)


def fp8_stored(data: NDArray[np.uint8], scales: NDArray[np.float32], block: tuple[int, int] | None) -> Fp8Stored:
    num_out, num_in = data.shape
    rows, columns = block or (1, num_in)
    if scales.size == 1:
        return Fp8Stored(data, np.broadcast_to(scales.reshape(1, 1), (num_out, 1)), num_in)
    return Fp8Stored(data, scales[np.arange(num_out) // rows], columns)


def dequantise_fp8(stored: Fp8Stored) -> NDArray[np.float32]:
    groups = np.arange(stored.shape[1]) // stored.group_size
    return np.asarray(_VALUES[stored.data] * stored.scales[:, groups], np.float32)


def _e4m3_values() -> NDArray[np.float32]:
    """Of all 256 bytes: a sign, four bits of exponent and three of fraction, and the largest is none."""
    codes = np.arange(128)
    exponents, fractions = codes >> 3, (codes & 7) / 8
    positive = np.where(exponents > 0, (1 + fractions) * 2.0 ** (exponents - 7), fractions * 2.0**-6)
    positive[127] = np.nan
    return np.concatenate([positive, -positive]).astype(np.float32)


_VALUES = _e4m3_values()
