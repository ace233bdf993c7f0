"""A model in a Hugging Face folder: config.json for the spec, one or many safetensors files for the weights.

The safetensors format is small enough to be read here, which numpy's lack of bfloat16 would force anyway.
Knows nothing of tokenizers or templates.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from hotloop.core.errors import ModelError
from hotloop.models.layout import check_spec, check_tensors, tensor_places
from hotloop.models.rope import scaling_from_config
from hotloop.models.spec import Family, ModelSpec, Stored

T = TypeVar("T", int, float)

_FAMILIES: dict[str, Family] = {"llama": "llama", "mistral": "llama", "qwen2": "qwen2", "qwen3": "qwen3"}
_DTYPES: dict[str, np.dtype[Any]] = {"F32": np.dtype("<f4"), "F16": np.dtype("<f2"), "BF16": np.dtype("<u2")}
_LENGTH_BYTES, _MAX_HEADER_BYTES = 8, 100_000_000
_IGNORED = ["rotary_emb.inv_freq", "lm_head.weight"]


@dataclass(frozen=True, slots=True)
class _Location:
    """Where one tensor lies in one of the folder's files."""

    path: Path
    dtype: str
    shape: tuple[int, ...]
    offset: int


class SafetensorsWeights:
    """The tensors of a folder, read one at a time."""

    def __init__(self, folder: Path, spec: ModelSpec) -> None:
        located = {name: tensor for path in weight_files(folder) for name, tensor in _read_header(path).items()}
        check_spec(folder, spec, len(located))
        places = list(tensor_places(spec))
        found = {name: tensor.shape for name, tensor in located.items()}
        check_tensors(folder, {place.hf_name: place.shape for place in places}, found, _IGNORED)
        self._locations = {place.name: located[place.hf_name] for place in places}

    def read(self, name: str) -> NDArray[np.float32]:
        stored = self.stored(name)
        raw = stored.data.view(_DTYPES[stored.kind])
        if stored.kind == "BF16":  # the upper half of a float32
            widened: NDArray[np.uint32] = np.left_shift(raw, 16, dtype=np.uint32)
            return widened.view(np.float32)
        return np.array(raw, np.float32)

    def stored(self, name: str) -> Stored:
        found = self._locations[name]
        byte_shape = (*found.shape[:-1], found.shape[-1] * _DTYPES[found.dtype].itemsize)
        return Stored(np.memmap(found.path, np.uint8, "r", found.offset, byte_shape), found.dtype, found.shape)


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files of a folder: those its index names, else the one there is."""
    index = folder / "model.safetensors.index.json"
    if index.exists():
        weight_map = read_json(index).get("weight_map")
        if not isinstance(weight_map, dict) or not weight_map:
            raise ModelError(f"{index} names no weights")
        paths = [folder / Path(name).name for name in sorted(set(map(str, weight_map.values())))]
    else:
        paths = [folder / "model.safetensors"]
    for path in paths:
        if not path.is_file():
            raise ModelError(f"{path} is missing: a Hugging Face folder needs its safetensors files")
    return paths


def read_json(path: Path) -> dict[str, Any]:
    """A JSON file that holds an object."""
    try:
        value = json.loads(path.read_text("utf-8"))
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror or error}") from None
    except ValueError as error:
        raise ModelError(f"{path} is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise ModelError(f"{path} should hold a JSON object")
    return value


def _read_header(path: Path) -> dict[str, _Location]:
    """Parse the header of one file and check that every tensor is wholly there.

    [ header length, 8 bytes | header, JSON | data .................. ]
                                             ^ data_offsets count from here
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        header_bytes = int.from_bytes(file.read(_LENGTH_BYTES), "little")
        data_begin = _LENGTH_BYTES + header_bytes
        if not header_bytes or data_begin > min(size, _MAX_HEADER_BYTES):
            raise ModelError(f"{path} is cut short or not a safetensors file")
        try:
            header = json.loads(file.read(header_bytes))
            header.pop("__metadata__", None)
            return {name: _location(path, name, entry, data_begin, size) for name, entry in header.items()}
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ModelError(f"{path}: the header is damaged: {error}") from None


def _location(path: Path, name: str, entry: Mapping[str, Any], data_begin: int, size: int) -> _Location:
    dtype, shape = str(entry["dtype"]), tuple(int(n) for n in entry["shape"])
    begin, end = (data_begin + int(offset) for offset in entry["data_offsets"])
    if dtype not in _DTYPES:
        raise ModelError(f"{path}: the tensor {name} has type {dtype}; only {', '.join(_DTYPES)} can be read")
    if begin < data_begin or end - begin != prod(shape) * _DTYPES[dtype].itemsize:
        raise ModelError(f"{path}: the header is damaged: {name} does not fill its place")
    if end > size:
        raise ModelError(f"{path} is cut short: tensor {name} ends at byte {end}, the file at byte {size}")
    return _Location(path, dtype, shape, begin)


def config_spec(folder: Path) -> ModelSpec:
    """What config.json says the model is."""
    path = folder / "config.json"
    config = read_json(path)
    family = _family(config, path)
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if not isinstance(rope, dict):
        raise ModelError(f"{path}: the rotary scaling should be an object, not {rope!r:.60}")
    num_heads = _number(config, "num_attention_heads", int, path)
    hidden_size = _number(config, "hidden_size", int, path)
    return ModelSpec(
        family=family,
        num_layers=_number(config, "num_hidden_layers", int, path),
        hidden_size=hidden_size,
        intermediate_size=_number(config, "intermediate_size", int, path),
        num_heads=num_heads,
        num_kv_heads=_number(config, "num_key_value_heads", int, path, num_heads),
        head_dim=_number(config, "head_dim", int, path, hidden_size // num_heads),
        vocab_size=_number(config, "vocab_size", int, path),
        max_context=_number(config, "max_position_embeddings", int, path),
        rms_eps=_number(config, "rms_norm_eps", float, path),
        rope_theta=_number({**config, **rope}, "rope_theta", float, path, 10_000.0),
        rope_scaling=scaling_from_config(rope, str(path)),
        has_tied_head=bool(config.get("tie_word_embeddings", False)),
        has_qkv_bias=family == "qwen2" or bool(config.get("attention_bias", False)),
        has_qk_norm=family == "qwen3",
    )


def config_window(folder: Path) -> int | None:
    """The sliding window, if the model attends through one."""
    config = read_json(folder / "config.json")
    window = config.get("sliding_window")
    return window if isinstance(window, int) and config.get("use_sliding_window", True) else None


def _family(config: Mapping[str, Any], path: Path) -> Family:
    model_type = config.get("model_type")
    if model_type not in _FAMILIES:
        raise ModelError(f"{path}: the architecture {model_type!r} is not supported (only {', '.join(_FAMILIES)} are)")
    if "quantization_config" in config:
        raise ModelError(f"{path}: quantised safetensors are not supported; use the original weights, or a GGUF")
    if config.get("hidden_act", "silu") != "silu":
        raise ModelError(f"{path}: the activation {config['hidden_act']!r} is not supported (only silu is)")
    if config.get("partial_rotary_factor", 1.0) != 1.0:
        raise ModelError(f"{path}: rotary positions over only a part of each head are not supported")
    return _FAMILIES[model_type]


def _number(config: Mapping[str, Any], key: str, kind: type[T], path: Path, default: T | None = None) -> T:
    value = config.get(key)
    value = default if value is None else value
    if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0 or kind(value) != value:
        raise ModelError(f"{path}: {key} should be a number above zero, not {value!r:.60}")
    return kind(value)
