"""Which troubles are planned."""

from benchmarks.route.troubles import KINDS, Trouble, is_anybody_well, plan_troubles
from hypothesis import given
from hypothesis import strategies as st

NAMES = ["stub-1", "stub-2", "stub-3", "stub-4"]


@given(st.integers(0, 1000))
def test_a_plan_has_every_kind_in_its_time_and_somebody_is_well(seed: int):
    troubles = plan_troubles(NAMES, 600, seed=seed)
    assert troubles == plan_troubles(NAMES, 600, seed=seed)
    assert {trouble.kind for trouble in troubles} == set(KINDS)
    assert all(0 <= trouble.begins_s < trouble.ends_s <= 600 for trouble in troubles)
    assert [trouble.begins_s for trouble in troubles] == sorted(trouble.begins_s for trouble in troubles)
    assert is_anybody_well(NAMES, troubles, 0, 299)
    assert not is_anybody_well(NAMES, troubles, 299, 301)
    assert is_anybody_well(NAMES, troubles, 304, 600)


def test_a_short_plan_leaves_somebody_well_all_the_time():
    troubles = plan_troubles(NAMES, 30, slot_s=5)
    assert troubles
    assert is_anybody_well(NAMES, troubles, 0, 30)


def test_only_a_moment_without_anybody_counts():
    troubles = [Trouble("kill", "stub-1", 0, 10), Trouble("hang", "stub-2", 5, 15), Trouble("slow", "stub-2", 20, 30)]
    pair = NAMES[:2]
    assert is_anybody_well(pair, troubles, 0, 4)
    assert not is_anybody_well(pair, troubles, 0, 6)
    assert not is_anybody_well(pair, troubles, 7, 8)
    assert is_anybody_well(pair, troubles, 10, 14)
    assert is_anybody_well(["stub-2"], troubles, 20, 30)  # slow is well enough
