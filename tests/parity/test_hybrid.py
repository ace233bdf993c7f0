"""Hybrids on the CPU beside transformers: states that are carried on, left behind and gone on from in every manner."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from tests.backends.batches import batch
from tests.engine.tiny import TOKENIZER, greedy, run_together
from tests.parity.manners import Array
from tests.parity.models import EXPECTED, HYBRIDS, KEPT, NUM_TOKENS, read_model, token_ids, write_model

from hotloop.backends.backend import Backend, Batch
from hotloop.backends.openvino.linear import DeltaNet, numpy_delta
from hotloop.backends.openvino.native.delta import open_delta
from hotloop.backends.openvino.runner import open_cpu
from hotloop.core.config import EngineConfig
from hotloop.engine.engine import Engine
from hotloop.engine.states import EMPTY
from hotloop.models.hybrid import HybridWeights

OWN, SECOND, THIRD = ([0, 1, 2], [3, 4, 5], [6, 7, 8])


@pytest.fixture(params=HYBRIDS)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def backend(name: str, tmp_path: Path, empty_home: Path) -> Iterator[Backend]:
    model = read_model(name, write_model(name, tmp_path / "m"), TOKENIZER)
    backend = open_cpu(model, EngineConfig(kv_memory="8MiB"), weight_format="f32", precision="exact")
    yield backend
    backend.close()


def step(*parts: tuple[list[int], int, list[int], int, int]) -> Batch:
    """Parts are (tokens, how many came before them, blocks, the slot that is read, the slot that is written)."""
    made = batch(*(part[:3] for part in parts))
    return replace(made, states=np.array([part[3:] for part in parts], np.int32))


def manners(backend: Backend) -> Iterator[tuple[str, int, Array]]:
    """(manner, the position of its first row, logits from there on)"""
    prompt, other = token_ids(), token_ids(seed=1, count=41)

    def run(*parts: tuple[list[int], int, list[int], int, int]) -> Array:
        return backend.run(step(*parts)).copy()  # type: ignore[attr-defined]

    yield "plain", 0, run((prompt, 0, OWN, EMPTY, 0))
    chunks = [
        run((prompt[a:b], a, SECOND, EMPTY if a == 0 else 1, 1)) for a, b in pairwise([0, 33, 34, 60, NUM_TOKENS])
    ]
    yield "chunked", 0, np.concatenate(chunks)
    run((prompt[:64], 0, OWN, EMPTY, 2))
    run((other, 0, SECOND, EMPTY, 3))
    yield "cached", 64, run((prompt[64:], 64, OWN, 2, 4))
    yield "cached again", 64, run((prompt[64:], 64, OWN, 2, 0))
    rows = [run((prompt[64:65], 64, OWN, 2, 4))]
    rows += [run((prompt[i : i + 1], i, OWN, 4, 4)) for i in range(65, NUM_TOKENS)]
    yield "decoded", 64, np.concatenate(rows)
    first = run((other, 0, SECOND, EMPTY, 3), (prompt[:50], 0, THIRD, EMPTY, 5), (prompt[64:65], 64, OWN, 2, 6))
    rest = run((prompt[50:], 50, THIRD, 5, 5), (other[-1:], 40, SECOND, 3, 3))
    yield "batched", 0, np.concatenate([first[41:91], rest[: NUM_TOKENS - 50]])


def test_logits_are_those_of_transformers(name: str, backend: Backend) -> None:
    with np.load(EXPECTED) as kept:
        logits, top = kept[f"{name}, logits"], kept[f"{name}, top"]
    for manner, begin, got in manners(backend):
        places = [(i, position - begin) for i, position in enumerate(KEPT) if position >= begin]
        off = max(float(np.abs(got[row] - logits[i]).max()) for i, row in places)
        assert off < 2e-3, manner  # theirs solves for a chunk at once, which is less exact
        assert (got.argmax(1) == top[begin:]).all(), manner


def test_going_on_from_a_state_changes_no_bit(name: str, backend: Backend) -> None:
    (_, _, plain), *others = manners(backend)
    for manner, begin, got in others:
        np.testing.assert_array_equal(got, plain[begin:], manner)


def test_int8_is_near(name: str, backend: Backend, tmp_path: Path) -> None:
    model = read_model(name, tmp_path / "m", TOKENIZER)
    fast = open_cpu(model, EngineConfig(kv_memory="8MiB"), weight_format="int8", precision="fast")
    prompt = step((token_ids(), 0, OWN, EMPTY, 0))
    exact, near = (each.run(prompt).copy() for each in (backend, fast))  # type: ignore[attr-defined]
    fast.close()
    assert np.corrcoef(exact.ravel(), near.ravel())[0, 1] > 0.9


def test_an_engine_says_the_same_from_checkpoints(name: str, tmp_path: Path, empty_home: Path) -> None:
    """Turns of two sessions with the same head: each goes on where its last answer ended."""
    model = read_model(name, write_model(name, tmp_path / "m"), TOKENIZER)
    head, said = token_ids(count=70), {False: list[list[int]](), True: list[list[int]]()}
    for is_cached in said:
        backend = open_cpu(model, EngineConfig(kv_memory="8MiB"), weight_format="f32", precision="exact")
        num_cached = []
        with Engine(TOKENIZER, backend, EngineConfig(prefix_cache=is_cached, debug_checks=True)) as engine:
            prompts = [[*head, *token_ids(seed, 20)] for seed in (1, 2)]
            for turn in range(3):
                answers = run_together(engine, prompts, greedy(8))
                said[is_cached] += answers
                more = token_ids(10 + turn, 30)
                prompts = [[*prompt, *answer, *more] for prompt, answer in zip(prompts, answers, strict=True)]
                num_cached.append(engine.stats().usage.num_cached)
        assert num_cached == ([64, 64 + 2 * 96, 64 + 2 * 96 + 2 * 128] if is_cached else [0, 0, 0])
    assert said[True] == said[False]


def test_the_kernel_computes_as_numpy_does(name: str, tmp_path: Path) -> None:
    """Sequences that begin, go on where they were and go on elsewhere; those whose memory fades at once too."""
    spec = read_model(name, write_model(name, tmp_path / "m"), TOKENIZER).spec.linear
    assert spec
    random = np.random.default_rng(0)
    begins, slots = np.array([0, 20, 21, 50], np.int32), np.array([[-1, 0], [1, 1], [2, 3]], np.int32)
    dims = ((spec.num_key_heads, spec.key_dim),) * 2 + ((spec.num_value_heads, spec.value_dim),)
    q, k, v = (random.standard_normal((50, *each)).astype(np.float32) for each in dims)
    k /= np.linalg.norm(k, axis=-1, keepdims=True)
    logs, shares = (random.random((50, spec.num_value_heads)).astype(np.float32) for _ in range(2))
    logs[::7] = 100
    shape = (4, spec.num_value_heads, spec.key_dim, spec.value_dim)
    memories = [random.standard_normal(shape).astype(np.float32)]
    memories.append(memories[0].copy())
    read = [np.empty_like(v) for _ in memories]
    for rule, memory, found in zip((numpy_delta, open_delta(spec)), memories, read, strict=True):
        rule(begins, slots, (q, k, v, -logs, shares), memory, found)
    np.testing.assert_allclose(*read, atol=1e-5)
    np.testing.assert_allclose(*memories, atol=1e-5)


def test_states_take_what_was_reckoned(name: str, backend: Backend, tmp_path: Path) -> None:
    model = read_model(name, tmp_path / "m", TOKENIZER)
    layers = DeltaNet(model.spec, HybridWeights(model.weights, model.spec), 3, numpy_delta)
    assert layers._inputs.nbytes + layers._memories.nbytes == 3 * backend.state_bytes
    taken = backend.num_states * backend.state_bytes + backend.num_blocks * backend.block_bytes
    assert 0.9 * (8 << 20) < taken <= 8 << 20
