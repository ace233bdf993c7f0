"""Checkpoints in four bits on the device: what the files stand for, whole and in shares, and a model that runs."""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.backends.batches import batch
from tests.backends.cuda.test_backend import logits_of, make_backend
from tests.backends.cuda.test_parallel import open_two
from tests.backends.cuda.test_weights import expected_layer
from tests.backends.reference import reference_logits
from tests.models.int4 import Recipe, write_int4_folder
from tests.models.tiny import DictWeights, Tensors, spec_config, tiny_spec, tiny_weights, write_json

from hotloop.backends.cuda.quant.fp8 import ScaledMatrix, quantise
from hotloop.backends.cuda.quant.int4 import Int4Matrix
from hotloop.backends.cuda.weights import DeviceWeights, load_weights
from hotloop.core.errors import ConfigError, ModelError
from hotloop.models.memory import gpu_weight_bytes
from hotloop.models.model import Model, load_model
from hotloop.models.spec import ModelSpec

MATRICES = ("qkv", "o", "gate_up", "down")
RECIPES = [
    Recipe("awq", num_shards=2),
    Recipe("awq", group_size=-1, scale_kind="bfloat16"),
    Recipe("gptq", is_symmetric=True),
    Recipe("gptq", group_size=16, has_act_order=True),
    Recipe("gptq", checkpoint_format="gptq_v2", scale_kind="float32"),
    Recipe("compressed-tensors", is_symmetric=True, scale_kind="bfloat16"),
    Recipe("compressed-tensors", group_size=16),
]
CHUNK_BYTES = 5 * 4 * 96  # so that every tensor travels in pieces


def small_weights(spec: ModelSpec) -> Tensors:
    return {name: each / 8 if each.ndim == 2 else each for name, each in tiny_weights(spec).items()}


def int4_model(folder: Path, spec: ModelSpec, recipe: Recipe, **others: Any) -> tuple[Model, Tensors]:
    meant = write_int4_folder(folder, spec, small_weights(spec), recipe, **others)
    return load_model(str(folder)), meant


def exact_matrices(loaded: DeviceWeights, spec: ModelSpec, meant: Tensors) -> Iterator[Any]:
    """Every fused matrix of every layer, which is what was meant to the last bit."""
    for i, layer in enumerate(loaded.layers):
        want = expected_layer(spec, meant, i)
        for name in MATRICES:
            matrix = getattr(layer, name)
            np.testing.assert_array_equal(matrix.dequantised().cpu().numpy(), want[name], err_msg=name)
            yield matrix


@pytest.mark.parametrize("recipe", RECIPES, ids=str)
def test_matrices_are_fused_and_held_to_the_last_bit(tmp_path: Path, recipe: Recipe, device: str) -> None:
    spec = tiny_spec("qwen2")
    model, meant = int4_model(tmp_path / "m", spec, recipe)
    loaded = load_weights(model, device, torch.bfloat16, chunk_bytes=CHUNK_BYTES)
    for matrix in exact_matrices(loaded, spec, meant):
        assert isinstance(matrix, Int4Matrix)
        assert (matrix.order is not None) == recipe.has_act_order
    assert all(isinstance(layer.qkv_bias, torch.Tensor) for layer in loaded.layers)
    assert torch.equal(loaded.embed.float().cpu(), torch.tensor(meant["embed"]))


def test_the_sum_of_the_memory_is_what_is_held(tmp_path: Path, device: str) -> None:
    """Also of columns that fill no piece of 128."""
    spec = tiny_spec("llama", intermediate_size=320, has_tied_head=False)
    model, _ = int4_model(tmp_path / "m", spec, Recipe("awq"))
    for num_ranks in (1, 2):
        loaded = load_weights(model, device, torch.bfloat16, num_ranks=num_ranks)
        matrices = [getattr(layer, name) for layer in loaded.layers for name in MATRICES]
        norms = 2 * spec.num_layers + 1
        held = sum(each.nbytes for each in [loaded.embed, loaded.head, *matrices]) + 4 * norms * spec.hidden_size
        half_a_row = spec.hidden_size  # of a head that does not come out even
        assert gpu_weight_bytes(model.spec, "bf16", num_ranks) == pytest.approx(held, abs=half_a_row)


def test_what_is_not_all_in_four_bits_is_dequantised(tmp_path: Path, device: str) -> None:
    spec = tiny_spec("llama")
    model, meant = int4_model(tmp_path / "m", spec, Recipe("gptq", has_act_order=True), plain=("v", "down"))
    layer = load_weights(model, device, torch.float32, chunk_bytes=CHUNK_BYTES).layers[1]
    want = expected_layer(spec, meant, 1)
    for name, is_int4 in (("qkv", False), ("o", True), ("gate_up", True), ("down", False)):
        matrix = getattr(layer, name)
        assert isinstance(matrix, Int4Matrix) == is_int4
        numbers = matrix.dequantised() if isinstance(matrix, Int4Matrix) else matrix
        np.testing.assert_array_equal(numbers.cpu().numpy(), want[name], err_msg=name)


