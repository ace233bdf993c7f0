"""Room for sessions in a tool gap: who waits for whom, for how long, and what it is told it waited for."""

from array import array

import pytest
from tests.engine.tiny import BLOCK_SIZE
from tests.engine.turning import Loop, make_scheduler, prompt

from hotloop.core.request import FinishReason, Priority, Request, Wait
from hotloop.core.retention import Hold, HoldKind
from hotloop.engine.sessions.admission import MAX_WAIT_S
from hotloop.engine.sessions.sessions import RETRY_S


def leave(loop: Loop, name: str, first: int, until: float, priority: Priority = Priority.INTERACTIVE) -> list[int]:
    """One who reads seven blocks, and is expected back; returns its tokens."""
    request = loop.add(name, prompt(28, first), priority, session=name)
    loop.step()
    loop.finish(request)
    expect(loop, request, Hold(HoldKind.TOOL_GAP, until, rank=priority))
    return list(request.token_ids)


def expect(loop: Loop, request: Request, hold: Hold) -> None:
    loop.scheduler.sessions.hold(request.token_ids, hold, request.salt, request.session)


def crowd(loop: Loop) -> Request:
    """One that runs, and a newcomer that wants much of what is left."""
    loop.add("runs", prompt(4))
    loop.step()
    return loop.add("new", prompt(40, 200))


def test_a_newcomer_waits_for_the_room_of_a_session_in_a_tool_gap() -> None:
    loop = Loop(make_scheduler(num_blocks=16))
    gone = leave(loop, "gone", 100, until=9.0)
    crowd(loop)
    assert "new" not in loop.step()
    loop.add("back", [*gone, 1], session="gone")
    assert "back" in loop.step(), "though it came later"
    assert loop.scheduler.tree.num_evicted == 0


def test_a_newcomer_waits_no_longer_than_one_is_expected() -> None:
    loop = Loop(make_scheduler(num_blocks=16))
    leave(loop, "gone", 100, until=9.0)
    new = crowd(loop)
    assert "new" not in loop.step()
    assert "new" in loop.step(9.0)
    assert new.usage.waits_s[Wait.SESSIONS] == pytest.approx(9.0)


def test_a_newcomer_does_not_wait_for_one_whose_run_is_over() -> None:
    loop = Loop(make_scheduler(num_blocks=16))
    request = loop.add("gone", prompt(28, 100), session="gone")
    loop.step()
    loop.finish(request)
    expect(loop, request, Hold(HoldKind.FINISHED))
    crowd(loop)
    assert "new" in loop.step()


def test_who_has_waited_long_takes_the_seat_of_a_session_in_a_tool_gap() -> None:
    loop = Loop(make_scheduler(num_blocks=16))
    gone = leave(loop, "gone", 100, until=900.0)
    crowd(loop)
    assert "new" not in loop.step(MAX_WAIT_S - 1)
    assert "new" in loop.step(2.0)
    loop.add("back", [*gone, 1], session="gone")
    assert "back" not in loop.step(), "it waits in its turn"


def test_a_newcomer_that_needs_little_passes_one_that_has_to_wait() -> None:
    loop = Loop(make_scheduler(num_blocks=16))
    leave(loop, "gone", 100, until=900.0)
    loop.add("runs", prompt(4))
    loop.step()
    loop.add("large", prompt(40, 200))
    loop.add("small", prompt(8, 300))
    computed = loop.step()
    assert "large" not in computed
    assert "small" in computed


def test_nobody_waits_for_a_less_urgent_one_or_where_nothing_runs() -> None:
    for priority, runs in ((Priority.BACKGROUND, True), (Priority.INTERACTIVE, False)):
        loop = Loop(make_scheduler(num_blocks=16))
        leave(loop, "gone", 100, until=900.0, priority=priority)
        if runs:
            loop.add("runs", prompt(4))
            loop.step()
        loop.add("new", prompt(40, 200))
        assert "new" in loop.step()


