"""Policies are pure: what they see is what they choose from."""

import math
import random
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.properties import examples

from hotloop.router.placement.placement import LATELY, OUTPUT_COST, TOOL_GAP_S, Placement, Ticket
from hotloop.router.placement.policy import (
    NUM_DELAYED,
    POLICIES,
    PlacementRequest,
    PromptDigest,
    ReplicaChoice,
    ReplicaView,
    least_load,
    prefix,
    round_robin,
    session,
)
from hotloop.router.simulation.simulate import SIMULATED
from hotloop.router.summary import AnswerSummary

views = st.lists(
    st.builds(
        ReplicaView,
        name=st.integers(0, 99).map(str),
        work_tokens=st.floats(0, 1e6),
        recent_tokens=st.floats(0, 1e6),
        matched_tokens=st.integers(0, 1000),
        weight=st.floats(0.1, 10),
        num_running=st.integers(0, 500),
        held_tokens=st.integers(0, 10**6),
        capacity_tokens=st.integers(1, 10**6),
        is_home=st.booleans(),
    ),
    min_size=1,
    max_size=8,
    unique_by=lambda view: view.name,
)


@settings(max_examples=examples(60))
@given(views, st.sampled_from(sorted(SIMULATED)), st.integers(0, 2000), st.integers(0, 99))
def test_somebody_is_always_chosen_from_those_there_are(
    seen: list[ReplicaView], name: str, tokens: int, turn: int
) -> None:
    before = [repr(view) for view in seen]
    choice = SIMULATED[name](
        seen, PlacementRequest(tokens, "s" * (turn % 2), turn, random.Random(turn), past_tokens=9.0 * turn)
    )
    assert choice.name in {view.name for view in seen}
    assert choice.reason
    assert [repr(view) for view in seen] == before, "a policy only looks"


def placing(num_tokens: int = 1000) -> PlacementRequest:
    return PlacementRequest(num_tokens, "s", rng=random.Random(0))


def test_prefix_stays_where_it_is_warm_unless_waiting_there_costs_more_than_reading_all_again() -> None:
    warm, idle = ReplicaView("warm", matched_tokens=900), ReplicaView("idle")
    assert prefix([idle, warm], placing()).name == "warm"
    warm.work_tokens = NUM_DELAYED * 900
    assert prefix([idle, warm], placing()).reason == "warm"
    warm.work_tokens += 1
    assert prefix([idle, warm], placing()) == ReplicaChoice("idle", "moved, warm is busy")
    also = ReplicaView("also", matched_tokens=500)
    assert prefix([idle, warm, also], placing()) == ReplicaChoice("also", "warm, warm is busy", 500)


def test_a_session_in_a_tool_gap_is_work_to_come() -> None:
    warm, idle = ReplicaView("warm", matched_tokens=900, returning_tokens=NUM_DELAYED * 900 + 1), ReplicaView("idle")
    assert prefix([idle, warm], placing()).name == "idle"


def test_reading_costs_more_where_other_prompts_have_to_go_for_it() -> None:
    full, empty = (
        ReplicaView("full", matched_tokens=500, held_tokens=9_900, capacity_tokens=10_000),
        ReplicaView("empty"),
    )
    empty.work_tokens = full.work_tokens = 100
    some = ReplicaView("some", matched_tokens=450)
    assert prefix([empty, full, some], placing()).name == "some"
    full.capacity_tokens = 20_000
    assert prefix([empty, full, some], placing()).name == "full"


def test_a_long_session_leaves_a_replica_that_others_keep_busier_than_the_mean() -> None:
    busy, idle = ReplicaView("busy", matched_tokens=900, recent_tokens=100_000, is_home=True), ReplicaView("idle")
    assert prefix([idle, busy], PlacementRequest(1000, "s", past_tokens=1_000)).name == "busy"
    assert prefix([idle, busy], PlacementRequest(1000, "s", past_tokens=20_000)).name == "idle"
    assert prefix([idle, busy], PlacementRequest(1000, "s", past_tokens=80_000)).name == "busy", (
        "it would take its load along"
    )


def test_a_fast_replica_may_have_more_to_do() -> None:
    seen = [ReplicaView("slow", work_tokens=100), ReplicaView("fast", weight=4, work_tokens=300)]
    assert prefix(seen, placing()).name == "fast"
    assert least_load(seen, placing()).name == "fast"


def test_a_match_of_a_few_words_is_no_affinity() -> None:
    seen = [
        ReplicaView("a", matched_tokens=20, recent_tokens=9e9),
        ReplicaView("b"),
        ReplicaView("c", recent_tokens=9e9),
    ]
    assert prefix(seen, placing()) == ReplicaChoice("b", "cold")
    lone = {prefix(seen, PlacementRequest(1000, "", rng=random.Random(seed))).name for seed in range(20)}
    assert "b" in lone


