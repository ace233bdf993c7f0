"""Folders in four bits are read to the last bit, whoever wrote them; those that would be misread are refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.models.int4 import AWQ_ORDER, Recipe, pack, write_int4_folder
from tests.models.tiny import tiny_spec, tiny_weights

from hotloop.core.errors import ModelError
from hotloop.models.model import load_model, load_spec
from hotloop.models.spec import ExpertsSpec, Int4Spec, Int4Stored

SPEC = tiny_spec("llama", num_layers=1)
Q = "model.layers.0.self_attn.q_proj"
RECIPES = [
    Recipe("awq"),
    Recipe("awq", group_size=16, num_shards=3),
    Recipe("awq", group_size=-1, scale_kind="bfloat16"),
    Recipe("gptq"),
    Recipe("gptq", is_symmetric=True, num_shards=2),
    Recipe("gptq", has_act_order=True),
    Recipe("gptq", group_size=-1, checkpoint_format="gptq_v2"),
    Recipe("gptq", checkpoint_format="gptq_v2", scale_kind="float32"),
    Recipe("compressed-tensors", is_symmetric=True, scale_kind="bfloat16"),
    Recipe("compressed-tensors", scale_kind="bfloat16", num_shards=2),
    Recipe("compressed-tensors", group_size=-1),
    Recipe("compressed-tensors", has_act_order=True),
]


@pytest.mark.parametrize("recipe", RECIPES, ids=str)
def test_every_weight_is_what_was_written(tmp_path: Path, recipe: Recipe) -> None:
    meant = write_int4_folder(tmp_path / "m", SPEC, tiny_weights(SPEC), recipe)
    model = load_model(str(tmp_path / "m"))
    assert model.spec.int4 is not None
    for name, tensor in meant.items():
        np.testing.assert_array_equal(model.weights.read(name), tensor, err_msg=name)
        is_matrix = tensor.ndim == 2 and name.startswith("layers.")
        assert isinstance(model.weights.stored(name), Int4Stored) == is_matrix


def test_words_are_packed_as_the_formats_say() -> None:
    """By hand: AWQ's word of columns 0 to 7 is 0x75316420, that of the others 0x76543210."""
    columns = np.arange(8, dtype=np.uint8)[None]
    assert pack(columns, 1, AWQ_ORDER).view(np.uint32) == 0x75316420
    assert pack(columns, 1).view(np.uint32) == 0x76543210
    assert pack(columns.T, 0).view(np.uint32) == 0x76543210


def test_matrices_that_were_left_alone_are_read_as_they_are(tmp_path: Path) -> None:
    weights = tiny_weights(SPEC)
    meant = write_int4_folder(tmp_path / "m", SPEC, weights, Recipe("gptq"), plain=("v", "down"))
    model = load_model(str(tmp_path / "m"))
    for name in ("q", "v", "down"):
        np.testing.assert_array_equal(model.weights.read(f"layers.0.{name}"), meant[f"layers.0.{name}"])
    np.testing.assert_array_equal(meant["layers.0.v"], weights["layers.0.v"])


def test_a_spec_needs_no_weights(tmp_path: Path) -> None:
    write_int4_folder(tmp_path / "m", SPEC, tiny_weights(SPEC), Recipe("gptq"))
    (tmp_path / "m" / "model.safetensors").unlink()
    assert load_spec(str(tmp_path / "m"))[1].int4 == Int4Spec("gptq", 32, zero_offset=1)


def test_biases_of_zeros_are_ignored(tmp_path: Path) -> None:
    zeros = {f"{Q}.bias": ("float16", np.zeros(64))}
    write_int4_folder(tmp_path / "m", SPEC, tiny_weights(SPEC), Recipe("gptq"), changes=zeros)
    load_model(str(tmp_path / "m"))
    others = {f"{Q}.bias": ("float16", np.ones(64)), "model.layers.0.mlp.up_proj.bias": ("float16", np.zeros(()))}
    for i, (name, bias) in enumerate(others.items()):
        folder = tmp_path / str(i)
        write_int4_folder(folder, SPEC, tiny_weights(SPEC), Recipe("gptq"), changes={name: bias})
        with pytest.raises(ModelError, match=r"_proj\.bias belongs to no supported model"):
            load_model(str(folder))


def scheme(**changes: Any) -> dict[str, Any]:
    weights = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 32} | changes
    return {"config_groups": {"group_0": {"weights": weights}}}


PACKED = "compressed-tensors"


