"""How long tools take, learnt from when their results come back."""

import pytest

from hotloop.server.gaps import DEFAULT_S, MAX_S, ToolGaps


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def gaps(clock: Clock) -> ToolGaps:
    return ToolGaps(clock)


def take(gaps: ToolGaps, clock: Clock, name: str, duration_s: float) -> None:
    call_id = f"call_{clock.now}"
    gaps.leave(call_id, name)
    clock.now += duration_s
    gaps.come_back([call_id])


def test_nothing_is_known_at_first(gaps: ToolGaps) -> None:
    assert gaps.expected_s(["search"]) == DEFAULT_S


def test_a_tool_takes_as_long_as_it_mostly_did(gaps: ToolGaps, clock: Clock) -> None:
    for duration_s in (1, 2, 3, 4, 5, 6, 7, 8, 9, 50):
        take(gaps, clock, "search", duration_s)
    assert gaps.expected_s(["search"]) == 9
    assert gaps.expected_s(["other"]) == DEFAULT_S


def test_only_the_last_times_count(gaps: ToolGaps, clock: Clock) -> None:
    for duration_s in [30] * 50 + [1] * 50:
        take(gaps, clock, "build", duration_s)
    assert gaps.expected_s(["build"]) == 1


def test_nobody_is_waited_for_longer_than_a_minute(gaps: ToolGaps, clock: Clock) -> None:
    take(gaps, clock, "sleep", 4000)
    assert gaps.expected_s(["sleep"]) == MAX_S


def test_of_several_tools_the_slowest_counts(gaps: ToolGaps, clock: Clock) -> None:
    take(gaps, clock, "quick", 0.1)
    take(gaps, clock, "slow", 20)
    assert gaps.expected_s(["quick", "slow"]) == 20
    assert gaps.expected_s(["quick"]) == pytest.approx(0.1)
    assert gaps.expected_s([]) == 0


def test_a_result_counts_once_however_often_it_is_sent(gaps: ToolGaps, clock: Clock) -> None:
    gaps.leave("call_a", "search")
    clock.now += 3
    for _ in range(3):
        gaps.come_back(["call_a", "call_unknown", ""])
        clock.now += 10
    assert gaps.expected_s(["search"]) == 3


def test_ids_are_known_again_under_another_apis_prefix(gaps: ToolGaps, clock: Clock) -> None:
    gaps.leave("call_abc", "search")
    clock.now += 4
    gaps.come_back(["toolu_abc"])
    assert gaps.expected_s(["search"]) == 4


def test_it_stays_small(gaps: ToolGaps, clock: Clock) -> None:
    for i in range(3000):
        take(gaps, clock, f"tool{i}", 1)
    for i in range(20_000):
        gaps.leave(f"call_{i}", "never")
    gaps.check()
