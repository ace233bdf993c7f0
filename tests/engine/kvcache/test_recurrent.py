"""Recurrent states of hybrid models: where they are saved, from where requests go on, and which are given up first."""

from collections.abc import Sequence
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.engine.drafting.test_speculation import Oracle
from tests.engine.tiny import BLOCK_SIZE, PROMPTS, check_prompts, greedy, make_engine, make_prompts, run_together
from tests.engine.turning import Loop, make_scheduler, prompt
from tests.properties import examples

from hotloop.core.request import Priority, Request
from hotloop.core.retention import Hold, HoldKind
from hotloop.engine.drafting.payoff import StepCost
from hotloop.engine.kvcache.recurrent import ANSWER_LEAD


def saved(loop: Loop, token_ids: Sequence[int]) -> list[int]:
    """After how many of these tokens the tree has a state."""
    places, end = [], 0
    for node, num_blocks in loop.scheduler.tree.trace(Request("x", token_ids, greedy()).token_ids):
        end += num_blocks * BLOCK_SIZE
        if node.state and num_blocks == len(node.block_ids):
            places.append(end)
    return places


def serve(loop: Loop, name: str, token_ids: list[int], num_output: int = 1, session: str = "") -> Request:
    """Let a request prefill and decode until it has so many tokens, and end it."""
    request = loop.add(name, token_ids, session=session)
    while request.num_output < num_output:
        loop.step()
    loop.finish(request)
    return request


@pytest.fixture(scope="module")
def undisturbed() -> list[list[int]]:
    with make_engine(prefix_cache=False, max_running=1, num_states=1) as engine:
        return run_together(engine, PROMPTS, greedy(12))


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "changes",
    [
        {"num_states": 2},
        {"num_states": 7},
        {"num_states": 64},
        {"num_states": 64, "depth": 2},
        {"num_states": 64, "max_step_tokens": 7},
        {"num_states": 64, "retention": False},
        {"num_states": 64, "num_blocks": 26},
        {"num_states": 5, "num_blocks": 26, "max_step_tokens": 9},
        {"num_states": 64, "prefix_cache": False},
    ],
    ids=str,
)
def test_the_same_is_said_however_it_is_computed(changes: dict[str, Any], undisturbed: list[list[int]]) -> None:
    stats = check_prompts(make_engine(**changes), undisturbed)
    assert stats.num_blocks_used == stats.states.num_used == 0


@settings(max_examples=examples(25))
@given(
    seed=st.integers(0, 1000),
    num_blocks=st.integers(26, 60),
    num_states=st.integers(2, 20),
    max_step_tokens=st.integers(1, 80),
)
def test_the_same_is_said_in_any_engine(seed: int, num_blocks: int, num_states: int, max_step_tokens: int) -> None:
    prompts = make_prompts(seed)[:5]
    with make_engine(prefix_cache=False, max_running=1, num_states=1) as engine:
        expected = run_together(engine, prompts, greedy(6))
    with make_engine(num_blocks, num_states=num_states, max_step_tokens=max_step_tokens) as engine:
        assert run_together(engine, prompts, greedy(6)) == expected
        assert run_together(engine, prompts[::-1], greedy(6)) == expected[::-1]


def test_a_state_changes_what_is_said() -> None:
    """Or else the tests above would prove nothing."""
    with make_engine() as dense, make_engine(num_states=4) as hybrid:
        assert dense.generate(prompt(100), greedy(4)).token_ids != hybrid.generate(prompt(100), greedy(4)).token_ids


