"""The index against a plain model of it."""

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from tests.properties import examples

from hotloop.router.placement.index import PrefixIndex

REPLICAS = ("a", "b", "c")
prompts = st.lists(st.integers(0, 2), min_size=1, max_size=12)


def key(blocks: list[int]) -> bytes:
    """Hashes of prefixes: equal exactly where all before is equal."""
    hashes, seen = [], 1
    for block in blocks:
        seen = seen * 3 + block
        hashes.append(seen.to_bytes(8, "big"))
    return b"".join(hashes)


class Machine(RuleBasedStateMachine):
    """Without a bound, a replica holds the longest prefix of anything it was given."""

    def __init__(self) -> None:
        super().__init__()
        self.index = PrefixIndex()
        self.given: dict[str, list[list[int]]] = {replica: [] for replica in REPLICAS}
        for replica in REPLICAS:
            self.index.add_replica(replica, 1000)

    @rule(replica=st.sampled_from(REPLICAS), prompt=prompts)
    def insert(self, replica: str, prompt: list[int]) -> None:
        self.index.insert(replica, key(prompt))
        self.given[replica].append(prompt)

    @rule(replica=st.sampled_from(REPLICAS))
    def restart(self, replica: str) -> None:
        self.index.remove_replica(replica)
        self.index.add_replica(replica, 1000)
        self.given[replica] = []

    @rule(replica=st.sampled_from(REPLICAS), max_blocks=st.integers(1, 20))
    def shrink_and_grow(self, replica: str, max_blocks: int) -> None:
        """What is given up is unknown to the plain model, so it is asked for."""
        self.index.resize(replica, max_blocks)
        assert self.index.num_blocks(replica) <= max_blocks
        self.index.check()
        self.index.resize(replica, 1000)
        kept = [p[: self.index.match(key(p)).blocks.get(replica, 0)] for p in self.given[replica]]
        self.given[replica] = [p for p in kept if p]

    @rule(prompt=prompts)
    def match(self, prompt: list[int]) -> None:
        def num_common(other: list[int]) -> int:
            return next((i for i, (x, y) in enumerate(zip(prompt, other, strict=False)) if x != y), None) or (
                0 if prompt[0] != other[0] else min(len(prompt), len(other))
            )

        expected = {r: max(map(num_common, given), default=0) for r, given in self.given.items()}
        assert self.index.match(key(prompt)).blocks == {r: n for r, n in expected.items() if n}

    @invariant()
    def is_valid(self) -> None:
        self.index.check()


TestIndex = Machine.TestCase
TestIndex.settings = settings(max_examples=examples(30), stateful_step_count=20)


@settings(max_examples=examples(40))
@given(st.lists(st.tuples(st.sampled_from(REPLICAS), prompts), max_size=40), st.integers(1, 15))
def test_a_bound_is_kept_and_the_newest_stays(inserts: list[tuple[str, list[int]]], max_blocks: int) -> None:
    index = PrefixIndex()
    for replica in REPLICAS:
        index.add_replica(replica, max_blocks)
    for replica, prompt in inserts:
        index.insert(replica, key(prompt))
        index.check()
        if len(prompt) <= max_blocks:
            assert index.match(key(prompt)).blocks[replica] == len(prompt)


def test_a_session_that_goes_on_is_one_node_until_others_branch_off() -> None:
    index = PrefixIndex()
    for replica in REPLICAS:
        index.add_replica(replica, 100)
    for prompt in ([0], [0, 1], [0, 1, 2]):
        index.insert("a", key(prompt))
        assert (len(index._replicas["a"].nodes), index.num_blocks("a")) == (1, len(prompt))
    index.insert("b", key([0, 1, 2]))
    index.insert("b", key([0, 1, 2, 0]))
    assert index.match(key([0, 1, 2, 0])).blocks == {"a": 3, "b": 4}
    index.insert("b", key([0, 1, 2, 0, 1]))
    assert (len(index._replicas["b"].nodes), index.num_blocks("b")) == (2, 5)
    for last in (0, 1, 2):
        index.insert("c", key([1, last]))
    for last in (0, 1, 2):
        assert index.match(key([1, last])).blocks == {"c": 2}
    index.check()


def test_a_replica_nobody_knows_holds_nothing() -> None:
    index = PrefixIndex()
    index.insert("a", key([1]))
    index.remove_replica("a")
    assert index.match(key([1])).blocks == {}
    index.check()
