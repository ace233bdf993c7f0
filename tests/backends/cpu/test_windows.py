"""Layers with a window that have blocks of their own on a CPU: the same is computed, and more fits."""

from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from tests.backends.batches import batch
from tests.engine.tiny import TOKENIZER, VOCAB_SIZE, greedy, make_prompts, run_together
from tests.models.tiny import DictWeights, tiny_spec, tiny_weights

from hotloop.backends.backend import Batch
from hotloop.backends.cpu.attention import Kernel
from hotloop.backends.cpu.decoder import Holding, NativeBackend
from hotloop.backends.cpu.library import load_kernel
from hotloop.core.config import EngineConfig
from hotloop.engine.engine import Engine
from hotloop.models.memory import kv_token_bytes, split_kv
from hotloop.models.model import Model
from hotloop.models.spec import ModelSpec


def tiny_model(**changes: object) -> Model:
    spec = tiny_spec("gptoss", vocab_size=VOCAB_SIZE, **changes)
    tensors = {name: tensor / 8 if tensor.ndim == 2 else tensor for name, tensor in tiny_weights(spec).items()}
    return Model("tiny", Path("tiny"), "tiny-windows", spec, TOKENIZER, None, DictWeights(tensors), 0)


def open_two(model: Model, kernel: Kernel, kv_bytes: int) -> tuple[NativeBackend, NativeBackend]:
    """With KV that is the same for all layers, and with that of windows apart."""
    plain, split = (
        NativeBackend(model, kv_bytes, kernel, holding=Holding("f32", in_floats=True), drops_windows=drops)
        for drops in (False, True)
    )
    return plain, split


def in_slots(step: Batch, slot_of: dict[int, int]) -> Batch:
    return replace(step, window_ids=np.array([slot_of.get(each, 0) for each in step.block_ids.tolist()], np.int32))


@pytest.mark.parametrize(
    "kernel",
    [partial(load_kernel, "float"), partial(load_kernel, "int8_t")],
    ids=["float", "int8"],
    indirect=True,
)
def test_logits_are_the_same_where_what_is_not_seen_is_gone(kernel: Kernel) -> None:
    """A window of 24 tokens spans two blocks of 32; the slots of blocks before are given to others."""
    plain, split = open_two(tiny_model(), kernel, 2 << 20)
    assert split.num_window_blocks
    prompt = np.random.default_rng(0).integers(3, 250, 130).tolist()
    for part, past, slot_of in (
        (prompt[:40], 0, {7: 3, 8: 1}),
        (prompt[40:70], 40, {7: 3, 8: 1, 9: 2}),
        (prompt[70:100], 70, {8: 1, 9: 2, 2: 3}),
        (prompt[100:129], 100, {9: 2, 2: 3, 1: 1}),
        (prompt[129:], 129, {2: 3, 1: 1}),
    ):
        step = batch((part, past, [7, 8, 9, 2, 1][: -(-(past + len(part)) // 32)]))
        want = plain.run(step).copy()
        np.testing.assert_array_equal(split.run(in_slots(step, slot_of)), want)
    plain.close()
    split.close()


def test_an_engine_says_the_same_and_finds_as_much_again() -> None:
    plain, split = open_two(tiny_model(), load_kernel("float"), 1 << 20)
    assert split.num_blocks > plain.num_blocks
    prompts = [each + each for each in make_prompts(5)[:5]]
    config = EngineConfig(debug_checks=True, max_step_tokens=64, drafts=False)
    found = []
    for backend in (plain, split):
        with Engine(TOKENIZER, backend, config) as engine:
            first, again = (run_together(engine, prompts, greedy(6)) for _ in range(2))
            found.append((first, again, engine.stats().usage.num_cached))
    assert found[0] == found[1]


def gpt_oss(**changes: object) -> ModelSpec:
    """The shape of gpt-oss-20b."""
    return replace(
        tiny_spec("gptoss", num_layers=24, num_heads=64, num_kv_heads=8, head_dim=64),
        windows=tuple(128 if i % 2 == 0 else None for i in range(24)),
        **changes,
    )


def test_how_much_more_fits() -> None:
    spec = gpt_oss()
    kv_bytes = 64 << 30
    plain = kv_bytes // (64 * kv_token_bytes(spec))
    num_blocks, num_own = split_kv(spec, kv_bytes, 2, 64, 8192)
    assert num_blocks * 64 * kv_token_bytes(spec) // 2 + num_own * 64 * kv_token_bytes(spec) // 2 <= kv_bytes
    assert num_blocks / plain == pytest.approx(16 / 9, rel=0.01)
    assert num_own * 2048 == pytest.approx(num_blocks * 256, rel=0.01)


@pytest.mark.parametrize(
    ("windows", "kv_bytes"),
    [((), 64 << 30), ((4096, None) * 12, 64 << 30), ((128,) * 24, 64 << 30), ((128, None) * 12, 256 << 20)],
    ids=["none", "large", "all", "little memory"],
)
def test_where_nothing_is_gained_layers_have_the_same_blocks(windows: tuple[int | None, ...], kv_bytes: int) -> None:
    spec = replace(gpt_oss(), windows=windows)
    assert split_kv(spec, kv_bytes, 2, 64, 8192) == (kv_bytes // (64 * kv_token_bytes(spec)), 0)
