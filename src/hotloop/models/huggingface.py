"""A model in a Hugging Face folder: config.json for the spec, one or many safetensors files for the weights, and beside
them the tokenizer, which tokens end a turn, and the chat template.

The safetensors format is small enough to be read here, which numpy's lack of bfloat16 would force anyway.
"""

import json
import os
from collections.abc import Collection, Iterable, Mapping
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from numpy.typing import NDArray

from hotloop.core.errors import ModelError
from hotloop.models.architecture import (
    has_qk_norm,
    is_known,
    parse_biases,
    parse_experts,
    parse_family,
    parse_linear,
    parse_number,
    parse_rotary_dim,
    parse_windows,
)
from hotloop.models.fp8 import E4M3, dequantise_fp8, fp8_stored, parse_fp8, scales_of
from hotloop.models.gguf import dequantise
from hotloop.models.heads import head_orders, rows_in_order
from hotloop.models.hybrid import StackedExperts
from hotloop.models.int4 import Part, check_groups, dequantise_int4, int4_parts, parse_int4
from hotloop.models.latent import parse_latent
from hotloop.models.layout import check_spec, check_tensors, tensor_places
from hotloop.models.modeling import PublishedTensors, can_probe, probe_spec
from hotloop.models.mxfp4 import FusedExperts, is_mxfp4
from hotloop.models.rope import scaling_from_config, stretched_context
from hotloop.models.spec import AnyStored, FileTensor, Fp8Stored, Int4Stored, ModelSpec, Stored
from hotloop.models.template import ChatTemplate
from hotloop.models.tokenizer import Tokenizer, rust_reason
from hotloop.models.tokenizer_file import check_tokenizer

_THETAS = {"gptoss": 150_000.0}
_FLOAT_BYTES = {"F32": 4, "F16": 2, "BF16": 2}
_ITEM_BYTES = _FLOAT_BYTES | {"I32": 4, "I64": 8, "U8": 1, E4M3: 1}
_LENGTH_BYTES, _MAX_HEADER_BYTES = 8, 100_000_000
_MAX_RANK, _MAX_SIZE = 8, 1 << 63
_IGNORED = ["rotary_emb.inv_freq", "lm_head.weight"]
_BEYOND = ("mtp.", "model.visual.")  # multi-token prediction and vision layers
_IGNORED_INT4 = [*_IGNORED, ".weight_shape"]  # which the model's own shape says


class SafetensorsWeights:
    """The tensors of a folder, read one at a time."""

    def __init__(self, folder: Path, spec: ModelSpec) -> None:
        self._folder = folder
        located = {name: each for path in weight_files(folder) for name, each in _read_header(path).items()}
        self._located = {name.replace("model.language_model.", "model."): each for name, each in located.items()}
        check_spec(folder, spec, len(self._located))
        self._places = {place.name: place for place in tensor_places(spec)}
        self._int4_names: dict[str, dict[Part, str]] = {}
        self._fp8_scales: dict[str, str] = {}  # by what the files call the matrix
        self._fused = _fused_experts(spec, self._located)
        wanted: dict[str, tuple[int, ...]] = self._fused.wanted() if self._fused else {}
        for place in self._places.values():
            if self._fused and place.expert is not None:
                continue
            if spec.int4 and len(place.shape) == 2 and place.hf_name not in self._located:
                where = f"{folder}: {place.hf_name}"
                parts = int4_parts(spec.int4, place.hf_name, place.shape, self._located, where)
                self._int4_names[place.name] = {part: name for part, (name, _) in parts.items()}
                wanted |= dict(parts.values())
                continue
            wanted[place.hf_name] = place.shape
            if spec.fp8 and len(place.shape) == 2 and self._is_e4m3(place.hf_name):
                scales, wanted[scales] = scales_of(spec.fp8, place.hf_name, place.shape, self._located)
                self._fp8_scales[place.hf_name] = scales
        beyond = f"model.layers.{spec.num_layers}.", *_BEYOND
        found = {name: each.shape for name, each in self._located.items() if not name.startswith(beyond)}
        ignored = _IGNORED_INT4 + self._empty_biases(wanted) if spec.int4 else _IGNORED
        check_tensors(folder, wanted, found, ignored)
        self._check_types(wanted)
        self._int4, self._fp8 = spec.int4, spec.fp8
        self._orders = head_orders(spec)
        if (self._orders or spec.latent) and spec.int4:
            raise ModelError(f"{folder}: weights in four bits of heads that turn only in part are not supported")

    def read(self, name: str) -> NDArray[np.float32]:
        stored = self.stored(name)
        if isinstance(stored, Int4Stored):
            return dequantise_int4(stored)
        if isinstance(stored, Fp8Stored):
            return dequantise_fp8(stored)
        return dequantise(stored) if stored.kind == "MXFP4" else stored.floats()

    def stored(self, name: str) -> AnyStored:
        place, names = self._places[name], self._int4_names.get(name)
        if self._fused and place.expert is not None:
            return self._fused.stored(name)
        if not (names and self._int4):
            found = self._plain(place.hf_name)
            order = self._orders.get(name.rpartition(".")[2])
            return found if order is None else found.rows(rows_in_order(found.shape[0], order))
        num_out, num_in = place.shape
        stored = {part: self._located[each].stored() for part, each in names.items()}
        scales = stored.pop("scales")
        words = {part: each.data.view("<i4") for part, each in stored.items()}
        groups = words.get("group_ids")
        if groups is not None:
            where = f"{self._folder}: {names['group_ids']}"
            groups = check_groups(groups, self._int4.group_size or num_in, where)
        return Int4Stored(words["words"], scales, words.get("zeros"), groups, self._int4, (num_out, num_in))

    def _plain(self, hf_name: str) -> Stored | Fp8Stored:
        found, scales = self._located[hf_name].stored(), self._fp8_scales.get(hf_name)
        if not (scales and self._fp8):
            return found
        return fp8_stored(found.data, self._located[scales].stored().floats(), self._fp8.block)

    def _is_e4m3(self, hf_name: str) -> bool:
        return hf_name in self._located and self._located[hf_name].kind == E4M3

    def _check_types(self, names: Iterable[str]) -> None:
        """Words are integers, all else is numbers; scales are of one kind, to be held side by side."""
        scales = {parts["scales"] for parts in self._int4_names.values()}
        words = {name for parts in self._int4_names.values() for name in parts.values()} - scales
        for name in names:
            found = self._located[name]
            is_packed = self._fused is not None and name in self._fused.packed_names
            integers = ["U8"] if is_packed else ["I32"] if name in words else []
            allowed = [E4M3] if name in self._fp8_scales else integers or _FLOAT_BYTES
            _check_type(found.path, name, found.kind, allowed)
        kinds = {self._located[name].kind for name in scales}
        if len(kinds) > 1:
            raise ModelError(f"{self._folder}: some scales are {', others '.join(sorted(kinds))}: one kind is wanted")

    def _empty_biases(self, wanted: Mapping[str, tuple[int, ...]]) -> list[str]:
        """Biases that early GPTQ files have beside matrices that have none: all of them are zeros."""
        others = [name for name in self._located if name.endswith("_proj.bias") and name not in wanted]
        plain = [name for name in others if (shape := self._located[name].shape) and 0 not in shape]
        return [name for name in plain if not self._located[name].stored().data.any()]


