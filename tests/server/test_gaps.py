"""How long tools take, learnt from when their results come back."""

import pytest

from hotloop.engine.kvcache.tool_gaps import MAX_S, USUAL_S
from hotloop.server.holds import ToolGaps


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


def test_of_an_unknown_tool_what_is_usual_is_believed(gaps: ToolGaps) -> None:
    assert gaps.patience_s(["search"], 10.0) == max(USUAL_S)
    assert gaps.patience_s([], 10.0) == 0


def test_waiting_for_the_last_few_does_not_pay(gaps: ToolGaps, clock: Clock) -> None:
    for duration_s in (1, 2, 3, 4, 5, 6, 7, 8, 9, 50):
        take(gaps, clock, "search", duration_s)
    assert gaps.patience_s(["search"], 20.0) == 9
    assert gaps.patience_s(["other"], 20.0) == max(USUAL_S)


def test_if_reading_it_all_again_takes_no_longer_than_the_tool_nobody_is_waited_for(
    gaps: ToolGaps, clock: Clock
) -> None:
    for _ in range(32):
        take(gaps, clock, "build", 30)
    assert gaps.patience_s(["build"], 10.0) == 0
    assert gaps.patience_s(["build"], 60.0) == 30


def test_of_tools_that_are_either_quick_or_slow_the_quick_are_waited_for(gaps: ToolGaps, clock: Clock) -> None:
    for duration_s in [0.5, 40] * 16:
        take(gaps, clock, "fetch", duration_s)
    assert gaps.patience_s(["fetch"], 10.0) < 5


def test_only_the_last_times_count(gaps: ToolGaps, clock: Clock) -> None:
    for duration_s in [30] * 50 + [1] * 50:
        take(gaps, clock, "build", duration_s)
    assert gaps.patience_s(["build"], 10.0) == max(USUAL_S)


def test_nobody_is_waited_for_longer_than_a_minute(gaps: ToolGaps, clock: Clock) -> None:
    for _ in range(32):
        take(gaps, clock, "sleep", 4000)
    assert gaps.patience_s(["sleep"], 1e6) == MAX_S


def test_of_several_tools_the_slowest_counts(gaps: ToolGaps, clock: Clock) -> None:
    for _ in range(32):
        take(gaps, clock, "quick", 0.1)
        take(gaps, clock, "slow", 20)
    assert gaps.patience_s(["quick", "slow"], 100.0) == 20
    assert gaps.patience_s(["quick"], 100.0) < 20
    assert gaps.patience_s(["quick", "slow"], 1.0) == 0, "one of them is not worth it"


def test_a_result_counts_once_however_often_it_is_sent(gaps: ToolGaps, clock: Clock) -> None:
    gaps.leave("call_a", "search")
    clock.now += 3
    for _ in range(3):
        gaps.come_back(["call_a", "call_unknown", ""])
        clock.now += 10
    assert [*gaps._recent["search"]] == [3]


def test_ids_are_known_again_under_another_apis_prefix(gaps: ToolGaps, clock: Clock) -> None:
    gaps.leave("call_abc", "search")
    clock.now += 4
    gaps.come_back(["toolu_abc"])
    assert [*gaps._recent["search"]] == [4]


def test_it_stays_small(gaps: ToolGaps, clock: Clock) -> None:
    for i in range(3000):
        take(gaps, clock, f"tool{i}", 1)
    for i in range(20_000):
        gaps.leave(f"call_{i}", "never")
    gaps.check()
