"""How fast a queue moves."""

import pytest

from hotloop.core.pace import Pace


def test_the_first_end_says_more_than_a_guess() -> None:
    pace = Pace(10.0)
    assert pace.mean_s == 1.0
    pace.end_one(10.02)
    assert pace.mean_s == pytest.approx(0.02)
    pace.end_one(10.06)
    assert pace.mean_s == pytest.approx(0.03)


def test_what_was_long_ago_fades() -> None:
    pace = Pace(0.0)
    for i in range(1, 101):
        pace.end_one(i * 5.0)
    for i in range(1, 101):
        pace.end_one(500 + i * 2.0)
    assert pace.mean_s == pytest.approx(2, abs=0.01)


def test_idle_time_does_not_count() -> None:
    pace = Pace(0.0)
    for i in range(1, 11):
        pace.resume(i * 1000.0)
        pace.end_one(i * 1000.0 + 3)
    assert pace.mean_s == pytest.approx(3)
