"""Who goes first when room is needed: a documented order, and never a refusal."""

from array import array

import pytest

from hotloop.core.retention import Hold, HoldKind
from hotloop.engine.blocks import BlockPool
from hotloop.engine.radix import RadixTree
from hotloop.engine.retention import FADE_S, GRACE_S, Retention

BLOCK_SIZE = 4


class Shelf:
    """A tree of idle prefixes, each of one family of tokens."""

    def __init__(self, num_blocks: int = 64, max_pinned: int = 32) -> None:
        self.pool = BlockPool(num_blocks)
        self.retention = Retention(max_pinned)
        self.tree = RadixTree(self.pool, BLOCK_SIZE, self.retention)

    def put(self, family: int, num_blocks: int = 1, *, salt: str = "") -> None:
        tokens = prefix(family, num_blocks)
        block_ids = self.pool.allocate(num_blocks)
        assert block_ids is not None
        self.tree.insert(tokens, block_ids, salt)
        self.pool.release(block_ids)

    def hold(self, family: int, kind: HoldKind, until: float = 0.0, ttl_s: float = 0.0) -> None:
        self.tree.hold(prefix(family, 16), Hold(kind, until, ttl_s))

    def has(self, family: int) -> bool:
        """Without marking it as used."""
        return any(node.key.startswith(prefix(family, 1).tobytes()) for node in self.tree._nodes())

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


def test_the_order_is_finished_then_ordinary_then_away_then_pinned() -> None:
    shelf = Shelf()
    for family in (1, 2, 3, 4):
        shelf.put(family)
    shelf.hold(1, HoldKind.PINNED, until=300, ttl_s=300)
    shelf.hold(2, HoldKind.AWAY, until=2)
    shelf.hold(4, HoldKind.FINISHED)
    assert shelf.order(1, 2, 3, 4) == [4, 3, 2, 1]


def test_of_those_away_the_one_who_returns_last_goes_first() -> None:
    shelf = Shelf()
    for family, until in ((1, 5.0), (2, 50.0), (3, 1.0)):
        shelf.put(family)
        shelf.hold(family, HoldKind.AWAY, until)
    assert shelf.order(1, 2, 3) == [2, 1, 3]


def test_one_who_does_not_come_back_is_like_any_other() -> None:
    shelf = Shelf()
    shelf.put(1)
    shelf.hold(1, HoldKind.AWAY, until=2)
    shelf.retention.now = 2 + GRACE_S + 2 * FADE_S
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


def test_pins_are_a_share_of_the_pool_and_what_is_asked_beyond_is_ordinary() -> None:
    shelf = Shelf(max_pinned=2)
    for family in (1, 2, 3):
        shelf.put(family)
        shelf.hold(family, HoldKind.PINNED, until=300, ttl_s=300)
    assert shelf.order(1, 2, 3) == [3, 1, 2]


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
