"""What less urgent requests have beside an interactive one: their share, and no less."""

import itertools
import math
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.backends.device import NullDevice
from tests.engine.tiny import BLOCK_SIZE, PROMPTS, SIZE, Listener, greedy, make_engine, make_request, run_alone
from tests.engine.turning import Loop, make_scheduler, prompt
from tests.properties import examples

from hotloop.core.config import EngineConfig
from hotloop.core.request import Priority, Request
from hotloop.engine.scheduler.prefill_budget import MAX_HELD, MOMENT_S, prefills_of
from hotloop.engine.step import Step

SHARE = 1 - EngineConfig().interactive_share
ROW_S, STEP_S, TOKEN_S = 0.002, 0.012, 0.0005


def took_s(step: Step) -> float:
    """A row costs the more of a step, a token of a prompt less."""
    num_prefilled = sum(part.num_tokens for part in prefills_of(step.slices))
    return STEP_S + ROW_S * (step.num_tokens - num_prefilled) + TOKEN_S * num_prefilled


def on_cpu(num_blocks: int = 4096) -> Loop:
    return Loop(make_scheduler(num_blocks, max_solo_prefill=16.0))


def turn(loop: Loop, seconds: Callable[[Step], float] = took_s) -> set[str]:
    """Who had a row in the next step, which takes as long as it has to."""
    step = loop.scheduler.schedule(loop.now)
    duration_s = seconds(step)
    loop.now += duration_s
    loop.compute(step, duration_s)
    return {part.request.id for part in step.slices}


def decoding(loop: Loop, num_guests: int, priority: Priority = Priority.BACKGROUND) -> list[Request]:
    """Guests that have read their prompts, and then a user who has."""
    guests = [loop.add(f"guest {i}", prompt(6, 100 * i), priority) for i in range(num_guests)]
    while not all(each.num_output for each in guests):
        turn(loop)
    user = loop.add("user", prompt(6, 10_000))
    while not user.num_output:
        turn(loop)
    return guests


@pytest.mark.sampled(3)
@pytest.mark.parametrize("num_guests", [1, 4, 12])
def test_an_interactive_answer_takes_little_longer_than_alone(num_guests: int) -> None:
    loop = on_cpu()
    guests = decoding(loop, num_guests)
    began_at, before = loop.now, sum(each.num_output for each in guests)
    for _ in range(200):
        assert "user" in turn(loop)
    alone_s = 200 * (STEP_S + ROW_S)
    longest = 1 / (1 - SHARE)
    assert (loop.now - began_at) / alone_s == pytest.approx(longest, rel=0.03)
    guests_s = ROW_S * (sum(each.num_output for each in guests) - before)
    assert guests_s == pytest.approx(SHARE * (loop.now - began_at), rel=0.2), "and theirs is what is left"


def test_their_share_is_a_setting() -> None:
    loop = on_cpu()
    decoding(loop, 12)
    loop.scheduler.limit_classes(EngineConfig(interactive_share=0.5))
    began_at = loop.now
    for _ in range(200):
        turn(loop)
    assert loop.now - began_at == pytest.approx(2 * 200 * (STEP_S + ROW_S), rel=0.05)


def test_whom_an_interactive_request_leaves_are_served_at_once() -> None:
    loop = on_cpu()
    decoding(loop, 8)
    while loop.scheduler.budget.are_held:
        turn(loop)
    late = loop.add("late", prompt(60, 50_000), Priority.BACKGROUND)
    loop.now += EngineConfig().background_wait_s / 2
    for request in [*loop.scheduler.running.values()]:
        loop.finish(request)
    assert turn(loop) == {late.id}


def test_prompts_of_guests_are_of_their_share() -> None:
    loop = on_cpu()
    decoding(loop, 3)
    long = loop.add("long", prompt(2000, 50_000), Priority.WORKFLOW)
    began_at = loop.now
    for _ in range(200):
        turn(loop)
    assert loop.now - began_at == pytest.approx(200 * (STEP_S + ROW_S) / (1 - SHARE), rel=0.05)
    assert long.num_computed > 0


def test_a_first_token_does_not_wait_for_guests() -> None:
    loop = on_cpu()
    guests = decoding(loop, 8)
    for _ in range(30):
        turn(loop)
    loop.finish(loop.scheduler.running["user"])
    turn(loop)
    loop.add("another", prompt(6, 20_000))
    assert turn(loop) == {"another"}
    before = [each.num_output for each in guests]
    for _ in range(20):
        turn(loop)
    assert [each.num_output for each in guests] > before, "they are held, and not for ever"