def test_a_session_goes_home() -> None:
    seen = [ReplicaView("a"), ReplicaView("b", is_home=True)]
    assert session(seen, placing()).name == "b"
    assert least_load([ReplicaView("a", work_tokens=5), ReplicaView("b")], placing()).name == "b"
    assert [round_robin(seen, PlacementRequest(1, turn=turn)).name for turn in range(3)] == ["a", "b", "a"]


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_placement_counts_what_it_gave_and_got_back(policy: str) -> None:
    placement = Placement(POLICIES[policy], block_tokens=64, seed=1)
    assert placement.place(PromptDigest(num_tokens=10)) is None, "there is nobody"
    for name in "abc":
        placement.add_replica(name, capacity_tokens=64 * 20)
    tickets = []
    for i in range(60):
        key = b"".join(((i % 7) << 32 | j).to_bytes(8, "big") for j in range(10))
        ticket = placement.place(PromptDigest(key, 640, 10, f"s{i % 7}"), now=float(i))
        assert ticket
        tickets.append(ticket)
        if i % 3:
            placement.begin(ticket)
            placement.correct(ticket, ticket.choice.matched_tokens * (i % 2))
        if i % 4 == 0:
            placement.finish(tickets.pop(i % len(tickets)), AnswerSummary(num_output=20, has_calls=True), now=float(i))
        placement.check()
    placement.forget_replica("a")
    placement.check()
    placement.remove_replica("b")
    for ticket in tickets:
        placement.finish(ticket)
    placement.check()
    assert all(view.work_tokens == 0 and view.num_running == 0 for view in placement._views.values())
    assert placement.place(PromptDigest(num_tokens=10), among=frozenset({"b"})) is None


def test_a_session_finds_its_prefix_again() -> None:
    placement = Placement(prefix, block_tokens=64, seed=1)
    for name in "abcd":
        placement.add_replica(name, capacity_tokens=64 * 1000)
    key = b"".join(j.to_bytes(8, "big") for j in range(100))
    first = placement.place(PromptDigest(key[:400], 3200, session="s"))
    assert first
    placement.finish(first)
    again = placement.place(PromptDigest(key, 6400, session="s"))
    assert again
    assert (again.choice.name, again.choice.matched_tokens) == (first.choice.name, 3200)


def blocks(num_blocks: int, prompt: int = 0) -> bytes:
    return b"".join((prompt << 32 | j).to_bytes(8, "big") for j in range(num_blocks))


def placement_of(*names: str, capacity_blocks: int = 1000) -> Placement:
    placement = Placement(prefix, block_tokens=64, seed=1)
    for name in names:
        placement.add_replica(name, capacity_tokens=64 * capacity_blocks)
    return placement


def ask(placement: Placement, key: bytes, session: str = "s", num_output: int = 0, **options: Any) -> Ticket:
    ticket = placement.place(PromptDigest(key, len(key) * 8, num_output, session), **options)
    assert ticket
    return ticket


def test_a_sessions_last_prompt_is_matched_to_its_end() -> None:
    """Keys end with the last whole block; but what was left of its blocks, if some are lost, is all that counts."""
    placement = placement_of("a", capacity_blocks=12)
    placement.place(PromptDigest(blocks(2), 150, session="s"))
    again = placement.place(PromptDigest(blocks(4), 300, session="s"))
    assert again
    assert again.choice.matched_tokens == 150
    ask(placement, blocks(10, prompt=1), session="other")  # for which the end of the first is evicted
    shorter = placement.place(PromptDigest(blocks(4), 300, session="s"))
    assert shorter
    assert shorter.choice.matched_tokens == 2 * 64


def test_what_was_given_longer_ago_counts_for_less() -> None:
    placement = placement_of("a")
    for prompt in range(3):
        ask(placement, blocks(10, prompt))
    faded = math.exp(-1 / LATELY)
    assert placement._views["a"].recent_tokens == pytest.approx(640 * (faded**2 + faded + 1))


def test_what_was_not_cached_after_all_is_work() -> None:
    placement = placement_of("a")
    ask(placement, blocks(10))
    ticket = ask(placement, blocks(10))
    assert ticket.work_tokens == 0
    before = placement._views["a"].recent_tokens
    placement.correct(ticket, 600)
    assert placement._views["a"].recent_tokens == before + 40
    placement.correct(ticket, 700)
    assert placement._views["a"].recent_tokens == before + 40, "more than was thought is no work taken back"


