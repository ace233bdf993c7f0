"""What is in a step, what becomes of it, and who does not join one."""

from itertools import pairwise
from typing import Any

import pytest
from tests.engine.tiny import BLOCK_SIZE
from tests.engine.turning import STEP_S, Loop, make_scheduler, prompt

from hotloop.core.config import EngineConfig
from hotloop.core.errors import BackendError
from hotloop.core.request import FinishReason, Priority, Request, Wait
from hotloop.core.retention import Hold, HoldKind
from hotloop.engine.kvcache.sliding_window import SPARE
from hotloop.engine.kvcache.slots import WindowSlots
from hotloop.engine.scheduler.prefill_budget import PrefillBudget
from hotloop.engine.scheduler.scheduler import CHARGED, MAX_DEFERRED, Scheduler
from hotloop.engine.sessions.sessions import RETRY_S


def decoding(loop: Loop, *names: str) -> list[Request]:
    """Requests that have read their prompts, and have a token to compute."""
    requests = [loop.add(name, prompt(6, 100 * i)) for i, name in enumerate(names)]
    loop.step()
    return requests


def test_there_is_work_for_who_runs_and_who_waits_but_not_for_who_waits_for_its_blocks() -> None:
    loop = Loop(make_scheduler())
    assert not loop.scheduler.has_work
    request = loop.add("a", prompt(4))
    assert loop.scheduler.has_work
    request.is_loading = True
    assert not loop.scheduler.has_work
    assert loop.step() == {}
    loop.add("b", prompt(4, 100))
    assert loop.step().keys() == {"b"}
    assert loop.scheduler.has_work, "though who waits only waits for its blocks"


def test_a_session_is_charged_for_each_token_of_its_prompt_once_however_it_is_chunked() -> None:
    loop = Loop(make_scheduler(max_step_tokens=8))
    loop.add("a", prompt(20), session="s")
    chunks = [loop.step()["a"] for _ in range(3)]
    assert chunks == [(0, 8), (8, 16), (16, 20)]
    assert loop.scheduler.fairness.attained("s") == pytest.approx(20, rel=0.01)


def test_a_session_is_charged_for_what_is_decoded_sixteen_tokens_at_a_time() -> None:
    loop = Loop(make_scheduler())
    loop.add("a", prompt(CHARGED - 1), session="s")
    attained = [loop.step() and loop.scheduler.fairness.attained("s") for _ in range(2 * CHARGED + 2)]
    charged = [after - before for before, after in pairwise(attained)]
    assert [i for i, each in enumerate(charged) if each > 0] == [0, CHARGED, 2 * CHARGED]
    assert attained[-1] == pytest.approx(CHARGED - 1 + 3 * CHARGED, rel=0.01)


def test_drafts_have_rows_of_their_own() -> None:
    loop = Loop(make_scheduler())
    decoding(loop, "a", "b", "c")
    step = loop.scheduler.schedule(loop.now)
    loop.scheduler.extend(step.slices[0], [7, 8, 9], [1, 1, 1])
    loop.scheduler.advance(step)
    assert [part.first_row for part in step.slices] == [0, 4, 5]
    assert [part.request.pending_row for part in step.slices] == [0, 4, 5]


def test_drafts_that_were_right_are_computed_and_shared() -> None:
    loop = Loop(make_scheduler())
    [request] = decoding(loop, "a")
    step = loop.scheduler.schedule(loop.now)
    loop.scheduler.extend(step.slices[0], [7, 8, 9], [1, 1, 1])
    loop.scheduler.advance(step)
    step.slices[0].num_accepted = 2
    request.token_ids.extend([7, 8, 70])
    loop.scheduler.settle(step, loop.now, STEP_S)
    assert (request.num_computed, request.num_settled) == (9, 9)
    assert len(loop.scheduler.tree.peek(request.token_ids)) == 2
    assert loop.step() == {"a": (9, 10)}


def test_of_a_hybrid_model_tokens_that_are_forced_are_computed_up_to_where_a_state_is_left() -> None:
    """Though the drafts before them, which were wrong, have left it blocks for all of them."""
    loop = Loop(make_scheduler(num_states=8))
    [request] = decoding(loop, "a")
    loop.step()
    step = loop.scheduler.schedule(loop.now)
    loop.scheduler.extend(step.slices[0], [7, 8, 9], [1, 1, 1])
    loop.scheduler.advance(step)
    request.token_ids.extend([70, 71, 72])
    loop.scheduler.settle(step, loop.now, STEP_S)
    assert len(request.block_ids) * BLOCK_SIZE >= request.num_tokens
    assert [loop.step()["a"] for _ in range(2)] == [(6, 8), (8, 10)]


