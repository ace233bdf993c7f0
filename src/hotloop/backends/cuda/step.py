"""A batch on its way to the device: every index a step needs, packed into one buffer and one copy.

    [ slots | token_ids | sources | positions | wanted | row_begins | lens | block_begins | shared | block_ids | table ]
      rows, 8 bytes each                                 sequences                             as many as there are

What is shared (groups.py) is there if anything is. The table repeats the blocks of the sequences with many rows, each
as wide as the longest: FlashAttention wants it so.

Where each part lies depends on the number of rows, sequences and items alone, so a CUDA graph that was captured for
those finds the parts of every later step in the same place. A graph's step is padded: rows that are stored nowhere,
sequences that have no keys, tokens that nobody wanted.
"""

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from hotloop.backends.backend import Batch
from hotloop.backends.cuda.groups import ITEM_INTS, Group, Sharing

MAX_SHORT_ROWS = 32  # of one sequence, up to which it is attended to as one that decodes


class Shape(NamedTuple):
    """What a CUDA graph is captured for."""

    num_sequences: int
    num_rows: int
    max_rows: int
    """Most rows of one sequence."""
    num_items: int = 0
    """Room for what sequences share; of a step: whether they do."""


@dataclass(frozen=True, slots=True)
class Views:
    """The parts of the buffer, as tensors on the device."""

    slots: torch.Tensor
    token_ids: torch.Tensor
    sources: torch.Tensor
    positions: torch.Tensor
    wanted: torch.Tensor
    row_begins: torch.Tensor
    lens: torch.Tensor
    block_begins: torch.Tensor
    num_skipped: torch.Tensor
    num_parts: torch.Tensor
    folded: torch.Tensor
    items: torch.Tensor
    block_ids: torch.Tensor

    def with_wanted(self, count: int) -> "Views":
        """So many rows are wanted, not as many as there are."""
        return replace(self, wanted=self.wanted[:count])

    def table(self, extent: "Extent") -> torch.Tensor:
        """[num_long, table_width]"""
        begin, width = extent.table_begin, extent.table_width
        return self.block_ids[begin : begin + extent.num_long * width].view(extent.num_long, width)


@dataclass(frozen=True, slots=True)
class Packed:
    """All that a rank has to know of a step."""

    ints: NDArray[np.int32]
    extent: "Extent"
    size: Shape
    graph: Shape | None
    """The graph it is padded to."""
    num_wanted: int
    num_chosen: int
    """Of the tokens that rank 0 chose last, how many the others have to be told: those up to the last it looks up."""


@dataclass(frozen=True, slots=True)
class Extent:
    """The numbers of a step that are fixed when it is launched: sequences with few rows come first."""

    num_short: int
    num_short_rows: int
    max_short_rows: int
    num_long: int = 0
    max_long_rows: int = 0
    table_begin: int = 0
    """Where in `block_ids` the table of the long ones begins: a row each, of `table_width` blocks."""
    table_width: int = 0
    num_items: int = 0


def view_parts(buffer: torch.Tensor, num_sequences: int, num_rows: int, num_items: int = 0) -> Views:
    """Where the parts of a step of that size lie in an int32 buffer."""
    sizes = _sizes(num_sequences, num_rows, num_items)
    begins = np.cumsum([0, *sizes]).tolist()
    parts = [buffer[begin:end] for begin, end in zip(begins, [*begins[1:], len(buffer)], strict=True)]
    return Views(parts[0].view(torch.int64), *parts[1:])


def capacity(max_sequences: int, max_rows: int, max_blocks: int, max_items: int) -> int:
    """Integers that the largest step takes, where each sequence has up to `max_blocks`."""
    return sum(_sizes(max_sequences, max_rows, max_items)) + 2 * max_sequences * max_blocks


def shape_of(batch: Batch, groups: list[Group]) -> Shape:
    rows = np.diff(batch.begins)
    return Shape(len(rows), int(batch.begins[-1]), int(rows.max()), 1 if groups else 0)


def num_looked_up(batch: Batch) -> int:
    """How many of the tokens that were chosen last a step may look up: those up to the last it does."""
    return 0 if batch.sources is None else int(batch.sources.max()) + 1


