"""Two memories in one tree: what the tree knows is in the block it says, wherever that is."""

from array import array
from typing import NamedTuple

import hypothesis.strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.engine.kvcache.test_kv_events import Reader, kept_prompts

from hotloop.core.retention import Hold, HoldKind
from hotloop.engine.kvcache.blocks import BlockPool
from hotloop.engine.kvcache.changes import Change
from hotloop.engine.kvcache.kv_events import EventEncoder
from hotloop.engine.kvcache.radix import RadixTree
from hotloop.engine.kvcache.retention import Retention

BLOCK = 2


def tokens(*values: int) -> "array[int]":
    """A block of each value."""
    return array("i", [value for value in values for _ in range(BLOCK)])


class Copying(NamedTuple):
    """On its way back to the device."""

    values: tuple[int, ...]
    known: list[int]
    host_ids: list[int]
    new: list[int]


class TwoMemories:
    """A tree over both, and what is written in every block: the prefix that it ends."""

    def __init__(self, num_blocks: int = 8, num_host_blocks: int = 8) -> None:
        self.pool = BlockPool(num_blocks)
        self.changes: list[Change] = []
        self.wording, self.reader = EventEncoder(BLOCK), Reader()
        self.num_blocks = num_host_blocks
        self.retention = Retention(num_blocks)
        self.tree = RadixTree(self.pool, BLOCK, self.retention, self.changes, self)
        self.device: dict[int, tuple[int, ...]] = {}
        self.host: dict[int, tuple[int, ...]] = {}
        self.copies: list[Copying] = []

    num_states = 0

    def offload_state(self, slot: int, host_slot: int) -> None: ...

    def offload(self, block_ids: list[int], host_ids: list[int]) -> None:
        for block_id, host_id in zip(block_ids, host_ids, strict=True):
            assert self.pool.num_users[block_id] == self.tree.host_pool.num_users[host_id] - 1 == 0
            self.host[host_id] = self.device[block_id]

    def remember(self, *values: int, session: str = "") -> bool:
        """Compute what is not on the device, share all of it, and go; False if copies leave no room for it."""
        known = self.tree.match(tokens(*values), session=session)
        self.pool.use(known)
        num_new = len(values) - len(known)
        self.tree.evict(max(0, num_new - self.pool.num_free))
        new = self.pool.allocate(num_new)
        if new is None:
            assert self.copies
            self.pool.release(known)
            return False
        for i, block_id in enumerate(new):
            self.device[block_id] = values[: len(known) + i + 1]
        shared = self.tree.insert(tokens(*values), known + new, session=session)
        assert shared == known + new
        self.pool.release(shared)
        self.check()
        return True

    def restore(self, *values: int) -> int:
        """As a request does it that comes back; returns how many blocks it had in host memory."""
        copy = self.begin(*values)
        if copy is None:
            return 0
        self.end(copy)
        return len(copy.host_ids)

    def begin(self, *values: int) -> "Copying | None":
        """A copy under way; None if there is nothing to copy, no room for it, or another copies it already."""
        known, host_ids = self.tree.peek(tokens(*values)), self.tree.peek(tokens(*values), is_offloaded=True)
        if not host_ids or self.tree.host_pool.num_users[host_ids[0]]:
            return None
        self.pool.use(known)
        self.tree.host_pool.use(host_ids)
        self.tree.evict(max(0, len(host_ids) - self.pool.num_free))
        new = self.pool.allocate(len(host_ids))
        if new is None:
            self.pool.release(known)
            self.tree.host_pool.release(host_ids)
            return None
        copy = Copying(values[: len(known) + len(new)], known, host_ids, new)
        self.copies.append(copy)
        self.check()
        return copy

    def end(self, copy: "Copying") -> None:
        self.copies.remove(copy)
        for block_id, host_id in zip(copy.new, copy.host_ids, strict=True):
            self.device[block_id] = self.host[host_id]
        self.tree.insert(tokens(*copy.values), copy.known + copy.new)
        self.pool.release(copy.known + copy.new)
        self.tree.host_pool.release(copy.host_ids)
        self.check()

    def where(self, *values: int) -> str:
        """A letter for each block that is known: on the device, or in host memory."""
        known, offloaded = self.tree.peek(tokens(*values)), self.tree.peek(tokens(*values), is_offloaded=True)
        for i, prefix in enumerate([*(self.device[i] for i in known), *(self.host[i] for i in offloaded)]):
            assert prefix == values[: i + 1], "a block holds something else"
        return "d" * len(known) + "h" * len(offloaded)

    def check(self) -> None:
        self.pool.check()
        self.tree.host_pool.check()
        self.tree.check()
        for copy in self.copies:
            for block_id, host_id in zip(copy.new, copy.host_ids, strict=True):
                assert (self.pool.num_users[block_id], self.tree.host_pool.num_users[host_id]) == (1, 1)
        for event in map(self.wording.render, self.changes):
            if event:
                self.reader.read(event)
        self.changes.clear()
        assert self.reader.prompts == kept_prompts(self.tree, BLOCK)