@pytest.mark.parametrize(
    ("method", "changes", "line"),
    [
        ("awq", {"quant_method": "bitsandbytes"}, "weights quantised by 'bitsandbytes' are not supported"),
        ("awq", {"quant_method": ["awq"]}, r"weights quantised by \['awq'\] are not supported"),
        ("awq", {"group_size": True}, "group_size should be -1 or a multiple of 16, not True"),
        ("awq", {"version": ["gemm"]}, "if version is gemm"),
        ("awq", {"version": "gemv"}, "awq weights are supported if version is gemm, not 'gemv'"),
        ("awq", {"zero_point": False}, "if zero_point is True, not False"),
        ("awq", {"bits": 3}, "if they have 4 bits, not 3"),
        ("awq", {"bits": None}, "if they have 4 bits, not None"),
        ("awq", {"group_size": 24}, "group_size should be -1 or a multiple of 16, not 24"),
        ("awq", {"group_size": 0}, "group_size should be -1 or a multiple of 16, not 0"),
        ("awq", {"group_size": "128"}, "group_size should be -1 or a multiple of 16, not '128'"),
        ("awq", {"group_size": 128}, "64 x 64 weights have no whole words or groups of 128"),
        ("gptq", {"bits": 8}, "gptq weights are supported if they have 4 bits, not 8"),
        ("gptq", {"checkpoint_format": "marlin"}, "if checkpoint_format is gptq or gptq_v2, not 'marlin'"),
        ("gptq", {"pack_dtype": "int16"}, "if pack_dtype is int32, not 'int16'"),
        ("gptq", {"dynamic": 5}, "rules of their own for some modules"),
        ("gptq", {"dynamic": {"+:.*down.*": {"bits": 8}}}, "rules of their own for some modules"),
        (PACKED, {"format": "int-quantized"}, "if format is pack-quantized or float-quantized, not 'int-quantized'"),
        (PACKED, {"config_groups": {}}, "if config_groups has one scheme"),
        (PACKED, {"config_groups": {"a": {"weights": None}}}, "if config_groups has one scheme"),
        (PACKED, {"config_groups": [1]}, "if config_groups has one scheme"),
        (PACKED, scheme(num_bits=8), "if they have 4 bits, not 8"),
        (PACKED, scheme(type="float"), "if type is int, not 'float'"),
        (PACKED, scheme(strategy="tensor"), "if strategy is group or channel, not 'tensor'"),
        (PACKED, {"kv_cache_scheme": {"num_bits": 8}}, "if nothing but the weights is quantised"),
    ],
)
def test_what_is_packed_in_other_ways_is_refused(
    tmp_path: Path, method: Any, changes: dict[str, Any], line: str
) -> None:
    write_int4_folder(tmp_path / "m", SPEC, tiny_weights(SPEC), Recipe(method), quantization=changes)
    with pytest.raises(ModelError, match=line) as caught:
        load_model(str(tmp_path / "m"))
    assert str(caught.value).startswith(str(tmp_path))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("tensors", "line"),
    [
        ({f"{Q}.qweight": ("int32", np.zeros((8, 32)))}, r"q_proj\.qweight has the shape \(8, 32\), not \(8, 64\)"),
        ({f"{Q}.qzeros": ("int32", np.zeros((4, 8)))}, r"q_proj\.qzeros has the shape \(4, 8\), not \(2, 8\)"),
        ({f"{Q}.scales": ("float16", np.zeros((64, 2)))}, r"q_proj\.scales has the shape \(64, 2\), not \(2, 64\)"),
        ({f"{Q}.g_idx": ("int32", np.zeros(32))}, r"q_proj\.g_idx has the shape \(32,\), not \(64,\)"),
        ({f"{Q}.qweight": ("float32", np.zeros((8, 64)))}, r"q_proj\.qweight has type F32; only I32 can be read"),
        (
            {f"{Q}.scales": ("int32", np.zeros((2, 64)))},
            r"q_proj\.scales has type I32; only F32, F16, BF16 can be read",
        ),
        ({f"{Q}.scales": ("float32", np.zeros((2, 64)))}, "some scales are F16, others F32"),
        ({"model.norm.weight": ("int32", np.zeros(64))}, r"norm\.weight has type I32; only F32, F16, BF16 can be read"),
        ({f"{Q}.lora": ("int32", np.zeros(8))}, "belongs to no supported model"),
    ],
)
def test_misshapen_parts_are_refused(tmp_path: Path, tensors: dict[str, Any], line: str) -> None:
    write_int4_folder(tmp_path / "m", SPEC, tiny_weights(SPEC), Recipe("gptq"), changes=tensors)
    with pytest.raises(ModelError, match=line):
        load_model(str(tmp_path / "m"))


@pytest.mark.parametrize("groups", [np.full(64, 99), np.full(64, -1), np.zeros(64), np.arange(64) // 16])
def test_groups_that_are_not_equally_large_are_refused(tmp_path: Path, groups: Any) -> None:
    changes = {f"{Q}.g_idx": ("int32", groups)}
    write_int4_folder(tmp_path / "m", SPEC, tiny_weights(SPEC), Recipe("gptq"), changes=changes)
    model = load_model(str(tmp_path / "m"))
    with pytest.raises(ModelError, match=r"q_proj\.g_idx: its columns are not in groups of 32"):
        model.weights.read("layers.0.q")


def test_a_part_that_is_not_there_is_named(tmp_path: Path) -> None:
    write_int4_folder(tmp_path / "m", SPEC, tiny_weights(SPEC), Recipe("awq"), quantization={"quant_method": "gptq"})
    with pytest.raises(ModelError, match=r"q_proj\.qweight has the shape \(64, 8\), not \(8, 64\)"):
        load_model(str(tmp_path / "m"))
    write_int4_folder(
        tmp_path / "n", SPEC, tiny_weights(SPEC), Recipe(PACKED, is_symmetric=True),
        quantization=scheme(symmetric=False),
    )  # fmt: skip
    with pytest.raises(ModelError, match=r"q_proj\.weight_zero_point is missing"):
        load_model(str(tmp_path / "n"))


def test_experts_in_four_bits_are_read_and_their_router_is_not(tmp_path: Path) -> None:
    spec = tiny_spec("qwen3moe", num_layers=1, experts=ExpertsSpec(num_experts=3, num_chosen=2, size=64))
    meant = write_int4_folder(tmp_path / "m", spec, tiny_weights(spec), Recipe("awq"), plain=("router",))
    model = load_model(str(tmp_path / "m"))
    for name, tensor in meant.items():
        np.testing.assert_array_equal(model.weights.read(name), tensor, err_msg=name)
    assert isinstance(model.weights.stored("layers.0.experts.2.down"), Int4Stored)
