"""Where exactly requests of hybrid models leave their states, and what they leave nowhere."""

import pytest
from tests.engine.kvcache.test_recurrent import saved, serve
from tests.engine.scheduler.test_scheduler import Room
from tests.engine.tiny import BLOCK_SIZE, make_request
from tests.engine.turning import STEP_S, Loop, make_scheduler, prompt

from hotloop.core.config import EngineConfig
from hotloop.core.request import FinishReason, Priority
from hotloop.core.retention import Hold, HoldKind
from hotloop.engine.kvcache.recurrent import StateCache
from hotloop.engine.scheduler.scheduler import Scheduler


def states_of(loop: Loop) -> StateCache:
    states = loop.scheduler.states
    assert isinstance(states, StateCache)
    return states


@pytest.mark.parametrize(
    ("length", "resume_at", "places"), [(10, (), []), (48, (), [40]), (48, (5000,), [40, 44]), (49, (5000,), [40, 48])]
)
def test_places_are_ends_of_blocks_before_the_last_token_of_the_prompt(
    length: int, resume_at: tuple[int, ...], places: list[int]
) -> None:
    loop = Loop(make_scheduler(num_states=16))
    loop.add("a", prompt(length)).resume_at = resume_at
    loop.scheduler.schedule(loop.now)
    assert states_of(loop)._runs["a"].places == places


@pytest.mark.parametrize(("lengths", "num_common"), [((8, 8), 4), ((9, 8), 4), ((8, 9), 4), ((9, 9), 8)])
def test_two_prompts_have_whole_blocks_in_common_but_for_the_last_token_of_either(
    lengths: tuple[int, int], num_common: int
) -> None:
    one, other = (make_request(prompt(length)) for length in lengths)
    assert states_of(Loop(make_scheduler(num_states=4)))._num_common(one, other) == num_common


def test_a_state_is_saved_as_soon_as_its_place_is_computed() -> None:
    """Though the next step is in flight already."""
    loop = Loop(make_scheduler(num_states=16))
    request = loop.add("a", prompt(50))
    steps = []
    for _ in range(2):
        steps.append(loop.scheduler.schedule(loop.now))
        loop.scheduler.advance(steps[-1])
    assert [(step.slices[0].begin, step.slices[0].end) for step in steps] == [(0, 40), (40, 48)]
    loop.scheduler.settle(steps[0], loop.now, STEP_S)
    assert saved(loop, request.token_ids) == [40]


def test_where_two_have_computed_the_same_one_state_is_kept() -> None:
    loop = Loop(make_scheduler(num_states=16))
    slow = loop.add("slow", prompt(50), Priority.BACKGROUND)
    loop.step()
    quick = loop.add("quick", prompt(50))
    while not (slow.num_output and quick.num_output):
        loop.step()
    loop.finish(slow)
    first = [node.state for node in loop.scheduler.tree.nodes()]
    loop.finish(quick)
    assert saved(loop, prompt(50)) == [40, 48]
    assert [node.state for node in loop.scheduler.tree.nodes()] == first


def test_one_who_waits_for_another_and_leaves_before_it_has_begun_leaves_nothing() -> None:
    loop = Loop(make_scheduler(num_states=16, max_step_tokens=64))
    loop.add("first", prompt(50))
    loop.add("second", prompt(50))
    assert loop.step() == {"first": (0, 40)}
    second = loop.scheduler.running["second"]
    assert second.num_computed == 0
    loop.scheduler.finish(second, FinishReason.ABORT)
    loop.scheduler.check()
    assert states_of(loop).stats().num_used == 1


def test_one_who_leaves_while_a_step_is_in_flight_leaves_no_state_of_that() -> None:
    loop = Loop(make_scheduler(num_states=16))
    request = loop.add("a", prompt(48))
    step = loop.scheduler.schedule(loop.now)
    loop.scheduler.advance(step)
    loop.scheduler.finish(request, FinishReason.ABORT)
    loop.scheduler.settle(step, loop.now, STEP_S)
    loop.scheduler.check()
    assert states_of(loop).pool.num_free == 16


def test_what_is_waited_for_lies_ahead() -> None:
    loop = Loop(make_scheduler(num_states=16, max_step_tokens=64))
    loop.add("first", prompt(50))
    follower = loop.add("second", prompt(50))
    loop.step()
    states = states_of(loop)
    *_, last = states._runs["first"].places
    for num_computed, is_coming in ((0, True), (last - 4, True), (last, False)):
        follower.num_computed = num_computed
        assert states.is_coming(follower, b"", ()) == is_coming


def test_what_is_known_is_the_same_to_who_looks_and_who_takes_it() -> None:
    """Where a state is at the very end of a prompt, the last token has to be computed from the one before it."""
    loop = Loop(make_scheduler(num_states=16))
    request = serve(loop, "a", prompt(50), num_output=11)
    for end, num_blocks in ((60, 10), (61, 15)):
        again = make_request(request.token_ids[:end])
        looked, taken = (each(again) for each in (states_of(loop).peek, states_of(loop).match))
        assert looked == taken
        assert len(looked) == num_blocks