def test_e4m3_is_made_of_what_the_files_stand_for(tmp_path: Path, device: str) -> None:
    spec = tiny_spec("llama")
    model, meant = int4_model(tmp_path / "m", spec, Recipe("awq"))
    layer = load_weights(model, device, torch.bfloat16, is_fp8=True).layers[1]
    assert isinstance(layer.down, ScaledMatrix)
    want = quantise(torch.tensor(meant["layers.1.down"], device=device))
    assert torch.equal(layer.down.dequantised(), want.dequantised())


@pytest.mark.parametrize(
    "recipe", [Recipe("awq"), Recipe("gptq", group_size=-1), Recipe("compressed-tensors")], ids=str
)
def test_ranks_load_their_shares(tmp_path: Path, recipe: Recipe, device: str) -> None:
    spec = tiny_spec("llama", intermediate_size=128)
    model, meant = int4_model(tmp_path / "m", spec, recipe)
    for rank in range(2):
        share = load_weights(model, device, torch.float32, rank=rank, num_ranks=2).layers[1]
        layer = {name: torch.tensor(meant[f"layers.1.{name}"]) for name in ("q", "k", "v", "gate", "up", "o", "down")}
        wanted = {
            "qkv": torch.cat([layer[name].chunk(2)[rank] for name in ("q", "k", "v")]),
            "gate_up": torch.cat([layer[name].chunk(2)[rank] for name in ("gate", "up")]),
            "o": layer["o"].chunk(2, 1)[rank],
            "down": layer["down"].chunk(2, 1)[rank],
        }
        for name, want in wanted.items():
            assert torch.equal(getattr(share, name).dequantised().cpu(), want), name


def test_what_cannot_be_split_is_refused(tmp_path: Path, device: str) -> None:
    spec = tiny_spec("llama")
    model, _ = int4_model(tmp_path / "m", spec, Recipe("awq"))
    with pytest.raises(ConfigError, match="96 columns in groups of 32 cannot be split over 2 GPUs"):
        load_weights(model, device, torch.float32, num_ranks=2)
    model, _ = int4_model(tmp_path / "n", spec, Recipe("gptq", group_size=16, has_act_order=True))
    with pytest.raises(ConfigError, match=r"in the order of activations .* cannot be split over several GPUs"):
        load_weights(model, device, torch.float32, num_ranks=2)


def test_fused_matrices_have_their_groups_in_common(tmp_path: Path, device: str) -> None:
    other = {"model.layers.0.self_attn.k_proj.g_idx": ("int32", np.arange(64) % 2)}
    model, _ = int4_model(tmp_path / "m", tiny_spec("llama"), Recipe("gptq"), changes=other)
    with pytest.raises(ModelError, match="have columns in different groups"):
        load_weights(model, device, torch.float32)


def test_dummy_weights_are_in_four_bits_too(tmp_path: Path, device: str) -> None:
    folder = tmp_path / "m"
    folder.mkdir()
    write_json(
        folder / "config.json", spec_config(tiny_spec("llama")) | {"quantization_config": Recipe("awq").config()}
    )
    model = load_model(str(folder), "dummy")
    matrix = load_weights(model, device, torch.bfloat16).layers[1].gate_up
    assert isinstance(matrix, Int4Matrix)
    assert matrix.dequantised().std().item() == pytest.approx(0.02, rel=0.1)


@pytest.mark.parametrize("recipe", [Recipe("awq"), Recipe("gptq", has_act_order=True)], ids=str)
def test_a_model_computes_with_what_its_files_stand_for(tmp_path: Path, recipe: Recipe, device: str) -> None:
    """In a chunk, by the tensor cores, and alone."""
    spec = tiny_spec("qwen2", num_layers=1)
    model, meant = int4_model(tmp_path / "m", spec, recipe)
    prompt = [random.Random(2).randrange(250) for _ in range(12)]
    want = reference_logits(spec, DictWeights(meant), prompt)
    backend = make_backend(model, device)
    chunk = logits_of(backend, batch((prompt[:11], 0, [0])))
    alone = logits_of(backend, batch((prompt[11:], 11, [0])))
    np.testing.assert_allclose(np.concatenate([chunk, alone]), want, rtol=2e-3, atol=2e-3)
    backend.close()


def test_two_ranks_compute_what_one_does(tmp_path: Path, device: str) -> None:
    spec = tiny_spec("llama", max_context=256, num_layers=1, intermediate_size=128)
    model, _ = int4_model(tmp_path / "m", spec, Recipe("awq"))
    alone = make_backend(model, device)
    two, _ = open_two(model, device)
    for step in (batch(([5, 6, 7, 8], 0, [3])), batch(([9], 4, [3]))):
        np.testing.assert_allclose(logits_of(two, step), logits_of(alone, step), rtol=1e-4, atol=1e-4)
    two.close()
    alone.close()
