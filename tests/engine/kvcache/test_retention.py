"""Who goes first when room is needed: a documented order, and never a refusal."""

from array import array

import pytest

from hotloop.core.retention import Hold, HoldKind
from hotloop.engine.kvcache.blocks import BlockPool
from hotloop.engine.kvcache.radix import RadixTree
from hotloop.engine.kvcache.retention import ATTENTION_TOKENS, FADE_S, Retention

BLOCK_SIZE = 4


class Shelf:
    """A tree of idle prefixes, each of one family of tokens."""

    def __init__(self, num_blocks: int = 64, max_pinned: int = 32) -> None:
        self.pool = BlockPool(num_blocks)
        self.retention = Retention(max_pinned)
        self.tree = RadixTree(self.pool, BLOCK_SIZE, self.retention)

    def put(self, family: int, num_blocks: int = 1, *, salt: str = "", session: str = "") -> None:
        tokens = prefix(family, num_blocks)
        block_ids = self.pool.allocate(num_blocks)
        assert block_ids is not None
        self.tree.insert(tokens, block_ids, salt, session)
        self.pool.release(block_ids)

    def hold(self, family: int, kind: HoldKind, until: float = 0.0, ttl_s: float = 0.0, rank: int = 0) -> None:
        self.tree.hold(prefix(family, 16), Hold(kind, until, ttl_s, rank))

    def has(self, family: int) -> bool:
        """Without marking it as used."""
        return any(node.key.startswith(prefix(family, 1).tobytes()) for node in self.tree.nodes())

    def order(self, *families: int) -> list[int]:
        """The families in the order in which they are given up."""
        gone: list[int] = []
        left = set(families)
        while left:
            assert self.tree.evict(1) == 1
            self.tree.check()
            lost = {family for family in left if not self.has(family)}
            gone += sorted(lost)
            left -= lost
        return gone


def prefix(family: int, num_blocks: int) -> "array[int]":
    return array("i", [family * 1000 + i for i in range(num_blocks * BLOCK_SIZE)])


def test_the_order_is_finished_then_ordinary_then_tool_gap_then_pinned() -> None:
    shelf = Shelf()
    for family in (1, 2, 3, 4):
        shelf.put(family)
    shelf.hold(1, HoldKind.PINNED, until=300, ttl_s=300)
    shelf.hold(2, HoldKind.TOOL_GAP, until=2)
    shelf.hold(4, HoldKind.FINISHED)
    assert shelf.order(1, 2, 3, 4) == [4, 3, 2, 1]


def test_in_a_tool_gap_the_one_who_returns_last_goes_first() -> None:
    shelf = Shelf()
    for family, until in ((1, 5.0), (2, 50.0), (3, 1.0)):
        shelf.put(family)
        shelf.hold(family, HoldKind.TOOL_GAP, until)
    assert shelf.order(1, 2, 3) == [2, 1, 3]


def test_in_a_tool_gap_the_less_urgent_go_first() -> None:
    shelf = Shelf()
    for family, until, rank in ((1, 50.0, 0), (2, 5.0, 2), (3, 5.0, 1)):
        shelf.put(family)
        shelf.hold(family, HoldKind.TOOL_GAP, until, rank=rank)
    assert shelf.order(1, 2, 3) == [2, 3, 1]


def test_who_has_lost_a_little_loses_the_rest_before_others_lose_any() -> None:
    shelf = Shelf()
    for family, until in ((1, 50.0), (2, 5.0)):
        shelf.put(family, 3)
        shelf.hold(family, HoldKind.TOOL_GAP, until)
    assert shelf.tree.evict(1) == 1
    assert shelf.tree.evict(2) == 2
    assert not shelf.has(1)
    assert len(shelf.tree.peek(prefix(2, 3))) == 3
    shelf.tree.check()


