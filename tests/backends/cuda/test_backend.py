"""The whole backend on tiny models: the reference's logits, and the engine's tokens however a step is made up."""

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import triton
from tests.backends.batches import batch
from tests.backends.reference import reference_logits
from tests.engine.tiny import TOKENIZER, Listener, greedy, make_request
from tests.models.tiny import DictWeights, tiny_spec, tiny_weights

from hotloop.backends.backend import Batch, SampleRow, Sampling
from hotloop.backends.cuda.attention.flash import Flash
from hotloop.backends.cuda.decoder import MIN_SAVED_BYTES
from hotloop.backends.cuda.parallel.workers import Plan
from hotloop.backends.cuda.runner import BLOCK_SIZE, CudaBackend, open_cuda
from hotloop.backends.cuda.steps.splits import Splitting
from hotloop.backends.cuda.steps.step import Shape, pack, shape_of, view_parts
from hotloop.backends.cuda.warm import warm_up
from hotloop.core.config import EngineConfig
from hotloop.core.errors import BackendError, ConfigError
from hotloop.core.grammar import json_schema
from hotloop.core.request import SamplingParams
from hotloop.engine.drafting.model import ModelDrafter
from hotloop.engine.engine import Engine
from hotloop.models.model import Model
from hotloop.models.spec import Family

SPLITTING = Splitting(32, num_programs=4, num_slots=4096)
CLOSED = {"additionalProperties": False}
FAMILIES: tuple[Family, ...] = ("llama", "qwen2", "qwen3")  # the others are in test_parity.py


def tiny_model(family: Family, **changes: Any) -> Model:
    spec = tiny_spec(family, **{"vocab_size": TOKENIZER.vocab_size, **changes})
    tensors = {name: tensor / 8 if tensor.ndim == 2 else tensor for name, tensor in tiny_weights(spec).items()}
    return Model(f"tiny-{family}", Path(family), family, spec, TOKENIZER, None, DictWeights(tensors), 0)


def make_backend(
    model: Model,
    device: str,
    *,
    kv_bytes: int = 4 << 20,
    dtype: torch.dtype = torch.float32,
    has_fp8_weights: bool = False,
    keeps_fp8: bool = True,
    drops_windows: bool = False,
    has_graphs: bool | None = None,
    flash: Flash | None = None,
    min_saved_bytes: int = MIN_SAVED_BYTES,
    **settings: Any,
) -> CudaBackend:
    config = EngineConfig(**{"max_running": 4, "max_step_tokens": 64, **settings})
    has_graphs = device == "cuda" if has_graphs is None else has_graphs
    plan = Plan(config, dtype, has_fp8_weights, has_graphs, keeps_fp8, drops_windows)
    return CudaBackend(model, kv_bytes, plan, device=device, flash=flash, min_saved_bytes=min_saved_bytes)


def logits_of(backend: CudaBackend, step: Batch) -> np.ndarray[Any, Any]:
    flight = backend.launch(step)
    logits = flight.logits.cpu().numpy().copy()
    flight.sample(Sampling([SampleRow(make_request([1]), 1)] * len(step.logit_rows)))
    flight.wait()
    return logits


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_are_those_of_the_definition_however_a_prompt_is_cut(family: Family, device: str) -> None:
    model = tiny_model(family)
    rng = random.Random(1)
    prompt = [rng.randrange(250) for _ in range(100)]
    other = [rng.randrange(250) for _ in range(40)]
    want, want_other = (reference_logits(model.spec, model.weights, ids) for ids in (prompt, other))
    backend = make_backend(model, device, max_step_tokens=256)
    check = np.testing.assert_allclose
    check(logits_of(backend, batch((prompt, 0, [3, 0, 7, 2]))), want, rtol=2e-3, atol=2e-3)
    mixed = batch((other[:35], 0, [5, 6]), ([prompt[99]], 99, [3, 0, 7, 2]))
    got = logits_of(backend, mixed)
    check(got[:35], want_other[:35], rtol=2e-3, atol=2e-3)
    check(got[35], want[99], rtol=2e-3, atol=2e-3)
    verify = batch((other[35:], 35, [5, 6]), (prompt[96:], 96, [3, 0, 7, 2]))
    check(logits_of(backend, verify), np.concatenate([want_other[35:], want[96:]]), rtol=2e-3, atol=2e-3)
    backend.close()


