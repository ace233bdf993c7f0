"""KV of layers with a sliding window: dropped where nobody sees it, there where somebody goes on, never mixed up."""

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.engine.tiny import BLOCK_SIZE, PROMPTS, greedy, make_engine, make_prompts, run_together
from tests.engine.turning import Loop, prompt
from tests.properties import examples

from hotloop.core.config import EngineConfig
from hotloop.core.request import Request
from hotloop.core.retention import Hold, HoldKind
from hotloop.engine.kvcache.slots import WindowSlots
from hotloop.engine.scheduler.scheduler import Scheduler

WINDOW = 12
SEEN = WINDOW // BLOCK_SIZE  # blocks


def make_loop(num_blocks: int = 64, num_slots: int = 16, **changes: Any) -> Loop:
    slots = WindowSlots(num_slots, WINDOW, num_blocks)
    return Loop(Scheduler(EngineConfig(**changes), block_size=BLOCK_SIZE, num_blocks=num_blocks, windows=slots))


def serve(loop: Loop, name: str, token_ids: list[int], num_output: int = 1) -> Request:
    request = loop.add(name, token_ids)
    while request.num_output < num_output:
        loop.step()
    loop.finish(request)
    return request


def with_slots(loop: Loop, token_ids: list[int]) -> list[bool]:
    """Of each block that the tree has of these tokens, whether its window part is there."""
    tree = loop.scheduler.tree
    known = tree.peek(Request("x", token_ids, greedy()).token_ids)
    return [tree.windows.slot(block_id) >= 0 for block_id in known]


@pytest.fixture(scope="module")
def undisturbed() -> list[list[int]]:
    with make_engine(prefix_cache=False, max_running=1) as engine:
        return run_together(engine, PROMPTS, greedy(12))


@pytest.mark.parametrize(
    "changes",
    [
        {"num_window_blocks": 24},
        {"num_window_blocks": 30},
        {"num_window_blocks": 200},
        {"num_window_blocks": 60, "depth": 2},
        {"num_window_blocks": 30, "depth": 2, "max_step_tokens": 50},
        {"num_window_blocks": 40, "max_step_tokens": 7},
        {"num_window_blocks": 40, "num_blocks": 30},
        {"num_window_blocks": 40, "num_blocks": 30, "num_host_blocks": 40},
        {"num_window_blocks": 60, "num_blocks": 30, "num_host_blocks": 40, "depth": 2},
        {"num_window_blocks": 40, "prefix_cache": False},
        {"num_window_blocks": 40, "retention": False},
    ],
    ids=str,
)
@pytest.mark.sampled(4)
def test_the_same_is_said_however_it_is_computed(changes: dict[str, Any], undisturbed: list[list[int]]) -> None:
    """The backend reads a window's tokens back from the slots, and finds out if they are another's."""
    with make_engine(**changes) as engine:
        assert run_together(engine, PROMPTS, greedy(12)) == undisturbed
        assert run_together(engine, PROMPTS, greedy(12)) == undisturbed, "and again, from the cache"
        assert engine.stats().num_blocks_used == 0
        assert engine._core.scheduler.tree.windows.pool.num_used == 0


@settings(max_examples=examples(30))
@given(
    seed=st.integers(0, 1000),
    num_blocks=st.integers(26, 60),
    num_slots=st.integers(20, 60),
    num_host_blocks=st.sampled_from([0, 0, 30]),
    depth=st.integers(1, 2),
    max_step_tokens=st.integers(1, 80),
)
def test_the_same_is_said_in_any_engine(
    seed: int, num_blocks: int, num_slots: int, num_host_blocks: int, depth: int, max_step_tokens: int
) -> None:
    prompts = make_prompts(seed)[:6]
    with make_engine(prefix_cache=False, max_running=1) as engine:
        expected = run_together(engine, prompts, greedy(6))
    sizes = {"num_window_blocks": num_slots, "num_host_blocks": num_host_blocks, "depth": depth}
    with make_engine(num_blocks, **sizes, max_step_tokens=max_step_tokens) as engine:
        assert run_together(engine, prompts, greedy(6)) == expected
        assert run_together(engine, prompts[::-1], greedy(6)) == expected[::-1]


