"""An engine over two memories: what it says never changes, and nothing is lost or used twice."""

import random
import time
from array import array
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings
from tests.backends.device import NullDevice, break_restore
from tests.engine.test_flights import Turned, alone, check_answers, make_jobs, run_all, tokens_of
from tests.engine.tiny import BLOCK_SIZE, TOKENIZER, VOCAB_SIZE, Listener, greedy, make_request, run_alone, until_idle
from tests.properties import examples

from hotloop.core.config import EngineConfig
from hotloop.core.request import FinishReason, Priority
from hotloop.core.retention import Hold, HoldKind
from hotloop.engine.engine import Engine


def host_turned(rng: random.Random, num_blocks: int, num_host_blocks: int, **changes: Any) -> Turned:
    return Turned(rng, num_blocks=num_blocks, num_host_blocks=num_host_blocks, **changes)


@settings(max_examples=examples(10))
@given(st.integers(0, 1 << 32), st.booleans(), st.integers(20, 40), st.sampled_from([3, 10, 60]))
def test_an_engine_over_both_says_what_it_says_over_one(
    seed: int, can_fail: bool, num_blocks: int, num_host_blocks: int
) -> None:
    rng = random.Random(seed)
    jobs = make_jobs(seed, num_jobs=16, num_trunks=3)
    engine = host_turned(rng, num_blocks, num_host_blocks)
    aborted = run_all(engine, rng, jobs, 0.3, can_fail=can_fail)
    assert engine.core.scheduler.tree.host_pool.num_used == 0
    check_answers(engine, jobs, aborted)


PROMPT = [i * 7 % 250 for i in range(50)]
OTHERS = [[100 + other] * 60 for other in range(3)]


def host_engine(num_blocks: int = 20, num_host_blocks: int = 100, **settings: Any) -> Engine:
    backend = NullDevice(
        block_size=BLOCK_SIZE, num_blocks=num_blocks, vocab_size=VOCAB_SIZE, num_host_blocks=num_host_blocks
    )
    return Engine(TOKENIZER, backend, EngineConfig(**{"debug_checks": True, "retention": False, **settings}))


def push_out_prompt(engine: Engine) -> None:
    """Have it read, and then so much else that it is no longer on the device."""
    engine.generate(PROMPT, greedy())
    for other in OTHERS:
        engine.generate(other, greedy())


def test_a_prefix_comes_back_from_host_memory_and_the_usage_says_so() -> None:
    expected = run_alone(PROMPT, greedy()).token_ids
    with host_engine() as engine:
        first = engine.generate(PROMPT, greedy())
        for other in OTHERS:
            engine.generate(other, greedy())
        again = engine.generate(PROMPT, greedy())
        stats = engine.stats()
    assert first.token_ids == again.token_ids == expected
    assert (first.usage.num_from_host, again.usage.num_cached, again.usage.num_from_host) == (0, 48, 48)
    assert stats.usage.num_from_host == 48
    assert stats.host.num_bytes_in == 12 * BLOCK_SIZE * 8
    assert stats.host.num_bytes_out > stats.host.num_bytes_in
    assert (stats.host.num_copies, stats.num_host_blocks, stats.num_evicted_blocks) == (1, 100, 0)


def test_one_copy_serves_all_who_want_it() -> None:
    expected = {i: run_alone([*PROMPT, i], greedy()).token_ids for i in range(4)}
    listener = Listener()
    with host_engine(num_blocks=40) as engine:
        engine.generate(PROMPT, greedy())
        for other in (*OTHERS, [9] * 60, [8] * 60):
            engine.generate(other, greedy())
        engine.submit([make_request([*PROMPT, i], f"r{i}") for i in range(4)], listener)
        listener.wait(*(f"r{i}" for i in range(4)))
        until_idle(engine)
        assert engine.stats().host.num_copies == 1
    for i in range(4):
        assert tuple(listener.token_ids(f"r{i}")) == expected[i]
        assert listener.last(f"r{i}").usage.num_cached == 48


def test_without_a_prefix_cache_nothing_goes_there() -> None:
    with host_engine(prefix_cache=False) as engine:
        engine.generate(PROMPT, greedy())
        assert engine.stats().num_host_blocks == 0


def test_what_is_slower_than_computing_is_computed() -> None:
    with host_engine() as engine:
        tier = engine._core.host
        assert tier
        push_out_prompt(engine)
        tier._speed.byte_s = 10.0
        again = engine.generate(PROMPT, greedy())
    assert again.token_ids == run_alone(PROMPT, greedy()).token_ids
    assert (again.usage.num_cached, again.usage.num_from_host) == (0, 0)
    assert tier._speed.byte_s < 10.0, "it is tried again some time"


@pytest.mark.parametrize("when", ["begin", "end"])
def test_a_copy_that_fails_costs_its_prefix_and_nobodys_answer(when: str) -> None:
    with host_engine() as engine:
        memory = engine._backend.host_memory
        assert memory
        push_out_prompt(engine)
        break_restore(memory, when)
        again = engine.generate(PROMPT, greedy())
        assert again.token_ids == run_alone(PROMPT, greedy()).token_ids
        assert again.usage.num_cached == 0
        assert not engine.failure
        until_idle(engine)