def test_a_step_is_packed_with_its_short_sequences_first_and_padded_to_a_graph() -> None:
    long, short = list(range(40)), [7, 8]
    step = batch((long, 0, [1, 2]), (short, 62, [3, 4]), wanted=[39, 41])
    shape = shape_of(step, SPLITTING)
    assert shape == Shape(num_short=1, num_rows=42, max_short_rows=2, num_splits=9, num_long=1, max_long_rows=40)
    ints = pack(step, SPLITTING, shape)
    slots = ints[: 2 * 42].view(np.int64)
    assert slots[:3].tolist() == [158, 159, 32]
    assert ints[2 * 42 : 4 * 42].tolist() == ints[: 2 * 42].tolist(), "layers with a window have the same blocks"
    token_ids, sources, positions, wanted = ints[4 * 42 :][: 4 * 42].reshape(4, 42)
    assert token_ids[:3].tolist() == [7, 8, 0]
    assert (sources == -1).all()
    assert positions[:3].tolist() == [62, 63, 0]
    assert wanted[:2].tolist() == [41, 1]
    padded = pack(batch((short, 62, [3, 4])), SPLITTING, Shape(4, 8, 8, 12))
    assert padded[: 2 * 8].view(np.int64).tolist() == [158, 159, *[-1] * 6]
    row_begins = padded[32 + 4 * 8 :][:6]
    assert row_begins.tolist() == [0, 2, 2, 2, 2, 2]
    assert padded[32 + 4 * 8 + 6 :][:4].tolist() == [64, 0, 0, 0]


def test_a_mixed_step_keeps_its_two_kinds_of_sequences_apart() -> None:
    """Whatever is padded between them: each kind finds its rows, its lengths and its blocks where a graph expects
    them, and the rows themselves lie side by side.
    """
    step = batch((list(range(40)), 0, [1, 2]), ([7, 8], 62, [3, 4]), (list(range(33)), 70, [5, 6, 8, 9]))
    shape = Shape(4, 128, 8, 28, num_long=3, max_long_rows=128)
    assert shape.fits(shape_of(step, SPLITTING))
    views = view_parts(torch.from_numpy(pack(step, SPLITTING, shape)), shape)
    assert views.row_begins.tolist() == [0, 2, 2, 2, 2, 2, 42, 75, 75]
    assert views.lens.tolist() == [64, 0, 0, 0, 40, 103, 0]
    assert views.block_begins.tolist() == [2, 0, 0, 0, 0, 4, 0]
    assert views.positions[:4].tolist() == [62, 63, 0, 1]
    assert (views.slots[75:] == -1).all()


@pytest.mark.parametrize("min_saved_bytes", [1, MIN_SAVED_BYTES])
def test_padded_steps_compute_what_others_do(device: str, min_saved_bytes: int) -> None:
    """Prompts, rows that decode and drafts to verify in one step, the prompts' blocks shared or not."""
    model = tiny_model("qwen3")
    rng = random.Random(3)
    head = [rng.randrange(250) for _ in range(64)]
    first, second, third = (head + [rng.randrange(250) for _ in range(n)] for n in (40, 6, 9))
    fourth = [rng.randrange(250) for _ in range(50)]
    want = [reference_logits(model.spec, model.weights, ids) for ids in (first, second, third, fourth)]
    backend = make_backend(model, device, has_graphs=True, max_step_tokens=128, min_saved_bytes=min_saved_bytes)
    check = np.testing.assert_allclose
    check(logits_of(backend, batch((first, 0, [0, 1]))), want[0], rtol=2e-3, atol=2e-3)
    parts = ((second[64:], 64, [0, 2]), (fourth, 0, [5]), (third[64:], 64, [0, 3]), (first[-1:], 103, [0, 1]))
    got = logits_of(backend, batch(*parts))
    check(got, np.concatenate([want[1][64:], want[3], want[2][64:], want[0][-1:]]), rtol=2e-3, atol=2e-3)
    parts = ((second[-1:], 69, [0, 2]), (third[-2:], 71, [0, 3]), (first[-1:], 103, [0, 1]))
    got = logits_of(backend, batch(*parts))
    check(got, np.concatenate([want[1][-1:], want[2][-2:], want[0][-1:]]), rtol=2e-3, atol=2e-3)
    backend.close()


def test_fp8_weights_are_close_to_those_of_the_file(device: str) -> None:
    """In a chunk and alone. The tiny model is a harsh one: its rows are short, so errors hardly cancel."""
    model = tiny_model("qwen2", hidden_size=64, intermediate_size=96)
    prompt = [random.Random(2).randrange(250) for _ in range(40)]
    want = reference_logits(model.spec, model.weights, prompt)
    backend = make_backend(model, device, has_fp8_weights=True)
    chunk = logits_of(backend, batch((prompt[:39], 0, [0])))[-1]
    alone = logits_of(backend, batch((prompt[39:], 39, [0])))[-1]
    for got, exact in ((chunk, want[38]), (alone, want[39])):
        error = np.linalg.norm(got - exact) / np.linalg.norm(exact)
        assert 1e-4 < error < 0.1, "rounded, and not more"


