"""Recurrent states on disk: a hybrid goes on after a restart where it would have before, and says the same."""

import random
import threading
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings
from tests.backends.device import NullDevice
from tests.engine.offload.disk.fakes import SEGMENT_TOKENS, GatedFolder, make_store, spoil
from tests.engine.tiny import SIZE, TOKENIZER, Listener, greedy, make_engine, make_prompts, make_request, run_together
from tests.engine.turning import prompt
from tests.properties import examples, seeds

from hotloop.core.config import EngineConfig
from hotloop.core.errors import ConfigError
from hotloop.engine.engine import Engine
from hotloop.engine.offload.disk.folder import HEADER_BYTES, Folder

PROMPT = prompt(50)


def disk_engine(
    folder: Folder | Path, num_states: int = 16, max_bytes: int = 1 << 20, num_blocks: int = 256, **rooms: Any
) -> Engine:
    backend = NullDevice(**SIZE, num_blocks=num_blocks, num_states=num_states, **rooms)
    store = make_store(folder, backend, max_bytes=max_bytes)
    return Engine(TOKENIZER, backend, EngineConfig(debug_checks=True), store=store)


def say(engine: Engine, token_ids: list[int], max_tokens: int = 8) -> tuple[tuple[int, ...], int, int]:
    """What is said, how much of the prompt was cached, and how much of that came from disk."""
    done = engine.generate(token_ids, greedy(max_tokens))
    return done.token_ids, done.usage.num_cached, done.usage.num_restored


@pytest.fixture(scope="module")
def alone() -> tuple[int, ...]:
    with make_engine(prefix_cache=False, num_states=1) as engine:
        return engine.generate(PROMPT, greedy()).token_ids


@pytest.fixture
def filled(tmp_path: Path) -> Path:
    with disk_engine(tmp_path) as engine:
        engine.generate(PROMPT, greedy())
    return tmp_path


def test_a_prompt_is_gone_on_with_after_a_restart(filled: Path, alone: tuple[int, ...]) -> None:
    with disk_engine(filled) as engine:
        assert say(engine, PROMPT) == (alone, 40, 40)
        assert say(engine, PROMPT)[1:] == (40, 0), "now it is in memory"
        stats = engine.stats()
    assert stats.disk.num_bytes_read > 0
    assert stats.states.num_used == stats.num_blocks_used == 0


def test_a_session_is_gone_on_with_from_its_answer(filled: Path, alone: tuple[int, ...]) -> None:
    longer = [*PROMPT, *alone, 7, 7, 7]
    with make_engine(prefix_cache=False, num_states=1) as engine:
        expected = engine.generate(longer, greedy()).token_ids
    with disk_engine(filled) as engine:
        assert say(engine, longer) == (expected, 56, 56), "up to the middle of a segment"


def test_states_of_turns_that_are_over_are_deleted(tmp_path: Path) -> None:
    token_ids = [*PROMPT]
    with disk_engine(tmp_path, num_states=64) as engine:
        for turn in range(6):
            listener = Listener()
            engine.submit([make_request(token_ids, f"t{turn}", session_id="s")], listener)
            listener.wait(f"t{turn}")
            token_ids += [*listener.token_ids(f"t{turn}"), *prompt(13, first=20 * turn)]
        assert engine._core.disk
        assert engine._core.disk.store.flush()
    segment_bytes = HEADER_BYTES + SEGMENT_TOKENS * 8
    num_states = sum(path.stat().st_size != segment_bytes for path in tmp_path.glob("*.kv"))
    assert num_states == 2, "of its last prompt and its last answer"


def test_what_memory_has_is_not_read(filled: Path, alone: tuple[int, ...]) -> None:
    """The KV is there without a state: only that is read."""
    with disk_engine(filled) as engine:
        states = engine._core.scheduler.tree.states
        engine.generate(PROMPT, greedy())
        for node in [*engine._core.scheduler.tree.nodes()]:
            states.drop(node)
            engine._core.scheduler.tree.order.requeue(node)
        num_bytes = engine.stats().disk.num_bytes_read
        assert say(engine, PROMPT)[::2] == (alone, 40)
        num_read = engine.stats().disk.num_bytes_read - num_bytes
    assert 0 < num_read < 100, "a state of 16 bytes, no segment of 64"


def test_one_copy_serves_those_who_come_together(filled: Path, alone: tuple[int, ...]) -> None:
    folder = GatedFolder(filled)
    folder.reads = threading.Semaphore(100)
    listener = Listener()
    with disk_engine(folder) as engine:
        engine.submit([make_request(PROMPT, f"r{i}") for i in range(4)], listener)
        listener.wait(*(f"r{i}" for i in range(4)))
    assert all(tuple(listener.token_ids(f"r{i}")) == alone for i in range(4))
    assert folder.num_asked == 6


@pytest.mark.parametrize("number", seeds(12))
def test_damage_costs_no_more_than_the_prefix(filled: Path, alone: tuple[int, ...], number: int) -> None:
    paths = sorted(filled.glob("*.kv"))
    path = paths[number % len(paths)]
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with disk_engine(filled) as engine:
        said, num_cached, num_restored = say(engine, PROMPT)
        stats = engine.stats()
    assert said == alone
    assert num_cached == num_restored
    assert stats.states.num_used == stats.num_blocks_used == 0


def test_another_size_of_state_is_another_layout(filled: Path) -> None:
    backend = NullDevice(**SIZE, num_states=4)
    backend.kv_layout = "another"
    store = make_store(filled, backend)
    with Engine(TOKENIZER, backend, EngineConfig(), store=store) as engine:
        assert say(engine, PROMPT)[1:] == (0, 0)


def test_a_folder_has_to_hold_a_state(tmp_path: Path) -> None:
    backend = NullDevice(**SIZE, num_states=4)
    backend.state_bytes = 1 << 30
    config = EngineConfig(kv_dir=str(tmp_path), kv_dir_size="512MiB")
    with pytest.raises(ConfigError, match="too small"):
        Engine(TOKENIZER, backend, config)


def test_a_folder_is_used_as_configured(tmp_path: Path) -> None:
    prompts = prompt(200), [*prompt(200), 7]
    said = []
    for _ in range(2):
        with make_engine(num_states=8, kv_dir=str(tmp_path)) as engine:
            said.append([engine.generate(each, greedy(4)) for each in prompts])
    assert [each.token_ids for each in said[0]] == [each.token_ids for each in said[1]]
    assert [each.usage.num_restored for each in said[1]] == [192, 0]


@settings(max_examples=examples(20))
@given(
    seed=st.integers(0, 1000),
    num_blocks=st.integers(26, 60),
    num_states=st.integers(2, 20),
    max_bytes=st.sampled_from([1_000, 4_000, 1 << 20]),
)
def test_the_same_is_said_whatever_becomes_of_the_folder(
    tmp_path_factory: pytest.TempPathFactory, seed: int, num_blocks: int, num_states: int, max_bytes: int
) -> None:
    rng, folder = random.Random(seed), tmp_path_factory.mktemp("kv")
    prompts = make_prompts(seed)[:5]
    with make_engine(prefix_cache=False, max_running=1, num_states=1) as engine:
        expected = run_together(engine, prompts, greedy(6))
    for depth in (1, 2, 1):
        rooms = {"num_host_blocks": rng.choice([0, 20]), "num_host_states": 3, "depth": depth}
        with disk_engine(folder, num_states, max_bytes, num_blocks, **rooms) as engine:
            assert run_together(engine, prompts, greedy(6)) == expected
            spoil(folder, rng)
            stats = engine.stats()
        assert stats.states.num_used == 0