def pack(
    batch: Batch,
    block_size: int,
    pad_to: Shape | None = None,
    *,
    has_table: bool = False,
    sharing: Sharing | None = None,
    groups: list[Group] | None = None,
) -> tuple[NDArray[np.int32], Extent]:
    """All of a step as integers, padded to a shape where there is one. `groups` are those that `sharing` has found."""
    is_long = np.diff(batch.begins) > MAX_SHORT_ROWS
    wanted = batch.wanted
    if is_long.any() and not (np.sort(is_long) == is_long).all():
        batch, wanted, groups = _short_first(batch, is_long, groups or [])
        is_long = np.sort(is_long)
    num_rows_of = np.diff(batch.begins)
    num_sequences, num_rows = len(num_rows_of), int(batch.begins[-1])
    extent = _extent(num_rows_of, is_long)
    shape = pad_to or Shape(num_sequences, num_rows, 0)
    plan = None
    if sharing and groups:
        num_folding = pad_to.num_rows if pad_to else extent.num_short_rows
        plan = sharing.plan(groups, batch.begins, batch.block_begins, num_folding)
        extent = replace(extent, num_items=len(plan.items))
    all_lens = batch.past_lens + num_rows_of
    table = _table(batch, all_lens[is_long], block_size) if has_table else np.empty((0, 0), np.int32)
    sizes = [*_sizes(shape.num_sequences, shape.num_rows, extent.num_items), len(batch.block_ids), table.size]
    ints = np.zeros(sum(sizes), np.int32)
    slots, token_ids, sources, positions, wanted_rows, row_begins, lens, block_begins, *shared, block_ids, last, _ = (
        np.split(ints, np.cumsum(sizes))
    )
    owner = np.repeat(np.arange(num_sequences), num_rows_of)
    block_of = batch.block_ids[batch.block_begins[owner] + batch.positions // block_size].astype(np.int64)
    slots[:] = -1
    slots.view(np.int64)[:num_rows] = block_of * block_size + batch.positions % block_size
    token_ids[:num_rows] = batch.token_ids
    sources[:] = -1
    if batch.sources is not None:
        sources[:num_rows] = batch.sources
    positions[:num_rows] = batch.positions
    wanted_rows[: len(wanted)] = wanted
    row_begins[:] = num_rows
    row_begins[: num_sequences + 1] = batch.begins
    lens[:num_sequences] = all_lens
    block_begins[: num_sequences + 1] = batch.block_begins
    if plan:
        values = (plan.num_skipped, plan.num_parts, plan.folded, plan.items.reshape(-1))
        for part, value in zip(shared, values, strict=True):
            part[: len(value)] = value
    block_ids[:] = batch.block_ids
    last[:] = table.reshape(-1)
    return ints, replace(extent, table_begin=len(block_ids), table_width=table.shape[1])


def _table(batch: Batch, lens: NDArray[np.int32], block_size: int) -> NDArray[np.int32]:
    """The blocks of the last sequences, a row each; what is past a sequence's end is never read."""
    num_blocks = -(-lens // block_size)
    column = np.arange(num_blocks.max(initial=0))
    begins = batch.block_begins[len(batch.past_lens) - len(lens) : len(batch.past_lens)]
    at = np.where(column < num_blocks[:, None], begins[:, None] + column, 0)
    return batch.block_ids[at].astype(np.int32)


def _extent(num_rows_of: NDArray[np.int32], is_long: NDArray[np.bool_]) -> Extent:
    short, long = num_rows_of[~is_long], num_rows_of[is_long]
    return Extent(len(short), int(short.sum()), int(short.max(initial=0)), len(long), int(long.max(initial=0)))


def _sizes(num_sequences: int, num_rows: int, num_items: int) -> list[int]:
    shared = [num_sequences, num_sequences, num_rows, num_items * ITEM_INTS] if num_items else [0] * 4
    return [2 * num_rows, *[num_rows] * 4, num_sequences + 1, num_sequences, num_sequences + 1, *shared]


def _short_first(
    batch: Batch, is_long: NDArray[np.bool_], groups: list[Group]
) -> tuple[Batch, NDArray[np.int64], list[Group]]:
    """The same batch with its sequences in another order, its wanted rows in the old one, and its groups."""
    order = np.argsort(is_long, kind="stable")
    place = np.argsort(order)
    begins = np.concatenate([[0], np.cumsum(np.diff(batch.begins)[order])]).astype(np.int32)
    rows = np.concatenate([np.arange(batch.begins[i], batch.begins[i + 1]) for i in order])
    new_rows = np.empty(len(rows), np.int64)
    new_rows[rows] = np.arange(len(rows))
    moved = Batch(
        token_ids=batch.token_ids[rows],
        positions=batch.positions[rows],
        past_lens=batch.past_lens[order],
        begins=begins,
        block_ids=batch.block_ids,
        block_begins=np.append(batch.block_begins[:-1][order], 0).astype(np.int32),
        wanted=batch.wanted,
        sources=None if batch.sources is None else batch.sources[rows],
    )
    return moved, new_rows[batch.wanted], [Group(place[group.members], group.num_blocks) for group in groups]