@pytest.mark.parametrize("what", ["error", "preempted", "finished"])
def test_of_what_came_to_nothing_nothing_is_shared(what: str) -> None:
    loop = Loop(make_scheduler())
    request = loop.add("a", prompt(10))
    step = loop.scheduler.schedule(loop.now)
    loop.scheduler.advance(step)
    if what == "error":
        step.slices[0].error = BackendError("it failed")
    elif what == "preempted":
        request.num_preemptions += 1
    else:
        loop.scheduler.finish(request, FinishReason.ABORT)
    loop.scheduler.settle(step, loop.now, STEP_S)
    assert request.num_settled == 0
    assert loop.scheduler.tree.peek(request.token_ids) == []


@pytest.mark.parametrize(("reason", "num_saved"), [(FinishReason.ABORT, 1), (FinishReason.ERROR, 0)])
def test_a_state_is_saved_unless_its_request_failed(reason: FinishReason, num_saved: int) -> None:
    loop = Loop(make_scheduler(num_states=4))
    request = loop.add("a", prompt(5))
    loop.step()
    loop.step()
    loop.scheduler.finish(request, reason)
    assert loop.scheduler.states.stats().num_cached == num_saved


def test_a_step_of_which_nobody_knows_how_long_it_took_teaches_nothing() -> None:
    loop = Loop(make_scheduler())
    decoding(loop, "a")
    loop.step(took_s=0.02)
    before = loop.scheduler.budget.plain_s, loop.scheduler.retention.token_s
    loop.step(took_s=0.0)
    assert (loop.scheduler.budget.plain_s, loop.scheduler.retention.token_s) == before
    assert before[0] > 0


def test_the_last_of_the_tokens_in_flight_is_followed_by_another() -> None:
    loop = Loop(make_scheduler())
    loop.add("a", prompt(10))
    for begin, end in ((0, 10), (10, 11), (11, 12)):
        step = loop.scheduler.schedule(0.1)
        [part] = step.slices
        assert (part.begin, part.end, part.wants_token) == (begin, end, True)
        loop.scheduler.advance(step)


class Told(PrefillBudget):
    """Remembers what it was told of those who wait."""

    waiting: list[tuple[int, float]]

    def begin(self, now: float, decoding: list[int], waiting: Any, *others: Any) -> None:
        self.waiting = waiting
        super().begin(now, decoding, waiting, *others)


def test_a_prompt_costs_what_is_not_cached_of_it_behind_what_is() -> None:
    loop = Loop(make_scheduler())
    loop.finish(*decoding(loop, "first"))
    budget = loop.scheduler.budget = Told(0.01)
    budget.pair_s = 0.001
    loop.add("again", [*prompt(6), *prompt(10, 500)])
    loop.scheduler.schedule(loop.now)
    assert budget.waiting == [(0, budget.cost_s(4, 12))]


def test_a_class_that_has_had_its_share_prefills_nothing() -> None:
    """A step takes 10 ms, and 1 ms for a token of a prompt: one of the lowest class has a tenth of the time."""
    loop = Loop(make_scheduler(num_blocks=512))
    decoding(loop, "urgent")
    for _ in range(20):
        loop.step(took_s=0.01)
    slow = loop.add("slow", prompt(400, 1000), Priority.BACKGROUND)
    num_steps = 0
    while slow.num_computed < 100:
        loop.now += 0.1
        step = loop.scheduler.schedule(loop.now)
        num_prefilled = sum(part.num_tokens for part in step.slices if part.request is slow)
        loop.compute(step, 0.01 + 0.001 * num_prefilled)
        num_steps += 1
    assert num_steps * 0.01 > 5 * slow.num_computed * 0.001


@pytest.mark.parametrize("max_step_tokens", [16, 64])
def test_nobody_passes_one_who_waits_for_room(max_step_tokens: int) -> None:
    """Neither one who comes after it, nor for lacking so little that it would go before the step is full."""
    loop = Loop(make_scheduler(num_blocks=16, admission=False, max_step_tokens=max_step_tokens))
    runs = loop.add("runs", prompt(30))
    while not runs.num_output:
        loop.step()
    large = loop.add("large", prompt(40, 100))
    loop.add("small", prompt(2, 200))
    assert loop.step().keys() == {"runs"}
    assert large.waits_for is Wait.KV_BLOCKS