def test_a_request_uses_the_slots_that_its_next_token_sees() -> None:
    loop = make_loop()
    request = loop.add("a", prompt(41))
    while not request.num_output:
        loop.step()
    windows = loop.scheduler.tree.windows
    assert windows.pool.num_used == SEEN + 1  # of the token at 41, the blocks from 30 // 4 on
    for _ in range(20):
        loop.step()
        assert windows.pool.num_used <= SEEN + 2
    loop.finish(request)
    assert windows.pool.num_used == 0


def test_the_middle_goes_before_the_end_and_the_session_goes_on() -> None:
    loop = make_loop(num_slots=16)
    first = serve(loop, "a", prompt(40))
    serve(loop, "b", prompt(40, 100))
    assert with_slots(loop, prompt(40))[-SEEN:] == [True] * SEEN
    assert not all(with_slots(loop, prompt(40)))
    again = serve(loop, "c", [*first.token_ids, 7, 8, 9])
    assert again.num_cached == 40


def test_more_prompts_are_kept_than_there_are_slots_for_all_of_them() -> None:
    """Sixteen blocks of slots, thirty of KV, and three sessions of ten all go on where they were."""
    loop = make_loop(num_blocks=64, num_slots=20)
    sessions = [serve(loop, f"s{i}", prompt(40, 100 * i)) for i in range(3)]
    for i, each in enumerate(sessions):
        assert serve(loop, f"t{i}", [*each.token_ids, 5]).num_cached == 40


def test_a_prompt_that_leaves_another_where_slots_are_dropped_computes_from_the_last_place_and_heals_it() -> None:
    loop = make_loop(num_slots=16)
    serve(loop, "a", prompt(40))
    serve(loop, "b", prompt(40, 100))  # whose need of slots has the middle of a dropped
    cut = with_slots(loop, prompt(40)).index(True)
    branch = serve(loop, "c", [*prompt(24), 99, 98, 97])
    assert branch.num_cached < 24
    assert branch.eviction is not None
    num_used = loop.scheduler.pool.num_blocks - loop.scheduler.pool.num_free
    assert cut > 0
    assert serve(loop, "d", [*prompt(24), 96, 95, 94]).num_cached == 24, "where c left its slots"
    assert loop.scheduler.pool.num_blocks - loop.scheduler.pool.num_free <= num_used + 1


def test_ends_of_the_least_worth_go_first() -> None:
    loop = make_loop(num_blocks=200, num_slots=16)
    held, other = serve(loop, "a", prompt(20)), serve(loop, "b", prompt(20, 100))
    tokens = Request("x", held.token_ids, greedy()).token_ids
    loop.scheduler.tree.hold(tokens, Hold(HoldKind.TOOL_GAP, loop.now + 60))
    for i in range(6):
        serve(loop, f"o{i}", prompt(20, 200 + 20 * i))
    assert with_slots(loop, prompt(20))[-SEEN:] == [True] * SEEN
    assert not any(with_slots(loop, prompt(20, 100)))
    assert serve(loop, "c", [*held.token_ids, 1, 2]).num_cached == 20
    assert serve(loop, "d", [*other.token_ids, 1, 2]).num_cached == 0


def test_no_more_decode_than_have_slots() -> None:
    loop = make_loop(num_slots=2 * (SEEN + 2), max_running=8)
    for i in range(4):
        loop.add(f"r{i}", prompt(9, 50 * i))
    for _ in range(10):
        loop.step()
        assert len(loop.scheduler.running) <= 2


def test_random_sessions_leave_nothing_behind() -> None:
    rng = random.Random(3)
    loop = make_loop(num_blocks=40, num_slots=18, max_running=3)
    known = [prompt(20, 50 * i) for i in range(3)]
    for i in range(60):
        base = rng.choice(known)
        request = loop.add(
            f"r{i}", base[: rng.randrange(1, len(base) + 1)] + prompt(rng.randrange(1, 12), 1000 + 20 * i)
        )
        for _ in range(rng.randrange(1, 12)):
            loop.step()
            if request.num_output > 3:
                break
        known = [*known[-5:], request.token_ids.tolist()[:60]]
        loop.finish(request)
    assert loop.scheduler.tree.windows.pool.num_used == 0