def test_states_are_saved_where_a_prompt_and_its_answer_end() -> None:
    loop = Loop(make_scheduler(num_states=16))
    request = serve(loop, "a", prompt(50), num_output=11)
    assert saved(loop, request.token_ids) == [(50 - ANSWER_LEAD) // 4 * 4, 60], "the last token was not computed"
    again = loop.add("b", [*request.token_ids, 7, 8, 9])
    loop.step()
    assert again.num_cached == 60
    other = loop.add("c", [*prompt(48), 7, 8, 9])
    loop.step()
    assert other.num_cached == 40, "the answer was not its own"


def test_an_answer_of_few_tokens_is_resumed_from_the_last_block_of_its_prompt() -> None:
    loop = Loop(make_scheduler(num_states=16))
    request = serve(loop, "a", prompt(50), num_output=1)
    again = loop.add("b", [*request.token_ids, 7])
    loop.step()
    assert again.num_cached == 48


def test_chunks_end_where_a_state_is_saved() -> None:
    loop = Loop(make_scheduler(num_states=16))
    request = loop.add("a", prompt(50))
    request.resume_at = [21, 5000]
    assert [loop.step()["a"] for _ in range(4)] == [(0, 20), (20, 40), (40, 48), (48, 50)]
    loop.finish(request)
    assert saved(loop, request.token_ids) == [20, 40, 48]


def test_a_shared_head_is_saved_where_the_second_session_leaves_it() -> None:
    loop = Loop(make_scheduler(num_states=16))
    head = prompt(40)
    cached = [serve(loop, name, [*head, *prompt(40, first=1000 * i)]).num_cached for i, name in enumerate("abc", 1)]
    assert cached == [0, 0, 40]


def test_of_sessions_that_wait_together_one_computes_the_head() -> None:
    loop = Loop(make_scheduler(num_blocks=400, num_states=64))
    head = prompt(100)
    requests = [loop.add(f"r{i}", [*head, *prompt(30, first=1000 * i)]) for i in range(1, 9)]
    computed = 0
    while not all(request.num_output for request in requests):
        computed += sum(end - begin for begin, end in loop.step().values() if end - begin > 1)
    assert [request.num_cached for request in requests] == [0] + [100] * 7
    assert computed == 100 + 8 * 30


def test_one_that_comes_while_the_head_is_computed_waits_for_its_end() -> None:
    loop = Loop(make_scheduler(num_blocks=400, num_states=64, max_step_tokens=32))
    first = loop.add("a", [*prompt(200), 1])
    loop.step()
    second = loop.add("b", [*prompt(100), *prompt(60, first=1000)])
    while not second.num_output:
        loop.step()
    assert second.num_cached == 100
    assert first.num_preemptions == 0


def test_an_urgent_one_does_not_wait_for_one_less_urgent() -> None:
    loop = Loop(make_scheduler(num_blocks=400, num_states=64, max_step_tokens=32))
    loop.add("a", prompt(200), Priority.BACKGROUND)
    loop.step()
    loop.add("b", prompt(200), Priority.INTERACTIVE)
    assert "b" in loop.step()


def test_matching_stops_at_the_deepest_state() -> None:
    """Blocks go on beyond a state that was given up in the middle, and one behind it makes them good again."""
    loop = Loop(make_scheduler(num_states=16))
    request = serve(loop, "a", prompt(50), num_output=11)
    scheduler = loop.scheduler
    *_, last = scheduler.tree.nodes()
    middle = next(node for node in scheduler.tree.nodes() if node.state and node.children)
    scheduler.tree.states.drop(middle)
    long, short = ([*request.token_ids[:end], 7] for end in (60, 50))
    known = {
        name: len(scheduler.states.peek(Request(name, ids, greedy()))) for name, ids in (("l", long), ("s", short))
    }
    assert known == {"l": 15, "s": 0}
    scheduler.tree.states.drop(last)
    assert scheduler.states.peek(Request("l", long, greedy())) == []
    scheduler.check()


def test_blocks_that_lead_to_no_state_go_first() -> None:
    loop = Loop(make_scheduler(num_states=16))
    old = serve(loop, "a", prompt(50, first=1000), session="a")
    loop.now += 100
    new = serve(loop, "b", prompt(50), session="b")
    tree = loop.scheduler.tree
    for node in [*tree.nodes()]:
        if node.session == "b":
            tree.states.drop(node)
            tree.order.requeue(node)
    tree.evict(tree.pool.num_kept // 2)
    assert len(tree.peek(old.token_ids)) == 12
    assert tree.peek(new.token_ids) == []
    tree.check()


def test_a_leaf_that_loses_its_end_loses_the_state_that_was_there() -> None:
    loop = Loop(make_scheduler(num_states=16))
    request = serve(loop, "a", prompt(50))
    loop.scheduler.tree.evict(1)
    assert saved(loop, request.token_ids) == [40]
    loop.scheduler.check()


def test_states_within_a_session_go_before_ends_of_sessions_and_shared_heads() -> None:
    loop = Loop(make_scheduler(num_blocks=400, num_states=7))
    head = prompt(40)
    for turn, session in enumerate("aabb"):  # heads and first turns, saved with a few slots to spare
        serve(
            loop, f"{turn}", [*head, *prompt(24 + 20 * (turn % 2), first=1000 * (ord(session) - 96))], session=session
        )
    assert loop.scheduler.states.num_evicted
    ends = [saved(loop, [*head, *prompt(44, first=1000 * i)]) for i in (1, 2)]
    assert all(40 in places and max(places) > 70 for places in ends), ends


def test_a_state_that_is_held_outlives_one_that_is_not() -> None:
    loop = Loop(make_scheduler(num_blocks=400, num_states=5))
    held = serve(loop, "held", prompt(20), session="held")
    loop.scheduler.tree.hold(held.token_ids, Hold(HoldKind.TOOL_GAP, loop.now + 100))
    for i in range(1, 8):
        serve(loop, f"r{i}", prompt(20, first=100 * i), session=f"r{i}")
    assert max(saved(loop, held.token_ids)) == 20
    assert loop.scheduler.states.num_evicted


def test_a_state_within_a_session_that_is_held_stays() -> None:
    loop = Loop(make_scheduler(num_blocks=400, num_states=5))
    first = serve(loop, "first", prompt(20), session="held")
    serve(loop, "second", prompt(40), session="held")
    loop.scheduler.tree.hold(first.token_ids[:20], Hold(HoldKind.TOOL_GAP, loop.now + 100))
    for i in range(1, 8):
        serve(loop, f"r{i}", prompt(20, first=100 * i), session=f"r{i}")
    assert 20 in saved(loop, prompt(40))


def test_what_one_has_left_is_taken_only_for_one_who_could_not_run() -> None:
    loop = Loop(make_scheduler(num_blocks=400, num_states=3))
    for i, name in enumerate("ab"):
        loop.add(name, prompt(7, first=100 * i))
    loop.step()
    loop.step()
    states = loop.scheduler.states
    assert [len(states._runs[name].left) for name in "ab"] == [1, 0], "one slot is left for two"
    loop.add("c", prompt(7, first=200))
    assert "c" in loop.step()
    assert not states._runs["a"].left


def test_what_became_of_a_state_is_told() -> None:
    loop = Loop(make_scheduler(num_blocks=400, num_states=3))
    serve(loop, "a", prompt(40), session="a")
    loop.now += 100
    for i in range(1, 4):
        serve(loop, f"b{i}", prompt(40, first=100 * i), session=f"b{i}")
    again = serve(loop, "again", prompt(40), session="a")
    assert again.num_cached == 0
    assert again.eviction
    assert again.eviction.beneficiary.startswith("b")


def test_with_a_state_all_is_lost_since_the_one_before_it() -> None:
    loop = Loop(make_scheduler(num_blocks=400, num_states=12))
    request = serve(loop, "a", prompt(40), session="a")
    serve(loop, "b", [*prompt(20), *prompt(20, first=500)], session="b")
    tree = loop.scheduler.tree
    *others, end = tree.walk(request.token_ids[:40].tobytes(), "")
    for node in tree.nodes():
        if node.state and node is not end:
            tree.states.drop(node)
    loop.scheduler.states._evict("x")
    assert len(others) == 2
    assert not end.state
    found = {num: tree.evictions.find(b"", [request.token_ids[:num].tobytes()]) for num in (4, 36)}
    assert found[4]
    assert not found[36]


def test_the_last_token_of_a_prompt_is_computed_though_there_is_a_state_behind_it() -> None:
    loop = Loop(make_scheduler(num_states=16))
    request = serve(loop, "a", prompt(20), session="a")
    place = max(saved(loop, request.token_ids))
    matched = loop.scheduler.states.match(Request("x", request.token_ids[:place], greedy()))
    assert len(matched) * BLOCK_SIZE < place
    longer = loop.scheduler.states.match(Request("y", request.token_ids[: place + 1], greedy()))
    assert len(longer) * BLOCK_SIZE == place


def test_more_requests_than_slots_take_turns() -> None:
    with make_engine(num_states=3) as engine:
        run_together(engine, PROMPTS, greedy(12))
        assert engine.stats().states.num_slots == 3


def test_one_who_gave_way_goes_on_from_its_last_block() -> None:
    loop = Loop(make_scheduler(num_states=16, max_running=1, admission=False))
    first = loop.add("a", prompt(30), Priority.BACKGROUND)
    while first.num_output < 20:
        loop.step()
    urgent = loop.add("b", prompt(30, first=500))
    loop.step()
    assert first.num_preemptions == 1
    assert max(saved(loop, first.token_ids)) == 48
    loop.finish(urgent)
    assert loop.step() == {"a": (48, 50)}


def test_nothing_is_saved_of_a_request_that_failed() -> None:
    loop = Loop(make_scheduler(num_states=16))
    request = loop.add("a", prompt(50))
    for _ in range(3):
        loop.step()
    loop.scheduler.fail(request)
    loop.scheduler.check()
    assert saved(loop, request.token_ids) == []
    assert loop.scheduler.states.pool.num_free == 16


@cache
def all_alone() -> list[list[int]]:
    with make_engine(prefix_cache=False, max_running=1, num_states=1, drafts=False) as engine:
        return run_together(engine, PROMPTS, greedy(40))


@pytest.mark.parametrize("error_rate", [0.0, 0.3, 1.0])
@pytest.mark.parametrize(
    "changes", [{}, {"depth": 2}, {"num_states": 6, "num_blocks": 40}, {"prefix_cache": False}], ids=str
)
@pytest.mark.sampled(4)
def test_drafts_change_no_token(changes: dict[str, Any], error_rate: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wrong ones are taken back with their state; and what was right is said once."""
    monkeypatch.setattr(StepCost, "stall_s", 0.0)  # all the time is the host's here
    monkeypatch.setattr(StepCost, "observe", lambda *_: None)  # and what disturbs it makes no draft too dear
    alone = all_alone()
    oracle = Oracle({tuple(each): said for each, said in zip(PROMPTS, alone, strict=True)}, error_rate)
    with make_engine(**{"num_states": 64, "drafter": oracle, **changes}) as engine:
        for _ in range(2):
            assert run_together(engine, PROMPTS, greedy(40)) == alone
        stats = engine.stats()
    assert stats.usage.num_drafted > 0
    assert stats.states.num_used == 0
    if error_rate == 0:
        assert stats.usage.num_steps < stats.usage.num_output


def test_a_session_goes_on_from_an_answer_that_was_drafted() -> None:
    with make_engine(prefix_cache=False, num_states=1, drafts=False) as engine:
        said = engine.generate(prompt(50), greedy(40)).token_ids
        more = [*prompt(50), *said, 7, 8, 9]
        then = engine.generate(more, greedy(8)).token_ids
    with make_engine(num_states=8, drafter=Oracle({tuple(prompt(50)): said}, 0.3)) as engine:
        assert engine.generate(prompt(50), greedy(40)).token_ids == said
        again = engine.generate(more, greedy(8))
    assert again.token_ids == then
    assert again.usage.num_cached >= 80


def test_after_a_wrong_draft_what_was_right_is_computed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """From the state in front of it, without another draft."""
    observe = StepCost.observe  # how far it drafts is up to what steps take
    monkeypatch.setattr(StepCost, "observe", lambda cost, num_tokens, _: observe(cost, num_tokens, 0.03))
    monkeypatch.setattr(StepCost, "stall_s", 0.0)
    with make_engine(num_states=4, drafts=False) as engine:
        said = list(engine.generate(prompt(9), greedy(12)).token_ids)
    steps: list[tuple[int, int]] = []  # where they begin, and how many tokens they have
    wrong = [*said[:3], said[3] + 1, *said[4:]]
    with make_engine(
        num_states=4,
        prefix_cache=False,  # or it would stop at the end of a block, to leave its state there
        drafter=Oracle({tuple(prompt(9)): wrong}, 0.0),
        max_draft_tokens=4,
        on_run=lambda batch: steps.append((int(batch.past_lens[0]), len(batch.token_ids))),
    ) as engine:
        assert list(engine.generate(prompt(9), greedy(12)).token_ids) == said
    begins = [begin for begin, _ in steps]
    first = next(i for i, begin in enumerate(begins) if begins.count(begin) == 2)
    (begin, num_drafted), (same, num_again) = steps[first : first + 2]
    assert begin == same
    assert num_again == 9 + len(said[:4]) - begin < num_drafted