@pytest.mark.parametrize("family", FAMILIES)
def test_keys_and_values_in_fp8_are_close_to_the_definition(family: Family, device: str) -> None:
    """A chunk, one beside a token, drafts, and sequences that share blocks; half the bytes, and told apart on disk."""
    model = tiny_model(family)
    rng = random.Random(1)
    prompt, other = ([rng.randrange(250) for _ in range(count)] for count in (100, 40))
    want, want_other = (reference_logits(model.spec, model.weights, ids) for ids in (prompt, other))
    settings: dict[str, Any] = {"max_step_tokens": 256, "min_saved_bytes": 1}
    backend, plain = (make_backend(model, device, kv_precision=kv, **settings) for kv in ("fp8", "auto"))
    assert backend._decoder.kv.dtype == torch.float8_e4m3fn
    assert (backend.block_bytes, backend.num_blocks) == (plain.block_bytes // 2 // 2, 4 * plain.num_blocks)
    assert backend.kv_layout != plain.kv_layout

    def check(step: Batch, exact: np.ndarray[Any, Any]) -> None:
        got = logits_of(backend, step)
        error = np.linalg.norm(got - exact, axis=1) / np.linalg.norm(exact, axis=1)
        assert error.max() < 0.3
        assert 1e-4 < np.sqrt((error**2).mean()) < 0.1, "rounded, and not more"

    check(batch((prompt, 0, [3, 0, 7, 2])), want)
    mixed = batch((other[:35], 0, [5, 6]), ([prompt[99]], 99, [3, 0, 7, 2]))
    check(mixed, np.concatenate([want_other[:35], want[99:]]))
    verify = batch((other[35:], 35, [5, 6]), (prompt[96:], 96, [3, 0, 7, 2]))
    check(verify, np.concatenate([want_other[35:], want[96:]]))
    shared = batch(*((prompt[64 : 65 + i], 64, [3, 8 + i]) for i in range(3)))
    assert backend._pack(shared).shape.num_items
    check(shared, np.concatenate([want[64 : 65 + i] for i in range(3)]))
    kept = backend.read_blocks([3]).wait()
    assert kept.nbytes == backend.block_bytes
    alone = batch((prompt[64:65], 64, [11, 9]))
    backend.write_blocks([11], kept)
    np.testing.assert_array_equal(logits_of(backend, alone), logits_of(backend, batch((prompt[64:65], 64, [3, 9]))))


def test_settings_that_a_gpu_has_not(device: str) -> None:
    model = tiny_model("llama")
    with pytest.raises(ConfigError, match="kv_precision int8 is not supported on a GPU: there it is bf16 or fp8"):
        open_cuda(model, EngineConfig(kv_precision="int8"), weight_format="bf16", precision="fast")
    with pytest.raises(ConfigError, match="kv_precision=fp8 cannot be combined with precision=exact"):
        open_cuda(model, EngineConfig(kv_precision="fp8"), weight_format="bf16", precision="exact")
    with pytest.raises(ConfigError, match="weights=fp8 cannot be combined with precision=exact"):
        open_cuda(model, EngineConfig(), weight_format="fp8", precision="exact")


def answers(device: str, prompts: list[list[int]], sampling: SamplingParams, **settings: Any) -> list[list[int]]:
    model = tiny_model("llama", max_context=256)
    backend = make_backend(model, device, **{"max_step_tokens": 48, **settings})
    config = EngineConfig(debug_checks=True, **{"max_step_tokens": 48, "max_running": 4, **settings})
    listener = Listener()
    with Engine(TOKENIZER, backend, config) as engine:
        requests = [make_request(prompt, f"r{i}", sampling=sampling) for i, prompt in enumerate(prompts)]
        engine.submit(requests, listener)
        listener.wait(*(request.id for request in requests))
    return [listener.token_ids(request.id) for request in requests]


def reference_answer(prompt: list[int], num_tokens: int) -> list[int]:
    model = tiny_model("llama", max_context=256)
    token_ids = list(prompt)
    for _ in range(num_tokens):
        token_ids.append(int(reference_logits(model.spec, model.weights, token_ids)[-1].argmax()))
    return token_ids[len(prompt) :]


def test_the_engine_says_what_the_model_says_with_steps_in_flight(device: str) -> None:
    rng = random.Random(3)
    trunk = [rng.randrange(250) for _ in range(40)]
    prompts = [trunk[: rng.randrange(41)] + [rng.randrange(250) for _ in range(rng.randrange(1, 30))] for _ in range(5)]
    want = [reference_answer(prompt, 6) for prompt in prompts]
    assert answers(device, prompts, greedy(6), drafts=False) == want
    assert answers(device, prompts, greedy(6), prefix_cache=False) == want


def test_sampled_tokens_do_not_depend_on_the_batch(device: str) -> None:
    rng = random.Random(4)
    prompts = [[rng.randrange(250) for _ in range(20)] for _ in range(3)]
    params = SamplingParams(temperature=1, seed=5, top_p=0.9, max_tokens=5, ignore_eos=True)
    alone = [answers(device, [prompt], params)[0] for prompt in prompts]
    assert answers(device, prompts, params) == alone


def test_a_grammar_penalties_and_logprobs_on_the_device(device: str) -> None:
    model = tiny_model("llama", max_context=256)
    grammar = json_schema({"type": "object", "properties": {"n": {"enum": ["one", "two"]}}, "required": ["n"]} | CLOSED)
    with Engine(TOKENIZER, make_backend(model, device), EngineConfig(max_running=4, max_step_tokens=64)) as engine:
        found = {engine.generate([5, 6, 7], SamplingParams(seed=i), grammar=grammar).text for i in range(4)}
        assert {text.replace(" ", "") for text in found} <= {'{"n":"one"}', '{"n":"two"}'}
        new = engine.generate([5, 6, 7], SamplingParams(temperature=0, max_tokens=20, repetition_penalty=100))
        done = engine.generate([5, 6, 7], SamplingParams(temperature=0, max_tokens=2, logit_bias={9: 100}, logprobs=3))
    assert len({5, 6, 7, *new.token_ids}) == 3 + len(new.token_ids)
    assert done.token_ids == (9, 9)
    want = reference_logits(model.spec, model.weights, [5, 6, 7])[-1].astype(np.float64)
    log_total = np.log(np.exp(want - want.max()).sum()) + want.max()
    assert done.logprobs[0].logprob == pytest.approx(want[9] - log_total, abs=1e-3)
    assert [token_id for token_id, _ in done.logprobs[0].top] == np.argsort(-want)[:3].tolist()


@pytest.mark.usefixtures("always_drafts")
def test_a_draft_model_beside_the_model_changes_no_token(device: str) -> None:
    model = tiny_model("llama", max_context=256)
    config = EngineConfig(max_running=2, max_step_tokens=64, debug_checks=True)
    want = reference_answer([5, 6, 7], 8)
    drafter = ModelDrafter(make_backend(model, device), TOKENIZER, least_chance=0)
    with Engine(TOKENIZER, make_backend(model, device), config, drafter=drafter) as engine:
        done = engine.generate([5, 6, 7], greedy(8))
    assert list(done.token_ids) == want
    assert done.usage.num_accepted > 0, "the same model drafts right"


def test_blocks_are_copied_out_and_in(device: str) -> None:
    model = tiny_model("qwen2")
    first, second = make_backend(model, device), make_backend(model, device)
    prompt = list(range(BLOCK_SIZE + 3))
    want = logits_of(first, batch((prompt, 0, [2, 0])))[-1]
    kept = first.read_blocks([2]).wait()
    assert kept.nbytes == first.block_bytes
    second.write_blocks([4], kept)
    got = logits_of(second, batch((prompt[BLOCK_SIZE:], BLOCK_SIZE, [4, 1])))[-1]
    np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-3)