@pytest.mark.parametrize("session", ["agent", ""])
@pytest.mark.parametrize("reason", [FinishReason.STOP, FinishReason.LENGTH])
def test_whoever_keeps_coming_back_is_waited_for_with_or_without_a_name(session: str, reason: FinishReason) -> None:
    """Its answers do not come back in its prompts, as where a client writes them anew."""
    loop = Loop(make_scheduler(num_blocks=16))
    loop.scheduler.retention.token_s = 0.1
    for turn in range(4):
        request = loop.add(f"turn{turn}", prompt(20 + 2 * turn, 100), session=session)
        loop.step()
        loop.scheduler.finish(request, reason)
        loop.now += 3.0
    crowd(loop)
    assert "new" not in loop.step()
    back = loop.add("back", prompt(30, 100), session=session)
    assert "back" in loop.step()
    assert back.num_cached == 24
    assert "new" not in loop.step(RETRY_S)


def test_those_who_outgrow_the_cache_make_the_last_who_came_give_up_its_seat() -> None:
    loop = Loop(make_scheduler(num_blocks=16))
    first = leave(loop, "first", 100, until=900.0)
    second = leave(loop, "second", 200, until=900.0)
    loop.add("back", [*first, *prompt(16, 500)], session="first")
    loop.step()
    assert loop.scheduler.admission.admitted.keys() == {"first"}
    assert loop.scheduler.admission.num_displaced == 1
    assert not loop.scheduler.tree.has_held_prefix(array("i", [*second, 1])), "nothing is kept for it"
    loop.add("later", [*second, 1], session="second")
    assert "later" not in loop.step()


def test_it_is_told_what_was_waited_for() -> None:
    loop = Loop(make_scheduler(num_blocks=16, max_running=1))
    runs = loop.add("runs", prompt(4))
    loop.step()
    waits = loop.add("waits", prompt(8, 100))
    loop.step(2.0)
    loop.step(3.0)
    loop.finish(runs)
    loop.step(1.0)
    assert waits.usage.waits_s == pytest.approx({Wait.TURN: 2.0, Wait.BATCH: 4.0})
    large = Loop(make_scheduler(num_blocks=16))
    runs = large.add("runs", prompt(40))
    large.step()
    waits = large.add("waits", prompt(40, 100))
    large.step(1.0)
    large.finish(runs)
    large.step(5.0)
    assert waits.usage.waits_s == pytest.approx({Wait.TURN: 1.0, Wait.KV_BLOCKS: 5.0})


def test_who_is_back_and_has_to_wait_keeps_its_prefix_beyond_the_time_it_was_expected() -> None:
    loop = Loop(make_scheduler(num_blocks=16, max_running=1))
    back = leave(loop, "gone", 100, until=1.0)
    runs = loop.add("runs", prompt(4))
    loop.step()
    loop.add("back", [*back, 1], session="gone")
    loop.step(5.0)
    assert loop.scheduler.tree.has_held_prefix(array("i", [*back, 1]))
    loop.finish(runs)
    assert loop.step() == {"back": (28, 30)}


def test_nothing_is_kept_for_one_who_was_back_and_left_before_its_turn() -> None:
    loop = Loop(make_scheduler(num_blocks=16, max_running=1))
    back = leave(loop, "gone", 100, until=9.0)
    loop.add("runs", prompt(4))
    loop.step()
    waiting = loop.add("back", [*back, 1], session="gone")
    loop.step()
    assert loop.scheduler.tree.has_held_prefix(array("i", [*back, 1]))
    loop.scheduler.finish(waiting, FinishReason.ABORT)
    assert not loop.scheduler.tree.has_held_prefix(array("i", [*back, 1]))
    loop.scheduler.check()


def test_switched_off_newcomers_take_what_room_there_is() -> None:
    loop = Loop(make_scheduler(num_blocks=16, admission=False))
    leave(loop, "gone", 100, until=900.0)
    crowd(loop)
    assert "new" in loop.step()


def test_the_time_to_read_is_learnt_without_what_a_step_takes_anyway_and_the_time_between_them() -> None:
    loop = Loop(make_scheduler(num_blocks=64, max_step_tokens=256))
    for i in range(200):
        request = loop.add(f"r{i}", prompt(240, 1000 * i))
        loop.step(1000.0, took_s=3.0)
        loop.step(1000.0, took_s=0.6)
        loop.finish(request)
    assert loop.scheduler.cache_refill_s == pytest.approx(0.01 * 64 * BLOCK_SIZE, rel=0.01)
