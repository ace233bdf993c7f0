"""Tiny models in four bits: folders as AutoAWQ, AutoGPTQ and llm-compressor write them, and what they stand for.

Packing is spelled out a number at a time, as the formats are described; the code under test does it the other way round
and in bulk.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tests.models.tiny import Tensors, spec_config, tiny_tokenizer, write_json

from hotloop.models.layout import tensor_places
from hotloop.models.spec import Int4Method, ModelSpec

AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)  # nibble i of a word holds column AWQ_ORDER[i]
PLAIN = (0, 1, 2, 3, 4, 5, 6, 7)


@dataclass(frozen=True)
class Recipe:
    method: Int4Method = "awq"
    group_size: int = 32  # -1: a row
    is_symmetric: bool = False
    has_act_order: bool = False
    checkpoint_format: str = "gptq"
    scale_kind: str = "float16"
    num_shards: int = 1

    def config(self) -> dict[str, Any]:
        if self.method == "awq":
            return {
                "quant_method": "awq", "bits": 4, "group_size": self.group_size, "version": "gemm",
                "zero_point": True, "modules_to_not_convert": None,
            }  # fmt: skip
        if self.method == "gptq":
            return {
                "quant_method": "gptq", "bits": 4, "group_size": self.group_size, "desc_act": self.has_act_order,
                "sym": self.is_symmetric, "checkpoint_format": self.checkpoint_format,
            }  # fmt: skip
        is_channel = self.group_size == -1
        weights = {
            "num_bits": 4, "type": "int", "symmetric": self.is_symmetric,
            "strategy": "channel" if is_channel else "group", "group_size": None if is_channel else self.group_size,
            "actorder": "group" if self.has_act_order else None,
        }  # fmt: skip
        group = {"targets": ["Linear"], "weights": weights, "input_activations": None}
        return {
            "quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": {"group_0": group},
            "ignore": ["lm_head"], "kv_cache_scheme": None,
        }  # fmt: skip


@dataclass(frozen=True)
class Quantised:
    numbers: NDArray[np.uint8]  # [out, in]
    zeros: NDArray[np.uint8]  # [out, groups]
    scales: NDArray[np.float32]  # [out, groups], exact in 16 bits
    groups: NDArray[np.int32]  # [in]

    def dequantised(self) -> NDArray[np.float32]:
        difference = self.numbers.astype(np.float32) - self.zeros[:, self.groups]
        return difference * self.scales[:, self.groups]


def quantise(matrix: NDArray[np.float32], recipe: Recipe, order: NDArray[np.int64]) -> Quantised:
    """To the nearest, a group at a time. In the order of activations column order[i] is the i-th to be quantised."""
    num_in = matrix.shape[1]
    size = num_in if recipe.group_size == -1 else recipe.group_size
    groups = np.empty(num_in, np.int32)
    groups[order] = np.arange(num_in) // size
    low, high = (
        np.stack([each(matrix[:, groups == group], 1) for group in range(num_in // size)], 1)
        for each in (np.min, np.max)
    )
    if recipe.is_symmetric:
        scales, zeros = np.maximum(-low, high) / 7.5, np.full(low.shape, 8)
    else:
        low, high = np.minimum(low, 0), np.maximum(high, 0)
        scales = (high - low) / 15
        zeros = np.clip(np.round(-low / scales), 0, 15)
    scales = _in_16_bits(scales, recipe.scale_kind)
    numbers = np.clip(np.round(matrix / scales[:, groups]) + zeros[:, groups], 0, 15)
    return Quantised(numbers.astype(np.uint8), zeros.astype(np.uint8), scales, groups)


def _in_16_bits(values: NDArray[Any], kind: str) -> NDArray[np.float32]:
    if kind == "float16":
        return values.astype(np.float16).astype(np.float32)
    return (values.astype(np.float32).view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)


def pack(numbers: NDArray[Any], axis: int, order: tuple[int, ...] = PLAIN) -> NDArray[np.int32]:
    """Words of eight: nibble i holds the order[i]-th of eight neighbours."""
    if axis == 0:
        return np.ascontiguousarray(pack(numbers.T, 1, order).T)
    words = np.zeros((numbers.shape[0], numbers.shape[1] // 8), np.uint32)
    for word in range(words.shape[1]):
        for nibble, neighbour in enumerate(order):
            words[:, word] |= numbers[:, 8 * word + neighbour].astype(np.uint32) << np.uint32(4 * nibble)
    return words.view(np.int32)


def parts(module: str, matrix: Quantised, recipe: Recipe) -> dict[str, tuple[str, NDArray[Any]]]:
    """The tensors a module has in the files, each with its type."""
    kind, scales = recipe.scale_kind, matrix.scales
    match recipe.method:
        case "awq":
            return {
                f"{module}.qweight": ("int32", pack(matrix.numbers.T, 1, AWQ_ORDER)),
                f"{module}.qzeros": ("int32", pack(matrix.zeros.T, 1, AWQ_ORDER)),
                f"{module}.scales": (kind, scales.T),
            }
        case "gptq":
            stored = matrix.zeros.astype(np.int32) - (recipe.checkpoint_format == "gptq")
            return {
                f"{module}.qweight": ("int32", pack(matrix.numbers.T, 0)),
                f"{module}.qzeros": ("int32", pack((stored & 15).T, 1)),
                f"{module}.scales": (kind, scales.T),
                f"{module}.g_idx": ("int32", matrix.groups),
            }
    found: dict[str, tuple[str, NDArray[Any]]] = {
        f"{module}.weight_packed": ("int32", pack(matrix.numbers, 1)),
        f"{module}.weight_scale": (kind, scales),
        f"{module}.weight_shape": ("int64", np.array(matrix.numbers.shape, np.int64)),
    }
    if not recipe.is_symmetric:
        found[f"{module}.weight_zero_point"] = ("int32", pack(matrix.zeros, 0))
    if recipe.has_act_order:
        found[f"{module}.weight_g_idx"] = ("int32", matrix.groups)
    return found


def write_int4_folder(
    folder: Path,
    spec: ModelSpec,
    tensors: Tensors,
    recipe: Recipe,
    *,
    plain: tuple[str, ...] = (),
    changes: Mapping[str, tuple[str, NDArray[Any]]] = {},
    quantization: Mapping[str, Any] = {},
) -> Tensors:
    """Write a model with the matrices of its layers in four bits, but those in `plain`; gives what it stands for.

    Changes are tensors by the names of the files.
    """
    random = np.random.default_rng(7)
    orders: dict[tuple[str, int], NDArray[np.int64]] = {}
    files: dict[str, tuple[str, NDArray[Any]]] = {}
    meant: Tensors = {}
    for place in tensor_places(spec):
        tensor, (layer, _, name) = tensors[place.name], place.name.rpartition(".")
        if len(place.shape) == 1 or not layer or name in plain:
            files[place.hf_name], meant[place.name] = ("float32", tensor), tensor
            continue
        side = (
            "down" if name == "down" else "o" if name == "o" else "in"
        )  # whoever has an input in common has its order
        natural = np.arange(place.shape[1])
        order = orders.setdefault((layer + side, place.shape[1]), random.permutation(natural))
        matrix = quantise(tensor, recipe, order if recipe.has_act_order else natural)
        meant[place.name] = matrix.dequantised()
        files |= parts(place.hf_name.removesuffix(".weight"), matrix, recipe)
    folder.mkdir()
    save(folder, files | dict(changes), recipe.num_shards)
    config = spec_config(spec) | {"quantization_config": recipe.config() | dict(quantization)}
    write_json(folder / "config.json", config)
    tiny_tokenizer().save(str(folder / "tokenizer.json"))
    return meant


def save(folder: Path, files: Mapping[str, tuple[str, NDArray[Any]]], num_shards: int) -> None:
    """By hand: numpy has no bfloat16 that the library would take."""
    names = [f"model-{i}.safetensors" for i in range(num_shards)] if num_shards > 1 else ["model.safetensors"]
    headers: list[dict[str, Any]] = [{} for _ in names]
    data, weight_map = [b""] * num_shards, {}
    for i, (name, (kind, tensor)) in enumerate(files.items()):
        shard = i % num_shards
        raw = _bytes(tensor, kind)
        offsets = [len(data[shard]), len(data[shard]) + len(raw)]
        headers[shard][name] = {"dtype": _TYPES[kind], "shape": tensor.shape, "data_offsets": offsets}
        data[shard] += raw
        weight_map[name] = names[shard]
    for name, header, each in zip(names, headers, data, strict=True):
        encoded = json.dumps(header).encode()
        (folder / name).write_bytes(len(encoded).to_bytes(8, "little") + encoded + each)
    if num_shards > 1:
        write_json(folder / "model.safetensors.index.json", {"weight_map": weight_map})


_TYPES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16", "int32": "I32", "int64": "I64"}
_TYPES["e4m3"] = "F8_E4M3"


def _bytes(tensor: NDArray[Any], kind: str) -> bytes:
    tensor = np.ascontiguousarray(tensor)
    if kind == "bfloat16":
        return (tensor.view(np.uint32) >> 16).astype("<u2").tobytes()
    return tensor.tobytes() if kind == "e4m3" else tensor.astype(kind).tobytes()
