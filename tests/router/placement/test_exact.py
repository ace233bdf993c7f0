"""The exact index against a plain model of it: replicas that cut prompts and call blocks as they like."""

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from hotloop.router.placement.exact import MIN_RUN_TOKENS, ExactIndex

BLOCK_SIZES = {"fine": 1, "small": 4, "usual": 16, "also usual": 16, "large": 32}
RUNS = {name: max(size, MIN_RUN_TOKENS) for name, size in BLOCK_SIZES.items()}

prompts = st.lists(st.integers(0, 1), min_size=1, max_size=4).map(lambda runs: [run for run in runs for _ in range(24)])


def call(name: str, tokens: tuple[int, ...]) -> int | bytes:
    """Each replica has hashes of its own."""
    return repr((name, tokens)).encode() if name == "large" else hash((name, tokens))


def num_common(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    return next((i for i, (x, y) in enumerate(zip(one, other, strict=False)) if x != y), min(len(one), len(other)))


class Machine(RuleBasedStateMachine):
    """`held` are the prefixes that end where a block ends."""

    def __init__(self) -> None:
        super().__init__()
        self.index = ExactIndex()
        self.held: dict[str, set[tuple[int, ...]]] = {name: set() for name in BLOCK_SIZES}
        for name in BLOCK_SIZES:
            self.index.add_replica(name)
            self.index.complete(name)

    @rule(name=st.sampled_from([*BLOCK_SIZES]), prompt=prompts)
    def store(self, name: str, prompt: list[int]) -> None:
        """What is new of a prompt."""
        size = BLOCK_SIZES[name]
        ends = [tuple(prompt[:end]) for end in range(size, len(prompt) + 1, size)]
        known = [tokens for tokens in ends if tokens in self.held[name]]
        new = ends[len(known) :]
        token_ids = prompt[len(known) * size : len(ends) * size]
        parent = call(name, known[-1]) if known else None
        self.index.stored(name, [call(name, end) for end in new], token_ids, block_size=size, parent=parent)
        self.held[name].update(new)

    @rule(name=st.sampled_from([*BLOCK_SIZES]), data=st.data())
    def give_up(self, name: str, data: st.DataObject) -> None:
        """A block that nothing builds on."""
        held = self.held[name]
        leaves = [one for one in held if not any(len(o) > len(one) and o[: len(one)] == one for o in held)]
        if leaves:
            leaf = data.draw(st.sampled_from(sorted(leaves)))
            self.index.removed(name, [call(name, leaf), call(name, (7,))])
            held.remove(leaf)

    @rule(name=st.sampled_from([*BLOCK_SIZES]))
    def start_anew(self, name: str) -> None:
        self.index.remove_replica(name)
        self.index.add_replica(name)
        self.index.complete(name)
        self.held[name] = set()

    @rule(prompt=prompts)
    def match(self, prompt: list[int]) -> None:
        wanted = tuple(prompt[:-1])
        expected = {}
        for name, run in RUNS.items():
            num_held = max((num_common(wanted, one) for one in self.held[name]), default=0)
            expected[name] = num_held // run * run
        assert self.index.match(prompt) == expected

    @invariant()
    def is_sound(self) -> None:
        self.index.check()


TestMachine = Machine.TestCase


@pytest.fixture
def index() -> ExactIndex:
    index = ExactIndex()
    index.add_replica("a")
    return index


PROMPT = list(range(100))


def test_who_was_not_heard_from_the_beginning_is_known_by_what_is_found(index: ExactIndex) -> None:
    assert index.match(PROMPT) == {}
    index.stored("a", [1, 2], PROMPT[:32], block_size=16)
    assert index.match(PROMPT) == {"a": 32}
    assert index.match(PROMPT[1:]) == {}
    index.complete("a")
    assert index.match(PROMPT[1:]) == {"a": 0}
    assert index.match([]) == {"a": 0}


def test_what_follows_something_unknown_is_unknown(index: ExactIndex) -> None:
    index.stored("a", [2], PROMPT[16:32], block_size=16, parent=1)
    assert index.num_blocks("a") == 0
    index.stored("a", [1], PROMPT[:16], block_size=16)
    index.stored("a", [2], PROMPT[16:32], block_size=16, parent=1)
    assert index.match(PROMPT) == {"a": 32}


def test_the_last_token_is_always_read(index: ExactIndex) -> None:
    index.stored("a", [1, 2], PROMPT[:32], block_size=16)
    assert index.match(PROMPT[:33]) == {"a": 32}
    assert index.match(PROMPT[:32]) == {"a": 16}


def test_a_hole_ends_a_match_until_it_is_filled(index: ExactIndex) -> None:
    index.stored("a", [1, 2, 3], PROMPT[:48], block_size=16)
    index.removed("a", [2])
    assert index.match(PROMPT) == {"a": 16}
    index.stored("a", [2], PROMPT[16:32], block_size=16, parent=1)
    assert index.match(PROMPT) == {"a": 48}
    index.check()


def test_a_block_is_held_as_long_as_it_is_anywhere(index: ExactIndex) -> None:
    index.stored("a", [1], PROMPT[:16], block_size=16, place="GPU")
    index.stored("a", [1], [], block_size=0, place="CPU")
    index.stored("a", [1], PROMPT[:16], block_size=16, place="GPU")
    index.removed("a", [1], place="GPU")
    assert index.match(PROMPT) == {"a": 16}
    index.removed("a", [1], place="elsewhere")
    index.removed("a", [1], place="CPU")
    assert index.num_blocks("a") == 0
    index.check()


def test_one_size_of_block_a_replica(index: ExactIndex) -> None:
    index.stored("a", [1], PROMPT[:16], block_size=16)
    index.stored("a", [9], PROMPT[16:24], block_size=8, parent=1)
    assert index.num_blocks("a") == 1
    index.removed("a", [1])
    index.stored("a", [1], PROMPT[:32], block_size=32)
    assert index.match(PROMPT) == {"a": 32}


def test_what_there_is_no_room_for_is_unknown() -> None:
    index = ExactIndex(max_blocks=2)
    index.add_replica("a")
    index.complete("a")
    index.stored("a", [1, 2, 3], PROMPT[:48], block_size=16)
    index.complete("a")
    assert not index.is_complete("a")
    assert index.match(PROMPT) == {"a": 32}
    index.check()