def test_an_answer_tells_what_share_of_its_prompt_was_cached() -> None:
    placement = placement_of("a")
    ask(placement, blocks(10))
    ticket = ask(placement, blocks(10))
    before = placement._views["a"].recent_tokens
    placement.finish(ticket, AnswerSummary(num_prompt=100, num_cached=75))
    assert placement._views["a"].recent_tokens == before + 640 * 0.25


def test_a_session_in_a_tool_gap_is_awaited_to_the_end_of_its_time() -> None:
    placement = placement_of("a")
    placement.finish(ask(placement, blocks(9), now=1.0), AnswerSummary(num_output=7, has_calls=True), now=2.0)
    for now, returning in ((TOOL_GAP_S + 1, OUTPUT_COST * 7), (TOOL_GAP_S + 2, 0)):
        ask(placement, b"", "other", now=now)
        assert placement._views["a"].returning_tokens == returning


def test_beginnings_are_counted_by_where_prompts_part() -> None:
    placement, shared = placement_of("a"), blocks(4)
    for i in range(1, 4):
        ask(placement, shared + blocks(2, i), f"s{i}")
    assert placement._starts.get(shared[-8:]) == 2


def test_neither_strangers_nor_a_conversation_that_goes_on_are_counted_as_alike() -> None:
    placement = placement_of("a")
    for i in range(1, 4):
        ask(placement, blocks(2, i), f"s{i}")
    for num_blocks in (4, 6, 8):
        ask(placement, blocks(num_blocks, 9), session="")
    assert not placement._starts


def test_requests_from_others_are_taken_for_some_of_ours() -> None:
    placement = placement_of("a", "b")
    ask(placement, blocks(10), among=frozenset("a"))
    ask(placement, blocks(5, 1), among=frozenset("b"))
    placement.note_elsewhere("b", 3)
    assert placement._views["b"].elsewhere_tokens == 3 * (640 + 320) / 2


def test_what_a_replica_publishes_is_believed_rather_than_the_index() -> None:
    placement = placement_of("a", "b")
    first = ask(placement, blocks(10)).choice.name
    other = "b" if first == "a" else "a"
    choice = ask(placement, blocks(10), known={first: 0, other: 640, "gone": 640}).choice
    assert (choice.name, choice.matched_tokens) == (other, 640)


def test_only_those_named_are_chosen_from() -> None:
    placement = placement_of("a", "b", "c")
    ask(placement, blocks(10), among=frozenset("a"))
    assert ask(placement, blocks(10), among=frozenset("bc")).choice.name in "bc"


def test_who_lost_a_prompt_has_less_room_than_was_thought() -> None:
    placement = placement_of("a", capacity_blocks=100)
    for prompt in range(10):
        ask(placement, blocks(10, prompt))
    ticket = ask(placement, blocks(10, 5))
    assert ticket.choice.matched_tokens == 640
    placement.correct(ticket, 0)
    placement.check()
    assert ask(placement, blocks(10, 5)).choice.matched_tokens == 640, "it has read it now"
    assert ask(placement, blocks(10, 0)).choice.matched_tokens == 0, "what was used longest ago is lost as well"
    for _ in range(300):
        placement.correct(ask(placement, blocks(10, 5)), 640)
    assert placement._views["a"].capacity_tokens == 6400, "it kept its promises, and has no more than it has"


@pytest.mark.parametrize(("num_cached", "capacity"), [(320, 6400), (319, 576)])
def test_it_has_less_room_if_more_than_half_of_what_was_counted_on_is_lost(num_cached: int, capacity: int) -> None:
    placement = placement_of("a", capacity_blocks=100)
    ask(placement, blocks(10))
    ticket = ask(placement, blocks(10))
    ticket.prompt = PromptDigest(ticket.prompt.key, num_tokens=1)
    placement.correct(ticket, num_cached)
    assert placement._views["a"].capacity_tokens == capacity


def test_an_answer_corrects_nothing_where_nothing_was_counted_on_or_nobody_is_left() -> None:
    placement = placement_of("a", capacity_blocks=100)
    ask(placement, blocks(10))
    placement.correct(ask(placement, blocks(10)), 0)
    view = placement._views["a"]
    smaller = view.capacity_tokens
    placement.correct(ask(placement, blocks(1, 5)), 0)
    assert view.capacity_tokens == smaller < 6400
    last = ask(placement, blocks(10))
    placement.remove_replica("a")
    placement.correct(last, 0)
    placement.check()


def test_a_replica_that_restarted_holds_nothing_but_has_still_to_answer() -> None:
    placement = placement_of("a")
    ask(placement, blocks(10))
    placement.forget_replica("a")
    assert placement._views["a"].num_running == 1
    assert ask(placement, blocks(10)).choice.matched_tokens == 0
    placement.forget_replica("nobody")
    placement.check()


