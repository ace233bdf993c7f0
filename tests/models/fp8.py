"""Tiny models in FP8: folders as DeepSeek, Qwen and llm-compressor publish them, and what they stand for."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from tests.models.int4 import save
from tests.models.tiny import Tensors, as_bf16, spec_config, tiny_tokenizer, write_json

from hotloop.models.layout import tensor_places
from hotloop.models.spec import ModelSpec


def e4m3(code: int) -> float:
    """A byte by hand: sign, four bits of exponent, three of fraction."""
    exponent, fraction = code >> 3 & 15, code & 7
    size = (8 + fraction) * 2.0 ** (exponent - 10) if exponent else fraction * 2.0**-9
    return -size if code >> 7 else size


VALUES = np.array([e4m3(code) for code in range(127)])  # those above zero, 448 the last


@dataclass(frozen=True)
class Fp8Recipe:
    method: Literal["fp8", "compressed-tensors"] = "fp8"
    strategy: Literal["block", "channel", "tensor"] = "block"
    block: tuple[int, int] = (32, 48)
    scale_kind: str = "float32"
    has_scalars: bool = False
    """Whether the scale of a whole matrix has no dimension at all."""
    num_shards: int = 1

    def config(self) -> dict[str, Any]:
        if self.method == "fp8":
            blocks = {"weight_block_size": list(self.block)} if self.strategy == "block" else {}
            return {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", **blocks}
        weights = {
            "num_bits": 8, "type": "float", "symmetric": True, "dynamic": False, "strategy": self.strategy,
            "block_structure": list(self.block) if self.strategy == "block" else None,
        }  # fmt: skip
        inputs = {"num_bits": 8, "type": "float", "symmetric": True, "dynamic": True, "strategy": "token"}
        group = {"targets": ["Linear"], "weights": weights, "input_activations": inputs}
        return {
            "quant_method": "compressed-tensors", "format": "float-quantized", "config_groups": {"group_0": group},
            "ignore": ["lm_head"], "kv_cache_scheme": None,
        }  # fmt: skip


def rounded(matrix: NDArray[np.float32], recipe: Fp8Recipe) -> tuple[NDArray[np.uint8], NDArray[np.float32], Any]:
    """Bytes, scales as the files have them, and what the two stand for: by blocks, one after the other."""
    num_out, num_in = matrix.shape
    rows, columns = {"block": recipe.block, "channel": (1, num_in), "tensor": (num_out, num_in)}[recipe.strategy]
    codes, meant = np.zeros(matrix.shape, np.uint8), np.zeros(matrix.shape, np.float32)
    scales = np.zeros((-(-num_out // rows), -(-num_in // columns)), np.float32)
    for i in range(len(scales)):
        for j in range(scales.shape[1]):
            part = np.s_[i * rows : (i + 1) * rows, j * columns : (j + 1) * columns]
            scales[i, j] = as_bf16(np.array([np.abs(matrix[part]).max() / 448 * 1.01], np.float32))[0]
            scaled = np.abs(matrix[part] / scales[i, j])
            nearest = np.abs(scaled[..., None] - VALUES).argmin(-1)
            codes[part] = nearest + 128 * (matrix[part] < 0)
            meant[part] = np.sign(matrix[part]) * VALUES[nearest].astype(np.float32) * scales[i, j]
    if recipe.strategy == "tensor":
        scales = scales.reshape(() if recipe.has_scalars else (1,))
    return codes, scales, meant


def write_fp8_folder(
    folder: Path,
    spec: ModelSpec,
    tensors: Tensors,
    recipe: Fp8Recipe,
    *,
    plain: tuple[str, ...] = (),
    changes: Mapping[str, tuple[str, NDArray[Any]]] = {},
    quantization: Mapping[str, Any] = {},
    config: Mapping[str, Any] = {},
) -> Tensors:
    """Write a model with the matrices of its layers in FP8, but those in `plain`; gives what it stands for."""
    files: dict[str, tuple[str, NDArray[Any]]] = {}
    meant: Tensors = {}
    suffix = "_scale_inv" if recipe.method == "fp8" and recipe.strategy == "block" else "_scale"
    for place in tensor_places(spec):
        tensor, (layer, _, name) = tensors[place.name], place.name.rpartition(".")
        if len(place.shape) != 2 or not layer or name in plain:
            files[place.hf_name], meant[place.name] = ("float32", tensor), tensor
            continue
        codes, scales, meant[place.name] = rounded(tensor, recipe)
        files |= {place.hf_name: ("e4m3", codes), place.hf_name + suffix: (recipe.scale_kind, scales)}
    folder.mkdir()
    save(folder, files | dict(changes), recipe.num_shards)
    quantised = {"quantization_config": recipe.config() | dict(quantization)}
    write_json(folder / "config.json", spec_config(spec) | quantised | dict(config))
    tiny_tokenizer().save(str(folder / "tokenizer.json"))
    return meant
