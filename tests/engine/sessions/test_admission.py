"""Which sessions are served at a time."""

from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from tests.engine.tiny import BLOCK_SIZE, make_request
from tests.properties import examples

from hotloop.core.request import Priority, Request
from hotloop.core.retention import Hold, HoldKind
from hotloop.engine.sessions.admission import (
    _MAX_SESSIONS,
    MAX_SWAP_S,
    MAX_WAIT_S,
    NUM_AHEAD,
    PATIENCE,
    SWAP_SHARE,
    Admission,
)

TURNOVER_S = 100.0
TOKEN_S = 0.001


class Door:
    """Sessions that come with one request at a time, whose size is all their own."""

    def __init__(self, num_tokens: int = 100, **settings: Any) -> None:
        self.admission = Admission(num_tokens, BLOCK_SIZE, **settings)
        self.num_requests = 0

    def ask(self, session: str, **changes: Any) -> Request:
        self.num_requests += 1
        at = self.admission.now
        request = make_request(
            [self.num_requests] * BLOCK_SIZE, f"r{self.num_requests}", session_id=session, arrived_at=at, **changes
        )
        request.rank = request.priority
        self.admission.arrive(request)
        return request

    def may_enter(self, request: Request, size: int) -> bool:
        return self.admission.may_enter(request, size, 0, TOKEN_S)

    def leave(self, request: Request) -> float:
        return self.admission.leave(request, TURNOVER_S, is_answered=True)

    def turn(self, session: str, size: int, **changes: Any) -> float:
        """A request that is let in and answered; how long its session is waited for."""
        request = self.ask(session, **changes)
        self.admission.enter(request, size)
        return self.leave(request)

    @property
    def admitted(self) -> set[str]:
        return set(self.admission.admitted)


def test_newcomers_are_seated_as_long_as_all_fit() -> None:
    door = Door(num_tokens=100)
    door.turn("a", 60)
    assert door.may_enter(door.ask("b"), 40)
    assert not door.may_enter(door.ask("c"), 41)


def test_what_a_seated_session_leaves_in_the_cache_is_known() -> None:
    door = Door()
    first, second = door.ask("a"), door.ask("b")
    door.admission.enter(first, 60)
    door.leave(first)
    door.leave(second)
    known = door.admission._known
    assert [(list(tokens), salt) for tokens, salt in known["a"].tails] == [(list(first.token_ids), "")]
    assert not known["b"].tails, "it was never admitted"


def test_how_long_a_session_was_away_is_measured() -> None:
    door = Door()
    door.admission.now = 3.0
    door.turn("a", 10)
    door.admission.now = 10.0
    door.ask("a")
    assert list(door.admission._known["a"].gaps) == list(door.admission._recent[True]) == [7.0]
    assert not door.admission._recent[False], "which tells nothing of those without a name"


def test_one_who_has_waited_long_takes_no_more_seats_than_it_needs() -> None:
    door = Door(num_tokens=100)
    for session, size in (("a", 60), ("a", 60), ("b", 40)):
        door.turn(session, size)
    newcomer = door.ask("c")
    for session in "ab":
        door.admission.expect(session, Hold(HoldKind.TOOL_GAP, until=10 * MAX_WAIT_S))
    door.admission.now = MAX_WAIT_S
    assert door.may_enter(newcomer, 60)
    assert door.admitted == {"b"}, "which had fewer turns, and beside whom it fits just so"


def test_a_request_leaves_once() -> None:
    door = Door()
    request = door.ask("a")
    door.admission.enter(request, 10)
    assert door.leave(request) > 0
    assert door.leave(request) == 0.0


def test_no_more_lose_their_seats_than_have_outgrown_the_cache() -> None:
    door = Door(num_tokens=100)
    for i, session in enumerate("abc"):
        door.admission.now = float(i)
        door.turn(session, 50)
    assert [each.name for each in door.admission.swap_out(num_shared=0)] == ["c"]
    assert door.admission.swap_out(num_shared=0) == []


def test_one_who_is_overdue_keeps_its_seat_until_others_need_it() -> None:
    door = Door(num_tokens=100)
    door.turn("a", 60)
    door.admission.now = 1e6
    door.admission.enter(door.ask("b"), 40)
    assert door.admission.swap_out(num_shared=0) == []
    assert door.admitted == {"a", "b"}
    door.admission.swap_out(num_shared=1)
    assert door.admitted == {"b"}


def test_there_is_room_for_what_just_fits_beside_those_who_are_being_served() -> None:
    door = Door(num_tokens=100)
    door.admission.enter(door.ask("runs"), 60)
    door.turn("gone", 30)
    assert [door.admission.has_room(size, num_shared=10) for size in (30, 31)] == [True, False]


