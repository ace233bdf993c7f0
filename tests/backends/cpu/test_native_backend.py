"""Whole steps of the native decoder against plain numpy, on tiny models; tiles are emulated where there is no AMX."""

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.backends.batches import batch
from tests.backends.cpu.test_native_matmul import rounded
from tests.backends.cpu.test_openvino import make_prompt, tiny_model
from tests.backends.reference import reference_logits
from tests.models.tiny import DictWeights

from hotloop.backends.cpu.build import compiler
from hotloop.backends.cpu.decoder import NativeBackend
from hotloop.backends.cpu.library import Format, load_kernel
from hotloop.models.model import Model
from hotloop.models.spec import Family, ModelSpec

pytestmark = pytest.mark.skipif(compiler() is None, reason="needs a C++ compiler")

FAMILIES: tuple[Family, ...] = ("llama", "qwen2", "qwen3")
KV_BYTES = 8 << 20

Array = NDArray[np.float32]


def open_native(model: Model, form: Format) -> NativeBackend:
    return NativeBackend(model, KV_BYTES, load_kernel(), form=form, num_workers=2)


def rounded_model(model: Model, form: Format) -> Model:
    """With matrices as they are after rounding, so that only that of rows is left to tell the two apart."""
    spec = model.spec
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


def checker(form: Format) -> Callable[[Array, Array], None]:
    return lambda got, want: assert_rows_alike(got, want, 0.05 if form == "int8" else 0.02)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("form", ["int8", "bf16"])
def test_whole_chunked_batched_and_shared_give_the_reference(family: Family, form: Format, empty_home: Path) -> None:
    model = rounded_model(tiny_model(family, head_dim=64), form)
    backend, check = open_native(model, form), checker(form)

    def expected(token_ids: list[int]) -> Array:
        return reference_logits(model.spec, model.weights, token_ids)

    long, short = make_prompt(model, 70), make_prompt(model, 5, seed=1)
    want = expected(long)
    check(backend.run(batch((long, 0, [2, 0, 1]))), want)
    both = np.vstack([want[:32], expected(short)])
    check(backend.run(batch((long[:32], 0, [5]), (short, 0, [3]))), both)
    both = np.vstack([want[32:50], expected([*short, 7])[5:]])
    check(backend.run(batch((long[32:50], 32, [5, 4]), ([7], 5, [3]))), both)
    check(backend.run(batch((long[50:], 50, [5, 4, 6]))), want[50:])
    backend.close()


@pytest.mark.parametrize("has_tied_head", [True, False], ids=["tied", "untied"])
def test_only_wanted_rows_come_back_and_are_the_same(has_tied_head: bool, empty_home: Path) -> None:
    model = tiny_model("llama", head_dim=64, has_tied_head=has_tied_head)
    backend = open_native(model, "bf16")
    part = batch((make_prompt(model, 40), 0, [0, 1]))
    all_rows = backend.run(part)
    some = replace(part, logit_rows=np.array([3, 17, 39]))
    np.testing.assert_array_equal(backend.run(some), all_rows[[3, 17, 39]])
    assert backend.run(replace(part, logit_rows=np.array([], np.int64))).shape == (0, model.spec.vocab_size)
    backend.close()


def test_blocks_go_to_the_host_and_back(empty_home: Path) -> None:
    model = tiny_model("llama", head_dim=64)
    backend = open_native(model, "bf16")
    token_ids = make_prompt(model, 33)
    want = backend.run(batch((token_ids, 0, [0, 1])))[32:]
    backend.write_blocks([4], backend.read_blocks([0]).wait())
    np.testing.assert_array_equal(backend.run(batch((token_ids[32:], 32, [4, 5]))), want)
    backend.close()


def test_blocks_of_a_closed_backend_are_gone(empty_home: Path) -> None:
    backend = open_native(tiny_model("llama", head_dim=64), "bf16")
    backend.close()
    with pytest.raises(IndexError):
        backend.read_blocks([0])


@pytest.mark.parametrize("form", ["int8", "packed_ggml"])
def test_a_model_that_cannot_be_read_leaves_no_threads_behind(form: Format, empty_home: Path) -> None:
    model = tiny_model("llama", head_dim=64)
    names = [name for name in tensor_names(model.spec) if name != "down"]
    tensors = {f"layers.0.{name}": model.weights.read(f"layers.0.{name}") for name in names}
    tensors |= {name: model.weights.read(name) for name in ("embed", "final_norm")}
    num_threads = len(os.listdir("/proc/self/task"))
    with pytest.raises(KeyError, match=r"layers\.0\.down"):
        open_native(replace(model, weights=DictWeights(tensors)), form)
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