def test_who_is_due_beside_an_interactive_request_begins_with_a_token() -> None:
    loop = on_cpu()
    decoding(loop, 8)
    for _ in range(10):
        turn(loop)
    late = [loop.add(f"late {i}", prompt(60, 1000 * (i + 2)), Priority.BACKGROUND) for i in range(2)]
    arrived_at = loop.now
    while not late[0].num_computed:
        turn(loop)
    assert loop.now - arrived_at <= EngineConfig().background_wait_s + 2 * (STEP_S + 10 * ROW_S)
    assert all(1 <= each.num_computed < BLOCK_SIZE for each in late)


def test_guests_go_on_where_an_interactive_request_is_not_let_in() -> None:
    loop = on_cpu(num_blocks=12)
    loop.add("urgent", prompt(30), Priority.WORKFLOW).rank = Priority.INTERACTIVE
    loop.add("guest", prompt(4, 100), Priority.BACKGROUND)
    while len(turn(loop)) < 2:
        pass
    loop.add("large", prompt(40, 1000))
    assert all(turn(loop) for _ in range(5))


def test_without_an_interactive_request_all_decode() -> None:
    loop = on_cpu()
    for name, priority in (("agent", Priority.WORKFLOW), ("batch", Priority.BACKGROUND)):
        loop.add(name, prompt(6), priority)
    while len(turn(loop)) < 2:
        pass
    assert all(turn(loop) == {"agent", "batch"} for _ in range(50))


def test_where_rows_cost_nothing_all_decode() -> None:
    """As on a GPU, whose backend says that only large steps are quick."""
    loop = Loop(make_scheduler(512, max_solo_prefill=math.inf))
    names = {each.id for each in decoding(loop, 5)} | {"user"}
    assert all(turn(loop) == names for _ in range(50))


def test_interactive_requests_are_no_guests_of_each_other() -> None:
    loop = on_cpu()
    decoding(loop, 2)
    loop.add("another", prompt(6, 20_000))
    assert all({"user", "another"} <= turn(loop) for _ in range(50))


def test_for_a_moment_after_an_interactive_request_chunks_are_short() -> None:
    loop = on_cpu()
    decoding(loop, 1)
    for _ in range(20):
        turn(loop)
    loop.finish(loop.scheduler.running["user"])
    loop.add("long", prompt(300, 50_000), Priority.BACKGROUND)
    chunks_s = []
    for seconds in (0.0, MOMENT_S):
        loop.now += seconds
        step = loop.scheduler.schedule(loop.now)
        chunks_s.append(loop.scheduler.budget.prefill_s(step.slices))
        loop.compute(step, took_s(step))
    short_s, later_s = chunks_s
    assert 0 < short_s <= loop.scheduler.budget.lean_s
    assert later_s > 2 * short_s


@settings(max_examples=examples(20))
@given(
    num_guests=st.integers(1, 20),
    users=st.lists(st.tuples(st.integers(1, 30), st.integers(0, 12)), min_size=1, max_size=4),
    costs=st.lists(st.floats(1e-5, 3.0), min_size=1, max_size=5),
    priority=st.sampled_from([Priority.WORKFLOW, Priority.BACKGROUND]),
)
def test_no_guest_is_held_for_more_steps_than_it_may(
    num_guests: int, users: list[tuple[int, int]], costs: list[float], priority: Priority
) -> None:
    """Whatever steps take, and however interactive requests come and go."""
    seconds = itertools.cycle(costs)
    loop = on_cpu()
    guests = decoding(loop, num_guests, priority)
    held = dict.fromkeys([each.id for each in guests], 0)
    for i, (num_steps, num_prompt) in enumerate(users):
        user = loop.add(f"user {i}", prompt(1 + num_prompt, 10_000 * (i + 1)))
        for step_number in range(num_steps * 4):
            if step_number % 9 == 0:
                loop.add(f"late {i} {step_number}", prompt(20, 1000 * (step_number + 1)), Priority.BACKGROUND)
            rows = turn(loop, lambda step: next(seconds) * max(1, step.num_tokens))
            held = {name: 0 if name in rows else num + 1 for name, num in held.items()}
            assert max(held.values()) <= MAX_HELD
        loop.finish(user)


class Cpu(NullDevice):
    max_solo_prefill = 16.0


def test_the_same_is_said_to_all_of_them() -> None:
    alone = [list(run_alone(each, greedy(24)).token_ids) for each in PROMPTS]
    listener = Listener()
    requests = [
        make_request(each, f"r{i}", sampling=greedy(24), priority=Priority(i % 3)) for i, each in enumerate(PROMPTS)
    ]
    with make_engine(backend=Cpu(**SIZE, num_blocks=512)) as engine:
        engine.submit(requests, listener)
        listener.wait(*(each.id for each in requests))
    assert [listener.token_ids(each.id) for each in requests] == alone