def test_no_more_is_given_up_in_host_memory_than_there_is_no_room_for() -> None:
    both = TwoMemories(num_blocks=8, num_host_blocks=9)
    for first in (0, 100):
        both.remember(*range(first, first + 8))
        both.tree.evict(8 if first == 0 else 2)
    assert both.where(*range(100, 108)) == "ddddddhh"
    assert both.where(*range(8)) == "hhhhhhh"
    assert (both.tree.num_evicted, both.tree.host_pool.num_free) == (1, 0)


def test_what_leaves_the_device_goes_to_host_memory_from_its_end() -> None:
    both = TwoMemories()
    both.remember(1, 2, 3, 4)
    assert both.tree.evict(1) == 1
    assert both.where(1, 2, 3, 4) == "dddh"
    assert both.tree.evict(2) == 2
    assert both.where(1, 2, 3, 4) == "dhhh"
    assert len([*both.tree.nodes()]) == 2, "what follows one upon the other is one edge"
    both.check()
    assert both.tree.evict(1) == 1
    assert both.where(1, 2, 3, 4) == "hhhh"
    assert (both.pool.num_free, both.tree.num_evicted, both.tree.num_offloaded) == (8, 0, 4)


def test_it_comes_back_and_leaves_host_memory() -> None:
    both = TwoMemories()
    both.remember(1, 2, 3)
    both.tree.evict(2)
    assert both.restore(1, 2, 3) == 2
    assert both.where(1, 2, 3) == "ddd"
    assert both.tree.host_pool.num_free == 8


def test_who_wants_only_a_part_brings_only_that_back() -> None:
    both = TwoMemories()
    both.remember(1, 2, 3, 4)
    both.tree.evict(4)
    assert both.restore(1, 2, 9) == 2
    assert both.where(1, 2, 3, 4) == "ddhh"


def test_what_is_computed_again_replaces_what_was_in_host_memory() -> None:
    both = TwoMemories()
    both.remember(1, 2, 3, 4)
    both.tree.evict(3)
    both.remember(1, 2, 7)
    assert both.where(1, 2, 7) == "ddd"
    assert both.where(1, 2, 3, 4) == "ddhh"


def test_branches_go_one_by_one_and_what_they_share_last() -> None:
    both = TwoMemories()
    both.remember(1, 2)
    both.remember(1, 3)
    assert both.tree.evict(1) == 1
    assert (both.where(1, 2), both.where(1, 3)) == ("dh", "dd")
    assert both.tree.evict(1) == 1
    assert (both.where(1, 2), both.where(1, 3)) == ("dh", "dh")
    assert both.tree.evict(1) == 1
    assert (both.where(1, 2), both.where(1, 3)) == ("hh", "hh")


