"""The scheduler driven by integers: who computes what, who gives way, and that everybody finishes."""

import math
from array import array
from collections.abc import Sequence
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from tests.backends.device import NullDevice
from tests.engine.tiny import BLOCK_SIZE, SIZE, make_engine
from tests.engine.turning import STEP_S, Loop, make_scheduler, prompt
from tests.properties import examples

from hotloop.core.config import EngineConfig
from hotloop.core.request import FinishReason, Priority, Request
from hotloop.core.retention import Hold, HoldKind
from hotloop.engine.scheduler.scheduler import Scheduler

PROMOTION_S = EngineConfig().promotion_s


def is_level(request: Request) -> bool:
    """Whether it has read its prompt, all or all but a token, and lacks little."""
    missing = request.num_tokens - request.num_computed
    return missing == 1 or (request.num_computed >= request.num_prompt and missing <= BLOCK_SIZE)


def loop_that_knows(token_ids: list[int]) -> Loop:
    loop = Loop(make_scheduler())
    first = loop.add("first", token_ids)
    loop.step()
    loop.finish(first)
    return loop


def test_blocks_of_drafts_that_came_to_nothing_are_not_taken_for_computed() -> None:
    loop = loop_that_knows(prompt(32))
    request = loop.add("second", prompt(8))
    step = loop.scheduler.schedule(loop.now)
    loop.scheduler.extend(step.slices[0], [70, 71, 72, 73, 74, 75], [1] * 6)
    loop.scheduler.advance(step)
    request.token_ids.extend(range(8, 24))  # one sampled, and a run of forced ones that the tree knows
    loop.scheduler.settle(step, loop.now, STEP_S)
    loop.scheduler.check()
    known = loop.scheduler.tree.match(request.token_ids[:20])
    assert loop.step() == {"second": (20, 24)}
    assert list(request.block_ids)[:5] == known


def test_a_prompt_is_read_whole_then_a_token_a_step() -> None:
    loop = Loop(make_scheduler())
    request = loop.add("a", prompt(10))
    assert loop.step() == {"a": (0, 10)}
    assert loop.step() == {"a": (10, 11)}
    assert loop.step() == {"a": (11, 12)}
    assert request.num_output == 3
    assert request.first_scheduled_at == 0.001
    assert loop.step(0) == {"a": (12, 13)}


def test_a_token_is_computed_before_the_value_of_the_last_is_known_if_it_can_be() -> None:
    loop = Loop(make_scheduler())
    request = loop.add("a", prompt(10))
    scheduler = loop.scheduler
    scheduler.advance(scheduler.schedule(0.1))
    request.has_draft = True
    assert scheduler.schedule(0.2).slices == []
    request.has_draft = False
    assert [(part.begin, part.end) for part in scheduler.schedule(0.3).slices] == [(10, 11)]


def test_forced_tokens_right_behind_a_prompt_are_no_prefill() -> None:
    loop = Loop(make_scheduler(max_step_tokens=6))
    requests = [loop.add(name, prompt(2, first=100 * i)) for i, name in enumerate("abc")]
    assert loop.step() == {"a": (0, 2), "b": (0, 2), "c": (0, 2)}
    for request in requests:
        request.token_ids.extend([7, 8, 9])
    assert loop.step() == {"a": (2, 6), "b": (2, 6), "c": (2, 6)}, "beyond what a step may prefill"


class Room:
    """Host memory of which nothing is read."""

    num_blocks, num_states = 32, 8

    def offload(self, block_ids: Sequence[int], host_ids: Sequence[int]) -> None: ...
    def offload_state(self, slot: int, host_slot: int) -> None: ...


def test_sessions_have_the_room_of_host_memory_as_well() -> None:
    scheduler = Scheduler(EngineConfig(), block_size=BLOCK_SIZE, num_blocks=64, host=Room())
    assert scheduler.admission.num_tokens == 96 * BLOCK_SIZE


def test_of_a_prompt_in_host_memory_the_last_token_is_still_lacking() -> None:
    loop = Loop(Scheduler(EngineConfig(), block_size=BLOCK_SIZE, num_blocks=64, host=Room()))
    first = loop.add("first", prompt(8))
    loop.step()
    loop.finish(first)
    tree = loop.scheduler.tree
    assert loop.scheduler._num_uncached(loop.add("cached", prompt(8))) == 4
    tree.evict(2)
    assert len(tree.peek(first.token_ids[:8], "", is_offloaded=True)) == 2
    assert loop.scheduler._num_uncached(loop.add("hosted", prompt(8))) == 4


