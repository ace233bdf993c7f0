"""Whole steps of the decoder against plain numpy, on tiny models; tiles are emulated where there is no AMX."""

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.backends.batches import batch
from tests.backends.cpu.models import expected, make_prompt, tiny_model
from tests.backends.cpu.test_matmul import rounded
from tests.backends.reference import reference_logits
from tests.models.tiny import DictWeights

from hotloop.backends.cpu.build import compiler
from hotloop.backends.cpu.decoder import Holding, NativeBackend, choose_holding, held_bytes
from hotloop.backends.cpu.library import load_kernel
from hotloop.core.config import Precision, WeightFormat
from hotloop.models.model import Model
from hotloop.models.spec import Family, ModelSpec

pytestmark = pytest.mark.skipif(compiler() is None, reason="needs a C++ compiler")

FAMILIES: tuple[Family, ...] = ("llama", "qwen2", "qwen3")
MIXTURES: tuple[Family, ...] = ("qwen3moe", "mixtral", "gptoss", "glm4moe")
KV_BYTES = 8 << 20
EXACT = Holding("f32", in_floats=True)
INT8, BF16 = Holding("int8"), Holding("bf16")

Array = NDArray[np.float32]


def open_native(model: Model, holding: Holding) -> NativeBackend:
    return NativeBackend(model, KV_BYTES, load_kernel(), holding=holding, num_workers=2)


def rounded_model(model: Model, holding: Holding) -> Model:
    """With matrices as they are after rounding, so that only that of rows is left to tell the two apart."""
    spec, form = model.spec, holding.form
    if holding is EXACT:
        return model
    assert form
    names = [f"layers.{layer}.{part}" for layer in range(spec.num_layers) for part in tensor_names(spec)]
    names += ["embed", "final_norm", *([] if spec.has_tied_head else ["head"])]
    tensors = {name: model.weights.read(name) for name in names}
    tensors = {name: rounded(each, form) if each.ndim == 2 else each for name, each in tensors.items()}
    return replace(model, weights=DictWeights(tensors))


def tensor_names(spec: ModelSpec) -> list[str]:
    names = ["attn_norm", "q", "k", "v", "o", "mlp_norm", "gate", "up", "down"]
    names += ["q_bias", "k_bias", "v_bias"] if spec.has_qkv_bias else []
    return names + (["q_norm", "k_norm"] if spec.has_qk_norm else [])


def assert_rows_alike(got: Array, want: Array, limit: float) -> None:
    """Row by row: how far off the logits are, by how far they differ among themselves."""
    assert got.shape == want.shape
    error = np.sqrt(((got - want) ** 2).mean(-1)) / want.std(-1)
    assert error.max() < limit, f"row {error.argmax()} is off by {error.max()}"


def checker(holding: Holding) -> Callable[[Array, Array], None]:
    limit = {EXACT: 2e-5, BF16: 0.02}.get(holding, 0.05)
    return lambda got, want: assert_rows_alike(got, want, limit)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("holding", [INT8, BF16, EXACT], ids=str)
def test_whole_chunked_batched_and_shared_give_the_reference(
    family: Family, holding: Holding, empty_home: Path
) -> None:
    model = rounded_model(tiny_model(family, head_dim=64), holding)
    backend, check = open_native(model, holding), checker(holding)
    long, short = make_prompt(model, 70), make_prompt(model, 5, seed=1)
    want = expected(model, long)
    check(backend.run(batch((long, 0, [2, 0, 1]))), want)
    both = np.vstack([want[:32], expected(model, short)])
    check(backend.run(batch((long[:32], 0, [5]), (short, 0, [3]))), both)
    both = np.vstack([want[32:50], expected(model, [*short, 7])[5:]])
    check(backend.run(batch((long[32:50], 32, [5, 4]), ([7], 5, [3]))), both)
    check(backend.run(batch((long[50:], 50, [5, 4, 6]))), want[50:])
    backend.close()


@pytest.mark.sampled(3)
@pytest.mark.parametrize("family", [*FAMILIES, *MIXTURES])
@pytest.mark.parametrize("weights", ["f32", "bf16", "int8", "int4"])
def test_in_floats_no_bit_depends_on_what_else_is_computed(
    family: Family, weights: WeightFormat, empty_home: Path
) -> None:
    model = tiny_model(family)
    backend = open_native(model, choose_holding(weights, "exact"))
    long, short = make_prompt(model, 100), make_prompt(model, 5, seed=1)
    want = backend.run(batch((long, 0, [2, 0, 1, 3]))).copy()
    for cut in (1, 13, 33, 99):
        company = batch((short, 0, [9]), (long[:cut], 0, [5, 4, 6, 8]))
        assert (backend.run(company)[5:] == want[:cut]).all()
        assert (backend.run(batch((long[cut:], cut, [5, 4, 6, 8]))) == want[cut:]).all()
    backend.close()


LEAST = {"f32": 1 - 1e-6, "auto": 0.99, "bf16": 0.9999, "int8": 0.99, "int4": 0.9}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("family", ["llama", *MIXTURES])
@pytest.mark.parametrize("weights", LEAST)
@pytest.mark.parametrize("precision", ["exact", "fast"])
@pytest.mark.parametrize("has_amx", [True, False], ids=["amx", "any"])
def test_weights_are_close_however_they_are_held(
    family: Family, weights: WeightFormat, precision: Precision, has_amx: bool, empty_home: Path
) -> None:
    """Those of matrices with rows of 40 numbers are held in float32."""
    model = tiny_model(family, has_tied_head=False)
    holding = choose_holding(weights, precision, amx=has_amx)
    backend, token_ids = open_native(model, holding), make_prompt(model, 40)
    got = backend.run(batch((token_ids, 0, [0, 1])))
    least = LEAST[weights] if precision == "exact" else LEAST[weights] - 0.02
    assert np.corrcoef(got.ravel(), expected(model, token_ids).ravel())[0, 1] > least
    backend.close()