def test_of_a_state_in_host_memory_it_is_known_what_it_adds_to_what_is_on_the_device() -> None:
    loop = Loop(Scheduler(EngineConfig(), block_size=BLOCK_SIZE, num_blocks=64, host=Room(), num_states=16))
    request = serve(loop, "a", prompt(50), num_output=11)
    inner, last = (node.state for node in loop.scheduler.tree.nodes() if node.state)
    states, slots = states_of(loop), loop.scheduler.tree.states
    again = make_request(request.token_ids[:61])
    slots.move_out(inner)
    assert states.peek_offloaded(again) is None, "the deeper one is on the device"
    slots.bring_back(inner, *states.pool.allocate(1), 0.0)
    states.pool.release([inner.slot])
    slots.move_out(last)
    offloaded = states.peek_offloaded(again)
    assert offloaded is not None
    assert (len(offloaded.known), offloaded.host_ids, offloaded.num_gained, offloaded.state) == (15, [], 5, last)


def test_what_nobody_comes_back_to_does_not_go_to_host_memory() -> None:
    loop = Loop(Scheduler(EngineConfig(), block_size=BLOCK_SIZE, num_blocks=64, host=Room(), num_states=16))
    request = serve(loop, "a", prompt(50), num_output=11)
    loop.scheduler.tree.hold(request.token_ids[:60], Hold(HoldKind.FINISHED))
    for _ in range(2):
        states_of(loop)._evict("someone")
    assert saved(loop, request.token_ids) == [40]
    stats = states_of(loop).stats()
    assert (stats.num_cached, stats.num_offloaded, stats.num_evicted) == (0, 1, 1)


@pytest.mark.parametrize("is_there", [True, False])
def test_a_state_is_on_the_device_once_its_copy_has_gone_well(*, is_there: bool) -> None:
    loop = Loop(Scheduler(EngineConfig(), block_size=BLOCK_SIZE, num_blocks=64, host=Room(), num_states=16))
    request = serve(loop, "a", prompt(50), num_output=11)
    *_, last = (node.state for node in loop.scheduler.tree.nodes() if node.state)
    states = states_of(loop)
    loop.scheduler.tree.states.move_out(last)
    slot = states.begin_copy(request, last)
    assert slot is not None
    states.end_copy(last, slot, is_there=is_there)
    assert last.is_offloaded != is_there
    loop.scheduler.check()


def test_a_state_is_worth_all_tokens_since_the_one_before_it() -> None:
    loop = Loop(make_scheduler(num_states=16))
    serve(loop, "a", prompt(50), num_output=11)
    states = states_of(loop)
    inner, last = (node for node in loop.scheduler.tree.nodes() if node.state)
    before = states._rank(last)[2]
    loop.scheduler.tree.states.drop(inner)
    assert states._rank(last)[2] - before == pytest.approx(1.1), "60 tokens instead of 20, of which the log counts"


def test_within_a_session_a_state_is_worth_nothing_unless_it_is_held_or_shared() -> None:
    loop = Loop(make_scheduler(num_states=16))
    serve(loop, "a", prompt(50), num_output=11)
    states = states_of(loop)
    inner, last = (node for node in loop.scheduler.tree.nodes() if node.state)
    assert (states._rank(inner)[0], states._rank(last)[0]) == (HoldKind.FINISHED, HoldKind.ORDINARY)
    inner.hold = Hold(HoldKind.TOOL_GAP, loop.now + 9.0)
    assert states._rank(inner)[0] == HoldKind.TOOL_GAP
    inner.hold, inner.session = None, None
    assert states._rank(inner)[0] == HoldKind.ORDINARY


@pytest.mark.parametrize("num_free", [1, 0])
def test_a_state_from_elsewhere_is_written_and_kept_where_a_slot_is_free(num_free: int) -> None:
    loop = Loop(make_scheduler(num_states=2 + num_free))
    request = loop.add("a", prompt(9))
    while not request.num_output:
        loop.step()
    states, written = states_of(loop), list[int]()
    assert states.pool.num_free == num_free, "its own and the one it has left at its last block"
    assert states.put(request, 4, written.append) == bool(num_free)
    assert len(written) == num_free
    assert saved(loop, request.token_ids) == [4] * num_free
    assert all(states.pool.is_kept[slot] for slot in written)
    loop.scheduler.check()


@pytest.mark.parametrize("num_states", [2, 1])
def test_drafts_are_computed_where_the_state_before_them_can_stay(num_states: int) -> None:
    loop = Loop(make_scheduler(num_states=num_states))
    request = loop.add("a", prompt(3))
    loop.step()
    (part,) = loop.scheduler.schedule(loop.now).slices
    states = states_of(loop)
    assert part.slots is not None
    read, _ = part.slots
    assert states.branch(part) == (num_states == 2)
    assert part.slots == (read, 1 - read if num_states == 2 else read)
    assert states._runs["a"].before == (read if num_states == 2 else None)
    assert states.stats().num_used == num_states
    loop.scheduler.fail(request)
    assert states.pool.num_free == num_states


def test_who_is_told_of_a_state_hears_which_places_its_session_has_passed() -> None:
    """With its next prompt, not with an answer; and not of a head that is shared."""
    loop = Loop(make_scheduler(num_blocks=400, num_states=32))
    told = list[tuple[str, int, list[int]]]()
    loop.scheduler.tree.states.on_keep = lambda request, place, _, own: told.append((request.id, place, [*own]))
    head = prompt(40)
    for name in "ab":
        serve(loop, f"{name}1", [*head, *prompt(24, first=1000 * ord(name))], session=name)
    del told[:]
    serve(loop, "b2", [*head, *prompt(48, first=1000 * ord("b"))], num_output=9, session="b")
    assert told == [("b2", 80, [56, 64]), ("b2", 96, [])]