def test_a_share_of_the_blocks_can_be_pinned() -> None:
    assert make_scheduler(num_blocks=64, pinned_fraction=0.5).retention.max_pinned == 32


def test_only_whole_blocks_are_waited_for_together() -> None:
    loop = Loop(make_scheduler(max_step_tokens=4))
    request = loop.add("a", prompt(10))
    loop.step()
    assert loop.scheduler.states.next_block(request) == request.token_ids[:8].tobytes()
    loop.step()
    loop.step()
    assert request.num_computed == 10
    assert loop.scheduler.states.next_block(request) == b""
    assert loop.scheduler.states.known_blocks(request) == [], "a block that is half computed is not exchanged"


def test_a_draft_gets_what_blocks_there_are() -> None:
    loop = Loop(make_scheduler(num_blocks=3))
    loop.add("a", prompt(6))
    [part] = loop.scheduler.schedule(0.1).slices
    loop.scheduler.extend(part, [7] * 9, [1] * 9)
    assert (len(part.draft_ids), len(part.match_lengths)) == (2, 2), "to the end of its last block"
    loop.scheduler.extend(part, [7] * 4, [1] * 4)
    assert (len(part.draft_ids), len(part.match_lengths)) == (4, 4)


def test_chunks_end_where_blocks_end() -> None:
    loop = Loop(make_scheduler(max_step_tokens=10))
    loop.add("a", prompt(23))
    assert [loop.step()["a"] for _ in range(4)] == [(0, 8), (8, 16), (16, 23), (23, 24)]


def test_a_budget_below_a_block_still_reads_a_block() -> None:
    loop = Loop(make_scheduler(max_step_tokens=1))
    loop.add("a", prompt(9))
    assert [loop.step()["a"] for _ in range(4)] == [(0, 4), (4, 8), (8, 9), (9, 10)]


def test_who_decodes_gets_a_token_while_another_reads() -> None:
    loop = Loop(make_scheduler(max_step_tokens=8))
    loop.add("a", prompt(3))
    loop.step()
    loop.add("b", prompt(20, first=100))
    assert loop.step() == {"a": (3, 4), "b": (0, 4)}
    assert loop.step() == {"a": (4, 5), "b": (4, 8)}


def test_a_known_prefix_is_adopted_and_its_last_token_computed() -> None:
    loop = loop_that_knows(prompt(8))
    second = loop.add("b", prompt(8))
    assert loop.step() == {"b": (4, 8)}
    assert second.num_cached == 4
    longer = loop.add("c", prompt(11))
    assert loop.step() == {"b": (8, 9), "c": (8, 11)}
    assert longer.num_cached == 8


def test_without_the_cache_nothing_is_shared() -> None:
    loop = Loop(make_scheduler(prefix_cache=False))
    loop.finish(loop.add("a", prompt(8)))
    loop.add("b", prompt(8))
    loop.add("c", prompt(8))
    assert loop.step() == {"b": (0, 8), "c": (0, 8)}


def test_of_many_with_one_prompt_one_reads_and_the_others_follow() -> None:
    loop = Loop(make_scheduler(max_step_tokens=8))
    for name in "abc":
        loop.add(name, prompt(18))
    assert loop.step() == {"a": (0, 8)}
    assert loop.step() == {"a": (8, 16)}
    assert loop.step() == {"a": (16, 18), "b": (16, 18), "c": (16, 18)}
    assert loop.scheduler.running["c"].num_cached == 16


def test_a_more_urgent_request_with_the_same_prompt_takes_the_lead() -> None:
    loop = Loop(make_scheduler(max_step_tokens=8))
    loop.add("slow", prompt(24), Priority.BACKGROUND)
    assert loop.step() == {"slow": (0, 8)}
    loop.add("quick", prompt(24))
    loop.step()
    assert loop.step() == {"quick": (16, 24)}


def test_two_who_read_the_same_at_once_end_up_with_one_copy() -> None:
    loop = Loop(make_scheduler())
    loop.add("a", prompt(4))
    loop.add("b", prompt(4))
    loop.step()
    assert loop.scheduler.running["a"].block_ids == loop.scheduler.running["b"].block_ids
    assert loop.scheduler.pool.num_used == 1


def test_at_most_so_many_run() -> None:
    loop = Loop(make_scheduler(max_running=2))
    first, *_ = [loop.add(name, prompt(2, i * 10)) for i, name in enumerate("abc")]
    assert loop.step().keys() == {"a", "b"}
    loop.finish(first)
    assert loop.step().keys() == {"b", "c"}