def test_what_is_said_of_a_session_that_is_being_served_or_unknown_changes_nothing() -> None:
    door = Door()
    door.admission.enter(door.ask("runs"), 60)
    for name in ("runs", "nobody"):
        door.admission.expect(name, Hold(HoldKind.FINISHED))
    assert door.admitted == {"runs"}


def test_a_session_is_closed_unless_it_has_requests_whether_it_was_admitted_or_not() -> None:
    door = Door(num_tokens=100)
    door.turn("admitted", 10)
    door.admission.enter(door.ask("runs"), 20)
    door.leave(door.ask("came only"))
    closed = {name: door.admission.close(name) for name in ("admitted", "runs", "came only", "nobody")}
    assert closed == {"admitted": True, "runs": False, "came only": True, "nobody": True}
    assert door.admitted == door.admission._known.keys() == {"runs"}


def test_only_one_without_a_name_is_known_by_its_prompt() -> None:
    admission = Admission(100, BLOCK_SIZE)
    for first, session in ((0, ""), (100, "named")):
        asked = make_request(range(first, first + 8), f"a{first}", session_id=session)
        back = make_request(range(first, first + 12), f"b{first}")
        admission.arrive(asked)
        admission.leave(asked, TURNOVER_S, is_answered=True)
        admission.arrive(back)
        assert (back.session == asked.session) == (not session)


def test_what_is_known_of_sessions_is_bounded_but_for_those_who_are_served_or_seated() -> None:
    door = Door()
    door.turn("admitted", 10)
    door.ask("waits")
    for i in range(_MAX_SESSIONS + 10):
        door.leave(door.ask(f"s{i}"))
    known = door.admission._known
    assert len(known) == _MAX_SESSIONS
    assert {"admitted", "waits"} <= known.keys()
    assert f"s{_MAX_SESSIONS + 9}" in known
    door.admission.check()


def test_growth_is_a_mean_at_first() -> None:
    door = Door(num_tokens=1000)
    for size in (100, 110, 130):
        door.turn("a", size)
    assert door.admission.growth == 15


def test_what_several_share_is_counted_once() -> None:
    door = Door(num_tokens=100)
    door.turn("a", 60)
    assert not door.admission.may_enter(door.ask("b"), 30, num_shared=11, token_s=TOKEN_S)
    assert door.admission.may_enter(door.ask("b"), 30, num_shared=10, token_s=TOKEN_S)


def test_there_is_room_for_what_sessions_grow_by() -> None:
    door = Door(num_tokens=1000)
    door.turn("a", 100)
    door.turn("a", 110)
    assert door.admission.growth == 10
    assert door.may_enter(door.ask("b"), 1000 - 110 - 2 * NUM_AHEAD * 10)
    assert not door.may_enter(door.ask("b"), 1001 - 110 - 2 * NUM_AHEAD * 10)


def test_one_without_a_name_is_not_believed_to_grow_before_it_was_back() -> None:
    door = Door(num_tokens=1000)
    door.turn("a", 100)
    door.turn("a", 110)
    assert door.may_enter(door.ask(""), 1000 - 110 - NUM_AHEAD * 10)


def test_a_session_is_over_when_it_is_not_back_in_the_time_it_usually_takes() -> None:
    door = Door(num_tokens=100)
    for _ in range(20):
        wait_s = door.turn("a", 60)
        door.admission.now += 6.0
    assert wait_s == PATIENCE * 6.0
    door.turn("a", 60)
    door.admission.now += wait_s - 0.1
    assert not door.may_enter(door.ask("b"), 60)
    door.admission.now += 0.2
    assert door.may_enter(door.ask("b"), 60)


def test_where_nobody_comes_back_nobody_is_waited_for_long() -> None:
    door = Door(num_tokens=100)
    for _ in range(50):
        request = door.ask("")
        assert door.may_enter(request, 60)
        door.admission.enter(request, 60)
        wait_s = door.admission.leave(request, 10.0, is_answered=True)
        door.admission.now += 60.0
    assert wait_s < PATIENCE


def test_what_is_known_of_its_tools_or_its_end_counts_more() -> None:
    door = Door(num_tokens=100)
    door.turn("a", 60)
    door.admission.expect("a", Hold(HoldKind.TOOL_GAP, until=50.0))
    door.admission.now = 49.0
    assert not door.may_enter(door.ask("b"), 60)
    door.admission.expect("a", Hold(HoldKind.FINISHED))
    assert door.may_enter(door.ask("b"), 60)