def test_the_least_worth_gives_way_there_too_and_what_is_worth_no_more_is_given_up() -> None:
    both = TwoMemories(num_host_blocks=2)
    both.remember(1, 2)
    both.remember(5, 6)
    assert both.tree.evict(4) == 4
    both.check()
    assert (both.where(1, 2), both.where(5, 6)) == ("", "hh"), "the longer unused gave way"
    both.remember(7, 8)
    both.tree.hold(tokens(5, 6), Hold(HoldKind.TOOL_GAP, 50.0))
    assert both.tree.evict(2) == 2
    assert (both.where(5, 6), both.where(7, 8)) == ("hh", ""), "it is worth less than what is there"
    assert both.tree.eviction(tokens(7, 8), 0) is not None
    assert both.tree.num_evicted == 4


def test_what_nobody_comes_back_to_is_given_up_at_once() -> None:
    both = TwoMemories()
    both.remember(1, 2)
    both.tree.hold(tokens(1, 2), Hold(HoldKind.FINISHED))
    assert both.tree.evict(2) == 2
    assert both.where(1, 2) == ""
    both.check()


def test_with_what_is_given_up_on_the_device_goes_what_follows_it_in_host_memory() -> None:
    both = TwoMemories()
    both.remember(1, 2, 3)
    assert both.tree.evict(1) == 1
    both.tree.hold(tokens(1, 2, 3), Hold(HoldKind.FINISHED))
    both.tree.hold(tokens(1, 2), Hold(HoldKind.FINISHED))
    assert both.where(1, 2, 3) == "ddh"
    assert both.tree.evict(1) == 1
    assert both.where(1, 2, 3) == "d"
    assert both.tree.host_pool.num_free == 8
    both.check()


def test_what_was_used_since_is_not_one_edge_with_what_was_not() -> None:
    both = TwoMemories()
    both.remember(1, 2, 3)
    both.tree.evict(1)
    both.tree.match(tokens(1, 2))
    both.tree.evict(1)
    assert both.where(1, 2, 3) == "dhh"
    assert len([*both.tree.nodes()]) == 3


def test_holds_travel_along_and_keep_what_comes_before_them() -> None:
    both = TwoMemories(num_blocks=6)
    both.remember(1, 2, 3)
    both.tree.hold(tokens(1, 2, 3), Hold(HoldKind.TOOL_GAP, 50.0))
    assert both.tree.evict(1) == 1
    assert both.where(1, 2, 3) == "ddh"
    assert both.tree.has_held_prefix(tokens(1, 2, 3, 4))
    both.remember(7, 8)
    assert both.tree.evict(2) == 2
    assert (both.where(1, 2, 3), both.where(7, 8)) == ("ddh", "hh"), "what is before a held prefix goes after others"
    both.retention.now = 60.0
    both.remember(5)
    assert both.tree.evict(1) == 1
    assert (both.where(1, 2, 3), both.where(5)) == ("dhh", "d"), "nobody is expected any more"
    assert not both.tree.has_held_prefix(tokens(1, 2, 3, 4))
    both.check()


def test_one_who_waits_leaves_what_the_more_urgent_in_host_memory_come_back_behind() -> None:
    both = TwoMemories()
    both.remember(1, 2, 3)
    both.tree.hold(tokens(1, 2, 3), Hold(HoldKind.TOOL_GAP, 50.0))
    both.tree.evict(2)
    both.remember(7, 8)
    assert both.tree.evict(8, most=both.retention.most_for_waiting(1)) == 2
    assert (both.where(1, 2, 3), both.where(7, 8)) == ("dhh", "hh")
    assert both.tree.evict(8, most=both.retention.most_for_waiting(0)) == 1
    assert both.where(1, 2, 3) == "hhh"


def test_what_is_given_up_takes_with_it_what_can_no_longer_be_reached() -> None:
    both = TwoMemories(num_host_blocks=2)
    both.remember(1, 2, 3, 4)
    both.tree.evict(2)
    assert both.where(1, 2, 3, 4) == "ddhh"
    both.tree.forget(tokens(1, 2, 3, 4))
    both.check()
    assert both.where(1) == ""
    assert both.tree.host_pool.num_free == 2


