"""Folders in FP8 are read to the last bit, whoever wrote them; those that would be misread are refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.models.fp8 import Fp8Recipe, e4m3, write_fp8_folder
from tests.models.tiny import tiny_spec, tiny_weights, write_json
from tests.parity.models import HYBRIDS

from hotloop.core.errors import ModelError
from hotloop.models.fp8 import dequantise_fp8
from hotloop.models.huggingface import SafetensorsWeights, config_spec
from hotloop.models.memory import gpu_weight_bytes
from hotloop.models.model import load_model, load_spec
from hotloop.models.spec import ExpertsSpec, Fp8Spec, Fp8Stored

SPEC = tiny_spec("llama", num_layers=1)
Q = "model.layers.0.self_attn.q_proj"
PACKED = "compressed-tensors"
RECIPES = [
    Fp8Recipe(),
    Fp8Recipe(block=(16, 128), num_shards=2),
    Fp8Recipe(strategy="tensor"),
    Fp8Recipe(PACKED, "channel", scale_kind="bfloat16"),
    Fp8Recipe(PACKED, "tensor", has_scalars=True),
    Fp8Recipe(PACKED, "block", num_shards=3),
]


@pytest.mark.parametrize("recipe", RECIPES, ids=str)
def test_every_weight_is_what_was_written(tmp_path: Path, recipe: Fp8Recipe) -> None:
    meant = write_fp8_folder(tmp_path / "m", SPEC, tiny_weights(SPEC), recipe)
    model = load_model(str(tmp_path / "m"))
    for name, tensor in meant.items():
        np.testing.assert_array_equal(model.weights.read(name), tensor, err_msg=name)
        is_matrix = tensor.ndim == 2 and name.startswith("layers.")
        assert isinstance(model.weights.stored(name), Fp8Stored) == is_matrix


def test_every_byte_is_the_number_it_stands_for() -> None:
    codes = np.arange(256, dtype=np.uint8).reshape(2, 128)
    want = np.array([e4m3(code) for code in range(256)]).reshape(2, 128)
    want[:, 127] = np.nan
    got = dequantise_fp8(Fp8Stored(codes, np.array([[1.0], [2.0]], np.float32), 128))
    np.testing.assert_array_equal(got, want * [[1], [2]])


def test_matrices_that_were_left_alone_are_read_as_they_are(tmp_path: Path) -> None:
    weights = tiny_weights(SPEC)
    write_fp8_folder(tmp_path / "m", SPEC, weights, Fp8Recipe(), plain=("v", "down"))
    model = load_model(str(tmp_path / "m"))
    np.testing.assert_array_equal(model.weights.read("layers.0.v"), weights["layers.0.v"])
    assert model.weights.stored("layers.0.q").kind == "F8_E4M3"


def test_heads_that_turn_in_part_are_put_in_order_with_their_scales(tmp_path: Path) -> None:
    """GLM's, as they are published: against the same matrices in float32."""
    config = {"n_routed_experts": 6, "moe_intermediate_size": 40, "routed_scaling_factor": 1.5, "use_qk_norm": True}
    config |= {"model_type": "glm4_moe", "partial_rotary_factor": 0.5, "n_shared_experts": 1}
    spec = tiny_spec("glm4moe")
    for name, recipe in (("block", Fp8Recipe(block=(12, 40))), ("channel", Fp8Recipe(PACKED, "channel"))):
        meant = write_fp8_folder(tmp_path / name, spec, tiny_weights(spec), recipe, config=config)
        write_fp8_folder(
            tmp_path / f"{name}-plain", spec, meant, recipe, config=config,
            plain=tuple({place.rpartition(".")[2] for place in meant}),
        )  # fmt: skip
        model, plain = load_model(str(tmp_path / name)), load_model(str(tmp_path / f"{name}-plain"))
        for matrix in ("layers.0.q", "layers.1.k", "layers.1.experts.3.down"):
            assert isinstance(model.weights.stored(matrix), Fp8Stored)
            np.testing.assert_array_equal(model.weights.read(matrix), plain.weights.read(matrix), err_msg=matrix)


def test_experts_in_fp8_are_read_and_their_router_is_not(tmp_path: Path) -> None:
    spec = tiny_spec("qwen3moe", num_layers=1, experts=ExpertsSpec(num_experts=3, num_chosen=2, size=64))
    meant = write_fp8_folder(tmp_path / "m", spec, tiny_weights(spec), Fp8Recipe(), plain=("router",))
    model = load_model(str(tmp_path / "m"))
    for name, tensor in meant.items():
        np.testing.assert_array_equal(model.weights.read(name), tensor, err_msg=name)
    assert isinstance(model.weights.stored("layers.0.experts.2.down"), Fp8Stored)


