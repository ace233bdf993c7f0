"""Whose turn it is: classes, hold-back, service, ageing."""

import pytest
from tests.engine.tiny import make_request

from hotloop.core.config import EngineConfig
from hotloop.core.request import Priority, Request
from hotloop.engine.scheduler import fairness
from hotloop.engine.scheduler.fairness import Fairness

PROMOTION_S = EngineConfig().promotion_s


def request(name: str, priority: Priority = Priority.INTERACTIVE, at: float = 0.0, session: str = "") -> Request:
    made = make_request([1], name, priority=priority, arrived_at=at, session_id=session)
    made.root = session
    return made


def running(priority: Priority) -> Request:
    made = request("running", priority)
    made.rank = int(priority)
    return made


def names(requests: list[Request]) -> list[str]:
    return [request.id for request in requests]


def test_classes_come_in_order_and_the_oldest_first_within_one() -> None:
    waiting = [
        request("background", Priority.BACKGROUND),
        request("young", at=2.0),
        request("workflow", Priority.WORKFLOW),
        request("old", at=1.0),
    ]
    turn = Fairness()
    turn.now = 3.0
    assert names(turn.order(waiting, [])) == ["old", "young", "workflow", "background"]


def test_a_class_is_held_back_while_more_urgent_ones_run_but_no_longer_than_its_time() -> None:
    for priority, max_wait_s in ((Priority.WORKFLOW, 0.050), (Priority.BACKGROUND, 0.500)):
        waiting = [request("first", priority, at=10.0), request("second", priority, at=10.0 + max_wait_s / 2)]
        turn = Fairness()
        turn.now = 10.0 + max_wait_s * 0.9
        assert turn.order(waiting, [running(Priority.INTERACTIVE)]) == []
        assert names(turn.order(waiting, [running(priority)])) == ["first", "second"]
        turn.now = 10.0 + max_wait_s * 1.1
        assert names(turn.order(waiting, [running(Priority.INTERACTIVE)])) == ["first", "second"], "one batch"


def test_a_class_joins_when_its_time_is_up() -> None:
    turn = Fairness()
    turn.now = 10.5
    waiting = [request("first", Priority.BACKGROUND, at=10.0)]
    assert names(turn.order(waiting, [running(Priority.INTERACTIVE)])) == ["first"]


def test_the_most_urgent_class_is_never_held_back() -> None:
    turn = Fairness()
    assert names(turn.order([request("now")], [running(Priority.INTERACTIVE)])) == ["now"]


def test_the_least_served_session_goes_first_and_service_fades() -> None:
    turn = Fairness()
    heavy, light = request("heavy", session="heavy"), request("light", at=1.0, session="light")
    turn.charge(heavy, 10_000)
    turn.charge(light, 100)
    turn.now = 2.0
    assert names(turn.order([heavy, light], [])) == ["light", "heavy"]
    turn.now = fairness.HALF_LIFE_S
    assert turn.attained("heavy") == 5_000


def test_waiting_outweighs_service() -> None:
    turn = Fairness()
    heavy = request("heavy", session="heavy")
    turn.charge(heavy, 1_000)
    turn.now = 5.0
    assert names(turn.order([heavy, request("new", at=5.0)], [])) == ["heavy", "new"]


def test_after_a_long_wait_a_request_counts_as_more_urgent() -> None:
    turn = Fairness()
    patient = request("patient", Priority.BACKGROUND)
    turn.now = PROMOTION_S
    turn.order([patient], [])
    assert patient.rank == Priority.WORKFLOW
    turn.now = 2 * PROMOTION_S
    fresh = request("fresh", at=turn.now)
    assert names(turn.order([fresh, patient], [running(Priority.INTERACTIVE)])) == ["patient", "fresh"]
    assert patient.rank == Priority.INTERACTIVE


def test_only_waiting_promotes_not_running() -> None:
    turn = Fairness()
    resumed = request("resumed", Priority.BACKGROUND)
    resumed.waiting_since = turn.now = 500.0
    turn.order([resumed], [])
    assert resumed.rank == Priority.BACKGROUND


def test_who_is_awaited_goes_first_in_its_class_until_others_have_waited_long() -> None:
    turn = Fairness()
    turn.now = 1.0
    urgent, newcomer = request("urgent", at=1.0), request("newcomer", Priority.WORKFLOW)
    awaited = request("awaited", Priority.WORKFLOW, at=1.0, session="heavy")
    awaited.has_held_prefix = True
    turn.charge(awaited, 10_000)
    waiting = [newcomer, awaited, urgent]
    assert names(turn.order(waiting, [])) == ["urgent", "awaited", "newcomer"]
    turn.now = awaited.waiting_since = PROMOTION_S
    assert names(turn.order([newcomer, awaited], [])) == ["newcomer", "awaited"]


@pytest.mark.parametrize(("waited_s", "first"), [(PROMOTION_S - 1, "awaited"), (PROMOTION_S, "newcomer")])
def test_also_in_the_most_urgent_class_a_long_wait_ends_that(waited_s: float, first: str) -> None:
    turn = Fairness()
    turn.now = 1000.0
    newcomer, awaited = request("newcomer", at=turn.now - waited_s), request("awaited", at=turn.now)
    awaited.has_held_prefix = True
    assert names(turn.order([newcomer, awaited], []))[0] == first


def test_sessions_are_bounded() -> None:
    turn = Fairness()
    for i in range(fairness.MAX_SESSIONS + 10):
        turn.charge(request("r", session=f"s{i}"), 1)
    assert turn.attained("s0") == 0
    assert turn.attained(f"s{fairness.MAX_SESSIONS}") == 1


def test_who_would_be_late_at_the_next_step_is_due_in_this_one() -> None:
    turn = Fairness(EngineConfig(workflow_wait_s=0.2))
    waiting = [request("first", Priority.WORKFLOW, at=10.0)]
    for now, is_due in ((10.0, False), (10.06, False), (10.12, False), (10.18, True)):
        turn.begin_step(now, is_busy=now > 10)
        assert turn.is_due(waiting[0]) is is_due, "a step takes about 0.06 s, so the next begins at 10.24"
        assert bool(turn.order(waiting, [running(Priority.INTERACTIVE)])) is is_due
    turn.begin_step(10.18, is_busy=False)
    assert not turn.is_due(waiting[0]), "what lay idle was no step"


def test_what_a_class_waits_and_when_it_is_promoted_are_settings() -> None:
    turn = Fairness(EngineConfig(background_wait_s=2.0, promotion_s=5.0))
    waiting = [request("first", Priority.BACKGROUND)]
    turn.now = 1.9
    assert turn.order(waiting, [running(Priority.INTERACTIVE)]) == []
    turn.now = 5.0
    turn.order(waiting, [])
    assert waiting[0].rank == Priority.WORKFLOW


def test_new_limits_hold_for_those_who_wait_already() -> None:
    turn = Fairness(EngineConfig(background_wait_s=2.0))
    turn.now = 11.0
    waiting = [request("first", Priority.BACKGROUND, at=10.0)]
    assert turn.order(waiting, [running(Priority.INTERACTIVE)]) == []
    turn.limit(EngineConfig(background_wait_s=0.5))
    assert names(turn.order(waiting, [running(Priority.INTERACTIVE)])) == ["first"]
