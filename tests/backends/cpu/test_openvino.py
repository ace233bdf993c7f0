"""The CPU backend against plain numpy, and the engine on the real model: in exact precision nothing changes a token."""

import gc
import platform
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
from tests.backends.reference import reference_logits
from tests.engine.tiny import TOKENIZER, Listener, greedy, make_request
from tests.models.int4 import Recipe, write_int4_folder
from tests.models.tiny import DictWeights, tiny_spec, tiny_weights, write_folder

from hotloop.backends.backend import Backend
from hotloop.backends.cpu.attention import numpy_kernel
from hotloop.backends.cpu.build import has_amx
from hotloop.backends.cpu.decoder import NativeBackend
from hotloop.backends.cpu.opening import open_cpu
from hotloop.backends.cpu.openvino.paged import PagedBackend
from hotloop.backends.cpu.openvino.placeholder import KernelOp, PortableBackend
from hotloop.backends.cpu.openvino.store import failure
from hotloop.core.config import EngineConfig, Precision, WeightFormat
from hotloop.core.errors import ConfigError, ModelError
from hotloop.core.request import Priority, Request
from hotloop.engine.engine import Engine
from hotloop.models.model import Model, load_model
from hotloop.models.spec import Family

FAMILIES: tuple[Family, ...] = ("llama", "qwen2", "qwen3")
CONFIG = EngineConfig(kv_memory="8MiB")
IS_ARM = platform.machine() in ("aarch64", "arm64")

Check = Callable[[NDArray[np.float32], NDArray[np.float32]], None]


def tiny_model(family: Family, **changes: Any) -> Model:
    """Random weights, scaled so that the logits stay of a usual size."""
    spec = tiny_spec(family, **changes)
    tensors = {name: tensor / 8 if tensor.ndim == 2 else tensor for name, tensor in tiny_weights(spec).items()}
    name = f"tiny-{family}"
    return Model(name, Path(name), name, spec, TOKENIZER, None, DictWeights(tensors), 0)


def make_backend(model: Model, weights: WeightFormat = "f32", precision: Precision = "exact") -> Backend:
    return open_cpu(model, CONFIG, weight_format=weights, precision=precision)


def make_prompt(model: Model, length: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(0, model.spec.vocab_size, length).tolist()


def expected(model: Model, token_ids: list[int]) -> NDArray[np.float32]:
    return reference_logits(model.spec, model.weights, token_ids)


def assert_close(got: NDArray[np.float32], want: NDArray[np.float32]) -> None:
    np.testing.assert_allclose(got, want, rtol=2e-4, atol=2e-4)


def assert_alike(got: NDArray[np.float32], want: NDArray[np.float32]) -> None:
    """As alike as bf16 lets them be."""
    assert got.shape == want.shape
    assert np.corrcoef(got.ravel(), want.ravel())[0, 1] > 0.995


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("precision", "check"), [("exact", assert_close), ("fast", assert_alike)])
def test_whole_chunked_batched_and_shared_give_the_reference(
    family: Family, precision: Precision, check: Check, empty_home: Path
) -> None:
    model = tiny_model(family, head_dim=64)
    backend = make_backend(model, precision=precision)
    long, short = make_prompt(model, 70), make_prompt(model, 5, seed=1)
    want = expected(model, long)
    check(backend.run(batch((long, 0, [2, 0, 1]))), want)
    both = np.vstack([want[:32], expected(model, short)])
    check(backend.run(batch((long[:32], 0, [5]), (short, 0, [3]))), both)
    both = np.vstack([want[32:50], expected(model, [*short, 7])[5:]])
    check(backend.run(batch((long[32:50], 32, [5, 4]), ([7], 5, [3]))), both)
    check(backend.run(batch((long[50:], 50, [5, 4, 6]))), want[50:])
    other = [*long[:32], *make_prompt(model, 12, seed=2)]  # two sequences over one block, a chunk and a token
    both = np.vstack([expected(model, other)[32:], want[69:]])
    check(backend.run(batch((other[32:], 32, [5, 7]), (long[69:], 69, [5, 4, 6]))), both)
    backend.close()


def test_only_wanted_rows_come_back(empty_home: Path) -> None:
    model = tiny_model("llama")
    backend = make_backend(model)
    token_ids = make_prompt(model, 9)
    part = batch((token_ids, 0, [0]))
    assert_close(backend.run(replace(part, logit_rows=np.array([8]))), expected(model, token_ids)[8:])
    none = replace(part, logit_rows=np.array([], np.int64))
    assert backend.run(none).shape == (0, model.spec.vocab_size)


