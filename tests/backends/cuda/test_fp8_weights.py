"""Checkpoints in FP8 on the device: kept in e4m3, whole and in shares, with experts, and a model that runs."""

import random
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.backends.batches import batch
from tests.backends.cuda.test_backend import logits_of, make_backend
from tests.backends.cuda.test_int4_weights import CHUNK_BYTES, MATRICES, exact_matrices, small_weights
from tests.backends.cuda.test_parallel import open_two
from tests.backends.cuda.test_weights import expected_layer
from tests.backends.reference import reference_logits
from tests.engine.tiny import TOKENIZER
from tests.models.fp8 import Fp8Recipe, write_fp8_folder
from tests.models.tiny import DictWeights, Tensors, spec_config, tiny_spec, write_json
from tests.parity.models import CONFIGS, HYBRIDS

from hotloop.backends.cuda.quant.fp8 import ScaledMatrix, keep_fp8
from hotloop.backends.cuda.weights import load_weights
from hotloop.models.fp8 import dequantise_fp8
from hotloop.models.huggingface import SafetensorsWeights, config_spec
from hotloop.models.hybrid import HybridWeights
from hotloop.models.model import Model, load_model
from hotloop.models.spec import ExpertsSpec, Fp8Stored, ModelSpec

PACKED = "compressed-tensors"
EXACT = [Fp8Recipe(PACKED, "channel"), Fp8Recipe(PACKED, "tensor", has_scalars=True), Fp8Recipe(strategy="tensor")]


def fp8_model(folder: Path, spec: ModelSpec, recipe: Fp8Recipe, **others: Any) -> tuple[Model, Tensors]:
    meant = write_fp8_folder(folder, spec, small_weights(spec), recipe, **others)
    return load_model(str(folder)), meant


def test_every_byte_is_what_torch_makes_of_it() -> None:
    codes = torch.arange(256, dtype=torch.uint8).view(2, 128)
    got = dequantise_fp8(Fp8Stored(codes.numpy(), np.ones((2, 1), np.float32), 128))
    np.testing.assert_array_equal(got, codes.view(torch.float8_e4m3fn).float().numpy())


@pytest.mark.parametrize("recipe", EXACT, ids=str)
def test_scales_of_rows_are_kept_to_the_last_bit(tmp_path: Path, recipe: Fp8Recipe, device: str) -> None:
    spec = tiny_spec("qwen2")
    model, meant = fp8_model(tmp_path / "m", spec, recipe)
    loaded = load_weights(model, device, torch.bfloat16, chunk_bytes=CHUNK_BYTES)
    for matrix in exact_matrices(loaded, spec, meant):
        assert isinstance(matrix, ScaledMatrix)
        assert matrix.values.dtype == torch.float8_e4m3fn
    assert isinstance(loaded.head, torch.Tensor), "whose errors are the logits'"


def test_blocks_share_the_largest_scale_of_their_row(tmp_path: Path, device: str) -> None:
    spec = tiny_spec("llama")
    model, meant = fp8_model(tmp_path / "m", spec, Fp8Recipe())
    layer = load_weights(model, device, torch.bfloat16, chunk_bytes=CHUNK_BYTES).layers[1]
    want, got = meant["layers.1.down"], layer.down
    assert isinstance(got, ScaledMatrix)
    scales = model.weights.stored("layers.1.down").scales
    np.testing.assert_array_equal(got.scales.cpu().numpy(), scales.max(1))
    error = np.abs(got.dequantised().cpu().numpy() - want)
    assert (error <= np.abs(want) / 16 + scales.max(1, keepdims=True) / 1024).all()
    for row in range(0, 64, 32):  # a block that has the largest is what it was
        block = scales[row].argmax()
        assert not error[row : row + 32, 48 * block : 48 * (block + 1)].any()


def test_scales_that_differ_by_powers_of_two_cost_nothing(device: str) -> None:
    values = torch.randn(4, 64, device=device).mul(20).to(torch.float8_e4m3fn)
    scales = torch.tensor([[0.5, 2.0], [4.0, 4.0], [0.25, 1.0], [1.0, 0.5]], device=device)
    groups = torch.arange(64, device=device) // 40
    kept = ScaledMatrix.empty(4, 64, torch.device(device))
    keep_fp8(values, scales, groups, kept)
    torch.testing.assert_close(kept.dequantised(), values.float() * scales[:, groups], rtol=0, atol=2**-8)


def test_what_is_not_all_in_fp8_or_not_to_be_kept_is_dequantised(tmp_path: Path, device: str) -> None:
    spec = tiny_spec("llama")
    model, meant = fp8_model(tmp_path / "m", spec, Fp8Recipe(), plain=("v",))
    want = expected_layer(spec, meant, 1)
    layer = load_weights(model, device, torch.float32, chunk_bytes=CHUNK_BYTES).layers[1]
    assert isinstance(layer.gate_up, ScaledMatrix)
    np.testing.assert_array_equal(layer.qkv.cpu().numpy(), want["qkv"])
    layer = load_weights(model, device, torch.float32, keeps_fp8=False, chunk_bytes=CHUNK_BYTES).layers[1]
    for name in MATRICES:
        np.testing.assert_array_equal(getattr(layer, name).cpu().numpy(), want[name], err_msg=name)


