"""The block pool against a model of sets."""

import hypothesis.strategies as st
import pytest
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from hotloop.engine.kvcache.blocks import BlockPool

NUM_BLOCKS = 12


def test_allocates_all_or_nothing() -> None:
    pool = BlockPool(3)
    assert pool.allocate(4) is None
    assert pool.num_free == 3
    assert sorted(pool.allocate(3) or []) == [0, 1, 2]
    assert pool.allocate(1) is None
    assert pool.allocate(0) == []


def allocated(count: int) -> tuple[BlockPool, list[int]]:
    pool = BlockPool(2)
    block_ids = pool.allocate(count)
    assert block_ids
    return pool, block_ids


def test_a_block_is_free_when_its_last_user_leaves() -> None:
    pool, block_ids = allocated(1)
    pool.use(block_ids)
    pool.release(block_ids)
    assert (pool.num_free, pool.num_used) == (1, 1)
    pool.release(block_ids)
    assert (pool.num_free, pool.num_used) == (2, 0)


def test_a_kept_block_is_idle_without_users_and_can_be_used_again() -> None:
    pool, block_ids = allocated(2)
    pool.keep(block_ids)
    pool.release(block_ids)
    assert (pool.num_free, pool.num_idle, pool.num_used) == (0, 2, 0)
    pool.use(block_ids[:1])
    assert (pool.num_free, pool.num_idle, pool.num_used) == (0, 1, 1)
    pool.drop(block_ids)
    assert (pool.num_free, pool.num_idle, pool.num_used) == (1, 0, 1)


def test_misuse_is_our_bug_and_says_so() -> None:
    pool = BlockPool(1)
    with pytest.raises(AssertionError, match="cannot be released"):
        pool.release([0])
    with pytest.raises(AssertionError, match="cannot be shared"):
        pool.use([0])
    with pytest.raises(AssertionError, match="only a used block"):
        pool.keep([0])


class Pool(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(NUM_BLOCKS)
        self.users = dict.fromkeys(range(NUM_BLOCKS), 0)
        self.kept: set[int] = set()

    @property
    def used(self) -> list[int]:
        return [block_id for block_id, users in self.users.items() if users]

    @rule(count=st.integers(0, NUM_BLOCKS))
    def allocate(self, count: int) -> None:
        free = {block_id for block_id, users in self.users.items() if not users} - self.kept
        block_ids = self.pool.allocate(count)
        assert (block_ids is None) == (count > len(free))
        assert free.issuperset(block_ids or [])
        self.users.update(dict.fromkeys(block_ids or [], 1))

    @precondition(lambda self: self.used or self.kept)
    @rule(data=st.data())
    def use(self, data: st.DataObject) -> None:
        block_id = data.draw(st.sampled_from(sorted({*self.used, *self.kept})))
        self.pool.use([block_id])
        self.users[block_id] += 1

    @precondition(lambda self: self.used)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        block_id = data.draw(st.sampled_from(self.used))
        self.pool.release([block_id])
        self.users[block_id] -= 1

    @precondition(lambda self: set(self.used) - self.kept)
    @rule(data=st.data())
    def keep(self, data: st.DataObject) -> None:
        block_id = data.draw(st.sampled_from(sorted(set(self.used) - self.kept)))
        self.pool.keep([block_id])
        self.kept.add(block_id)

    @precondition(lambda self: self.kept)
    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        block_id = data.draw(st.sampled_from(sorted(self.kept)))
        self.pool.drop([block_id])
        self.kept.remove(block_id)

    @invariant()
    def holds(self) -> None:
        self.pool.check()
        assert self.pool.num_used == len(self.used)
        assert self.pool.num_idle == len(self.kept - set(self.used))
        for block_id, users in self.users.items():
            assert self.pool.num_users[block_id] == users
            assert self.pool.is_kept[block_id] == (block_id in self.kept)


TestPool = Pool.TestCase
