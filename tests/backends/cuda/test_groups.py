"""Which sequences share what, and whether the items cover it exactly once."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.backends.batches import batch
from tests.properties import examples

from hotloop.backends.backend import Batch
from hotloop.backends.cuda.steps.groups import PrefixGroup, SharedPlan, Sharing
from hotloop.backends.cuda.steps.splits import Splitting
from hotloop.backends.cuda.steps.step import Shape, pack, shape_of, view_parts

BLOCK = 4
SPLITTING = Splitting(BLOCK, num_programs=4, num_slots=4096)
SHARING = Sharing(block_size=BLOCK, tile_rows=4, num_programs=6, min_saved=2, split_rows=4096)


def step(*tables: list[int], num_rows: list[int] | None = None) -> Batch:
    """Sequences whose new rows begin in their last block."""
    rows = num_rows or [1] * len(tables)
    return batch(*(([7] * n, BLOCK * (len(table) - 1), table) for n, table in zip(rows, tables, strict=True)))


def found(*tables: list[int], sharing: Sharing = SHARING, **more: list[int]) -> list[tuple[list[int], int]]:
    groups = sharing.find(step(*tables, **more), max_rows=3)
    return [(sorted(group.members.tolist()), group.num_blocks) for group in groups]


def test_groups_share_leading_blocks_that_are_whole() -> None:
    assert found([1, 2, 3, 4], [1, 2, 3, 5], [8, 9], [1, 2, 3, 6]) == [([0, 1, 3], 3)]
    assert found([1, 2, 3], [1, 2, 3]) == [([0, 1], 2)], "the last block is being written"
    assert found([1, 2, 3], [4, 2, 3]) == []
    assert found([5], [5]) == []


def test_one_that_shares_little_does_not_spoil_it_for_the_others() -> None:
    many = [[1, 2, 3, 4, 5, 10 + i] for i in range(4)]
    assert found(*many, [1, 9, 8]) == [([0, 1, 2, 3], 5)]
    assert found(*many, [1, 2, 3, 4, 9]) == [([0, 1, 2, 3, 4], 4)], "here it is worth a block less"


def test_several_groups_and_the_best_comes_first() -> None:
    small, large = [[1, 2, 3, 10 + i] for i in range(2)], [[4, 5, 6, 20 + i] for i in range(5)]
    assert found(*small, *large, [7, 8]) == [([2, 3, 4, 5, 6], 3), ([0, 1], 3)]


def test_not_where_it_costs_more_than_it_brings() -> None:
    tables = [[1, 2, 3, 10], [1, 2, 3, 11], [1, 2, 3, 12]]
    assert found(*tables, sharing=Sharing(BLOCK, 4, 6, min_saved=6, split_rows=4096)) == [([0, 1, 2], 3)]
    assert found(*tables, sharing=Sharing(BLOCK, 4, 6, min_saved=7, split_rows=4096)) == []
    assert found(*tables, sharing=Sharing(BLOCK, 4, 6, min_saved=2, split_rows=5)) == [], "no room for parts"


def test_those_with_many_rows_are_left_out() -> None:
    tables = [[1, 2, 3, 10], [1, 2, 3, 11], [1, 2, 3, 12]]
    assert found(*tables, num_rows=[1, 4, 3]) == [([0, 2], 3)]


@st.composite
def families(draw: st.DrawFn) -> tuple[list[list[int]], list[int]]:
    """Tables cut from a few trunks, each with blocks of its own after that, and how many rows each has."""
    tables, rows = [], []
    for i in range(draw(st.integers(1, 12))):
        trunk = draw(st.integers(0, 2))
        tables.append([100 * trunk + j for j in range(draw(st.integers(0, 7)))] + [1000 + 10 * i, 1001 + 10 * i])
        rows.append(draw(st.integers(1, 4)))
    return tables, rows


@settings(max_examples=examples(200))
@given(families(), st.integers(1, 5), st.integers(1, 12), st.integers(0, 9))
def test_every_row_of_a_group_meets_every_shared_block_once(
    family: tuple[list[list[int]], list[int]], tile_rows: int, num_programs: int, padding: int
) -> None:
    tables, rows = family
    sharing = Sharing(BLOCK, tile_rows, num_programs, min_saved=2, split_rows=4096)
    made = step(*tables, num_rows=rows)
    groups = sharing.find(made, max_rows=4)
    members = [int(i) for group in groups for i in group.members]
    assert len(set(members)) == len(members)
    for group in groups:
        starts = {tuple(tables[i][: group.num_blocks]) for i in group.members}
        assert len(starts) == 1
        assert all(group.num_blocks < len(tables[i]) for i in group.members)
    if not groups:
        return
    num_rows = sum(rows) + padding
    plan = sharing.plan(groups, made.query_starts, made.block_begins, num_rows)
    assert len(plan.items) == sharing.num_items(num_rows)
    check_plan(plan, groups, made, sharing)


def check_plan(plan: SharedPlan, groups: list[PrefixGroup], made: Batch, sharing: Sharing) -> None:
    seen: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for row_begin, row_end, block_begin, block_end, part in plan.items.tolist():
        assert row_end - row_begin <= sharing.tile_rows
        for row in plan.folded[row_begin:row_end].tolist():
            for block in made.block_ids[block_begin:block_end].tolist():
                seen.setdefault((row, block), []).append((row, part))
    assert all(len(parts) == 1 for parts in seen.values())
    for sequence, (skipped, num_parts) in enumerate(zip(plan.num_skipped, plan.num_parts, strict=True)):
        begin, end = made.query_starts[sequence], made.query_starts[sequence + 1]
        start = made.block_begins[sequence]
        shared = made.block_ids[start : start + skipped // sharing.block_size].tolist()
        is_member = any(sequence in group.members for group in groups)
        assert is_member or not skipped
        for row in range(begin, end):
            assert {block for of, block in seen if of == row} == set(shared)
            parts = {part for (of, _), [(_, part)] in seen.items() if of == row}
            assert parts == set(range(num_parts))


@settings(max_examples=examples(200))
@given(families())
def test_nothing_saves_more_than_the_first_group(family: tuple[list[list[int]], list[int]]) -> None:
    tables, _ = family
    starts = [table[:-1] for table in tables]
    best = 0
    for start in starts:
        for count in range(1, len(start) + 1):
            best = max(best, count * (sum(other[:count] == start[:count] for other in starts) - 1))
    groups = SHARING.find(step(*tables), max_rows=3)
    assert (groups[0].num_saved if groups else 0) == (best if best >= SHARING.min_saved else 0)


def test_long_heads_are_cut_into_as_many_items_as_there_are() -> None:
    head = list(range(100))
    made = step(*([*head, 200 + i] for i in range(3)))
    plan = SHARING.plan(SHARING.find(made, 3), made.query_starts, made.block_begins, 3)
    sizes = plan.items[:, 3] - plan.items[:, 2]
    assert sizes.tolist() == [16, 17, 17, 16, 17, 17]
    assert plan.num_parts.tolist() == [6, 6, 6]


def test_more_groups_than_items_keep_the_best() -> None:
    tables = [[10 * kind, 10 * kind + 1, 1000 + 10 * kind + i] for kind in range(12) for i in range(2 + (kind == 7))]
    made = step(*tables)
    groups = SHARING.find(made, 3)
    assert len(groups) == 12
    plan = SHARING.plan(groups, made.query_starts, made.block_begins, len(tables))
    assert len(plan.items) == 11  # of 25 rows, in tiles of 4, and 4 to spare
    assert plan.num_parts.sum() == 3 + 2 * 10
    check_plan(plan, groups, made, SHARING)


@pytest.mark.parametrize("is_padded", [False, True])
def test_a_step_carries_its_plan(is_padded: bool) -> None:
    """Behind a chunk too, which is moved to the end."""
    import torch  # noqa: PLC0415 - views are tensors

    tables = [[1, 2, 3, 10], [5], [1, 2, 3, 11]]
    made = step(*tables, num_rows=[2, 1 if is_padded else 40, 1])
    if not is_padded:
        made = batch(([7, 7], 12, tables[0]), ([7] * 40, 0, list(range(50, 60))), ([7], 12, tables[2]))
    groups = SHARING.find(made, 32)
    exact = shape_of(made, SPLITTING, sharing=SHARING, has_groups=True)
    shape = Shape(8, 16, 4, SPLITTING.max_splits(8), SHARING.num_items(16)) if is_padded else exact
    assert shape.fits(exact)
    ints = pack(made, SPLITTING, shape, sharing=SHARING, groups=groups)
    views = view_parts(torch.from_numpy(ints), shape)
    own = {(sequence, begin): part_begin for sequence, begin, _, part_begin, _ in views.splits.view(-1, 5).tolist()}
    assert own[0, 12] == 1, "the first part is of what is shared"
    assert own[2 if is_padded else 1, 12] == 5
    assert views.part_begins[:4].tolist() == ([0, 2, 4, 4] if is_padded else [0, 2, 4, 6])
    assert views.folded[:3].tolist() == ([0, 1, 3] if is_padded else [0, 1, 2])
    first, last, block, end, part = views.items[:5].tolist()
    assert (first, last, part) == (0, 3, 0)
    assert views.block_ids[block:end].tolist() == [1, 2, 3]
    apart = shape._replace(num_items=0)
    plain = view_parts(torch.from_numpy(pack(made, SPLITTING, apart)), apart)
    assert (plain.splits.view(-1, 5)[:, 1] < 12).all(), "nothing is skipped"
    assert (plain.block_ids == views.block_ids).all()