def published_tensors(folder: Path) -> PublishedTensors:
    """All that are there, of a model that transformers reads."""
    return PublishedTensors({name: each for path in weight_files(folder) for name, each in _read_header(path).items()})


def _fused_experts(spec: ModelSpec, located: Mapping[str, FileTensor]) -> FusedExperts | StackedExperts | None:
    """What reads the experts, where the files have those of a layer in one tensor."""
    if spec.family == "gptoss":
        return FusedExperts(spec, located)
    return StackedExperts(spec, located) if spec.experts and StackedExperts.NAMES[0].format(0) in located else None


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
        if not os.path.isfile(path):  # which, unlike the path's own, does not mind a name that no file can have
            raise ModelError(f"{str(path)[:1000]} is missing: a Hugging Face folder needs its safetensors files")
    return paths


def read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text("utf-8"))
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror or error}") from None
    except ValueError as error:
        raise ModelError(f"{path} is not JSON: {error}") from None
    except RecursionError:
        raise ModelError(f"{path} is nested too deeply") from None
    if not isinstance(value, dict):
        raise ModelError(f"{path} should hold a JSON object")
    return value


def _read_header(path: Path) -> dict[str, FileTensor]:
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
        except RecursionError:
            raise ModelError(f"{path}: the header is damaged: it is nested too deeply") from None


def _location(path: Path, name: str, entry: Mapping[str, Any], data_begin: int, size: int) -> FileTensor:
    kind, shape = str(entry["dtype"]), _sizes(entry["shape"])
    begin, end = _sizes(entry["data_offsets"])
    _check_type(path, name, kind, _ITEM_BYTES)
    if end - begin != prod(shape) * _ITEM_BYTES[kind]:
        raise ModelError(f"{path}: the header is damaged: {name} does not fill its place")
    tensor = FileTensor(path, data_begin + begin, kind, shape, prod(shape[-1:]) * _ITEM_BYTES[kind])
    tensor.check_end(name, size)
    return tensor


def _sizes(values: list[Any]) -> tuple[int, ...]:
    if len(values) > _MAX_RANK or not all(isinstance(each, int) and 0 <= each < _MAX_SIZE for each in values):
        raise ValueError(f"{values!r:.60} should be sizes")
    return tuple(values)


def _check_type(path: Path, name: str, kind: str, allowed: Collection[str]) -> None:
    if kind not in allowed:
        raise ModelError(f"{path}: the tensor {name} has type {kind}; only {', '.join(allowed)} can be read")


