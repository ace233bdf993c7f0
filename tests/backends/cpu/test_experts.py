"""Experts on the CPU: how they are held and kept, and what is computed with them."""

from pathlib import Path

import numpy as np
import pytest
from tests.backends.reference import experts as defined_experts
from tests.engine.tiny import TOKENIZER
from tests.models.tiny import DictWeights, tiny_spec, tiny_weights

from hotloop.backends.cpu import experts as held_experts
from hotloop.backends.cpu.experts import (
    Held,
    Matrices,
    NativeExperts,
    NumpyExperts,
    held_format,
    load_experts,
    pack,
    unpack,
)
from hotloop.core.config import Precision
from hotloop.models.model import Model
from hotloop.models.spec import Family, ModelSpec

FAMILIES: tuple[Family, ...] = ("qwen3moe", "mixtral", "gptoss", "glm4moe")
TOLERANCES: dict[Held, float] = {"f32": 1e-5, "bf16": 1e-5, "int8": 0.02, "int4": 0.3}


def tiny_model(spec: ModelSpec) -> Model:
    tensors = {name: tensor / 8 if tensor.ndim == 2 else tensor for name, tensor in tiny_weights(spec).items()}
    return Model("tiny", Path("tiny"), spec.family, spec, TOKENIZER, None, DictWeights(tensors), 0)


def off_by(got: np.ndarray, want: np.ndarray) -> float:
    return float(np.linalg.norm(got - want) / np.linalg.norm(want))


@pytest.mark.parametrize("held", ["f32", "bf16", "int8", "int4"])
def test_a_matrix_comes_back_as_it_was_packed(held: Held) -> None:
    matrix = np.random.default_rng(0).standard_normal((6, 64), np.float32)
    values, scales, zeros = (part[None] for part in pack(matrix, held))
    got = unpack(Matrices(values, scales.view(np.float16), zeros, None), 0, held)
    assert off_by(got, matrix) < {"f32": 1e-9, "bf16": 0.004, "int8": 0.01, "int4": 0.1}[held]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("held", ["f32", "bf16", "int8", "int4"])
@pytest.mark.parametrize("precision", ["exact", "fast"])
def test_experts_come_to_what_they_are_defined_as(
    family: Family, held: Held, precision: Precision, empty_home: Path
) -> None:
    model = tiny_model(tiny_spec(family))
    spec, layer = model.spec, model.spec.num_layers - 1
    assert spec.experts
    layers, held = load_experts(model, held), held_format(spec, held)
    x = np.random.default_rng(1).standard_normal((9, spec.hidden_size), np.float32)
    want = defined_experts(spec.experts, model.weights, f"layers.{layer}.", x)
    if spec.experts.shared_size:  # which the graph computes
        want -= defined_shared(model, layer, x)
    plain, ours = np.empty_like(x), np.empty_like(x)
    NumpyExperts(spec, layers, held).run(layer, x, plain)
    assert off_by(plain, want) < TOLERANCES[held]
    library = held_experts._library()
    if library is None:
        pytest.skip("needs a C++ compiler")
    native = NativeExperts(library, spec, layers, held, precision)
    native.run(layer, x, ours)
    assert off_by(ours, plain) < (1e-5 if precision == "exact" or held in ("f32", "bf16") else 0.03)
    one = np.empty_like(x[:1])
    native.run(layer, x[4:5], one)
    np.testing.assert_array_equal(one[0], ours[4])


def defined_shared(model: Model, layer: int, x: np.ndarray) -> np.ndarray:
    gate, up, down = (model.weights.read(f"layers.{layer}.shared_{part}") for part in ("gate", "up", "down"))
    return (x @ gate.T / (1 + np.exp(-(x @ gate.T))) * (x @ up.T)) @ down.T


def test_the_first_start_keeps_them_and_the_next_reads_nothing_else(empty_home: Path) -> None:
    model = tiny_model(tiny_spec("qwen3moe"))
    made = load_experts(model, "int8")
    [path] = empty_home.rglob("experts-int8-*.bin")
    tensors = {name: tensor for name, tensor in tiny_weights(model.spec).items() if ".experts." not in name}
    again = load_experts(
        Model("tiny", Path("t"), "qwen3moe", model.spec, TOKENIZER, None, DictWeights(tensors), 0), "int8"
    )
    for layer, each in made.items():
        np.testing.assert_array_equal(again[layer].gate_up.values, each.gate_up.values)
        np.testing.assert_array_equal(again[layer].down.scales, each.down.scales)
    path.write_bytes(b"cut short")
    assert load_experts(model, "int8").keys() == made.keys()
    assert path.stat().st_size > 100


def test_without_room_on_the_disk_they_are_made_every_time(empty_home: Path) -> None:
    empty_home.parent.mkdir(exist_ok=True)
    empty_home.write_text("not a folder")
    layers = load_experts(tiny_model(tiny_spec("glm4moe")), "int4")
    assert sorted(layers) == [1]  # its first layer has an MLP
    assert held_experts.held_format(tiny_spec("mixtral"), "int4") == "int8"  # 40 are no whole number of groups
