"""Policies are pure: what they see is what they choose from."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hotloop.router.placement import Placement
from hotloop.router.policy import POLICIES, Placing, View, least_load, prefix, round_robin, session
from hotloop.router.simulate import SIMULATED

views = st.lists(
    st.builds(
        View,
        name=st.uuids().map(str),
        work_tokens=st.floats(0, 1e6),
        recent_tokens=st.floats(0, 1e6),
        matched_tokens=st.integers(0, 1000),
        weight=st.floats(0.1, 10),
        num_running=st.integers(0, 500),
        held_tokens=st.integers(0, 10**6),
    ),
    min_size=1,
    max_size=8,
    unique_by=lambda view: view.name,
)


@given(views, st.sampled_from(sorted(SIMULATED)), st.integers(0, 2000), st.integers(0, 99))
def test_somebody_is_always_chosen_from_those_there_are(seen: list[View], name: str, tokens: int, turn: int) -> None:
    before = [repr(view) for view in seen]
    choice = SIMULATED[name](seen, Placing(tokens, "s", turn, random.Random(turn)))
    assert choice.name in {view.name for view in seen}
    assert choice.reason
    assert [repr(view) for view in seen] == before, "a policy only looks"


def placing(num_tokens: int = 1000) -> Placing:
    return Placing(num_tokens, "s", dice=random.Random(0))


def test_prefix_goes_where_it_is_warm_unless_that_one_has_more_to_do_than_it_saves() -> None:
    warm, idle = View("warm", matched_tokens=900), View("idle")
    assert prefix([idle, warm], placing()).name == "warm"
    warm.work_tokens = 800
    assert prefix([idle, warm], placing()).reason == "warm"
    warm.work_tokens = 1000
    assert prefix([idle, warm], placing()).name == "idle"


def test_a_match_of_a_few_words_is_no_affinity() -> None:
    seen = [View("a", matched_tokens=20, recent_tokens=9e9), View("b"), View("c", recent_tokens=9e9)]
    names = {prefix(seen, Placing(1000, "", dice=random.Random(seed))).name for seed in range(20)}
    assert "b" in names


def test_a_session_goes_home() -> None:
    seen = [View("a"), View("b", is_home=True)]
    assert session(seen, placing()).name == "b"
    assert least_load([View("a", work_tokens=5), View("b")], placing()).name == "b"
    assert [round_robin(seen, Placing(1, turn=turn)).name for turn in range(3)] == ["a", "b", "a"]


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_placement_counts_what_it_gave_and_got_back(policy: str) -> None:
    placement = Placement(POLICIES[policy], block_tokens=64, seed=1)
    assert placement.place(b"", 10) is None, "there is nobody"
    for name in "abc":
        placement.add_replica(name, capacity_tokens=64 * 20)
    tickets = []
    for i in range(60):
        key = b"".join(((i % 7) << 32 | j).to_bytes(8, "big") for j in range(10))
        ticket = placement.place(key, 640, session=f"s{i % 7}", num_output=10, now=float(i))
        assert ticket
        tickets.append(ticket)
        placement.check()
    placement.remove_replica("b")
    for ticket in tickets:
        placement.finish(ticket)
    placement.check()
    assert all(view.work_tokens == 0 and view.num_running == 0 for view in placement._views.values())
    assert placement.place(b"", 10, among=frozenset({"b"})) is None


def test_a_session_finds_its_prefix_again() -> None:
    placement = Placement(prefix, block_tokens=64, seed=1)
    for name in "abcd":
        placement.add_replica(name, capacity_tokens=64 * 1000)
    key = b"".join(j.to_bytes(8, "big") for j in range(100))
    first = placement.place(key[:400], 3200, session="s")
    assert first
    placement.finish(first)
    again = placement.place(key, 6400, session="s")
    assert again
    assert (again.choice.name, again.choice.matched_tokens) == (first.choice.name, 3200)