@pytest.mark.parametrize(("kind", "is_held"), [(HoldKind.TOOL_GAP, False), (HoldKind.PINNED, True)])
def test_a_tool_gap_is_not_held_any_more_once_a_block_is_lost_and_a_pin_is(kind: HoldKind, *, is_held: bool) -> None:
    shelf = Shelf()
    shelf.put(1, 3)
    shelf.hold(1, kind, until=50.0, ttl_s=50.0)
    assert shelf.tree.evict(1) == 1
    [node] = shelf.tree.nodes()
    assert (node.hold is not None) == is_held


def test_one_who_waits_takes_nothing_from_the_more_urgent_in_a_tool_gap() -> None:
    shelf = Shelf()
    for family, rank in ((1, 0), (2, 1), (3, 2)):
        shelf.put(family, 2)
        shelf.hold(family, HoldKind.TOOL_GAP, until=5, rank=rank)
    shelf.put(4, 2)
    shelf.put(5, 2)
    shelf.hold(5, HoldKind.PINNED, until=5)
    assert shelf.tree.evict(10, most=shelf.retention.most_for_waiting(1)) == 6
    assert [shelf.has(family) for family in (1, 2, 3, 4, 5)] == [True, False, False, False, True]
    shelf.retention.now = 5.0
    assert shelf.tree.evict(10, most=shelf.retention.most_for_waiting(1)) == 4, "they are overdue"
    shelf.tree.check()


def test_what_comes_before_the_more_urgent_stays_as_well() -> None:
    shelf = Shelf()
    shelf.put(1, 4)
    branch = prefix(1, 2) + prefix(2, 2)
    block_ids = shelf.tree.match(prefix(1, 2))
    shelf.pool.use(block_ids)
    block_ids += shelf.pool.allocate(2) or []
    shelf.tree.insert(branch, block_ids)
    shelf.pool.release(block_ids)
    shelf.tree.hold(branch, Hold(HoldKind.TOOL_GAP, 9.0, rank=1))
    assert shelf.tree.evict(10, most=shelf.retention.most_for_waiting(2)) == 2
    assert len(shelf.tree.peek(branch)) == 4


def test_what_is_worth_twice_as_much_outlives_what_is_used_a_little_later() -> None:
    retention = Retention(0)
    long = retention.rank(None, 0.0, 1, int(ATTENTION_TOKENS))
    assert retention.rank(None, 0.5 * FADE_S, 1, 0) < long < retention.rank(None, 0.9 * FADE_S, 1, 0)


def test_of_two_that_were_used_at_once_the_longer_stays() -> None:
    shelf = Shelf(num_blocks=500)
    shelf.put(1, 400)
    shelf.put(2)
    assert shelf.tree.evict(1) == 1
    assert (shelf.has(1), shelf.has(2)) == (True, False)


def test_a_step_of_few_tokens_tells_less_of_what_one_costs() -> None:
    paces = [Retention(0) for _ in range(3)]
    before = paces[0].token_s
    for pace, num_tokens in zip(paces, (128, 256, 2560), strict=True):
        pace.learn(num_tokens, num_tokens * (before + 1.0))
    assert [pace.token_s - before for pace in paces] == pytest.approx([0.1, 0.2, 0.2])


@pytest.mark.parametrize(
    ("kind", "now", "after"),
    [
        (HoldKind.PINNED, 9.0, Hold(HoldKind.PINNED, 14.0, 5.0)),
        (HoldKind.PINNED, 10.0, None),
        (HoldKind.TOOL_GAP, 9.0, None),
        (HoldKind.FINISHED, 9.0, None),
    ],
)
def test_use_renews_a_pin_that_has_not_ended_and_ends_all_other_holds(
    kind: HoldKind, now: float, after: Hold | None
) -> None:
    retention = Retention(0)
    retention.now = now
    assert retention.after_use(Hold(kind, 10.0, 5.0)) == after


