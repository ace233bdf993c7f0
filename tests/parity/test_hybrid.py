"""Hybrids on the CPU beside transformers: states that are carried on, left behind and gone on from in every manner."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.engine.tiny import TOKENIZER, greedy, run_together
from tests.parity.manners import Run
from tests.parity.models import HYBRIDS, read_model, token_ids, write_model
from tests.parity.states import OWN, differences, manners, step

from hotloop.backends.backend import Backend
from hotloop.backends.cpu.build import compiler
from hotloop.backends.cpu.opening import open_cpu
from hotloop.core.config import EngineConfig, KvPrecision
from hotloop.engine.engine import Engine
from hotloop.engine.kvcache.recurrent import EMPTY


@pytest.fixture(params=HYBRIDS)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def backend(name: str, tmp_path: Path, empty_home: Path) -> Iterator[Backend]:
    model = read_model(name, write_model(name, tmp_path / "m"), TOKENIZER)
    backend = open_cpu(model, EngineConfig(kv_memory="8MiB"), weight_format="f32", precision="exact")
    yield backend
    backend.close()


def run_on(backend: Backend) -> Run:
    return lambda step: backend.run(step).copy()  # type: ignore[attr-defined]


def test_logits_are_those_of_transformers(name: str, backend: Backend) -> None:
    for manner, off, same in differences(name, run_on(backend)):
        assert off < 2e-3, manner  # theirs solves for a chunk at once, which is less exact
        assert same == 1, manner


def test_going_on_from_a_state_changes_no_bit(name: str, backend: Backend) -> None:
    (_, _, plain), *others = manners(run_on(backend))
    for manner, begin, got in others:
        np.testing.assert_array_equal(got, plain[begin:], manner)


needs_compiler = pytest.mark.skipif(compiler() is None, reason="needs a C++ compiler")


@pytest.mark.sampled(3)
@pytest.mark.parametrize("kv_precision", ["auto", pytest.param("int8", marks=needs_compiler)])
def test_int8_is_near(name: str, backend: Backend, kv_precision: KvPrecision, tmp_path: Path) -> None:
    model = read_model(name, tmp_path / "m", TOKENIZER)
    config = EngineConfig(kv_memory="8MiB", kv_precision=kv_precision)
    fast = open_cpu(model, config, weight_format="int8", precision="fast")
    assert fast.num_blocks * fast.block_bytes + fast.num_states * fast.state_bytes <= 8 << 20
    prompt = step((token_ids(), 0, OWN, EMPTY, 0))
    exact, near = (each.run(prompt).copy() for each in (backend, fast))  # type: ignore[attr-defined]
    fast.close()
    assert np.corrcoef(exact.ravel(), near.ravel())[0, 1] > 0.9


@pytest.mark.sampled(3)
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


@pytest.mark.sampled(3)
def test_an_engine_says_the_same_after_a_restart(name: str, tmp_path: Path, empty_home: Path) -> None:
    """The states of a prompt and of an answer are on disk, with the KV before them: not a bit is computed otherwise."""
    model = read_model(name, write_model(name, tmp_path / "m"), TOKENIZER)
    model = replace(model, spec=replace(model.spec, max_context=512))
    said, found, prompt = list[tuple[int, ...]](), list[tuple[int, int]](), [*token_ids(count=90), *token_ids(5, 240)]
    longer = list[int]()
    for _ in range(2):
        config = EngineConfig(kv_memory="8MiB", kv_dir=str(tmp_path / "kv"), debug_checks=True)
        backend = open_cpu(model, config, weight_format="f32", precision="exact")
        with Engine(TOKENIZER, backend, config) as engine:
            first = engine.generate(prompt, greedy(40))
            longer = longer or [*prompt, *first.token_ids, *token_ids(6, 9)]
            second = engine.generate(longer, greedy(4))
        said += [first.token_ids, second.token_ids]
        found += [(each.usage.num_cached, each.usage.num_restored) for each in (first, second)]
    assert said[:2] == said[2:]
    assert found == [(0, 0), (352, 0), (320, 320), (352, 0)]


def test_states_and_blocks_take_what_was_reckoned(backend: Backend) -> None:
    taken = backend.num_states * backend.state_bytes + backend.num_blocks * backend.block_bytes
    assert 0.9 * (8 << 20) < taken <= 8 << 20
    assert backend.read_state(0).wait().nbytes == backend.state_bytes
