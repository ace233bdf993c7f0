"""The exact index against a plain model of it: replicas that cut prompts and call blocks as they like."""

import gc

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from hotloop.router.placement.exact import MIN_RUN_TOKENS, HeldBlocks, match

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
        self.known = {name: HeldBlocks() for name in BLOCK_SIZES}
        self.held: dict[str, set[tuple[int, ...]]] = {name: set() for name in BLOCK_SIZES}
        for known in self.known.values():
            known.complete()

    @rule(name=st.sampled_from([*BLOCK_SIZES]), prompt=prompts)
    def store(self, name: str, prompt: list[int]) -> None:
        """What is new of a prompt."""
        size = BLOCK_SIZES[name]
        ends = [tuple(prompt[:end]) for end in range(size, len(prompt) + 1, size)]
        known = [tokens for tokens in ends if tokens in self.held[name]]
        new = ends[len(known) :]
        token_ids = prompt[len(known) * size : len(ends) * size]
        parent = call(name, known[-1]) if known else None
        self.known[name].stored([call(name, end) for end in new], token_ids, block_size=size, parent=parent)
        self.held[name].update(new)

    @rule(name=st.sampled_from([*BLOCK_SIZES]), data=st.data())
    def give_up(self, name: str, data: st.DataObject) -> None:
        """A block that nothing builds on."""
        held = self.held[name]
        leaves = [one for one in held if not any(len(o) > len(one) and o[: len(one)] == one for o in held)]
        if leaves:
            leaf = data.draw(st.sampled_from(sorted(leaves)))
            self.known[name].removed([call(name, leaf), call(name, (7,))])
            held.remove(leaf)

    @rule(name=st.sampled_from([*BLOCK_SIZES]))
    def start_anew(self, name: str) -> None:
        self.known[name].clear()
        self.known[name].complete()
        self.held[name] = set()

    @rule(prompt=prompts)
    def match(self, prompt: list[int]) -> None:
        wanted = tuple(prompt[:-1])
        expected = {}
        for name, run in RUNS.items():
            num_held = max((num_common(wanted, one) for one in self.held[name]), default=0)
            expected[name] = num_held // run * run
        assert match(self.known, prompt) == expected

    @invariant()
    def is_valid(self) -> None:
        for known in self.known.values():
            known.check()


TestMachine = Machine.TestCase


@pytest.fixture
def held() -> HeldBlocks:
    return HeldBlocks()


PROMPT = list(range(100))


def test_who_was_not_heard_from_the_beginning_is_known_by_what_is_found(held: HeldBlocks) -> None:
    assert match({"a": held}, PROMPT) == {}
    held.stored([1, 2], PROMPT[:32], block_size=16)
    assert match({"a": held}, PROMPT) == {"a": 32}
    assert match({"a": held}, PROMPT[1:]) == {}
    held.complete()
    assert match({"a": held}, PROMPT[1:]) == {"a": 0}
    assert match({"a": held}, []) == {"a": 0}


def test_what_follows_something_unknown_is_unknown(held: HeldBlocks) -> None:
    held.stored([2], PROMPT[16:32], block_size=16, parent=1)
    assert len(held.blocks) == 0
    held.stored([1], PROMPT[:16], block_size=16)
    held.stored([2], PROMPT[16:32], block_size=16, parent=1)
    assert match({"a": held}, PROMPT) == {"a": 32}


def test_the_last_token_is_always_read(held: HeldBlocks) -> None:
    held.stored([1, 2], PROMPT[:32], block_size=16)
    assert match({"a": held}, PROMPT[:33]) == {"a": 32}
    assert match({"a": held}, PROMPT[:32]) == {"a": 16}


def test_a_hole_ends_a_match_until_it_is_filled(held: HeldBlocks) -> None:
    held.stored([1, 2, 3], PROMPT[:48], block_size=16)
    held.removed([2])
    assert match({"a": held}, PROMPT) == {"a": 16}
    held.stored([2], PROMPT[16:32], block_size=16, parent=1)
    assert match({"a": held}, PROMPT) == {"a": 48}
    held.check()


def test_a_block_is_held_as_long_as_it_is_anywhere(held: HeldBlocks) -> None:
    held.stored([1], PROMPT[:16], block_size=16, place="GPU")
    held.stored([1], [], block_size=0, place="CPU")
    held.stored([1], PROMPT[:16], block_size=16, place="GPU")
    held.removed([1], place="GPU")
    assert match({"a": held}, PROMPT) == {"a": 16}
    held.removed([1], place="elsewhere")
    held.removed([1], place="CPU")
    assert len(held.blocks) == 0
    held.check()


def test_one_size_of_block_a_replica(held: HeldBlocks) -> None:
    held.stored([1], PROMPT[:16], block_size=16)
    held.stored([9], PROMPT[16:24], block_size=8, parent=1)
    assert len(held.blocks) == 1
    held.removed([1])
    held.stored([1], PROMPT[:32], block_size=32)
    assert match({"a": held}, PROMPT) == {"a": 32}


def test_what_there_is_no_room_for_is_unknown() -> None:
    held = HeldBlocks(max_blocks=2)
    held.complete()
    held.stored([1, 2, 3], PROMPT[:48], block_size=16)
    held.complete()
    assert not held.is_complete
    assert match({"a": held}, PROMPT) == {"a": 32}
    held.check()


def test_the_garbage_collector_has_no_blocks_to_look_at(held: HeldBlocks) -> None:
    """Half a million of them would stop the router for a quarter of a second."""
    held.stored(range(64), range(64 * 16), block_size=16, place="GPU")
    assert len(held.blocks) == 64
    assert not any(map(gc.is_tracked, held.blocks.values()))