@pytest.mark.parametrize(("given", "num_states", "most"), [(None, 0, 256), (8, 0, 8), (300, 0, 300), (None, 6, 6)])
def test_a_batch_is_as_large_as_the_backend_would_have_it_unless_it_is_told(
    given: int | None, num_states: int, most: int
) -> None:
    backend = NullDevice(**SIZE, num_blocks=64, num_states=num_states)
    backend.max_running = 256
    with make_engine(backend=backend, max_running=given) as engine:
        assert engine.max_running == most


def test_when_blocks_run_out_the_youngest_of_the_lowest_class_gives_way() -> None:
    loop = Loop(make_scheduler(num_blocks=6))
    loop.add("old", prompt(7))
    loop.now += 0.001
    loop.add("young", prompt(7, 100))
    loop.step()
    while "young" in loop.step():
        pass
    young = loop.scheduler.waiting["young"]
    assert (young.num_preemptions, young.num_computed, len(young.block_ids)) == (1, 0, 0)
    assert loop.scheduler.num_preemptions == 1


def test_who_gave_way_comes_back_from_the_tree() -> None:
    loop = Loop(make_scheduler(num_blocks=6))
    old = loop.add("old", prompt(7))
    loop.now += 0.001
    loop.add("young", prompt(7, 100))
    while not loop.scheduler.num_preemptions:
        loop.step()
    young = loop.scheduler.waiting["young"]
    num_tokens = young.num_tokens
    loop.finish(old)
    begin, end = loop.step()["young"]
    assert begin > 0
    assert end == num_tokens


def test_an_urgent_request_makes_a_lower_class_give_way() -> None:
    loop = Loop(make_scheduler(num_blocks=8))
    loop.add("slow", prompt(24), Priority.BACKGROUND)
    loop.step()
    loop.add("quick", prompt(20, 100))
    assert loop.step() == {"quick": (0, 20)}
    assert "slow" in loop.scheduler.waiting


def test_an_urgent_request_takes_a_place_in_a_full_batch() -> None:
    loop = Loop(make_scheduler(max_running=2))
    loop.add("slow", prompt(4), Priority.BACKGROUND)
    loop.now += 0.001
    loop.add("slower", prompt(4, 50), Priority.BACKGROUND)
    loop.step()
    loop.add("quick", prompt(4, 100))
    assert loop.step().keys() == {"slow", "quick"}


def test_nobody_gives_way_in_vain() -> None:
    loop = Loop(make_scheduler(num_blocks=10))
    loop.add("urgent", prompt(20))
    loop.add("slow", prompt(4, 50), Priority.BACKGROUND)
    loop.step(1.0)
    loop.add("large", prompt(30, 100))
    assert loop.step().keys() == {"urgent", "slow"}


def test_nobody_gives_way_to_an_equal_who_waits() -> None:
    loop = Loop(make_scheduler(num_blocks=8))
    loop.add("first", prompt(24))
    loop.step()
    loop.add("second", prompt(20, 100))
    assert loop.step().keys() == {"first"}


def test_a_request_that_waited_long_no_longer_gives_way() -> None:
    loop = Loop(make_scheduler(num_blocks=8))
    urgent = loop.add("urgent", prompt(20))
    loop.step()
    patient = loop.add("patient", prompt(20, 100), Priority.BACKGROUND)
    loop.step(2 * PROMOTION_S)
    assert "patient" in loop.scheduler.waiting
    loop.finish(urgent)
    loop.step()
    loop.add("new", prompt(20, 200))
    assert loop.step().keys() == {"patient"}
    assert patient.rank == Priority.INTERACTIVE


def test_requests_still_reading_are_promised_their_blocks() -> None:
    loop = Loop(make_scheduler(num_blocks=12, max_step_tokens=8))
    loop.add("a", prompt(40))
    loop.add("b", prompt(16, 100))
    while "a" in loop.scheduler.running and loop.scheduler.running["a"].num_computed < 40:
        assert loop.step().keys() == {"a"}
    assert loop.scheduler.num_preemptions == 0


def test_reset_forgets_the_running_and_the_cache_and_keeps_the_waiting() -> None:
    loop = Loop(make_scheduler(max_running=1))
    running, waiting = loop.add("a", prompt(8)), loop.add("b", prompt(8))
    loop.step()
    assert loop.scheduler.reset() == [running]
    loop.scheduler.check()
    assert running.finish_reason is FinishReason.ERROR
    assert loop.scheduler.pool.num_free == loop.scheduler.pool.num_blocks
    assert loop.step() == {"b": (0, 8)}
    assert loop.scheduler.reset() == [waiting]
    last = loop.add("c", prompt(8))
    assert loop.scheduler.reset() == [last], "what cannot even begin is not tried for ever"