def config_spec(folder: Path) -> ModelSpec:
    path = folder / "config.json"
    if not path.is_file():
        raise ModelError(f"{folder} is not a Hugging Face folder: config.json is missing")
    config = read_json(path)
    if can_probe() and not is_known(config):
        return probe_spec(folder)
    if isinstance(config.get("text_config"), dict):  # beside that of what sees
        config |= config["text_config"]
    family, max_context = parse_family(config, path), parse_number(config, "max_position_embeddings", int, path)
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if not isinstance(rope, dict):
        raise ModelError(f"{path}: the rotary scaling should be an object, not {rope!r:.60}")
    num_layers = parse_number(config, "num_hidden_layers", int, path)
    num_heads = parse_number(config, "num_attention_heads", int, path)
    hidden_size = parse_number(config, "hidden_size", int, path)
    latent = parse_latent(config, rope, family, path)
    head_dim = parse_number(config, "head_dim", int, path, hidden_size // num_heads)
    if latent:
        head_dim = latent.nope_dim + latent.rope_dim
    rotary_dim = parse_rotary_dim(config, family, head_dim, path)
    theta = parse_number({**config, **rope}, "rope_theta", float, path, _THETAS.get(family, 10_000.0))
    if "original_max_position_embeddings" in config:  # beside the scaling, where older files have it
        rope = {"original_max_position_embeddings": config["original_max_position_embeddings"], **rope}
    turning = latent.rope_dim if latent else rotary_dim or head_dim
    scaling = scaling_from_config(rope, theta=theta, head_dim=turning, max_context=max_context, where=str(path))
    max_context = stretched_context(rope, max_context)
    has_qkv_bias, has_o_bias = parse_biases(config, family)
    fp8 = parse_fp8(config, path)
    return ModelSpec(
        family=family,
        num_layers=num_layers,
        hidden_size=hidden_size,
        intermediate_size=parse_number(config, "intermediate_size", int, path, config.get("moe_intermediate_size")),
        num_heads=num_heads,
        num_kv_heads=parse_number(config, "num_key_value_heads", int, path, num_heads),
        head_dim=head_dim,
        vocab_size=parse_number(config, "vocab_size", int, path),
        max_context=max_context,
        rms_eps=parse_number(config, "rms_norm_eps", float, path),
        rope_theta=theta,
        rope_scaling=scaling,
        has_tied_head=bool(config.get("tie_word_embeddings", False)),
        has_qkv_bias=has_qkv_bias,
        has_o_bias=has_o_bias,
        has_qk_norm=has_qk_norm(config, family),
        has_sinks=family == "gptoss",
        windows=parse_windows(config, num_layers, max_context, path),
        rotary_dim=rotary_dim,
        experts=parse_experts(config, family, path),
        linear=parse_linear(config, family, num_layers, path),
        latent=latent,
        int4=None if fp8 or is_mxfp4(config) else parse_int4(config, path),
        fp8=fp8,
    )


def folder_tokenizer(folder: Path) -> Tokenizer:
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise ModelError(f"{folder} has no tokenizer: tokenizer.json is missing")
    config = _optional(folder, "tokenizer_config.json")
    try:
        data = path.read_bytes()
        check_tokenizer(data)
        inner = tokenizers.Tokenizer.from_buffer(data)
        inner.no_truncation()
        inner.no_padding()
        bos = _token(config, "bos_token")
        bos_id = inner.token_to_id(bos) if bos else None
        wants_bos = inner.encode("").ids[:1] == [bos_id]
        return Tokenizer(inner, bos_id=bos_id, eos_ids=_eos_ids(folder, inner), wants_bos=wants_bos)
    except BaseException as error:
        raise ModelError(f"{path} cannot be read: {rust_reason(error)}") from None


def folder_template(folder: Path) -> ChatTemplate | None:
    """The template in chat_template.jinja or, as it used to be, in tokenizer_config.json; a base model has none."""
    config = _optional(folder, "tokenizer_config.json")
    path = folder / "chat_template.jinja"
    source = config.get("chat_template")
    if isinstance(source, list):  # several with names, of which one is called default
        named = {item.get("name"): item.get("template") for item in source if isinstance(item, dict)}
        source = named.get("default")
    try:
        source = path.read_text("utf-8") if path.is_file() else source
        if not isinstance(source, str):
            return None
        return ChatTemplate(source, bos_token=_token(config, "bos_token"), eos_token=_token(config, "eos_token"))
    except (OSError, UnicodeDecodeError, ModelError) as error:
        raise ModelError(f"{folder}: {error}") from None


def _optional(folder: Path, name: str) -> dict[str, Any]:
    return read_json(folder / name) if (folder / name).is_file() else {}


def _token(config: Mapping[str, Any], key: str) -> str:
    """A token's text, which is written bare or as the content of an object."""
    value = config.get(key)
    value = value.get("content") if isinstance(value, dict) else value
    return value if isinstance(value, str) else ""


def _eos_ids(folder: Path, inner: tokenizers.Tokenizer) -> set[int]:
    """Every id that any of the folder's files calls an end."""
    ids: set[int] = set()
    for name in ("config.json", "generation_config.json"):
        given = _optional(folder, name).get("eos_token_id")
        ids |= {item for item in (given if isinstance(given, list) else [given]) if isinstance(item, int)}
    eos = _token(_optional(folder, "tokenizer_config.json"), "eos_token")
    eos_id = inner.token_to_id(eos) if eos else None
    return ids if eos_id is None else ids | {eos_id}