def test_holds_that_were_renewed_expire_by_their_last_word() -> None:
    shelf = Shelf()
    shelf.put(1)
    shelf.put(2)
    for i in range(500):
        shelf.retention.now = float(i)
        shelf.hold(1, HoldKind.PINNED, until=i + 300, ttl_s=300)
        shelf.hold(2, HoldKind.TOOL_GAP, until=i + 60)
        shelf.hold(2, HoldKind.TOOL_GAP, until=i + 0.5)
    shelf.retention.now = 798.0
    shelf.tree.evict(0)
    assert [node.hold is None for node in shelf.tree.nodes()] == [False, True]
    shelf.retention.now = 799.0
    shelf.tree.evict(0)
    assert [node.hold is None for node in shelf.tree.nodes()] == [True, True]
    assert not shelf.tree.order.expiring
    shelf.tree.check()


def test_one_is_awaited_who_goes_on_where_a_hold_ends() -> None:
    shelf = Shelf()
    shelf.put(1, 2)
    shelf.hold(1, HoldKind.TOOL_GAP, until=5)
    assert shelf.tree.has_held_prefix(prefix(1, 3))
    assert not shelf.tree.has_held_prefix(prefix(1, 1))
    assert not shelf.tree.has_held_prefix(prefix(1, 1) + prefix(2, 3)), "who only begins alike"
    assert not shelf.tree.has_held_prefix(prefix(1, 3), "salt")
    shelf.retention.now = 5.0
    assert not shelf.tree.has_held_prefix(prefix(1, 3))


def test_a_peek_finds_what_a_match_finds_and_leaves_no_trace() -> None:
    shelf = Shelf()
    shelf.put(1, 4)
    shelf.hold(1, HoldKind.TOOL_GAP, until=5)
    asked = prefix(1, 3) + prefix(2, 1)
    found = shelf.tree.peek(asked)
    assert shelf.tree.has_held_prefix(prefix(1, 4))
    assert found == shelf.tree.match(asked)
    assert len(found) == 3


def test_the_time_to_read_a_token_is_learnt() -> None:
    retention = Retention(0)
    for _ in range(100):
        retention.learn(500, 1.0)
    assert retention.token_s == pytest.approx(1 / 500)


def test_switched_off_nothing_is_held_and_the_longest_unused_goes_first() -> None:
    shelf = Shelf()
    shelf.retention.is_on = False
    for family, num_blocks in ((1, 4), (2, 1), (3, 1)):
        shelf.put(family, num_blocks)
        shelf.hold(family, HoldKind.PINNED, until=300, ttl_s=300)
    shelf.tree.match(prefix(2, 1))
    assert shelf.order(1, 2, 3) == [1, 3, 2]


def test_one_who_does_not_come_back_is_like_any_other() -> None:
    shelf = Shelf()
    shelf.put(1)
    shelf.hold(1, HoldKind.TOOL_GAP, until=2)
    shelf.retention.now = 2 + 2 * FADE_S
    shelf.put(2)
    assert shelf.order(1, 2) == [1, 2]


def test_a_pin_ends_with_its_time_and_begins_anew_with_a_use() -> None:
    shelf = Shelf()
    for family in (1, 2):
        shelf.put(family)
        shelf.hold(family, HoldKind.PINNED, until=300, ttl_s=300)
    shelf.retention.now = 299
    shelf.tree.match(prefix(1, 1))
    shelf.retention.now = 301
    shelf.put(3)
    assert shelf.order(1, 2, 3) == [2, 3, 1]


def test_only_a_pin_replaces_a_pin() -> None:
    shelf = Shelf()
    for family in (1, 2, 3):
        shelf.put(family)
    shelf.hold(1, HoldKind.PINNED, until=300, ttl_s=300)
    shelf.hold(1, HoldKind.FINISHED)
    shelf.hold(2, HoldKind.TOOL_GAP, until=2)
    shelf.hold(2, HoldKind.FINISHED)
    assert shelf.order(1, 2, 3) == [2, 3, 1]


def test_pins_are_a_share_of_the_pool_and_what_is_asked_beyond_is_ordinary() -> None:
    shelf = Shelf(max_pinned=2)
    for family in (1, 2, 3):
        shelf.put(family)
        shelf.hold(family, HoldKind.PINNED, until=300, ttl_s=300)
    assert shelf.order(1, 2, 3) == [3, 1, 2]