def test_logits_that_are_no_numbers_fail_their_request(device: str) -> None:
    model = tiny_model("llama")
    backend = make_backend(model, device)
    flight = backend.launch(batch(([1, 2], 0, [0]), ([3], 0, [1]), wanted=[1, 2]))
    flight.logits[0, 5] = float("nan")
    flight.sample(Sampling([SampleRow(make_request([1, 2]), 2), SampleRow(make_request([3]), 1)]))
    chosen = flight.wait()
    with pytest.raises(BackendError, match="not numbers"):
        chosen.token(0)
    assert chosen.token(1) >= 0


@pytest.mark.parametrize("formats", [{}, {"has_fp8_weights": True, "kv_precision": "fp8"}], ids=["f32", "fp8"])
def test_after_the_warm_up_nothing_is_compiled(
    formats: dict[str, Any], device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if device == "cpu":
        pytest.skip("the interpreter compiles nothing")
    model = tiny_model("qwen3", max_context=512)
    backend = make_backend(model, device, max_step_tokens=256, **formats)
    warm_up(backend)
    compiled: list[str] = []

    def on_compile(*, fn: Any, **_: Any) -> None:
        compiled.append(fn.name)

    monkeypatch.setattr(triton.knobs.runtime, "jit_cache_hook", on_compile)
    prompt = [i % 250 for i in range(200)]
    grammar = json_schema({"type": "object", "properties": {"n": {"enum": ["one", "two"]}}, "required": ["n"]} | CLOSED)
    with Engine(TOKENIZER, backend, EngineConfig(max_running=4, max_step_tokens=256)) as engine:
        for params in (greedy(4), greedy(4, logprobs=2, frequency_penalty=1), SamplingParams(top_p=0.5, max_tokens=4)):
            engine.generate(prompt, params)
            engine.generate(prompt[:3], params)
        engine.generate(prompt[:150], SamplingParams(), grammar=grammar)
    assert not compiled
