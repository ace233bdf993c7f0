"""A batch on its way to the device: every index a step needs, packed into one buffer and one copy.

    [ slots | window_slots | token_ids | sources | positions | logit_rows | row_begins | lens | block_begins | ..
      rows, 8 bytes each                                                    sequences

    .. | window_begins | states | splits | part_begins | shared | tiles | table | block_ids ]
                                                                                  as many as there are

Sequences with few rows come first, then those with many, rows and all. Each kind has its own `row_begins`, one more
than there are sequences. How the keys of those with few are split is in splits.py, and into which tiles those with many
are cut, for the kernel that wants it, in tiles.py; what is shared (groups.py) is there if anything is. The table
repeats the blocks of the sequences with many rows, a line each: FlashAttention wants it so.

Where each part lies depends on the shape alone, so a CUDA graph that was captured for it finds the parts of every later
step in the same place. A graph's step is padded: rows at the end that are stored nowhere, sequences of either kind that
have no rows and no keys, logits that nobody asked for.
"""

from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeAlias, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from hotloop.backends.backend import Batch
from hotloop.backends.cuda.steps.groups import ITEM_INTS, PrefixGroup, SharedPlan, Sharing
from hotloop.backends.cuda.steps.splits import SPLIT_INTS, Splitting
from hotloop.backends.cuda.steps.tiles import TILE_INTS, Tiling

MAX_SHORT_ROWS = 32  # of one sequence, up to which it is attended to as one that decodes
MIXED_SHORT_ROWS = 8  # the same in most steps that prefill as well
Array = TypeVar("Array", torch.Tensor, NDArray[np.int32])
_NOWHERE = np.array([[-1, 0]], np.int32)  # states that nobody looks at: whoever gets the slot begins anew


class Shape(NamedTuple):
    """The numbers of a step that are fixed when it is launched, and what a CUDA graph is captured for."""

    num_short: int  # sequences with few rows
    num_rows: int  # of all sequences
    max_short_rows: int  # of one sequence that has few
    num_splits: int  # room for what the keys of these are split into
    num_items: int = 0  # room for what sequences share
    num_long: int = 0  # sequences with many rows
    max_long_rows: int = 0  # of one of these
    num_tile_lines: int = 0  # of the plan of their tiles; 0: there is none
    table_width: int = 0  # blocks that there is room for in a line of the table; 0: there is none

    @property
    def num_short_rows(self) -> int:
        """The most that the sequences with few can have in all."""
        return min(self.num_rows, self.num_short * self.max_short_rows)

    @property
    def usual_rows(self) -> int:
        """What most sequences with few have: one, beside prompts, unless there are graphs for more."""
        return 1 if self.num_long and self.max_short_rows <= MIXED_SHORT_ROWS else self.max_short_rows

    def fits(self, step: "Shape") -> bool:
        return all(room >= needed for room, needed in zip(self, step, strict=True))


@dataclass(frozen=True, slots=True)
class Parts(Generic[Array]):
    """The parts of the buffer: on the device, as tensors, or where they are packed."""

    slots: Array
    window_slots: Array  # in the blocks of layers with a window, which may have their own
    token_ids: Array
    sources: Array
    positions: Array
    logit_rows: Array
    row_begins: Array
    lens: Array
    block_begins: Array
    window_begins: Array  # of these blocks, behind the others in `block_ids`; or of the same
    states: Array  # of each sequence the slots it reads and writes; read by hybrids alone
    splits: Array
    part_begins: Array  # [num_short_rows + 1]
    folded: Array
    items: Array
    tiles: Array
    table: Array  # [num_long, table_width]
    block_ids: Array


Views: TypeAlias = Parts[torch.Tensor]
HostParts: TypeAlias = Parts[NDArray[np.int32]]


@dataclass(frozen=True, slots=True)
class Packed:
    """All that a rank has to know of a step."""

    ints: NDArray[np.int32]
    shape: Shape
    is_graph: bool  # whether it is padded to the shape of a graph
    num_wanted: int
    num_chosen: int  # of the tokens that rank 0 chose last, how many the others are told: up to the last it looks up


def view_parts(buffer: torch.Tensor, shape: Shape) -> Views:
    """Where the parts of a step of that shape lie in an int32 buffer."""
    begins = np.cumsum([0, *_sizes(shape)]).tolist()
    parts = [buffer[begin:end] for begin, end in zip(begins, [*begins[1:], len(buffer)], strict=True)]
    parts[:2] = [part.view(torch.int64) for part in parts[:2]]
    parts[-2] = parts[-2].view(shape.num_long, shape.table_width)
    return Parts(*parts)


