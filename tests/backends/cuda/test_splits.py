"""Whether splits cover every key once, fit where they must, and are about as long."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.properties import examples

from hotloop.backends.cuda.steps.splits import Splitting

BLOCK = 16


@st.composite
def steps(draw: st.DrawFn) -> tuple[list[int], list[int], list[int], list[int]]:
    """Of each sequence: rows, keys, keys that are taken care of elsewhere, and the parts that leaves."""
    count = draw(st.integers(1, 40))
    rows = draw(st.lists(st.integers(1, 9), min_size=count, max_size=count))
    past = draw(st.lists(st.integers(0, 5000), min_size=count, max_size=count))
    skipped = [draw(st.integers(0, each // BLOCK)) * BLOCK for each in past]
    shared = [draw(st.integers(1, 4)) if each else 0 for each in skipped]
    return rows, [a + b for a, b in zip(rows, past, strict=True)], skipped, shared


@settings(max_examples=examples(200))
@given(steps(), st.integers(1, 40), st.sampled_from([400, 2000]))
def test_every_key_is_in_one_split_and_every_part_has_its_place(
    step: tuple[list[int], list[int], list[int], list[int]], num_programs: int, num_slots: int
) -> None:
    rows, lens, skipped, shared = (np.array(each) for each in step)
    splitting = Splitting(BLOCK, num_programs, num_slots)
    splits, part_begins = splitting.plan(lens, rows, skipped, shared)
    least = int(((1 + shared) * (shared > 0)) @ rows)
    assert part_begins[-1] <= max(num_slots, least)
    assert len(splits) <= splitting.max_splits(len(lens))
    first_rows = np.cumsum(rows) - rows
    taken = set()
    for sequence, length in enumerate(lens):
        own = sorted(splits[splits[:, 0] == sequence].tolist(), key=lambda split: split[1])
        begins, ends = [split[1] for split in own], [split[2] for split in own]
        assert begins == [skipped[sequence], *ends[:-1]]
        assert ends[-1] == length
        assert begins[-1] <= length - rows[sequence], "every row sees keys of every split"
        [num_parts] = {split[4] for split in own}
        assert num_parts == len(own) + shared[sequence]
        room = part_begins[first_rows[sequence] + 1] - part_begins[first_rows[sequence]]
        assert room == (num_parts if num_parts > 1 else 0)
        for row in range(rows[sequence] if room else 0):
            assert part_begins[first_rows[sequence] + row] == own[0][3] - shared[sequence] + row * num_parts
            taken |= {split[3] + row * num_parts for split in own}
    assert len(taken) == sum(rows[split[0]] for split in splits if split[4] > 1)


def test_the_card_is_full_however_unlike_the_lengths_are() -> None:
    splitting = Splitting(64, num_programs=33, num_slots=4096)
    for lens in ([2048], [32_768], [100_000, *[1000] * 7], [20_000, 80_000, 5_000, 60_000], [1000] * 64, [1100] * 256):
        splits, _ = splitting.plan(np.array(lens), np.ones(len(lens), int))
        sizes = splits[:, 2] - splits[:, 1]
        assert len(splits) >= 32
        assert sizes.max() <= max(64, sum(lens) / 33), "none takes longer than all take a full card"
        assert (np.diff(-sizes) >= -64).all(), "the longest come first"


def test_what_is_short_beside_the_others_is_not_split() -> None:
    splitting = Splitting(64, num_programs=33, num_slots=4096)
    splits, part_begins = splitting.plan(np.array([1100] * 64), np.ones(64, int))
    assert len(splits) == 64
    assert part_begins[-1] == 0