def test_ranks_load_their_shares(tmp_path: Path, device: str) -> None:
    """Half a row of 96 is a block of 40 and eight columns of the next."""
    spec = tiny_spec("llama", head_dim=32)
    recipe = Fp8Recipe(block=(24, 40))
    model, meant = fp8_model(tmp_path / "m", spec, recipe)
    for rank in range(2):
        share = load_weights(model, device, torch.float32, keeps_fp8=False, rank=rank, num_ranks=2).layers[1]
        np.testing.assert_array_equal(share.down.cpu(), np.split(meant["layers.1.down"], 2, 1)[rank])
        gate_up = np.concatenate([np.split(meant[f"layers.1.{name}"], 2)[rank] for name in ("gate", "up")])
        np.testing.assert_array_equal(share.gate_up.cpu(), gate_up)


def test_experts_are_kept_and_routers_are_not(tmp_path: Path, device: str) -> None:
    spec = tiny_spec("qwen3moe", num_layers=1, experts=ExpertsSpec(num_experts=3, num_chosen=2, size=64))
    recipe = Fp8Recipe(PACKED, "channel")
    model, meant = fp8_model(tmp_path / "m", spec, recipe, plain=("router",))
    experts = load_weights(model, device, torch.bfloat16).layers[0].experts
    assert experts
    assert isinstance(experts.gate_up, ScaledMatrix)
    assert isinstance(experts.down, ScaledMatrix)
    names = [f"layers.0.experts.{i}.{part}" for i in range(3) for part in ("gate", "up")]
    want = np.concatenate([meant[name] for name in names])
    np.testing.assert_array_equal(experts.gate_up.dequantised().cpu(), want)
    assert isinstance(experts.router, torch.Tensor)


def test_dummy_weights_are_in_fp8_too(tmp_path: Path, device: str) -> None:
    (tmp_path / "m").mkdir()
    config = spec_config(tiny_spec("llama")) | {"quantization_config": Fp8Recipe().config()}
    write_json(tmp_path / "m" / "config.json", config)
    loaded = load_weights(load_model(str(tmp_path / "m"), "dummy"), device, torch.bfloat16)
    assert isinstance(loaded.layers[1].gate_up, ScaledMatrix)
    assert loaded.layers[1].gate_up.dequantised().std().item() == pytest.approx(0.02, rel=0.1)


@pytest.mark.parametrize("keeps_fp8", [True, False])
def test_a_model_computes_with_what_its_files_stand_for(tmp_path: Path, keeps_fp8: bool, device: str) -> None:
    """Alone the weights are dequantised, as they are if not kept; in a chunk inputs are rounded to e4m3 as well."""
    spec = tiny_spec("qwen2", num_layers=1)
    model, meant = fp8_model(tmp_path / "m", spec, Fp8Recipe(PACKED, "channel"))
    prompt = [random.Random(2).randrange(250) for _ in range(4)]
    want = reference_logits(spec, DictWeights(meant), prompt)
    backend = make_backend(model, device, keeps_fp8=keeps_fp8)
    got = np.concatenate([logits_of(backend, batch(([token], i, [0]))) for i, token in enumerate(prompt)])
    np.testing.assert_allclose(got, want, rtol=2e-3, atol=2e-3)
    chunk = logits_of(backend, batch((prompt, 0, [1])))
    near = {"rtol": 2e-3, "atol": 2e-3} if not keeps_fp8 else {"rtol": 0, "atol": 0.1 * float(np.abs(want).max())}
    np.testing.assert_allclose(chunk, want, **near)
    backend.close()


def test_two_ranks_compute_what_one_does(tmp_path: Path, device: str) -> None:
    spec = tiny_spec("llama", max_context=256, num_layers=1, intermediate_size=128)
    model, _ = fp8_model(tmp_path / "m", spec, Fp8Recipe(PACKED, "channel"))
    alone = make_backend(model, device)
    two, _ = open_two(model, device)
    for step in (batch(([5], 0, [3])), batch(([9], 1, [3]))):
        np.testing.assert_allclose(logits_of(two, step), logits_of(alone, step), rtol=1e-4, atol=1e-4)
    two.close()
    alone.close()


@pytest.mark.parametrize("name", ["qwen3_next", "deepseek_v3"])
def test_hybrids_are_dequantised_and_latents_kept(tmp_path: Path, name: str, device: str) -> None:
    """What a hybrid's files fuse is taken apart; what makes keys and values of latents is multiplied otherwise."""
    config = {**CONFIGS, **HYBRIDS}[name]
    (tmp_path / "c").mkdir()
    write_json(tmp_path / "c" / "config.json", config)
    spec = config_spec(tmp_path / "c")
    write_fp8_folder(tmp_path / "m", spec, small_weights(spec), Fp8Recipe(), plain=("router",), config=config)
    weights = SafetensorsWeights(tmp_path / "m", config_spec(tmp_path / "m"))
    model = Model(name, tmp_path / "m", name, config_spec(tmp_path / "m"), TOKENIZER, None, weights, 0)
    loaded = load_weights(model, device, torch.float32, chunk_bytes=1 << 16)
    if spec.linear:
        meant = HybridWeights(weights, spec)
        last = spec.kv_layers[-1]
        want = np.concatenate([meant.read(f"layers.{last}.{part}") for part in ("q_gate", "q", "k", "v")])
        np.testing.assert_array_equal(loaded.layers[last].qkv.cpu(), want)
    else:
        kept = [
            field.name
            for field in fields(loaded.layers[0])
            if isinstance(getattr(loaded.layers[0], field.name), ScaledMatrix)
        ]
        assert {"o", "gate_up", "down"} <= {*kept}
        assert "kv_b" not in kept