def capacity(largest: Shape, max_blocks: int) -> int:
    """Integers that the largest step takes, where each sequence has up to `max_blocks`."""
    return sum(_sizes(largest)) + 2 * (largest.num_short + largest.num_long) * max_blocks


def shape_of(
    batch: Batch,
    splitting: Splitting,
    *,
    has_table: bool = False,
    sharing: Sharing | None = None,
    has_groups: bool = False,
    tiling: Tiling | None = None,
) -> Shape:
    """Of a step that is not padded."""
    rows = np.diff(batch.query_starts)
    is_long = rows > MAX_SHORT_ROWS
    short, long = rows[~is_long], rows[is_long]
    max_keys = int((batch.past_lens[is_long] + long).max(initial=0))
    shape = Shape(
        num_short=len(short),
        num_rows=int(batch.query_starts[-1]),
        max_short_rows=int(short.max(initial=0)),
        num_splits=splitting.max_splits(len(short)),
        num_long=len(long),
        max_long_rows=int(long.max(initial=0)),
        num_tile_lines=tiling.max_lines(int(batch.query_starts[-1]), len(long)) if tiling else 0,
        table_width=-(-max_keys // splitting.block_size) if has_table else 0,
    )
    return shape._replace(num_items=sharing.num_items(shape.num_short_rows)) if sharing and has_groups else shape


def pack(
    batch: Batch,
    splitting: Splitting,
    shape: Shape,
    *,
    sharing: Sharing | None = None,
    groups: list[PrefixGroup] | None = None,
    tiling: Tiling | None = None,
) -> NDArray[np.int32]:
    """All of a step as integers, padded to a shape that it fits into. `groups` are those that `sharing` has found."""
    is_long = np.diff(batch.query_starts) > MAX_SHORT_ROWS
    logit_rows = batch.logit_rows
    if is_long.any() and not (np.sort(is_long) == is_long).all():
        batch, logit_rows, groups = _short_first(batch, is_long, groups or [])
        is_long = np.sort(is_long)
    num_short = int((~is_long).sum())
    all_ids = batch.block_ids if batch.window_ids is None else np.concatenate([batch.block_ids, batch.window_ids])
    sizes = _sizes(shape)
    ints = np.zeros(sum(sizes) + len(all_ids), np.int32)
    parts: HostParts = Parts(*np.split(ints, np.cumsum(sizes)))
    lens = batch.past_lens + np.diff(batch.query_starts)
    _fill_rows(parts, batch, logit_rows, splitting.block_size)
    _fill_sequences(parts, batch, lens, num_short, shape.num_short)
    shared = None
    if sharing and groups and shape.num_items:
        shared = sharing.plan(groups, batch.query_starts, batch.block_begins, shape.num_short_rows)
    if num_short:
        _fill_splits(parts, splitting, lens[:num_short], np.diff(batch.query_starts)[:num_short], shared)
    if tiling and is_long.any():
        row_begins, num_rows = batch.query_starts[num_short:-1], np.diff(batch.query_starts)[num_short:]
        block_begins = batch.block_begins[num_short:-1]
        plan = tiling.plan(row_begins, num_rows, lens[num_short:], block_begins, shape.num_tile_lines)
        parts.tiles[:] = plan.reshape(-1)
    if shape.table_width:
        _fill_table(parts.table.reshape(shape.num_long, shape.table_width), batch, lens[is_long], splitting.block_size)
    parts.block_ids[:] = all_ids
    return ints


def _fill_rows(parts: HostParts, batch: Batch, logit_rows: NDArray[np.int64], block_size: int) -> None:
    """What each row is, and where its KV goes; those that pad go nowhere."""
    num_rows = int(batch.query_starts[-1])
    owner = np.repeat(np.arange(len(batch.past_lens)), np.diff(batch.query_starts))
    at = batch.block_begins[owner] + batch.positions // block_size
    window_ids = batch.block_ids if batch.window_ids is None else batch.window_ids
    for part, ids in ((parts.slots, batch.block_ids), (parts.window_slots, window_ids)):
        part[:] = -1
        part.view(np.int64)[:num_rows] = ids[at].astype(np.int64) * block_size + batch.positions % block_size
    parts.token_ids[:num_rows] = batch.token_ids
    parts.sources[:] = -1
    if batch.sources is not None:
        parts.sources[:num_rows] = batch.sources
    parts.positions[:num_rows] = batch.positions
    parts.logit_rows[: len(logit_rows)] = logit_rows


def _fill_sequences(parts: HostParts, batch: Batch, lens: NDArray[np.int32], num_short: int, max_short: int) -> None:
    """What each sequence has, those with many rows behind the room for all with few."""
    window_begin = 0 if batch.window_ids is None else len(batch.block_ids)
    states = _NOWHERE if batch.states is None else batch.states
    for part, each in (
        (parts.lens, lens),
        (parts.block_begins, batch.block_begins[:-1]),
        (parts.window_begins, batch.block_begins[:-1] + window_begin),
        (parts.states.reshape(-1, 2), np.broadcast_to(states, (len(lens), 2))),
    ):
        part[:num_short] = each[:num_short]
        part[max_short:][: len(each) - num_short] = each[num_short:]
    for part, each in (
        (parts.row_begins[: max_short + 1], batch.query_starts[: num_short + 1]),
        (parts.row_begins[max_short + 1 :], batch.query_starts[num_short:]),
    ):
        part[:] = each[-1]
        part[: len(each)] = each


def _fill_splits(
    parts: HostParts, splitting: Splitting, lens: NDArray[np.int32], rows: NDArray[np.int32], shared: SharedPlan | None
) -> None:
    """How the keys of the sequences with few rows are read: those they share, and their own."""
    skipped: tuple[NDArray[np.int64], ...] = ()
    if shared:
        parts.folded[: len(shared.folded)] = shared.folded
        parts.items[: shared.items.size] = shared.items.reshape(-1)
        skipped = shared.num_skipped[: len(lens)], shared.num_parts[: len(lens)]
    plan = splitting.plan(lens, rows, *skipped)
    parts.splits[: plan.splits.size] = plan.splits.reshape(-1)
    parts.part_begins[:] = plan.part_begins[-1]
    parts.part_begins[: len(plan.part_begins)] = plan.part_begins


def _fill_table(table: NDArray[np.int32], batch: Batch, lens: NDArray[np.int32], block_size: int) -> None:
    """The blocks of the last sequences, a line each; what is past a sequence's end is never read."""
    num_blocks = -(-lens // block_size)
    column = np.arange(num_blocks.max(initial=0))
    begins = batch.block_begins[len(batch.past_lens) - len(lens) : len(batch.past_lens)]
    at = np.where(column < num_blocks[:, None], begins[:, None] + column, 0)
    table[: len(lens), : len(column)] = batch.block_ids[at]


def _sizes(shape: Shape) -> list[int]:
    """Of all parts but `block_ids`."""
    num_sequences, num_rows = shape.num_short + shape.num_long, shape.num_rows
    splits = [shape.num_splits * SPLIT_INTS, shape.num_short_rows + 1]
    shared = [num_rows, shape.num_items * ITEM_INTS] if shape.num_items else [0, 0]
    last = [shape.num_tile_lines * TILE_INTS, shape.num_long * shape.table_width]
    sequences = [num_sequences + 2, *[num_sequences] * 3, 2 * num_sequences]
    return [2 * num_rows, 2 * num_rows, *[num_rows] * 4, *sequences, *splits, *shared, *last]


def _short_first(
    batch: Batch, is_long: NDArray[np.bool_], groups: list[PrefixGroup]
) -> tuple[Batch, NDArray[np.int64], list[PrefixGroup]]:
    """The same batch with its sequences in another order, its logit rows in the old order, and its groups."""
    order = np.argsort(is_long, kind="stable")
    place = np.argsort(order)
    begins = np.concatenate([[0], np.cumsum(np.diff(batch.query_starts)[order])]).astype(np.int32)
    rows = np.concatenate([np.arange(batch.query_starts[i], batch.query_starts[i + 1]) for i in order])
    new_rows = np.empty(len(rows), np.int64)
    new_rows[rows] = np.arange(len(rows))
    moved = Batch(
        token_ids=batch.token_ids[rows],
        positions=batch.positions[rows],
        past_lens=batch.past_lens[order],
        query_starts=begins,
        block_ids=batch.block_ids,
        block_begins=np.append(batch.block_begins[:-1][order], 0).astype(np.int32),
        logit_rows=batch.logit_rows,
        sources=None if batch.sources is None else batch.sources[rows],
        states=None if batch.states is None else batch.states[order],
        window_ids=batch.window_ids,
    )
    return moved, new_rows[batch.logit_rows], [PrefixGroup(place[group.members], group.num_blocks) for group in groups]
