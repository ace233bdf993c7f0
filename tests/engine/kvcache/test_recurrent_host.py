"""Recurrent states in two memories: what an engine says never changes, and no slot is lost or used twice."""

import random
from array import array
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings
from tests.backends.device import break_restore
from tests.engine.test_flights import Turned, check_answers, make_jobs, run_all
from tests.engine.tiny import PROMPTS, check_prompts, greedy, make_engine, run_together
from tests.engine.turning import prompt
from tests.properties import examples

from hotloop.engine.engine import Engine
from hotloop.engine.kvcache.recurrent import StateCache

PROMPT = prompt(50)
OTHERS = [prompt(50, first=first) for first in (60, 120, 180)]
ROOMS = {"num_host_blocks": 100, "num_host_states": 40, "retention": False}


@pytest.fixture(scope="module")
def expected() -> tuple[int, ...]:
    with make_engine(prefix_cache=False, num_states=1) as engine:
        return engine.generate(PROMPT, greedy()).token_ids


def push_out(engine: Engine) -> tuple[int, ...]:
    """Have the prompt read, and then others; what is said to it."""
    said = engine.generate(PROMPT, greedy()).token_ids
    for other in OTHERS:
        engine.generate(other, greedy())
    return said


@pytest.mark.parametrize(
    "rooms",
    [
        {"num_blocks": 20, "num_states": 64},  # its blocks leave, its state stays
        {"num_blocks": 200, "num_states": 3},  # the other way round
        {"num_blocks": 20, "num_states": 3},
    ],
    ids=str,
)
def test_a_prefix_comes_back_with_its_state(rooms: dict[str, int], expected: tuple[int, ...]) -> None:
    with make_engine(**rooms, **ROOMS) as engine:
        assert push_out(engine) == expected
        again = engine.generate(PROMPT, greedy())
        stats = engine.stats()
    assert again.token_ids == expected
    assert (again.usage.num_cached, again.usage.num_from_host) == (40, 40)
    assert stats.host.num_copies == 1
    assert stats.host.num_bytes_in == 10 * 32 * (rooms["num_blocks"] == 20) + 16 * (rooms["num_states"] == 3)
    assert (stats.states.num_offloaded > 0) == (rooms["num_states"] == 3)
    assert stats.states.num_used == stats.num_blocks_used == 0


def test_without_room_for_states_nothing_is_gone_on_from(expected: tuple[int, ...]) -> None:
    with make_engine(num_blocks=200, num_states=3, **{**ROOMS, "num_host_states": 0}) as engine:
        push_out(engine)
        again = engine.generate(PROMPT, greedy())
        stats = engine.stats()
    assert again.token_ids == expected
    assert (again.usage.num_cached, stats.host.num_copies) == (0, 0)
    assert stats.states.num_evicted > 0


def test_where_host_memory_is_full_what_is_worth_least_goes() -> None:
    with make_engine(num_blocks=200, num_states=3, **{**ROOMS, "num_host_states": 2}) as engine:
        push_out(engine)
        found = [engine.generate(each, greedy()).usage.num_from_host for each in (OTHERS[-1], PROMPT)]
        stats = engine.stats()
    assert stats.states.num_offloaded == 2
    assert stats.states.num_evicted > 0
    assert found[1] == 0, "the oldest is lost"


def test_a_state_that_is_computed_again_replaces_the_one_in_host_memory(expected: tuple[int, ...]) -> None:
    with make_engine(num_blocks=200, num_states=64, **ROOMS) as engine:
        scheduler, tier = engine._core.scheduler, engine._core.host
        assert tier
        assert isinstance(scheduler.states, StateCache)
        push_out(engine)
        while scheduler.states.pool.num_idle:
            scheduler.states._evict("test")
        tier._speed.byte_s = 10.0  # nothing is worth a copy
        again = engine.generate(PROMPT, greedy())
        assert (again.token_ids, again.usage.num_cached) == (expected, 0)
        states = [node.state for node, _ in scheduler.tree.trace(array("i", PROMPT[:40])) if node.state]
        assert states
        assert not any(state.is_offloaded for state in states)


@pytest.mark.parametrize("when", ["begin", "end"])
def test_a_copy_that_fails_costs_its_prefix_and_no_slot(when: str, expected: tuple[int, ...]) -> None:
    with make_engine(num_blocks=20, num_states=3, **ROOMS) as engine:
        memory = engine._backend.host_memory
        assert memory
        push_out(engine)
        break_restore(memory, when)
        again = engine.generate(PROMPT, greedy())
        assert (again.token_ids, again.usage.num_cached) == (expected, 0)
        assert engine.stats().states.num_used == 0


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "changes",
    [
        {"num_states": 3, "num_host_states": 8},
        {"num_states": 5, "num_host_states": 1, "num_blocks": 26},
        {"num_states": 7, "num_host_states": 40, "num_blocks": 26, "depth": 2},
        {"num_states": 3, "num_host_states": 8, "max_step_tokens": 7},
    ],
    ids=str,
)
def test_the_same_is_said_over_both(changes: dict[str, Any]) -> None:
    with make_engine(prefix_cache=False, max_running=1, num_states=1) as engine:
        undisturbed = run_together(engine, PROMPTS, greedy(12))
    stats = check_prompts(make_engine(num_host_blocks=60, **changes), undisturbed)
    assert stats.num_blocks_used == stats.states.num_used == 0


@settings(max_examples=examples(25))
@given(
    st.integers(0, 1 << 32),
    st.booleans(),
    st.integers(20, 40),
    st.sampled_from([3, 10, 60]),
    st.sampled_from([0, 2, 9]),
)
def test_an_engine_says_the_same_whatever_goes_wrong(
    seed: int, can_fail: bool, num_blocks: int, num_host_blocks: int, num_host_states: int
) -> None:
    rng = random.Random(seed)
    rooms = {"num_host_blocks": num_host_blocks, "num_host_states": num_host_states}
    engine = Turned(rng, num_blocks=num_blocks, num_states=rng.randrange(2, 12), **rooms)
    jobs = make_jobs(seed, num_jobs=16, num_trunks=3)
    aborted = run_all(engine, rng, jobs, 0.3, can_fail=can_fail)
    slots = engine.core.scheduler.tree.states
    assert slots.pool.num_used == slots.host_pool.num_used == 0
    check_answers(engine, jobs, aborted)