@pytest.mark.parametrize("changes", [{"has_tied_head": False}, {"num_kv_heads": 4}, {"num_kv_heads": 1}], ids=str)
def test_heads_of_all_kinds(changes: dict[str, Any], empty_home: Path) -> None:
    model = tiny_model("llama", **changes)
    token_ids = make_prompt(model, 40)
    assert_close(make_backend(model).run(batch((token_ids, 0, [0, 1]))), expected(model, token_ids))


@pytest.mark.parametrize("recipe", [Recipe("awq"), Recipe("gptq", has_act_order=True)], ids=str)
def test_a_checkpoint_in_four_bits_is_dequantised(recipe: Recipe, tmp_path: Path, empty_home: Path) -> None:
    spec = tiny_spec("llama")
    weights = {name: tensor / 8 if tensor.ndim == 2 else tensor for name, tensor in tiny_weights(spec).items()}
    meant = DictWeights(write_int4_folder(tmp_path / "m", spec, weights, recipe))
    model = load_model(str(tmp_path / "m"))
    token_ids = make_prompt(model, 20)
    want = reference_logits(spec, meant, token_ids)
    assert_close(make_backend(model).run(batch((token_ids, 0, [0]))), want)


@pytest.mark.parametrize(("weights", "least"), [("bf16", 0.9999), ("int8", 0.999), ("int4", 0.97)])
@pytest.mark.parametrize(("precision", "more_off"), [("exact", 0), ("fast", 0.01)])
def test_compressed_weights_are_close(
    weights: WeightFormat, least: float, precision: Precision, more_off: float, empty_home: Path
) -> None:
    model = tiny_model("llama", has_tied_head=False, head_dim=64)
    token_ids = make_prompt(model, 40)
    got = make_backend(model, weights, precision).run(batch((token_ids, 0, [0, 1])))
    assert np.corrcoef(got.ravel(), expected(model, token_ids).ravel())[0, 1] > least - more_off


@pytest.mark.skipif(not IS_ARM, reason="needs an ARM CPU: elsewhere tokens are promised, not bits")
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("weights", ["f32", "int8", "int4"])
@pytest.mark.parametrize("precision", ["exact", "fast"])
def test_no_bit_depends_on_what_else_is_computed(
    family: Family, weights: WeightFormat, precision: Precision, empty_home: Path
) -> None:
    model = tiny_model(family)
    backend = make_backend(model, weights, precision)
    long, short = make_prompt(model, 100), make_prompt(model, 5, seed=1)
    want = backend.run(batch((long, 0, [2, 0, 1, 3]))).copy()
    for cut in (1, 13, 32, 33, 99):
        company = batch((short, 0, [9]), (long[:cut], 0, [5, 4, 6, 8]))
        assert (backend.run(company)[5:] == want[:cut]).all()
        assert (backend.run(batch((long[cut:], cut, [5, 4, 6, 8]))) == want[cut:]).all()
    backend.close()


@pytest.mark.parametrize("family", FAMILIES)
def test_without_a_compiler_numpy_attends(family: Family, empty_home: Path) -> None:
    model = tiny_model(family)
    prompt = make_prompt(model, 40)
    backend = PortableBackend(model, 8 << 20, numpy_kernel(np.float32), weight_format="f32", precision="exact")
    assert_close(backend.run(batch((prompt[:33], 0, [1, 0]))), expected(model, prompt)[:33])
    kept = backend.read_blocks([1, 0]).wait()
    backend.write_blocks([3, 2], kept)
    assert_close(backend.run(batch((prompt[33:], 33, [3, 2]))), expected(model, prompt)[33:])
    backend.close()


@pytest.mark.skipif(not IS_ARM, reason="needs an ARM CPU: elsewhere int8 weights stay as they are with exact, too")
def test_the_sum_knows_that_exact_unpacks_the_weights(empty_home: Path) -> None:
    large = replace(tiny_model("llama"), spec=tiny_spec("llama", num_layers=10**6), weights=DictWeights({}))
    held_gib = {}
    for precision in ("fast", "exact"):
        with pytest.raises(ModelError, match="does not fit") as refused:
            open_cpu(large, CONFIG, weight_format="int8", precision=precision)
        held_gib[precision] = float(str(refused.value).split("weights ")[1].split()[0])
    assert held_gib["exact"] == pytest.approx(held_gib["fast"] * (4 + 4 + 1) / (1 + 1), rel=0.1)


def test_keys_and_values_in_fp8_are_refused(empty_home: Path) -> None:
    with pytest.raises(ConfigError, match="kv_precision fp8 is for a GPU: on a CPU it can be bf16, f16, f32 or int8"):
        open_cpu(tiny_model("llama"), EngineConfig(kv_precision="fp8"))


def test_weights_in_fp8_are_refused(empty_home: Path) -> None:
    with pytest.raises(ConfigError, match="weights fp8 are for a GPU: on a CPU they can be stored, int8, int4, bf16"):
        open_cpu(tiny_model("llama"), CONFIG, weight_format="fp8")


