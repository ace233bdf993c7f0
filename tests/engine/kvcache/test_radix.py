"""The prefix tree: what it finds, what it gives up, and a random life beside a plain dictionary."""

from array import array
from collections.abc import Sequence

import hypothesis.strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from hotloop.engine.kvcache.blocks import BlockPool
from hotloop.engine.kvcache.changes import Change, Emptied
from hotloop.engine.kvcache.radix import RadixTree

BLOCK = 2


def test_a_tree_that_is_emptied_says_so_to_whoever_listens() -> None:
    changes: list[Change] = []
    RadixTree(BlockPool(4), BLOCK, changes=changes).emptied()
    assert changes == [Emptied()]
    RadixTree(BlockPool(4), BLOCK).emptied()


def tokens(*values: int) -> "array[int]":
    return array("i", values)


class Life:
    """A pool, a tree, and requests that compute, share and leave."""

    def __init__(self, num_blocks: int = 16) -> None:
        self.pool = BlockPool(num_blocks)
        self.tree = RadixTree(self.pool, BLOCK)

    def remember(self, *values: int, leave: bool = True) -> list[int]:
        """Compute these whole blocks, put them into the tree, and go; returns the blocks the tree has."""
        own = self.pool.allocate(len(values) // BLOCK)
        assert own is not None
        shared = self.tree.insert(tokens(*values), own)
        for mine, theirs in zip(own, shared, strict=True):
            if mine != theirs:
                self.pool.use([theirs])
                self.pool.release([mine])
        if leave:
            self.pool.release(shared)
        self.check()
        return shared

    def num_matched(self, *values: int) -> int:
        num_matched = len(self.tree.match(tokens(*values)))
        self.check()
        return num_matched

    def check(self) -> None:
        self.pool.check()
        self.tree.check()


def test_finds_whole_blocks_of_the_longest_prefix_in_order() -> None:
    life = Life()
    block_ids = life.remember(1, 2, 3, 4, 5, 6)
    assert life.tree.match(tokens(1, 2, 3, 4, 5, 6, 7)) == block_ids
    assert life.tree.match(tokens(1, 2, 3, 4, 5)) == block_ids[:2]
    assert life.tree.match(tokens(1, 2, 9, 4)) == block_ids[:1]
    assert life.tree.match(tokens(2, 2)) == []
    assert life.tree.match(tokens(1)) == []
    assert life.tree.match(tokens()) == []


def test_a_fork_inside_an_edge_splits_it() -> None:
    life = Life()
    first = life.remember(1, 2, 3, 4, 5, 6)
    second = life.remember(1, 2, 3, 4, 7, 8)
    assert second[:2] == first[:2]
    assert second[2] != first[2]
    assert life.tree.match(tokens(1, 2, 3, 4, 5, 6)) == first
    assert life.tree.match(tokens(1, 2, 3, 4, 7, 8)) == second
    assert life.pool.num_kept == 4


def test_a_second_copy_is_superfluous() -> None:
    life = Life()
    first = life.remember(1, 2, 3, 4)
    assert life.remember(1, 2, 3, 4) == first
    assert life.pool.num_kept == 2
    assert life.pool.num_free == 14


def test_an_edge_grows_in_place_and_a_fork_at_its_end_does_not() -> None:
    life = Life()
    life.remember(1, 2)
    life.remember(1, 2, 3, 4)
    life.remember(1, 2, 3, 4, 5, 6)
    life.remember(1, 2, 3, 4, 7, 8)
    assert life.num_matched(1, 2, 3, 4, 5, 6) == 3
    assert life.num_matched(1, 2, 3, 4, 7, 8) == 3


def test_gives_up_the_least_recently_used_leaf_first_and_from_its_end() -> None:
    life = Life()
    life.remember(1, 1, 2, 2, 3, 3)
    life.remember(4, 4, 5, 5)
    life.num_matched(1, 1, 2, 2, 3, 3)
    assert life.tree.evict(1) == 1
    assert life.num_matched(4, 4, 5, 5) == 1
    assert life.tree.evict(2) == 2  # the match above was the more recent use
    assert (life.num_matched(1, 1, 2, 2, 3, 3), life.num_matched(4, 4, 5, 5)) == (1, 1)


def test_the_rest_of_an_edge_ages_when_only_its_beginning_is_used() -> None:
    life = Life()
    life.remember(1, 1, 2, 2, 3, 3)
    life.remember(4, 4, 5, 5)
    assert life.num_matched(1, 1, 9, 9) == 1
    assert life.tree.evict(2) == 2
    assert (life.num_matched(4, 4, 5, 5), life.num_matched(1, 1, 2, 2, 3, 3)) == (2, 1)


def test_forgets_what_builds_on_the_first_block_nobody_uses() -> None:
    life = Life()
    life.remember(1, 1, 2, 2, 3, 3)
    life.remember(1, 1, 2, 2, 4, 4)
    life.remember(1, 1, leave=False)
    life.remember(5, 5)
    life.tree.forget(tokens(1, 1, 2, 2, 3, 3, 9))
    life.check()
    assert (life.pool.num_kept, life.num_matched(1, 1, 2, 2), life.num_matched(5, 5)) == (2, 1, 1)


def test_with_blocks_that_are_needed_some_more_are_given_up() -> None:
    life = Life(8)
    life.remember(*[each for i in range(8) for each in (i, i)])
    taken = life.tree.allocate(1, num_spare=3)
    assert taken is not None
    assert (len(taken), life.pool.num_free, life.tree.num_evicted) == (1, 3, 4)
    more = life.tree.allocate(3, num_spare=3)
    assert more is not None
    assert (len(more), life.tree.num_evicted) == (3, 4), "as long as enough are free nothing goes"


def test_of_a_block_that_was_given_up_it_is_known_for_whom() -> None:
    life = Life()
    life.remember(1, 1, 2, 2, 3, 3)
    life.tree.evict(2, "someone")
    for end, is_known in ((3, False), (4, True), (6, True)):
        eviction = life.tree.eviction(tokens(1, 1, 2, 2, 3, 3)[:end], BLOCK)
        assert (eviction is not None and eviction.beneficiary == "someone") == is_known
    assert life.tree.eviction(tokens(1, 1, 2, 2), 0) is None, "which is still there"


def test_blocks_are_of_the_session_that_has_them_until_another_uses_them() -> None:
    life = Life()
    for session, last in (("a", 3), ("b", 4), ("b", 4), ("c", 5)):
        own = life.pool.allocate(3)
        assert own is not None
        shared = array("i", own)
        life.tree.share(tokens(1, 1, 2, 2, last, last), shared, session=session)
        life.pool.release(shared)
    life.check()
    assert life.tree.num_owned == {None: 2, "a": 1, "b": 1, "c": 1}
    life.tree.match(tokens(1, 1, 2, 2, 3, 3), session="b")
    assert life.tree.num_owned == {None: 3, "b": 1, "c": 1}
    life.tree.evict(9)
    assert not life.tree.num_owned


def test_a_parent_can_go_once_its_children_went() -> None:
    life = Life()
    life.remember(1, 1, 2, 2)
    life.remember(1, 1, 3, 3)
    assert life.tree.evict(2) == 2
    assert life.num_matched(1, 1) == 1
    assert life.tree.evict(5) == 1
    assert life.pool.num_free == 16
    assert life.tree.num_evicted == 3


def test_blocks_in_use_stay() -> None:
    life = Life()
    block_ids = life.remember(1, 1, 2, 2, leave=False)
    life.remember(1, 1, 2, 2, 3, 3)
    assert life.tree.evict(9) == 1
    assert life.tree.match(tokens(1, 1, 2, 2, 3, 3)) == block_ids
    assert life.tree.evict(1) == 0
    life.pool.release(block_ids)
    assert life.tree.evict(9) == 2


def test_the_queue_of_leaves_stays_small_however_often_they_are_used() -> None:
    """What is stale goes once it is more than what is not: in time, and not at every use."""
    life = Life(num_blocks=100)
    for i in range(100):
        life.remember(i, i)
    sizes = []
    for i in range(1000):
        life.tree.match(tokens(i % 100, i % 100))
        sizes.append(len(life.tree.order))
    assert max(sizes) == 2 * 100 + 64


sequences = st.lists(st.integers(0, 1), min_size=0, max_size=6).map(
    lambda bits: [bit for bit in bits for _ in range(BLOCK)]
)


class Tree(RuleBasedStateMachine):
    """Beside the tree a dictionary from each known prefix to its block; prefixes known to be in use are pinned."""

    @initialize(num_blocks=st.integers(1, 14))
    def begin(self, num_blocks: int) -> None:
        self.life = Life(num_blocks)
        self.known: dict[tuple[int, ...], int] = {}
        self.used: list[list[int]] = []

    @rule(values=sequences, leave=st.booleans())
    def remember(self, values: list[int], leave: bool) -> None:
        num_blocks = len(values) // BLOCK
        pool = self.life.pool
        if num_blocks > pool.num_free + pool.num_idle:
            return
        if num_blocks > pool.num_free:
            wanted = num_blocks - pool.num_free
            assert self.life.tree.evict(wanted) == wanted, "what is idle can be given up"
            self.forget_evicted()
        block_ids = self.life.remember(*values, leave=leave)
        for i, block_id in enumerate(block_ids):
            assert self.known.setdefault(tuple(values[: (i + 1) * BLOCK]), block_id) == block_id
        if not leave:
            self.used.append(block_ids)

    @rule(values=sequences, extra=st.lists(st.integers(0, 1), max_size=1))
    def match(self, values: list[int], extra: list[int]) -> None:
        assert self.life.tree.match(tokens(*values, *extra)) == self.expected(values)

    @rule(values=sequences)
    def adopt(self, values: list[int]) -> None:
        block_ids = self.life.tree.match(tokens(*values))
        self.life.pool.use(block_ids)
        self.used.append(block_ids)

    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        if self.used:
            self.life.pool.release(self.used.pop(data.draw(st.integers(0, len(self.used) - 1))))

    @rule(values=sequences)
    def forget(self, values: list[int]) -> None:
        path = (tuple(values[: len(values) - end]) for end in range(len(values) - BLOCK, -1, -BLOCK))
        idle = (prefix for prefix in path if prefix in self.known and self.life.pool.num_users[self.known[prefix]] == 0)
        if top := next(idle, None):
            self.known = {prefix: i for prefix, i in self.known.items() if prefix[: len(top)] != top}
        self.life.tree.forget(tokens(*values))

    @rule(count=st.integers(1, 5))
    def evict(self, count: int) -> None:
        num_idle = self.life.pool.num_idle
        assert self.life.tree.evict(count) == min(count, num_idle)
        self.forget_evicted()

    @invariant()
    def holds(self) -> None:
        self.life.check()
        assert self.life.pool.num_kept == len(self.known)

    def expected(self, values: Sequence[int]) -> list[int]:
        block_ids = []
        for end in range(BLOCK, len(values) + 1, BLOCK):
            if tuple(values[:end]) not in self.known:
                break
            block_ids.append(self.known[tuple(values[:end])])
        return block_ids

    def forget_evicted(self) -> None:
        """What went has nobody below it and nobody using it."""
        in_use = {block_id for block_ids in self.used for block_id in block_ids}
        gone = {prefix for prefix, block_id in self.known.items() if not self.life.pool.is_kept[block_id]}
        assert in_use.isdisjoint(self.known[prefix] for prefix in gone)
        for prefix in gone:
            del self.known[prefix]
        assert all(prefix[:-BLOCK] in self.known for prefix in self.known if len(prefix) > BLOCK)


TestTree = Tree.TestCase