def test_a_prompt_that_was_read_is_not_waited_for() -> None:
    placement = placement_of("a")
    ticket = ask(placement, blocks(10), num_output=5)
    view = placement._views["a"]
    assert view.work_tokens == 640 + OUTPUT_COST * 5
    placement.begin(ticket)
    assert view.work_tokens == OUTPUT_COST * 5
    placement.finish(ticket, AnswerSummary(num_output=7))
    assert (view.work_tokens, view.recent_tokens) == (0, 640 + OUTPUT_COST * 7)


def test_a_session_is_awaited_back_from_its_tool_for_a_while() -> None:
    placement = placement_of("a")
    view = placement._views["a"]
    for come_back in (lambda: ask(placement, blocks(9), now=3.0), lambda: ask(placement, b"", "t", now=TOOL_GAP_S + 2)):
        placement.finish(ask(placement, blocks(9), now=1.0), AnswerSummary(num_output=7, has_calls=True), now=2.0)
        assert view.returning_tokens == OUTPUT_COST * 7
        come_back()
        assert view.returning_tokens == 0
        placement.check()


@pytest.mark.parametrize(("has_calls", "session"), [(True, ""), (False, "s")])
def test_only_a_session_with_calls_is_awaited(has_calls: bool, session: str) -> None:
    placement = placement_of("a")
    placement.finish(ask(placement, blocks(9), session), AnswerSummary(num_output=7, has_calls=has_calls))
    assert placement._views["a"].returning_tokens == 0
    assert not placement._gaps


def test_a_new_replica_is_not_sent_everything() -> None:
    placement = placement_of("a", "b")
    for prompt in range(50):
        placement.finish(ask(placement, blocks(10, prompt), f"s{prompt}"))
    placement.add_replica("c", capacity_tokens=64_000)
    names = []
    for prompt in range(50, 80):
        ticket = ask(placement, blocks(10, prompt), f"s{prompt}")
        placement.finish(ticket)
        names.append(ticket.choice.name)
    assert {name: names.count(name) for name in "abc"} == {"a": 10, "b": 10, "c": 10}


@pytest.mark.parametrize("is_named", [True, False])
@pytest.mark.parametrize("num_first", [0, 1])
def test_conversations_with_the_same_system_prompt_are_spread(num_first: int, *, is_named: bool) -> None:
    placement = Placement(prefix, block_tokens=128, seed=0)
    for name in "abc":
        placement.add_replica(name, capacity_tokens=100_000)
    shared = b"".join(i.to_bytes(8) for i in range(32))
    homes: dict[int, set[str]] = {}
    for turn in range(4):
        for who in range(12):
            own = b"".join((1000 * (who + 1) + i).to_bytes(8) for i in range(2 * turn + num_first))
            name = str(who) if is_named else ""
            ticket = placement.place(PromptDigest(shared + own, 128 * (33 + 2 * turn), 24, name))
            assert ticket
            homes.setdefault(who, set()).add(ticket.choice.name)
            placement.finish(ticket)
    if num_first:  # what is each one's own is known from the beginning
        assert all(len(names) == 1 for names in homes.values()), "and stay"
    counts = Counter(name for names in homes.values() for name in names)
    assert len(counts) == 3
    assert max(counts.values()) <= 1.25 * counts.total() / 3


def test_a_session_moves_to_no_replica_that_has_more_than_its_share() -> None:
    views = [ReplicaView(name) for name in "abc"]
    for view, num_sessions, work_tokens in zip(views, (4, 5, 3), (90_000.0, 0.0, 10.0), strict=True):
        view.num_sessions, view.work_tokens = num_sessions, work_tokens
    views[0].is_home, views[0].matched_tokens = True, 4000
    moving = PlacementRequest(4100, "s", past_tokens=4100.0)
    assert prefix(views, moving).name == "c", "b has less to do, but five of twelve sessions"
    views[0].work_tokens = 0.0
    assert prefix(views, moving).name == "a"


def test_what_others_give_a_replica_counts() -> None:
    placement = Placement(least_load, block_tokens=128, seed=0)
    for name in "ab":
        placement.add_replica(name, capacity_tokens=100_000)
    for _ in range(2):
        assert placement.place(PromptDigest(num_tokens=1000))
    placement.note_elsewhere("a", 5)
    tickets = [placement.place(PromptDigest(num_tokens=1000)) for _ in range(3)]
    assert [ticket.choice.name for ticket in tickets if ticket] == ["b"] * 3