def test_a_session_that_is_over_keeps_what_is_pinned_and_no_other_hold() -> None:
    shelf = Shelf()
    for family, session in ((1, "over"), (2, "over"), (3, "over"), (4, "other")):
        shelf.put(family, session=session)
    shelf.hold(1, HoldKind.PINNED, until=300, ttl_s=300)
    shelf.hold(2, HoldKind.TOOL_GAP, until=2)
    shelf.tree.release("over")
    assert [family for family in (1, 2, 3, 4) if shelf.has(family)] == [1, 4]


def test_no_more_is_evicted_than_there_is_no_room_for() -> None:
    shelf = Shelf(num_blocks=8)
    for family in range(5):
        shelf.put(family)
    assert shelf.tree.allocate(3, num_spare=2)
    assert all(map(shelf.has, range(5))), "there was room"
    shelf = Shelf(num_blocks=8)
    for family in range(5):
        shelf.put(family)
    assert shelf.tree.allocate(5)
    assert [family for family in range(5) if shelf.has(family)] == [2, 3, 4]


def test_who_is_in_a_tool_gap_takes_no_room_from_pins() -> None:
    shelf = Shelf(max_pinned=2)
    for family in (1, 2, 3):
        shelf.put(family)
    shelf.hold(1, HoldKind.TOOL_GAP, until=2)
    shelf.hold(2, HoldKind.TOOL_GAP, until=3)
    shelf.hold(3, HoldKind.PINNED, until=300, ttl_s=300)
    assert shelf.order(1, 2, 3)[-1] == 3


def test_a_state_is_worth_more_the_more_it_saves() -> None:
    retention = Retention(0)
    few, many = (retention.rank(None, 0.0, 1, 100, num_tokens=saved) for saved in (10, 90))
    assert few < many


def test_new_work_always_finds_room() -> None:
    shelf = Shelf(num_blocks=4, max_pinned=4)
    for family in range(4):
        shelf.put(family)
        shelf.hold(family, HoldKind.PINNED, until=300, ttl_s=300)
    assert shelf.tree.evict(4) == 4
    assert shelf.pool.num_free == 4


def test_a_deep_prefix_is_worth_more_than_a_shallow_one_of_the_same_age() -> None:
    retention = Retention(0)
    assert retention.rank(None, 0.0, 9, 100) < retention.rank(None, 0.0, 1, 20_000)


def test_what_is_used_again_is_no_longer_finished() -> None:
    shelf = Shelf()
    for family in (1, 2):
        shelf.put(family)
    shelf.hold(2, HoldKind.FINISHED)
    shelf.tree.match(prefix(2, 1))
    assert shelf.order(1, 2) == [1, 2]


def test_salts_share_nothing() -> None:
    shelf = Shelf()
    shelf.put(1, 2, salt="mine")
    assert shelf.tree.match(prefix(1, 2)) == []
    assert shelf.tree.match(prefix(1, 2), "theirs") == []
    assert len(shelf.tree.match(prefix(1, 2), "mine")) == 2
    shelf.put(1, 2, salt="theirs")
    assert set(shelf.tree.match(prefix(1, 2), "mine")).isdisjoint(shelf.tree.match(prefix(1, 2), "theirs"))
    shelf.tree.check()
    assert shelf.tree.evict(4) == 4
    shelf.tree.check()


@pytest.mark.parametrize("salt", ["", "mine"])
def test_what_was_given_up_is_remembered(salt: str) -> None:
    shelf = Shelf()
    shelf.put(1, 4, salt=salt)
    shelf.retention.now = 7.0
    assert shelf.tree.evict(2, "somebody") == 2
    eviction = shelf.tree.eviction(prefix(1, 4), 2 * BLOCK_SIZE, salt)
    assert eviction is not None
    assert (eviction.at, eviction.beneficiary) == (7.0, "somebody")
    assert shelf.tree.eviction(prefix(1, 4), BLOCK_SIZE, salt) is None
    assert shelf.tree.eviction(prefix(2, 4), 2 * BLOCK_SIZE, salt) is None