def test_one_who_leaves_meanwhile_takes_nothing_along() -> None:
    engine = host_turned(random.Random(0), num_blocks=20, num_host_blocks=60)
    engine.backend.is_late = lambda: True
    jobs = {"first": (tuple(PROMPT), 1, 0, 4), **{f"o{i}": (tuple(each), 1, 0, 4) for i, each in enumerate(OTHERS)}}
    for name, job in jobs.items():
        engine.add(name, *job)
        engine.finish()
    engine.add("again", tuple(PROMPT), 1, 0, 4)
    engine.turn()
    assert engine.core.host
    assert [request.id for request in engine.core.scheduler.waiting.values()] == ["again"]
    assert engine.core.host.is_busy
    engine.core.abort("again")
    engine.core.check()
    assert not engine.core.is_idle
    engine.finish()
    assert engine.said["again"][-1].finish_reason is FinishReason.ABORT
    assert len(engine.core.scheduler.tree.peek(array("i", PROMPT))) == 12, "others may want it"


def test_one_who_leaves_with_forced_tokens_that_are_being_copied() -> None:
    """They are taken back, since nobody was told of them; the copy is of them all the same."""
    engine = host_turned(random.Random(0), num_blocks=20, num_host_blocks=60)
    engine.backend.is_late = lambda: True
    job = (tuple(PROMPT[:48]), 0, 1, 20)
    for name, each in (("first", job), *((f"o{i}", (tuple(each), 1, 0, 4)) for i, each in enumerate(OTHERS))):
        engine.add(name, *each)
        engine.finish()
    engine.add("again", *job)
    engine.turn()
    [request] = engine.core.scheduler.waiting.values()
    assert engine.core.host
    assert len(engine.core.host._loads[0].token_ids) > 48
    engine.core.abort("again")
    assert request.num_tokens == 48
    engine.finish()
    assert tokens_of(engine.said["again"]) == ()


def test_what_came_back_is_kept_until_its_request_is_let_in() -> None:
    engine = host_turned(random.Random(0), num_blocks=20, num_host_blocks=60)
    for i, each in enumerate((PROMPT, *OTHERS)):
        engine.add(f"o{i}", tuple(each), 1, 0, 4)
        engine.finish()
    engine.add("again", tuple(PROMPT), 1, 0, 4)
    engine.turn()
    tier, scheduler = engine.core.host, engine.core.scheduler
    assert tier
    while tier.is_busy:
        tier.poll(0.0)
    assert scheduler.waiting["again"].has_held_prefix
    assert scheduler.tree.has_held_prefix(array("i", PROMPT))
    engine.finish()
    assert engine.said["again"][-1].usage.num_from_host == 48


def test_one_who_comes_back_without_a_name_is_the_same_session_on_its_way_from_host_memory() -> None:
    engine = host_turned(random.Random(0), num_blocks=20, num_host_blocks=60)
    engine.sessions = [""]
    jobs = {name: (tuple(prompt), 1, 0, 4) for name, prompt in zip("abcd", (PROMPT, *OTHERS), strict=True)}
    for name, job in jobs.items():
        engine.add(name, *job)
        engine.finish()
    engine.add("again", (*PROMPT, *tokens_of(engine.said["a"]), 1), 1, 0, 4)
    engine.finish()
    assert engine.said["again"][-1].usage.num_from_host
    tree = engine.core.scheduler.tree
    assert {node.session for node, _ in tree.trace(array("i", PROMPT))} == {"\0a"}
    assert len(engine.core.scheduler.admission._known) == len(jobs)


def test_a_step_that_fails_while_blocks_are_copied() -> None:
    engine = host_turned(random.Random(0), num_blocks=24, num_host_blocks=60)
    engine.backend.is_late = lambda: True
    engine.priorities = [Priority.INTERACTIVE]
    for i, each in enumerate((PROMPT, *OTHERS)):
        engine.add(f"o{i}", tuple(each), 1, 0, 4)
        engine.finish()
    engine.add("runs", (1, 2, 3), 1, 0, 20)
    engine.turn()
    engine.add("again", tuple(PROMPT), 1, 0, 4)
    engine.turn()
    assert engine.core.host
    assert engine.core.host.is_busy
    engine.is_broken = True
    while not engine.num_failed:
        engine.turn()
    assert engine.backend._host
    assert all(copy.is_over for copy in engine.backend._host._coming), "or it would write into others' blocks"
    engine.finish()
    assert engine.said["runs"][-1].error
    assert tokens_of(engine.said["again"]) == alone(tuple(PROMPT), 1, 0, 4)


def test_sessions_in_a_tool_gap_are_expected_back_from_host_memory_too() -> None:
    with host_engine(retention=True) as engine:
        first = engine.generate(PROMPT, greedy())
        prefix = array("i", [*PROMPT, *first.token_ids])
        engine.hold(prefix, Hold(HoldKind.TOOL_GAP, time.monotonic() + 60, 60))
        for other in OTHERS:
            engine.generate(other, greedy())
        assert engine._core.scheduler.tree.has_held_prefix(array("i", [*prefix, 1, 2, 3]))
        again = engine.generate([*prefix, 1, 2, 3], greedy())
    assert again.usage.num_cached == 56
    assert 0 < again.usage.num_from_host < 56, "it went after all others, and from its end"