def test_one_of_a_low_class_that_is_alone_owes_nobody() -> None:
    """Though one of its class before it had more than its share of a step."""
    loop = Loop(make_scheduler(4, max_running=1, max_step_tokens=1, prefix_cache=False))
    for name in "abc":
        request = loop.add(name, prompt(1), Priority.BACKGROUND)
        assert loop.step(0.0), "there is nobody else to be served"
        loop.finish(request)


class Life(RuleBasedStateMachine):
    """Any requests, in a pool that is always too small, come and go; everybody who stays finishes."""

    @initialize(
        num_blocks=st.integers(4, 12),
        max_running=st.integers(1, 5),
        max_step_tokens=st.integers(1, 20),
        prefix_cache=st.booleans(),
        max_solo_prefill=st.sampled_from([16.0, math.inf]),
    )
    def begin(self, num_blocks: int, **changes: Any) -> None:
        self.loop = Loop(make_scheduler(num_blocks, **changes))
        self.scheduler = self.loop.scheduler
        self.max_tokens = num_blocks * BLOCK_SIZE
        self.lengths: dict[str, int] = {}
        self.num_added = 0

    @property
    def requests(self) -> list[Request]:
        return [*self.scheduler.running.values(), *self.scheduler.waiting.values()]

    @rule(
        length=st.integers(1, 30),
        num_output=st.integers(1, 12),
        family=st.integers(0, 1),
        priority=st.sampled_from(Priority),
        session=st.sampled_from(["", "s", "t"]),
    )
    def add(self, length: int, num_output: int, family: int, priority: Priority, session: str) -> None:
        length = min(length, self.max_tokens - 1)
        request = self.loop.add(f"r{self.num_added}", prompt(length, family * 1000), priority)
        request.session_id = session
        self.num_added += 1
        self.lengths[request.id] = min(length + num_output, self.max_tokens)

    @rule(seconds=st.sampled_from([0.0, 0.001, 0.1, PROMOTION_S]))
    def step(self, seconds: float) -> None:
        level = [r.id for r in self.scheduler.running.values() if is_level(r)]
        ranks = {r.id: r.rank for r in self.scheduler.running.values()}
        computed = self.loop.step(seconds)
        assert bool(computed) == bool(self.requests), "there is always somebody to serve"
        held = {name for name in level if ranks[name]} if self.scheduler.budget.are_held else ()
        assert all(name in computed or name in self.scheduler.waiting or name in held for name in level), "starved"
        gone, stayed = (
            [ranks[name] for name in ranks if (name in self.scheduler.waiting) == is_gone] for is_gone in (True, False)
        )
        assert not gone or not stayed or min(gone) >= max(stayed), "a more urgent request gave way"
        num_prefilled = sum(end - begin for name, (begin, end) in computed.items() if name not in level)
        assert num_prefilled <= max(self.scheduler.config.max_step_tokens, BLOCK_SIZE)
        for request in [r for r in self.scheduler.running.values() if r.num_tokens >= self.lengths[r.id]]:
            self.loop.finish(request)

    @rule(
        length=st.integers(1, 30),
        family=st.integers(0, 1),
        kind=st.sampled_from(HoldKind),
        seconds=st.sampled_from([0.01, 1.0, 2 * PROMOTION_S]),
        rank=st.integers(0, 2),
    )
    def hold(self, length: int, family: int, kind: HoldKind, seconds: float, rank: int) -> None:
        hold = Hold(kind, self.loop.now + seconds, seconds, rank)
        self.scheduler.tree.hold(array("i", prompt(length, family * 1000)), hold)

    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        if self.requests:
            self.scheduler.finish(data.draw(st.sampled_from(self.requests)), FinishReason.ABORT)

    @invariant()
    def holds(self) -> None:
        self.scheduler.check()
        assert len(self.scheduler.running) <= self.scheduler.config.max_running

    def teardown(self) -> None:
        if not hasattr(self, "loop"):
            return
        num_left = sum(self.lengths[request.id] for request in self.requests)
        for _ in range(20 * num_left + 20):
            if not self.requests:
                break
            self.step(0.001)
        assert not self.requests, "somebody never finished"
        assert self.scheduler.pool.num_used == 0


TestLife = Life.TestCase
TestLife.settings = settings(max_examples=examples(60), stateful_step_count=40)
