"""Backends as they are opened, and the engine on the real model: in exact precision nothing changes a token."""

import gc
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.backends.batches import batch
from tests.backends.cpu.models import make_prompt, tiny_model
from tests.backends.reference import reference_logits
from tests.engine.tiny import Listener, greedy, make_request
from tests.models.int4 import Recipe, write_int4_folder
from tests.models.tiny import DictWeights, tiny_spec, tiny_weights, write_folder, write_gguf

from hotloop.backends.backend import Backend
from hotloop.backends.cpu.opening import open_cpu
from hotloop.core.config import EngineConfig, Precision, WeightFormat
from hotloop.core.errors import ConfigError, ModelError
from hotloop.core.request import Priority, Request
from hotloop.engine.engine import Engine
from hotloop.models.model import Model, load_model

CONFIG = EngineConfig(kv_memory="8MiB")


def make_backend(model: Model, weights: WeightFormat = "f32", precision: Precision = "exact") -> Backend:
    return open_cpu(model, CONFIG, weight_format=weights, precision=precision)


def assert_close(got: NDArray[np.float32], want: NDArray[np.float32]) -> None:
    np.testing.assert_allclose(got, want, rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("recipe", [Recipe("awq"), Recipe("gptq", has_act_order=True)], ids=str)
def test_a_checkpoint_in_four_bits_is_dequantised(recipe: Recipe, tmp_path: Path, empty_home: Path) -> None:
    spec = tiny_spec("llama")
    weights = {name: tensor / 8 if tensor.ndim == 2 else tensor for name, tensor in tiny_weights(spec).items()}
    meant = DictWeights(write_int4_folder(tmp_path / "m", spec, weights, recipe))
    model = load_model(str(tmp_path / "m"))
    token_ids = make_prompt(model, 20)
    want = reference_logits(spec, meant, token_ids)
    assert_close(make_backend(model).run(batch((token_ids, 0, [0]))), want)


def test_keys_and_values_in_fp8_are_refused(empty_home: Path) -> None:
    with pytest.raises(ConfigError, match="kv_precision fp8 is for a GPU: on a CPU it can be bf16, f16, f32 or int8"):
        open_cpu(tiny_model("llama"), EngineConfig(kv_precision="fp8"))


def test_weights_in_fp8_are_refused(empty_home: Path) -> None:
    with pytest.raises(ConfigError, match="weights fp8 are for a GPU: on a CPU they can be stored, int8, int4, bf16"):
        open_cpu(tiny_model("llama"), CONFIG, weight_format="fp8")


def test_the_pool_is_sized_from_the_memory(empty_home: Path) -> None:
    model = tiny_model("llama")
    assert make_backend(model).num_blocks == (8 << 20) // (2 * 2 * 2 * 16 * 32 * 4)
    for precision in ("exact", "fast"):
        with pytest.raises(ConfigError, match="give it more"):
            open_cpu(tiny_model("llama", head_dim=64), EngineConfig(kv_memory="1KiB"), precision=precision)


def test_more_kv_than_the_machine_has_memory_is_refused(empty_home: Path) -> None:
    with pytest.raises(ConfigError, match=r"KV 838190\.3 GiB .* free; --kv-memory \d+MiB would fit"):
        open_cpu(tiny_model("llama"), EngineConfig(kv_memory="900000GB"))


def test_a_model_that_does_not_fit_is_refused_unread(empty_home: Path) -> None:
    huge = replace(tiny_model("llama"), spec=tiny_spec("llama", num_layers=10**9), weights=DictWeights({}))
    with pytest.raises(ModelError, match=r"tiny-llama does not fit: weights .* this machine has only .* GiB free"):
        open_cpu(huge, CONFIG, weight_format="int8")


LEAVING = """
import sys, threading
from hotloop import Engine, EngineConfig, SamplingParams
from hotloop.core.request import Request

engine = Engine.load(sys.argv[1], EngineConfig(kv_memory="8MiB"), device="cpu").start()
has_begun = threading.Event()
request = Request("r", engine.tokenizer.encode("the fox"), SamplingParams(max_tokens=400, ignore_eos=True))
engine.submit([request], lambda events: has_begun.set())
has_begun.wait()
"""


def test_a_program_may_end_while_its_engine_runs(tmp_path: Path, home_for_processes: Path) -> None:
    spec = tiny_spec("llama")
    folder = write_folder(tmp_path / "m", spec, tiny_weights(spec))
    ended = subprocess.run([sys.executable, "-c", LEAVING, folder], capture_output=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, b"")


@pytest.mark.parametrize("precision", ["exact", "fast"])
def test_blocks_can_be_taken_out_and_put_back_elsewhere(precision: Precision, empty_home: Path) -> None:
    model = tiny_model("llama", head_dim=64)
    first, second = (make_backend(model, precision=precision) for _ in range(2))
    prompt = make_prompt(model, 70)
    first.run(batch((prompt, 0, [2, 0, 1])))
    want = first.run(batch((prompt[64:], 64, [2, 0, 1]))).copy()
    kept = first.read_blocks([2, 0]).wait()
    assert kept.nbytes == 2 * first.block_bytes
    first.close()
    second.write_blocks([5, 3], kept)
    assert (second.run(batch((prompt[64:], 64, [5, 3, 4]))) == want).all()
    assert second.read_blocks([5, 3]).wait() == kept
    second.close()


def test_kept_blocks_are_told_apart_by_all_they_depend_on(empty_home: Path) -> None:
    small, other = tiny_model("llama", head_dim=64), tiny_model("qwen2", head_dim=64)
    layouts = [
        make_backend(small).kv_layout,
        make_backend(small, "int8").kv_layout,
        make_backend(small, precision="fast").kv_layout,
        make_backend(other).kv_layout,
    ]
    assert len({*layouts}) == len(layouts)
    assert make_backend(small).kv_layout == layouts[0]


@pytest.mark.parametrize("precision", ["exact", "fast"])
def test_a_restart_with_kept_blocks_says_the_same(precision: Precision, empty_home: Path, tmp_path: Path) -> None:
    model = tiny_model("llama", head_dim=64, max_context=1024)
    prompt = make_prompt(model, 700)
    answers = []
    for kv_dir in (None, str(tmp_path / "kv"), str(tmp_path / "kv")):
        config = EngineConfig(kv_memory="8MiB", kv_dir=kv_dir, drafts=False)
        backend = open_cpu(model, config, weight_format="f32", precision=precision)
        with Engine(model.tokenizer, backend, config) as engine:
            answers.append(engine.generate(prompt, greedy(12)))
    assert [answer.usage.num_restored for answer in answers] == [0, 0, 512]
    if precision == "exact":
        assert len({answer.token_ids for answer in answers}) == 1


TEXTS = (
    "The capital of France is",
    "The capital of France is Paris, and the capital of Italy is",
    "def fibonacci(n):\n    if n < 2:\n        return n\n    return",
    "Once upon a time there was a small village by the sea. " * 6 + "In it lived",
)


@pytest.fixture(scope="module")
def real_model(default_model_path: Path) -> Model:
    return load_model(str(default_model_path))


def test_an_engine_opened_and_closed_over_and_over_takes_no_more_memory(tmp_path: Path, empty_home: Path) -> None:
    """Weights, KV and what drafts are made from: nothing of it waits for the garbage collector."""
    spec = tiny_spec("llama", head_dim=64)
    path = write_gguf(tmp_path / "m.gguf", spec, tiny_weights(spec))
    config, sizes = EngineConfig(kv_memory="64MiB", draft_history_tokens=1_000_000), list[int]()
    gc.disable()
    try:
        for _ in range(10):
            with Engine.load(str(path), config, device="cpu") as engine:
                engine.generate("the fox", greedy())
            sizes.append(resident_bytes())
    finally:
        gc.enable()
    assert sizes[-1] - sizes[2] < 32 << 20, "less than one of them took"


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def go_on(model: Model, *, interrupted: bool = False, num_turns: int = 1, **settings: Any) -> list[list[int]]:
    """How each text goes on, all submitted at once; if told so, an urgent request makes whoever runs give way."""
    config = EngineConfig(debug_checks=True, kv_memory="64MiB", **settings)
    listener = Listener()
    names = [f"{turn}.{i}" for turn in range(num_turns) for i in range(len(TEXTS))]
    with Engine(model.tokenizer, open_cpu(model, config, precision="exact"), config) as engine:
        for turn in range(num_turns):
            texts = dict(zip((name for name in names if name.startswith(f"{turn}.")), TEXTS, strict=True))
            engine.submit([ask(model, name, text, Priority.BACKGROUND) for name, text in texts.items()], listener)
            if interrupted:
                listener.next()
                engine.submit([ask(model, "urgent", "Hello", Priority.INTERACTIVE)], listener)
            listener.wait(*texts)
        assert (engine.stats().num_preemptions > 0) == interrupted
    return [listener.token_ids(name) for name in names]


def ask(model: Model, name: str, text: str, priority: Priority) -> Request:
    return make_request(model.tokenizer.encode(text), name, sampling=greedy(16), priority=priority)


@pytest.mark.long
@pytest.mark.model
def test_the_real_model_says_the_same_however_it_is_computed(real_model: Model) -> None:
    alone = go_on(real_model, max_running=1, prefix_cache=False)
    assert "Paris" in real_model.tokenizer.decode(alone[0])
    assert go_on(real_model, num_turns=2) == alone * 2, "batched, then from the cache"
    assert go_on(real_model, max_step_tokens=32, max_running=1, interrupted=True) == alone, "in chunks, preempted"
