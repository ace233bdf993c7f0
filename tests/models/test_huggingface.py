import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file
from tests.models.tiny import Tensors, tiny_spec, tiny_weights, write_folder, write_json

from hotloop.core.errors import ModelError
from hotloop.models.huggingface import SafetensorsWeights
from hotloop.models.layout import tensor_places
from hotloop.models.model import read_model
from hotloop.models.spec import ModelSpec

SPEC = tiny_spec("llama", num_layers=1)
FILE = "model.safetensors"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_folder(tmp_path / "m", SPEC, tiny_weights(SPEC))


def write_raw(path: Path, spec: ModelSpec, tensors: Tensors, dtype: str) -> None:
    """Write a safetensors file by hand, in a type that numpy may not have."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    data = b""
    for place in tensor_places(spec):
        tensor = tensors[place.name]
        raw = (
            tensor.astype("<f2").tobytes() if dtype == "F16" else (tensor.view(np.uint32) >> 16).astype("<u2").tobytes()
        )
        offsets = [len(data), len(data) + len(raw)]
        header[place.hf_name] = {"dtype": dtype, "shape": tensor.shape, "data_offsets": offsets}
        data += raw
    encoded = json.dumps(header).encode()
    path.write_bytes(len(encoded).to_bytes(8, "little") + encoded + data)


def test_bfloat16_is_widened_exactly(folder: Path) -> None:
    weights = tiny_weights(SPEC)
    write_raw(folder / FILE, SPEC, weights, "BF16")
    read = SafetensorsWeights(folder, SPEC)
    for name, tensor in weights.items():
        np.testing.assert_array_equal(read.read(name), tensor)
        stored = read.stored(name)
        assert (stored.kind, stored.shape) == ("BF16", tensor.shape)
        np.testing.assert_array_equal(stored.data.view("<u2"), tensor.view("<u4") >> 16)


def test_float16_is_widened_exactly(folder: Path) -> None:
    weights = {name: tensor.astype(np.float16).astype(np.float32) for name, tensor in tiny_weights(SPEC).items()}
    write_raw(folder / FILE, SPEC, weights, "F16")
    read = SafetensorsWeights(folder, SPEC)
    for name, tensor in weights.items():
        np.testing.assert_array_equal(read.read(name), tensor)


def test_shards_are_joined_by_their_index(folder: Path) -> None:
    weights = tiny_weights(SPEC)
    (folder / FILE).unlink()
    shards: dict[str, dict[str, Any]] = {"a.safetensors": {}, "b.safetensors": {}}
    for i, place in enumerate(tensor_places(SPEC)):
        shards["ab"[i % 2] + ".safetensors"][place.hf_name] = weights[place.name]
    for name, tensors in shards.items():
        save_file(tensors, folder / name)
    weight_map = {tensor: shard for shard, tensors in shards.items() for tensor in tensors}
    write_json(folder / f"{FILE}.index.json", {"weight_map": weight_map})
    read = SafetensorsWeights(folder, SPEC)
    for name, tensor in weights.items():
        np.testing.assert_array_equal(read.read(name), tensor)
    (folder / "b.safetensors").unlink()
    with pytest.raises(ModelError, match=r"b\.safetensors is missing"):
        SafetensorsWeights(folder, SPEC)


@pytest.mark.parametrize("name", ["x" * 5000, "\0", "a\nb"])
def test_an_index_of_names_that_no_file_can_have_is_refused(folder: Path, name: str) -> None:
    write_json(folder / f"{FILE}.index.json", {"weight_map": {"x": name}})
    with pytest.raises(ModelError, match=r"is missing: a Hugging Face folder needs its safetensors files"):
        SafetensorsWeights(folder, SPEC)


def test_an_empty_index_is_refused(folder: Path) -> None:
    write_json(folder / f"{FILE}.index.json", {"weight_map": {}})
    with pytest.raises(ModelError, match="names no weights"):
        SafetensorsWeights(folder, SPEC)


def test_a_tied_head_that_is_stored_anyway_is_ignored(tmp_path: Path) -> None:
    weights = tiny_weights(SPEC)
    folder = write_folder(tmp_path / "tied", SPEC, weights | {"lm_head.weight": weights["embed"]})
    SafetensorsWeights(folder, SPEC)


def test_a_tensor_nobody_reads_is_refused(tmp_path: Path) -> None:
    odd = {"model.layers.0.self_attn.o_proj.bias": np.zeros(64, np.float32)}
    folder = write_folder(tmp_path / "odd", SPEC, tiny_weights(SPEC) | odd)
    with pytest.raises(ModelError, match=r"o_proj\.bias belongs to no supported model"):
        SafetensorsWeights(folder, SPEC)


@pytest.mark.parametrize("num_bytes", [0, 4, 8, 100, 5000])
def test_a_part_of_a_file_is_refused(folder: Path, num_bytes: int) -> None:
    (folder / FILE).write_bytes((folder / FILE).read_bytes()[:num_bytes])
    with pytest.raises(ModelError, match=r"model\.safetensors is cut short"):
        SafetensorsWeights(folder, SPEC)


@pytest.mark.parametrize(
    ("entry", "line"),
    [
        (
            {"dtype": "F8_E5M2", "shape": [4], "data_offsets": [0, 4]},
            "has type F8_E5M2; only F32, F16, BF16, I32, I64, U8, F8_E4M3 can be read",
        ),
        ({"dtype": "F32", "shape": [4], "data_offsets": [0, 4]}, "x does not fill its place"),
        ({"dtype": "F32", "shape": [1], "data_offsets": [-4, 0]}, "should be sizes"),
        ({"dtype": "F32", "shape": [1], "data_offsets": [0, float("inf")]}, "should be sizes"),
        ({"dtype": "F32", "shape": [float("inf")], "data_offsets": [0, 4]}, "should be sizes"),
        ({"dtype": "F32", "shape": [1 << 62] * 99_999, "data_offsets": [0, 4]}, "should be sizes"),
        ({"dtype": "F32", "shape": ["a"], "data_offsets": [0, 4]}, "the header is damaged"),
        ({"dtype": "F32"}, "the header is damaged: 'shape'"),
        ([], "the header is damaged"),
    ],
)
def test_a_damaged_header_says_so(folder: Path, entry: Any, line: str) -> None:
    header = json.dumps({"x": entry}).encode()
    (folder / FILE).write_bytes(len(header).to_bytes(8, "little") + header + b"\0" * 64)
    with pytest.raises(ModelError, match=line):
        SafetensorsWeights(folder, SPEC)


def test_a_header_that_is_not_an_object_says_so(folder: Path) -> None:
    (folder / FILE).write_bytes((2).to_bytes(8, "little") + b"[]")
    with pytest.raises(ModelError, match="the header is damaged"):
        SafetensorsWeights(folder, SPEC)


NESTED = "[" * 100_000 + "]" * 100_000


def test_a_deep_header_is_damaged(folder: Path) -> None:
    header = f'{{"a": {NESTED}}}'.encode()
    (folder / FILE).write_bytes(len(header).to_bytes(8, "little") + header)
    with pytest.raises(ModelError, match="the header is damaged: it is nested too deeply"):
        SafetensorsWeights(folder, SPEC)


@pytest.mark.parametrize("name", ["config.json", "tokenizer_config.json", "generation_config.json"])
def test_a_deep_config_is_refused(folder: Path, name: str) -> None:
    (folder / name).write_text(f'{{"a": {NESTED}}}')
    with pytest.raises(ModelError, match=f"{name} is nested too deeply"):
        read_model("m", folder)