def test_a_spec_needs_no_weights_and_a_gpu_half_the_memory(tmp_path: Path) -> None:
    write_fp8_folder(tmp_path / "m", SPEC, tiny_weights(SPEC), Fp8Recipe())
    (tmp_path / "m" / "model.safetensors").unlink()
    spec = load_spec(str(tmp_path / "m"))[1]
    assert spec.fp8 == Fp8Spec("weight_scale_inv", (32, 48))
    num_weights, num_rows = (4 * 64 * 64 - 2 * 32 * 64) + 3 * 64 * 96, (64 + 32 + 32 + 64) + (96 + 96 + 64)
    assert gpu_weight_bytes(SPEC, "bf16", 1) - gpu_weight_bytes(spec, "bf16", 1) == num_weights - 4 * num_rows


def scheme(inputs: Any = None, **changes: Any) -> dict[str, Any]:
    weights = {"num_bits": 8, "type": "float", "symmetric": True, "strategy": "channel", "dynamic": False} | changes
    return {"config_groups": {"group_0": {"weights": weights, "input_activations": inputs}}}


@pytest.mark.parametrize(
    ("method", "changes", "line"),
    [
        ("fp8", {"activation_scheme": "static"}, "fp8 weights are supported if activation_scheme is dynamic"),
        ("fp8", {"fmt": "e5m2"}, "fp8 weights are supported if fmt is e4m3, not 'e5m2'"),
        ("fp8", {"weight_block_size": [128]}, r"a block should be rows and columns, not \[128\]"),
        ("fp8", {"weight_block_size": [0, 128]}, r"a block should be rows and columns, not \[0, 128\]"),
        ("fp8", {"weight_block_size": 128}, "a block should be rows and columns, not 128"),
        (PACKED, scheme({"dynamic": False}), "weights in FP8 of inputs are supported if dynamic is True, not False"),
        (PACKED, scheme(5), "if nothing but weights and inputs is quantised"),
        (PACKED, {"kv_cache_scheme": {"num_bits": 8}}, "if nothing but weights and inputs is quantised"),
        (PACKED, scheme(type="int"), "if type is float, not 'int'"),
        (PACKED, scheme(num_bits=4), "if num_bits is 8, not 4"),
        (PACKED, scheme(symmetric=False), "if symmetric is True, not False"),
        (PACKED, scheme(strategy="group"), "if strategy is tensor or channel or block, not 'group'"),
        (PACKED, scheme(strategy="block"), "a block should be rows and columns, not None"),
        (PACKED, {"config_groups": {}}, "if config_groups has one scheme"),
    ],
)
def test_what_would_be_misread_is_refused_before_it_is_read(
    tmp_path: Path, method: Any, changes: dict[str, Any], line: str
) -> None:
    recipe = Fp8Recipe(method, "block" if method == "fp8" else "channel")
    write_fp8_folder(tmp_path / "m", SPEC, tiny_weights(SPEC), recipe, quantization=changes)
    (tmp_path / "m" / "model.safetensors").unlink()
    with pytest.raises(ModelError, match=line):
        load_spec(str(tmp_path / "m"))


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        (
            {f"{Q}.weight_scale_inv": ("float32", np.ones((4, 2)))},
            r"weight_scale_inv has the shape \(4, 2\), not \(2, 2\)",
        ),
        ({f"{Q}.weight_scale_inv": ("int32", np.ones((2, 2)))}, "weight_scale_inv has type I32"),
        ({f"{Q}.input_scale": ("float32", np.ones(1))}, "input_scale belongs to no supported model"),
        ({"model.norm.weight": ("e4m3", np.ones(64, np.uint8))}, r"model\.norm\.weight has type F8_E4M3"),
    ],
)
def test_files_that_do_not_keep_to_it_are_refused(tmp_path: Path, changes: Any, line: str) -> None:
    write_fp8_folder(tmp_path / "m", SPEC, tiny_weights(SPEC), Fp8Recipe(), changes=changes)
    with pytest.raises(ModelError, match=line):
        load_model(str(tmp_path / "m"))


def test_scales_that_are_missing_are_named(tmp_path: Path) -> None:
    recipe, others = Fp8Recipe(PACKED, "channel"), Fp8Recipe().config()
    write_fp8_folder(tmp_path / "m", SPEC, tiny_weights(SPEC), recipe, quantization=others)
    with pytest.raises(ModelError, match=r"q_proj\.weight_scale_inv is missing"):
        load_model(str(tmp_path / "m"))


def test_a_hybrid_in_fp8_is_read(tmp_path: Path) -> None:
    config = HYBRIDS["qwen3_next"]
    (tmp_path / "c").mkdir()
    write_json(tmp_path / "c" / "config.json", config)
    spec = config_spec(tmp_path / "c")
    meant = write_fp8_folder(tmp_path / "m", spec, tiny_weights(spec), Fp8Recipe(), plain=("router",), config=config)
    weights = SafetensorsWeights(tmp_path / "m", config_spec(tmp_path / "m"))
    for name in ("layers.0.linear_qkvz", "layers.3.v", "layers.0.shared_up", "layers.0.experts.1.down"):
        np.testing.assert_array_equal(weights.read(name), meant[name], err_msg=name)
        assert isinstance(weights.stored(name), Fp8Stored)