def test_the_seat_of_who_had_most_turns_is_taken_after_a_long_wait_and_then_not_soon_again() -> None:
    door = Door(num_tokens=100)
    for session, num_turns in (("few", 1), ("many", 3), ("some", 2)):
        for _ in range(num_turns):
            door.turn(session, 30)
        door.admission.expect(session, Hold(HoldKind.TOOL_GAP, until=1e6))
    first, second = door.ask("first"), door.ask("second")
    door.admission.now = MAX_WAIT_S - 1
    assert not door.may_enter(first, 30)
    door.admission.now = MAX_WAIT_S
    assert door.may_enter(first, 30)
    assert [each.name for each in door.admission.take_lost()] == ["many"]
    door.admission.enter(first, 30)
    pause_s = 30 * TOKEN_S / SWAP_SHARE
    assert pause_s < MAX_SWAP_S
    door.admission.now = MAX_WAIT_S + 0.9 * pause_s
    assert not door.may_enter(second, 30)
    door.admission.now = MAX_WAIT_S + pause_s
    assert door.may_enter(second, 30)
    assert [each.name for each in door.admission.take_lost()] == ["some"]


def test_nobody_who_is_being_served_loses_its_seat() -> None:
    door = Door(num_tokens=100)
    request = door.ask("runs")
    door.admission.enter(request, 60)
    waits = door.ask("waits")
    door.admission.now = 2 * MAX_WAIT_S
    assert not door.may_enter(waits, 60)
    assert not door.admission.has_room(60, 0)
    assert door.admitted == {"runs"}
    assert door.admission.swap_out(num_shared=1000) == []


def test_if_all_outgrow_the_cache_the_last_who_came_go() -> None:
    door = Door(num_tokens=100)
    for i, session in enumerate("abcd"):
        door.admission.now = float(i)
        door.turn(session, 25)
    door.admission.enter(door.ask("a"), 60)
    assert [each.name for each in door.admission.swap_out(0)] == ["d", "c"]
    assert door.admitted == {"a", "b"}


def test_more_urgent_newcomers_do_not_wait_for_less_urgent_sessions() -> None:
    door = Door(num_tokens=100)
    door.turn("batch", 90, priority=Priority.BACKGROUND)
    assert door.may_enter(door.ask("now"), 90)
    assert not door.may_enter(door.ask("later", priority=Priority.BACKGROUND), 90)


def test_who_came_before_its_session_was_seated_waits_for_no_other_seat() -> None:
    door = Door(num_tokens=100)
    first, second = door.ask("a"), door.ask("a")
    door.admission.enter(first, 60)
    assert door.may_enter(second, 60), "it would wait for its own session, which is not over while it waits"


def test_switched_off_all_are_served() -> None:
    door = Door(num_tokens=100, is_on=False)
    door.turn("a", 90)
    assert door.may_enter(door.ask("b"), 90)
    assert door.admission.swap_out(num_shared=90) == []


@pytest.mark.parametrize("session", ["named", ""])
def test_one_who_left_unanswered_is_not_expected(session: str) -> None:
    door = Door(num_tokens=100)
    request = door.ask(session)
    door.admission.enter(request, 90)
    assert door.admission.leave(request, TURNOVER_S, is_answered=False) == 0
    assert door.may_enter(door.ask("b"), 90)


class Life(RuleBasedStateMachine):
    """Sessions come, wait, are let in and end in any order; what is admitted fits, or is being served."""

    def __init__(self) -> None:
        super().__init__()
        self.door = Door(num_tokens=100)
        self.waiting: list[tuple[Request, int]] = []
        self.running: list[Request] = []

    @rule(session=st.sampled_from(["", "a", "b", "c", "d"]), size=st.integers(1, 60))
    def come(self, session: str, size: int) -> None:
        self.waiting.append((self.door.ask(session), size))

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def enter(self, data: st.DataObject) -> None:
        request, size = pair = data.draw(st.sampled_from(self.waiting))
        is_admitted = request.session in self.door.admitted
        if is_admitted or not self.running or self.door.may_enter(request, size):
            self.door.admission.take_lost()
            self.waiting.remove(pair)
            self.door.admission.enter(request, size)
            self.door.admission.swap_out(0)
            self.running.append(request)
            admitted = self.door.admission.admitted.values()
            assert sum(each.size for each in admitted) <= 100 or not any(each.is_in_tool_gap for each in admitted)

    @precondition(lambda self: self.running)
    @rule(data=st.data(), is_answered=st.booleans())
    def end(self, data: st.DataObject, is_answered: bool) -> None:
        request = data.draw(st.sampled_from(self.running))
        self.running.remove(request)
        self.door.admission.leave(request, TURNOVER_S, is_answered=is_answered)

    @rule(seconds=st.sampled_from([0.1, 5.0, 200.0]))
    def wait(self, seconds: float) -> None:
        self.door.admission.now += seconds

    @invariant()
    def holds(self) -> None:
        self.door.admission.check()
        assert {request.session for request in self.running} <= self.door.admitted


TestLife = Life.TestCase
TestLife.settings = settings(max_examples=examples(50), stateful_step_count=40)