def test_the_beginning_pushes_out_the_end() -> None:
    both = TwoMemories(num_host_blocks=2)
    both.remember(1, 2, 3, 4)
    for wanted in ("dddh", "ddhh", "dhh", "hh"):
        assert both.tree.evict(1) == 1
        both.check()
        assert both.where(1, 2, 3, 4) == wanted


def test_what_others_bring_meanwhile_stays_as_long_as_what_follows_it_is_being_copied() -> None:
    both = TwoMemories()
    both.remember(1, 2, 3, 4)
    both.tree.evict(4)
    copy = both.begin(1, 2, 3, 4)
    assert copy
    both.remember(1, 2)  # computed, or read from disk
    assert both.where(1, 2, 3, 4) == "ddhh"
    assert both.tree.evict(2) == 0, "or it would go to host memory, before what is being copied, and be copied again"
    both.check()
    assert both.begin(1, 2, 3, 4) is None
    both.end(copy)
    assert both.where(1, 2, 3, 4) == "dddd"
    assert (both.pool.num_idle, both.tree.host_pool.num_free) == (4, 8)


sequences = st.lists(st.integers(0, 2), min_size=1, max_size=6)
kinds = st.sampled_from([*HoldKind])


class Life(RuleBasedStateMachine):
    """A random life: what the tree knows is in the block it says, wherever that is."""

    @initialize(num_blocks=st.integers(6, 12), num_host_blocks=st.integers(0, 10))
    def begin(self, num_blocks: int, num_host_blocks: int) -> None:
        self.both = TwoMemories(num_blocks, num_host_blocks)
        self.known: set[tuple[int, ...]] = set()

    @rule(values=sequences, session=st.sampled_from("ab"))
    def remember(self, values: list[int], session: str) -> None:
        if self.both.remember(*values, session=session):
            assert self.both.where(*values) == "d" * len(values)
            self.known.add(tuple(values))

    @precondition(lambda self: self.known)
    @rule(number=st.integers(0, 99), length=st.integers(1, 6))
    def remember_a_part(self, number: int, length: int) -> None:
        self.both.remember(*self._known(number)[:length])

    @precondition(lambda self: self.known)
    @rule(number=st.integers(0, 99))
    def begin_copy(self, number: int) -> None:
        self.both.begin(*self._known(number))

    @precondition(lambda self: self.both.copies)
    @rule(data=st.data())
    def end_copy(self, data: st.DataObject) -> None:
        copy = data.draw(st.sampled_from(self.both.copies))
        self.both.end(copy)
        assert self.both.where(*copy.values) == "d" * len(copy.values)

    @rule(count=st.integers(1, 5))
    def evict(self, count: int) -> None:
        num_idle = self.both.pool.num_idle
        num_freed = self.both.tree.evict(count)
        assert num_freed == min(count, num_idle) or (num_freed < count and self.both.copies)

    @rule(values=sequences, kind=kinds, seconds=st.integers(0, 5))
    def hold(self, values: list[int], kind: HoldKind, seconds: int) -> None:
        self.both.tree.hold(tokens(*values), Hold(kind, self.both.retention.now + seconds, seconds))

    @rule(values=sequences)
    def forget(self, values: list[int]) -> None:
        self.both.tree.forget(tokens(*values))
        assert self.both.where(*values) == "" or self.both.copies

    @rule(seconds=st.integers(0, 3))
    def wait(self, seconds: int) -> None:
        self.both.retention.now += seconds

    def _known(self, number: int) -> tuple[int, ...]:
        known = sorted(self.known)
        return known[number % len(known)]

    @invariant()
    def holds(self) -> None:
        self.both.check()
        for values in self.known:
            self.both.where(*values)


TestLife = Life.TestCase