@pytest.mark.skipif(not IS_ARM, reason="needs an ARM CPU: others keep KV in other precisions")
def test_kv_in_a_precision_that_is_not_there_is_refused(empty_home: Path) -> None:
    with pytest.raises(ConfigError, match="kv_precision bf16 is not for this CPU: it can be f16, f32 or int8"):
        open_cpu(tiny_model("llama"), EngineConfig(kv_memory="8MiB", kv_precision="bf16"))


def test_a_second_start_reads_the_kept_graph(empty_home: Path) -> None:
    model = tiny_model("llama")
    token_ids = make_prompt(model, 9)
    first = make_backend(model, "int8").run(batch((token_ids, 0, [0]))).copy()
    assert list(empty_home.rglob("*.bin"))
    second = make_backend(model, "int8").run(batch((token_ids, 0, [0])))
    assert (first == second).all()


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


def test_a_program_may_end_while_its_engine_runs(tmp_path: Path, empty_home: Path) -> None:
    spec = tiny_spec("llama")
    folder = write_folder(tmp_path / "m", spec, tiny_weights(spec))
    ended = subprocess.run([sys.executable, "-c", LEAVING, folder], capture_output=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, b"")


def test_ctrl_c_inside_the_plugin_stays_ctrl_c() -> None:
    with pytest.raises(KeyboardInterrupt):
        raise failure("OpenVINO failed", RuntimeError("Exception from a.cpp:1:\nKeyboardInterrupt: <EMPTY MESSAGE>"))
    assert str(failure("OpenVINO failed", RuntimeError("trace\n\nbad shape \n"))) == "OpenVINO failed: bad shape"


def test_the_quick_backend_is_taken_where_it_can_be(empty_home: Path) -> None:
    model = tiny_model("llama", head_dim=64)
    exact = PortableBackend if IS_ARM else PagedBackend
    assert isinstance(make_backend(model, precision="fast"), NativeBackend if has_amx() else exact)
    assert isinstance(make_backend(model, precision="exact"), exact)


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="the system does not say what is mapped")
@pytest.mark.parametrize("family", ["llama", "qwen3moe"])
def test_a_closed_backend_lets_go_of_its_weights(family: Family, empty_home: Path) -> None:
    """OpenVINO frees no node that is written in Python, and so none of the graph it is in, weights included."""
    model = tiny_model(family)
    make_backend(model).close()  # which keeps the graph: later ones map its file
    backend = make_backend(model)
    assert _mapped_weights(empty_home)
    backend.close()
    del backend
    gc.collect()
    assert _mapped_weights(empty_home) == []


def _mapped_weights(folder: Path) -> list[str]:
    return [
        line for line in Path("/proc/self/maps").read_text().splitlines() if f"{folder}/" in line and ".bin" in line
    ]


def test_steps_leave_nothing_behind(empty_home: Path) -> None:
    """OpenVINO keeps every node that is written in Python for ever: none may be made a step."""
    backend = make_backend(tiny_model("llama", head_dim=64), precision="fast")

    def count_nodes_after(num_steps: int) -> int:
        for i in range(num_steps):
            backend.run(batch((list(range(1 + i % 20)), i % 7, [0, 1])))
        return sum(isinstance(thing, KernelOp) for thing in gc.get_objects())

    assert count_nodes_after(40) == count_nodes_after(40)


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


def test_a_damaged_graph_is_made_again(empty_home: Path) -> None:
    model = tiny_model("llama")
    part = batch((make_prompt(model, 9), 0, [0]))
    first = make_backend(model).run(part).copy()
    for kept in empty_home.rglob("*-f32-*"):
        kept.write_bytes(kept.read_bytes()[:100])
    assert (make_backend(model).run(part) == first).all()


TEXTS = (
    "The capital of France is",
    "The capital of France is Paris, and the capital of Italy is",
    "def fibonacci(n):\n    if n < 2:\n        return n\n    return",
    "Once upon a time there was a small village by the sea. " * 6 + "In it lived",
)


@pytest.fixture(scope="module")
def real_model(default_model_path: Path) -> Model:
    return load_model(str(default_model_path))


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


@pytest.mark.model
def test_the_real_model_says_the_same_however_it_is_computed(real_model: Model) -> None:
    alone = go_on(real_model, max_running=1, prefix_cache=False)
    assert "Paris" in real_model.tokenizer.decode(alone[0])
    assert go_on(real_model, num_turns=2) == alone * 2, "batched, then from the cache"
    assert go_on(real_model, max_step_tokens=32, max_running=1, interrupted=True) == alone, "in chunks, preempted"