@pytest.mark.parametrize("has_amx", [True, False], ids=["amx", "any"])
def test_kv_is_told_apart_by_how_weights_are_held(has_amx: bool) -> None:
    """Codes as they are stored give other keys and values than the bytes that tiles take of them."""
    held = {choose_holding(weights, "fast", amx=has_amx) for weights in ("stored", "int8", "int4", "bf16", "f32")}
    assert len({str(holding) for holding in held}) == len(held)


@pytest.mark.parametrize("changes", [{"has_tied_head": False}, {"num_kv_heads": 4}, {"num_kv_heads": 1}], ids=str)
def test_heads_of_all_kinds(changes: dict[str, Any], empty_home: Path) -> None:
    model = tiny_model("llama", **changes)
    token_ids, backend = make_prompt(model, 40), open_native(model, EXACT)
    checker(EXACT)(backend.run(batch((token_ids, 0, [0, 1]))), expected(model, token_ids))
    backend.close()


@pytest.mark.parametrize("family", ["llama", "qwen3moe"])
@pytest.mark.parametrize("has_tied_head", [True, False], ids=["tied", "untied"])
def test_only_wanted_rows_come_back_and_are_the_same(family: Family, has_tied_head: bool, empty_home: Path) -> None:
    model = tiny_model(family, head_dim=64, has_tied_head=has_tied_head)
    backend = open_native(model, BF16)
    part = batch((make_prompt(model, 40), 0, [0, 1]))
    all_rows = backend.run(part)
    some = replace(part, logit_rows=np.array([3, 17, 39]))
    np.testing.assert_array_equal(backend.run(some), all_rows[[3, 17, 39]])
    assert backend.run(replace(part, logit_rows=np.array([], np.int64))).shape == (0, model.spec.vocab_size)
    backend.close()


def test_blocks_of_a_closed_backend_are_gone(empty_home: Path) -> None:
    backend = open_native(tiny_model("llama", head_dim=64), BF16)
    backend.close()
    with pytest.raises(IndexError):
        backend.read_blocks([0])


@pytest.mark.parametrize("family", ["llama", "qwen3moe"])
def test_a_closed_backend_gives_its_memory_back(family: Family, empty_home: Path) -> None:
    """At once: nothing waits for the garbage collector."""
    model, sizes = tiny_model(family, head_dim=64), list[int]()
    for _ in range(6):
        NativeBackend(model, 64 << 20, load_kernel(), holding=INT8, num_workers=2).close()
        sizes.append(mapped_bytes())
    assert sizes[-1] - sizes[1] < 64 << 20


def mapped_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize("family", ["llama", "qwen3moe", "gptoss"])
def test_what_weights_take_is_reckoned_before_they_are_read(family: Family, empty_home: Path) -> None:
    spec = tiny_model(family, has_tied_head=False).spec
    model = tiny_model(family, has_tied_head=False)
    in_f32, in_bf16 = (held_bytes(model, choose_holding(each, "fast", amx=True)) for each in ("f32", "bf16"))
    outer = spec.vocab_size * spec.hidden_size  # the head: the embedding is read from its file
    assert outer < in_bf16 < in_f32 < 2.2 * in_bf16


@pytest.mark.parametrize("holding", [INT8, Holding("packed_ggml")], ids=str)
@pytest.mark.parametrize("lacking", ["layers.0.down", "layers.1.q"])
def test_a_model_that_cannot_be_read_leaves_no_threads_behind(holding: Holding, lacking: str, empty_home: Path) -> None:
    model = tiny_model("llama", head_dim=64)
    names = [f"layers.{layer}.{name}" for layer in (0, 1) for name in tensor_names(model.spec)]
    tensors = {name: model.weights.read(name) for name in ("embed", "final_norm", *names) if name != lacking}
    num_threads = len(os.listdir("/proc/self/task"))
    with pytest.raises(KeyError, match=lacking):
        open_native(replace(model, weights=DictWeights(tensors)), holding)
    assert len(os.listdir("/proc/self/task")) == num_threads


def test_where_the_system_has_no_more_threads_it_says_so() -> None:
    """In a process with little room for their stacks: it would end if those it has got were left to themselves."""
    code = """
import resource
from hotloop.backends.cpu.library import Native, load_library
from hotloop.core.errors import BackendError
library = load_library()
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (256 << 20),) * 2)
try:
    Native(1000, library)
except BackendError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout[:39]) == (0, "the native decoder could not be set up:"), done.stderr


def test_a_layer_of_each_kind_of_expert_is_what_it_is_defined_as(empty_home: Path) -> None:
    """Groups of experts, scores that are sigmoids, shared ones: as plain numpy has them."""
    for family in MIXTURES:
        model = tiny_model(family)
        backend, prompt = open_native(model, EXACT), make_prompt(model, 60)
        checker(EXACT)(backend.run(batch((prompt, 0, [1, 0]))), reference_logits(model.spec, model.weights, prompt))
        backend.close()
