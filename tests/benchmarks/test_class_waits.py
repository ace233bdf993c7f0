"""What comes of the scheduler's classes where steps take what they are said to."""

import io
import itertools
import json

import pytest
from benchmarks.class_waits import ClassWaitsReport, StepCosts, histogram, measure
from rich.console import Console

from hotloop.core.request import Priority

AVX2, VNNI = StepCosts(0.015, 0.0047, 0.0047), StepCosts(0.0127, 0.0023, 0.001)


def beside_ten(
    costs: StepCosts, *, num_turns: int = 60, gap_s: float = 1.0, agent_gap_s: float = 0.2
) -> ClassWaitsReport:
    return measure(costs, num_turns, gap_s, 0.2, num_background=6, num_sub_agents=4)


@pytest.mark.parametrize("gap_s", [0.05, 1.0])
@pytest.mark.parametrize("costs", [AVX2, VNNI, StepCosts(0.008, 0.0007, 0.001), StepCosts(0.012, 0.0014, 0.006)])
def test_no_wait_is_longer_than_its_class_may_while_there_was_room(costs: StepCosts, gap_s: float) -> None:
    """Though steps are not all as long as the ones before them."""
    report = beside_ten(costs, gap_s=gap_s)
    waits = (report.classes.waits[priority].with_room for priority in (Priority.WORKFLOW, Priority.BACKGROUND))
    assert 0 < max(itertools.chain(*waits)) <= 1.01, "what a step takes is learnt"


@pytest.mark.parametrize("costs", [AVX2, VNNI])
def test_a_users_turn_takes_little_longer_than_alone(costs: StepCosts) -> None:
    report = beside_ten(costs)
    for share in (0.5, 0.95):
        assert 1 <= report.slowdown(report.classes, share) <= 1.25
        assert report.slowdown(report.one_class, share) > 2
    assert report.classes.tokens_per_s > report.alone.tokens_per_s


def test_waits_are_counted_between_bounds() -> None:
    assert histogram([0.0, 0.25, 0.3, 1.0, 1.01, 9.0]) == [2, 1, 0, 1, 1, 0, 0, 1]


def test_the_report_is_a_table_and_json() -> None:
    report = beside_ten(VNNI, num_turns=5)
    console = Console(file=io.StringIO(), width=100)
    with console.capture() as capture:
        console.print(report.to_table())
    assert "background, at most 0.75" in capture.get()
    found = json.loads(json.dumps(report.to_json()))
    assert found["ways"]["alone"]["turn_p50"] == 1
    assert sum(found["waits"]["background"]["with_room"]) > 0