def test_of_newcomers_without_a_seat_so_many_are_looked_at_and_who_is_awaited_is_let_in() -> None:
    loop = Loop(make_scheduler(num_blocks=16))
    for name, first in (("gone", 100), ("back", 200)):
        request = loop.add(name, prompt(24, first), session=name)
        loop.step()
        loop.finish(request)
        loop.scheduler.sessions.hold(request.token_ids, Hold(HoldKind.TOOL_GAP, 900.0), "", name)
    loop.add("runs", prompt(4))
    loop.step()
    new_sessions = [loop.add(f"new{i}", prompt(30, 1000 * (i + 1))) for i in range(MAX_DEFERRED + 2)]
    loop.now += 0.01
    loop.add("again", [*prompt(24, 200), 1], session="back").arrived_at += 100.0
    for each in new_sessions:
        each.has_held_prefix = False
    assert loop.step().keys() == {"runs", "again"}, "its first token waits for no other prompt"
    loop.step()
    looked_at = [each.retry_at > 0 for each in new_sessions]
    assert looked_at == [True] * MAX_DEFERRED + [False] * 2


def test_a_newcomer_is_looked_at_again_when_its_time_has_come() -> None:
    loop = Loop(make_scheduler(num_blocks=16))
    gone = loop.add("gone", prompt(28, 100), session="gone")
    loop.step()
    loop.finish(gone)
    loop.scheduler.sessions.hold(gone.token_ids, Hold(HoldKind.TOOL_GAP, 900.0), "", "gone")
    loop.add("runs", prompt(4))
    loop.step()
    newcomer = loop.add("new", prompt(40, 200))
    loop.step()
    assert newcomer.retry_at == loop.now + RETRY_S
    loop.scheduler.sessions.hold(gone.token_ids, Hold(HoldKind.FINISHED), "", "gone")
    loop.now = newcomer.retry_at - 0.01
    assert "new" not in loop.step(0.0)
    loop.now = newcomer.retry_at
    assert "new" in loop.step(0.0)


def test_so_many_run_as_have_a_window() -> None:
    num_slots = 2 * (8 // BLOCK_SIZE + SPARE)
    windows = WindowSlots(num_slots, 8, 64)
    loop = Loop(Scheduler(EngineConfig(), block_size=BLOCK_SIZE, num_blocks=64, windows=windows))
    for i, name in enumerate("abc"):
        loop.add(name, prompt(4, 100 * i))
    loop.step()
    assert loop.scheduler.running.keys() == {"a", "b"}


def begun_at(loop: Loop, request: Request, step_s: float) -> float:
    """When it is let in, with steps that take so long."""
    for _ in range(1000):
        loop.step(step_s, step_s)
        if request.id in loop.scheduler.running:
            return loop.now
    raise AssertionError("it never was")


@pytest.mark.parametrize("priority", [Priority.WORKFLOW, Priority.BACKGROUND])
@pytest.mark.parametrize("step_s", [pytest.param(0.004, marks=pytest.mark.long), 0.03])
def test_no_class_waits_longer_than_it_may_while_there_is_room(priority: Priority, step_s: float) -> None:
    """Though its share is used up by another of its class that has a long prompt."""
    loop = Loop(make_scheduler(num_blocks=4096, max_step_tokens=64, background_share=0.01, workflow_share=0.01))
    loop.add("user", prompt(4))
    for _ in range(8):
        loop.step(step_s, step_s)
    long = loop.add("long", prompt(4000, 100), priority)
    begun_at(loop, long, step_s)
    for i in range(8):
        late = loop.add(f"late {i}", prompt(40, 10_000 * (i + 1)), priority)
        arrived_at = loop.now
        max_wait_s = EngineConfig().class_limits[priority].max_wait_s
        assert begun_at(loop, late, step_s) - arrived_at <= max_wait_s
        assert late.turn_wait_s is not None
        assert late.turn_wait_s <= max_wait_s


def test_who_is_due_begins_with_few_tokens_and_takes_no_place_from_who_is_urgent() -> None:
    loop = Loop(make_scheduler(num_blocks=4096, max_step_tokens=256))
    loop.add("user", prompt(4))
    for _ in range(3):
        loop.step(0.01, 0.01)
    due = [loop.add(f"due {i}", prompt(400, 1000 * (i + 1)), Priority.BACKGROUND) for i in range(3)]
    loop.now += 0.5
    loop.add("urgent", prompt(100, 50_000))
    step = loop.step(0.01, 0.01)
    sizes = {name: end - begin for name, (begin, end) in step.items()}
    assert sizes["urgent"] > 0
    assert all(sizes[each.id] == loop.scheduler.budget.least for each in due)


def test_the_wait_for_room_is_no_wait_for_a_turn() -> None:
    loop = Loop(make_scheduler(num_blocks=8))
    loop.add("user", prompt(20))
    loop.step()
    large = loop.add("large", prompt(24, 100), Priority.BACKGROUND)
    for _ in range(4):
        loop.step(1.0)
    assert large.id in loop.scheduler.waiting
    assert large.turn_wait_s == pytest.approx(1.0)
