"""Room for those who are away: who waits for whom, and for how long."""

from array import array

import pytest
from tests.engine.tiny import BLOCK_SIZE
from tests.engine.turning import Loop, make_scheduler, prompt

from hotloop.core.request import FinishReason, Priority
from hotloop.core.retention import Hold, HoldKind
from hotloop.engine.scheduler import SETTLE_S


def leave(loop: Loop, name: str, first: int, until: float, priority: Priority = Priority.INTERACTIVE) -> list[int]:
    """One who reads seven blocks, and is expected back; returns its tokens."""
    request = loop.add(name, prompt(28, first), priority)
    loop.step()
    loop.finish(request)
    hold = Hold(HoldKind.AWAY, until, rank=priority)
    loop.scheduler.tree.hold(request.token_ids, hold)
    return list(request.token_ids)


def test_a_newcomer_waits_for_the_room_of_one_who_is_away() -> None:
    loop = Loop(make_scheduler(num_blocks=16))
    away = leave(loop, "away", 100, until=9.0)
    loop.scheduler.retention.may_break(10_000)
    loop.add("runs", prompt(4))
    loop.step()
    loop.add("new", prompt(40, 200))
    assert "new" not in loop.step()
    loop.add("back", [*away, 1])
    assert "back" in loop.step(), "though it came later"
    assert loop.scheduler.tree.num_evicted == 0


def test_a_newcomer_waits_no_longer_than_one_is_expected() -> None:
    loop = Loop(make_scheduler(num_blocks=16))
    leave(loop, "away", 100, until=9.0)
    loop.scheduler.retention.may_break(1_000_000)
    loop.add("runs", prompt(4))
    loop.step()
    loop.add("new", prompt(40, 200))
    assert "new" not in loop.step()
    assert "new" in loop.step(9.0)


def test_a_newcomer_may_break_in_if_none_did_so_lately() -> None:
    loop = Loop(make_scheduler(num_blocks=16))
    leave(loop, "away", 100, until=900.0)
    loop.add("runs", prompt(4))
    loop.step()
    loop.add("new", prompt(40, 200))
    assert "new" in loop.step()


def test_a_newcomer_that_needs_little_passes_one_that_has_to_wait() -> None:
    loop = Loop(make_scheduler(num_blocks=16))
    leave(loop, "away", 100, until=900.0)
    loop.scheduler.retention.may_break(10_000)
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
        leave(loop, "away", 100, until=900.0, priority=priority)
        loop.scheduler.retention.may_break(10_000)
        if runs:
            loop.add("runs", prompt(4))
            loop.step()
        loop.add("new", prompt(40, 200))
        assert "new" in loop.step()


def test_what_has_just_ended_is_kept_until_its_caller_has_spoken() -> None:
    loop = Loop(make_scheduler(num_blocks=16))
    ended = loop.add("ended", prompt(28, 100))
    loop.add("runs", prompt(4))
    loop.step()
    loop.finish(ended)
    loop.scheduler.retention.may_break(10_000)
    loop.add("new", prompt(40, 200))
    assert "new" not in loop.step()
    assert "new" in loop.step(SETTLE_S)


def test_who_is_back_and_has_to_wait_keeps_its_prefix_beyond_the_time_it_was_expected() -> None:
    loop = Loop(make_scheduler(num_blocks=16, max_running=1))
    back = leave(loop, "away", 100, until=1.0)
    loop.scheduler.retention.may_break(1_000_000)
    runs = loop.add("runs", prompt(4))
    loop.step()
    loop.add("back", [*back, 1])
    loop.step(5.0)
    assert loop.scheduler.tree.num_awaited(0, array("i")) == 7
    loop.finish(runs)
    assert loop.step() == {"back": (28, 30)}


def test_nothing_is_kept_for_one_who_was_back_and_left_before_its_turn() -> None:
    loop = Loop(make_scheduler(num_blocks=16, max_running=1))
    back = leave(loop, "away", 100, until=9.0)
    loop.add("runs", prompt(4))
    loop.step()
    waiting = loop.add("back", [*back, 1])
    loop.step()
    assert loop.scheduler.tree.num_awaited(0, array("i")) == 7
    loop.scheduler.finish(waiting, FinishReason.ABORT)
    assert loop.scheduler.tree.num_awaited(0, array("i")) == 0
    loop.scheduler.check()


def test_switched_off_newcomers_take_what_room_there_is() -> None:
    loop = Loop(make_scheduler(num_blocks=16, retention=False))
    leave(loop, "away", 100, until=900.0)
    loop.scheduler.retention.may_break(10_000)
    loop.add("runs", prompt(4))
    loop.step()
    loop.add("new", prompt(40, 200))
    assert "new" in loop.step()


def test_the_time_to_read_is_learnt_from_full_steps_without_the_time_between_them() -> None:
    loop = Loop(make_scheduler(num_blocks=64, max_step_tokens=64))
    for i in range(50):
        request = loop.add(f"r{i}", prompt(60, 100 * i))
        loop.step(1000.0, took_s=0.6)
        loop.step(1000.0)
        loop.finish(request)
    assert loop.scheduler.turnover_s == pytest.approx(0.01 * 64 * BLOCK_SIZE, rel=0.01)
