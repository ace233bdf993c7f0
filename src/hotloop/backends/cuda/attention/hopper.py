"""Attention for chunks on Hopper's tensor cores: what prefill.py computes, half as fast again.

A program has 128 pairs of a row and one of a kv head's query heads, 64 for each of two warpgroups. A warp of its own
loads keys and values by TMA, a few stages ahead of both:

    keys     0 ....... seen by every pair of a warpgroup ....... | diagonal |      past the last row: not read
    stages   [ blocks ][ blocks ][ blocks ] ...                    free again when both warpgroups have read one
    turn j   scores of stage j, then values of stage j - 1         on the tensor cores, while
                              softmax of stage j                   runs beside the values

The warpgroups issue their products in turn, so that one multiplies while the other exponentiates.
Programs run in waves of one on each multiprocessor, and the last wave leaves most of the card idle where it is short:
keys are split among as many programs as end soonest, and merged. Each program counts by itself for how many there is
work, so a graph that was captured for 2,048 rows splits 100 as well.
"""

import math

import torch
import triton
import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from hotloop.backends.cuda.attention.decode import num_multiprocessors

HEAD_DIM = 128
_TILE_PAIRS = tl.constexpr(128)
_MAX_SPLITS = tl.constexpr(16)
_MAX_WAVES = 8  # of programs that have a split each
_FIXED_TURNS = tl.constexpr(8.0)  # what a program takes besides its turns, and its share of merging
_FACTS = tl.constexpr(4)  # of an item
_STAGES = tl.constexpr(3)  # of two blocks each; more would not fit into shared memory
_copy = getattr(tma, "async_load", None) or tma.async_copy_global_to_shared  # as it was called before Triton 3.7
_HIDDEN = tl.constexpr(-1e30)  # a score that weighs nothing


def can_attend(kv: torch.Tensor) -> bool:
    """Whether this card, and a cache [..., blocks, kv heads, block size, head dim], are such as the kernel is for."""
    is_hopper = kv.is_cuda and torch.cuda.get_device_capability(kv.device)[0] == 9
    return is_hopper and kv.dtype == torch.bfloat16 and kv.shape[-2:] == (64, HEAD_DIM)


def chunk_attention(
    q: torch.Tensor,  # [rows, num_heads, head_dim]
    k_cache: torch.Tensor,  # [num_blocks, num_kv_heads, block_size, head_dim]
    v_cache: torch.Tensor,
    row_begins: torch.Tensor,  # [num_sequences + 1]
    lens: torch.Tensor,  # [num_sequences], the new rows included
    block_ids: torch.Tensor,
    block_begins: torch.Tensor,
    out: torch.Tensor,  # [rows, num_heads, head_dim]
    *,
    num_sequences: int,
    max_rows: int,
    scale: float,
) -> torch.Tensor:
    """Sequence s owns rows [row_begins[s], row_begins[s + 1]), the last of its lens[s] keys."""
    rows, num_heads, head_dim = q.shape
    _, num_kv_heads, block_size, _ = k_cache.shape
    layout = gl.NVMMASharedLayout.get_default_for([block_size, head_dim], gl.bfloat16)
    k, v = (
        TensorDescriptor.from_tensor(cache.view(-1, head_dim), [block_size, head_dim], layout)
        for cache in (k_cache, v_cache)
    )
    group, num_sms = num_heads // num_kv_heads, num_multiprocessors(q.device)
    most_tiles = min(
        num_sequences * triton.cdiv(max_rows * group, _TILE_PAIRS.value),
        triton.cdiv(rows * group, _TILE_PAIRS.value) + num_sequences,
    )
    max_splits = _MAX_WAVES * num_sms
    outs = q.new_empty((max_splits, _TILE_PAIRS.value, head_dim), dtype=torch.float32)
    lses = q.new_empty((max_splits, _TILE_PAIRS.value), dtype=torch.float32)
    found = q.new_empty(_FACTS.value * (max_splits + 1), dtype=torch.int32)
    sizes = num_sequences, num_sms, max_splits, num_heads, num_kv_heads, head_dim, block_size
    _attend[(max(most_tiles * num_kv_heads, max_splits),)](
        q, k, v, row_begins, lens, block_ids, block_begins, out, outs, lses, found, scale * math.log2(math.e), *sizes,
        layout, num_warps=4,
    )  # fmt: skip
    _merge[(min(most_tiles * num_kv_heads, max_splits // 2),)](
        outs, lses, found, out, num_heads, num_kv_heads, head_dim
    )
    return out


@gluon.jit(
    do_not_specialize=["num_sequences", "num_sms", "max_splits"],
    do_not_specialize_on_alignment=["row_begins", "lens", "block_ids", "block_begins"],
)
def _attend(
    q, k, v, row_begins, lens, block_ids, block_begins, out, outs, lses, found, scale_log2, num_sequences, num_sms,
    max_splits, num_heads: gl.constexpr, num_kv_heads: gl.constexpr, head_dim: gl.constexpr, block_size: gl.constexpr,
    layout: gl.constexpr,
):  # fmt: skip
    """An item is a tile of pairs of one kv head; a program has an item, or a split of it where there are few of them.
    How many there are is seen here, so that a captured launch serves steps of all sizes.

        programs   [ items of split 0 | items of split 1 | ... | too many ]
        items      [ tiles of kv head 0 | tiles of kv head 1 | ... ]
        tiles      [ of sequence 0 | of sequence 1 | ... ]     the last of each first, since they have the most keys
    """
    group: gl.constexpr = num_heads // num_kv_heads
    program = gl.program_id(0)
    num_tiles, sum_turns = 0, 0
    for i in range(num_sequences):
        num_own = _count_tiles(row_begins, i, group)
        num_tiles += num_own
        sum_turns += num_own * gl.cdiv(gl.load(lens + i), 2 * block_size)
    num_items = num_tiles * num_kv_heads
    num_splits = _choose_splits(num_items, sum_turns / gl.maximum(num_tiles, 1), num_sms, max_splits)
    if program == 0:
        gl.store(found, num_items)
        gl.store(found + 1, num_splits)
    if program >= num_items * num_splits:
        return
    split, item = program // num_items, program % num_items
    kv_head, nth = item // num_tiles, item % num_tiles
    sequence, num_before = _find_sequence(row_begins, num_sequences, nth, group)
    row_begin = gl.load(row_begins + sequence)
    num_rows = gl.load(row_begins + sequence + 1) - row_begin
    tile = gl.cdiv(num_rows * group, _TILE_PAIRS) - 1 - (nth - num_before)
    if (num_splits > 1) & (split == 0):  # what _merge needs to know of the item
        facts = found + _FACTS * (item + 1)
        gl.store(facts, row_begin)
        gl.store(facts + 1, num_rows)
        gl.store(facts + 2, tile)
        gl.store(facts + 3, kv_head)
    past = gl.load(lens + sequence) - num_rows
    # turns    0 .. | begin ............ end | .. num_turns       those of this split; all of them without splits
    num_keys = past + gl.minimum(num_rows, gl.cdiv((tile + 1) * _TILE_PAIRS, group))
    num_turns = gl.cdiv(num_keys, 2 * block_size)
    begin, end = num_turns * split // num_splits, num_turns * (split + 1) // num_splits
    if begin >= end:  # fewer turns than splits
        pair = gl.arange(0, _TILE_PAIRS, layout=gl.BlockedLayout([1], [32], [4], [0]))
        gl.store(lses + program * _TILE_PAIRS + pair, gl.full_like(pair, 0).to(gl.float32) + _HIDDEN)
        return
    blocks = block_ids + gl.load(block_begins + sequence)
    num_blocks = gl.cdiv(num_keys, block_size)

    queries = gl.allocate_shared_memory(gl.bfloat16, [2, 64, head_dim], layout)
    keys = gl.allocate_shared_memory(gl.bfloat16, [2 * _STAGES, block_size, head_dim], layout)
    values = gl.allocate_shared_memory(gl.bfloat16, [2 * _STAGES, block_size, head_dim], layout)
    ready = gl.allocate_shared_memory(gl.int64, [2 * _STAGES, 1], mbarrier.MBarrierLayout())  # keys, then values
    free = gl.allocate_shared_memory(gl.int64, [2 * _STAGES, 1], mbarrier.MBarrierLayout())
    turns = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(2 * _STAGES):
        mbarrier.init(ready.index(i), count=1)
        mbarrier.init(free.index(i), count=2)
    for i in gl.static_range(2):
        mbarrier.init(turns.index(i), count=1)
    fence_async_shared()
    shared = (queries, keys, values, ready, free, turns)
    places = (row_begin, num_rows, past, tile, kv_head, begin, end, program, num_splits)
    shape: gl.constexpr = (num_heads, group, head_dim, block_size)
    gl.warp_specialize(
        [
            (_multiply, (0, shared, places, q, out, outs, lses, scale_log2, shape)),
            (_multiply, (1, shared, places, q, out, outs, lses, scale_log2, shape)),
            (_load, (shared, k, v, blocks, num_blocks, kv_head, begin, end, num_kv_heads, shape)),
        ],
        [4, 1],
        [240, 24],
    )


@gluon.jit
def _load(shared, k, v, blocks, num_blocks, kv_head, begin, end, num_kv_heads: gl.constexpr, shape: gl.constexpr):
    """Blocks of turns [begin, end), as stages become free. A turn's block past the last is the last one again: no row
    sees its keys."""
    _, keys, values, ready, free, _ = shared
    head_dim: gl.constexpr = shape[2]
    block_size: gl.constexpr = shape[3]
    num_bytes: gl.constexpr = 2 * block_size * head_dim * 2
    for turn in range(begin, end):
        stage = (turn - begin) % _STAGES
        phase = (turn - begin) // _STAGES & 1
        mbarrier.wait(free.index(stage), phase ^ 1)
        mbarrier.expect(ready.index(stage), num_bytes)
        for i in gl.static_range(2):
            block = gl.load(blocks + gl.minimum(2 * turn + i, num_blocks - 1))
            at = (block * num_kv_heads + kv_head) * block_size
            _copy(k, [at, 0], ready.index(stage), keys.index(2 * stage + i))
        mbarrier.wait(free.index(_STAGES + stage), phase ^ 1)
        mbarrier.expect(ready.index(_STAGES + stage), num_bytes)
        for i in gl.static_range(2):
            block = gl.load(blocks + gl.minimum(2 * turn + i, num_blocks - 1))
            at = (block * num_kv_heads + kv_head) * block_size
            _copy(v, [at, 0], ready.index(_STAGES + stage), values.index(2 * stage + i))


@gluon.jit
def _multiply(c: gl.constexpr, shared, places, q, out, outs, lses, scale_log2, shape: gl.constexpr):
    """What one of the two warpgroups does for its 64 pairs."""
    queries, keys, values, ready, free, turns = shared
    row_begin, num_rows, past, tile, kv_head, begin, end, program, num_splits = places
    num_heads: gl.constexpr = shape[0]
    group: gl.constexpr = shape[1]
    head_dim: gl.constexpr = shape[2]
    block_size: gl.constexpr = shape[3]
    score_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, block_size, 16])
    out_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, head_dim, 16])
    first_pair = tile * _TILE_PAIRS + c * 64

    load_layout: gl.constexpr = gl.BlockedLayout([1, 8], [2, 16], [4, 1], [1, 0])
    pair = first_pair + gl.arange(0, 64, layout=gl.SliceLayout(1, load_layout))
    at = _place(pair, row_begin, kv_head, num_heads, group)[:, None] * head_dim
    at += gl.arange(0, head_dim, layout=gl.SliceLayout(0, load_layout))[None, :]
    queries.index(c).store(gl.load(q + at, mask=(pair < num_rows * group)[:, None], other=0.0))
    fence_async_shared()
    rows = queries.index(c).load(gl.DotOperandLayout(0, score_layout, 2))

    own_key = past + (first_pair + gl.arange(0, 64, layout=gl.SliceLayout(1, score_layout))) // group
    num_whole = gl.minimum((past + first_pair // group + 1) // (2 * block_size), end)
    peak = gl.full([64], _HIDDEN, gl.float32, gl.SliceLayout(1, score_layout))
    total = gl.zeros([64], gl.float32, gl.SliceLayout(1, score_layout))
    found = gl.zeros([64, head_dim], gl.float32, out_layout)
    mbarrier.wait(ready.index(0), 0)
    s0, s1 = _score(rows, keys, 0, score_layout, block_size)
    s0, s1 = warpgroup_mma_wait(0, deps=[s0, s1])
    mbarrier.arrive(free.index(0), count=1)
    s0, s1 = _hide(s0, s1, begin, own_key, score_layout, block_size)
    w0, w1, _, peak, total = _weigh(s0, s1, peak, total, scale_log2, out_layout)
    if c == 0:
        mbarrier.arrive(turns.index(0), count=1)
    for turn in range(begin + 1, num_whole):
        w0, w1, found, peak, total = _turn(
            turn, False, c, shared, rows, w0, w1, found, peak, total, scale_log2, own_key, begin, score_layout,
            out_layout, shape,
        )  # fmt: skip
    for turn in range(gl.maximum(num_whole, begin + 1), end):
        w0, w1, found, peak, total = _turn(
            turn, True, c, shared, rows, w0, w1, found, peak, total, scale_log2, own_key, begin, score_layout,
            out_layout, shape,
        )  # fmt: skip
    last = (end - 1 - begin) % _STAGES
    mbarrier.wait(ready.index(_STAGES + last), (end - 1 - begin) // _STAGES & 1)
    found = _sum(w0, w1, values, last, found)
    found = warpgroup_mma_wait(0, deps=[found])

    found = found / gl.convert_layout(total, gl.SliceLayout(1, out_layout))[:, None]
    if num_splits > 1:
        lse = gl.convert_layout(peak + gl.log2(total), gl.SliceLayout(1, out_layout))
        _store_part(found, lse, program * _TILE_PAIRS + c * 64, outs, lses, out_layout, head_dim)
    else:
        num_pairs = num_rows * group
        _store_whole(found, first_pair, num_pairs, row_begin, kv_head, out, num_heads, group, out_layout, head_dim)


@gluon.jit
def _store_part(found, lse, first, outs, lses, out_layout: gl.constexpr, head_dim: gl.constexpr):
    at = first + gl.arange(0, 64, layout=gl.SliceLayout(1, out_layout))
    gl.store(lses + at, lse)
    d = gl.arange(0, head_dim, layout=gl.SliceLayout(0, out_layout))
    gl.store(outs + at[:, None] * head_dim + d[None, :], found)


@gluon.jit
def _store_whole(
    found, first_pair, num_pairs, row_begin, kv_head, out, num_heads: gl.constexpr, group: gl.constexpr,
    out_layout: gl.constexpr, head_dim: gl.constexpr,
):  # fmt: skip
    pair = first_pair + gl.arange(0, 64, layout=gl.SliceLayout(1, out_layout))
    at = _place(pair, row_begin, kv_head, num_heads, group)[:, None] * head_dim
    at += gl.arange(0, head_dim, layout=gl.SliceLayout(0, out_layout))[None, :]
    gl.store(out + at, found.to(out.dtype.element_ty), mask=(pair < num_pairs)[:, None])


@gluon.jit
def _turn(
    turn, is_hiding: gl.constexpr, c: gl.constexpr, shared, rows, w0, w1, found, peak, total, scale_log2, own_key,
    begin, score_layout: gl.constexpr, out_layout: gl.constexpr, shape: gl.constexpr,
):  # fmt: skip
    """Scores of this turn's keys, while the values of the turn before are summed."""
    _, keys, values, ready, free, turns = shared
    block_size: gl.constexpr = shape[3]
    index = turn - begin
    stage, last = index % _STAGES, (index - 1) % _STAGES
    mbarrier.wait(ready.index(stage), index // _STAGES & 1)
    mbarrier.wait(ready.index(_STAGES + last), (index - 1) // _STAGES & 1)
    mbarrier.wait(turns.index(c), (index - 1) & 1)
    s0, s1 = _score(rows, keys, stage, score_layout, block_size)
    found = _sum(w0, w1, values, last, found)
    mbarrier.arrive(turns.index(1 - c), count=1)
    s0, s1 = warpgroup_mma_wait(2, deps=[s0, s1])
    mbarrier.arrive(free.index(stage), count=1)
    if is_hiding:
        s0, s1 = _hide(s0, s1, turn, own_key, score_layout, block_size)
    w0, w1, rescale, peak, total = _weigh(s0, s1, peak, total, scale_log2, out_layout)
    found = warpgroup_mma_wait(0, deps=[found])
    mbarrier.arrive(free.index(_STAGES + last), count=1)
    return w0, w1, found * gl.convert_layout(rescale, gl.SliceLayout(1, out_layout))[:, None], peak, total


@gluon.jit
def _score(rows, keys, stage, score_layout: gl.constexpr, block_size: gl.constexpr):
    """Begin the products with a stage's two blocks of keys."""
    none = gl.zeros([64, block_size], gl.float32, score_layout)
    s0 = warpgroup_mma(rows, keys.index(2 * stage).permute((1, 0)), none, use_acc=False, is_async=True)
    s1 = warpgroup_mma(rows, keys.index(2 * stage + 1).permute((1, 0)), none, use_acc=False, is_async=True)
    return s0, s1


@gluon.jit
def _sum(w0, w1, values, stage, found):
    found = warpgroup_mma(w0, values.index(2 * stage), found, is_async=True)
    return warpgroup_mma(w1, values.index(2 * stage + 1), found, is_async=True)


@gluon.jit
def _hide(s0, s1, turn, own_key, score_layout: gl.constexpr, block_size: gl.constexpr):
    """What lies past a row's own key."""
    key = 2 * turn * block_size + gl.arange(0, block_size, layout=gl.SliceLayout(0, score_layout))
    s0 = gl.where(key[None, :] <= own_key[:, None], s0, _HIDDEN)
    return s0, gl.where(key[None, :] + block_size <= own_key[:, None], s1, _HIDDEN)


@gluon.jit
def _weigh(s0, s1, peak, total, scale_log2, out_layout: gl.constexpr):
    """The online softmax: weights as operands, and by what all that came before is rescaled."""
    operand: gl.constexpr = gl.DotOperandLayout(0, out_layout, 2)
    new_peak = gl.maximum(peak, gl.max(gl.maximum(s0, s1), 1) * scale_log2)
    rescale = gl.exp2(peak - new_peak)
    # of a split that a row sees nothing of, the highest score is a hidden one: it must not weigh anything either
    highest = gl.where(new_peak > 1e-3 * _HIDDEN, new_peak, 0.0)
    w0 = gl.exp2(s0 * scale_log2 - highest[:, None])
    w1 = gl.exp2(s1 * scale_log2 - highest[:, None])
    total = total * rescale + gl.sum(w0 + w1, 1)
    w0 = gl.convert_layout(w0.to(gl.bfloat16), operand)
    w1 = gl.convert_layout(w1.to(gl.bfloat16), operand)
    return w0, w1, rescale, new_peak, total


@gluon.jit
def _choose_splits(num_items, mean_turns, num_sms, max_splits):
    """How many splits of each item end soonest: waves x (turns of a split + what each program takes besides)."""
    num_splits, least = 1, gl.cdiv(num_items, num_sms) * (mean_turns + _FIXED_TURNS)
    for count in range(2, _MAX_SPLITS + 1):
        cost = gl.cdiv(num_items * count, num_sms) * (mean_turns / count + _FIXED_TURNS)
        is_better = (cost < least) & (num_items * count <= max_splits)
        num_splits = gl.where(is_better, count, num_splits)
        least = gl.where(is_better, cost, least)
    return num_splits


@gluon.jit
def _find_sequence(row_begins, num_sequences, nth, group: gl.constexpr):
    """Whose the nth tile is, and how many tiles are before its first."""
    sequence, num_before, num_so_far = 0, 0, 0
    for i in range(num_sequences):
        num_own = _count_tiles(row_begins, i, group)
        is_before = num_so_far + num_own <= nth
        sequence += gl.where(is_before, 1, 0)
        num_before += gl.where(is_before, num_own, 0)
        num_so_far += num_own
    return sequence, num_before


@gluon.jit
def _count_tiles(row_begins, sequence, group: gl.constexpr):
    num_rows = gl.load(row_begins + sequence + 1) - gl.load(row_begins + sequence)
    return gl.cdiv(num_rows * group, _TILE_PAIRS)


@gluon.jit
def _place(pair, row_begin, kv_head, num_heads: gl.constexpr, group: gl.constexpr):
    """pairs   (0, h) (0, h+1) .. (1, h) (1, h+1) ..     h: the group's first head"""
    return (row_begin + pair // group).to(gl.int64) * num_heads + kv_head * group + pair % group


@triton.jit
def _merge(outs, lses, found, out, num_heads: tl.constexpr, num_kv_heads: tl.constexpr, head_dim: tl.constexpr):
    """A program an item: what its splits found, each weighed by what it summed."""
    group: tl.constexpr = num_heads // num_kv_heads
    item, num_items, num_splits = tl.program_id(0), tl.load(found), tl.load(found + 1)
    if num_splits == 1 or item >= num_items:
        return
    facts = found + _FACTS * (item + 1)
    row_begin, num_rows, tile, kv_head = tl.load(facts), tl.load(facts + 1), tl.load(facts + 2), tl.load(facts + 3)
    own = tl.arange(0, _TILE_PAIRS)
    d = tl.arange(0, head_dim)[None, :]
    peak = tl.full([_TILE_PAIRS], _HIDDEN, tl.float32)
    total = tl.zeros([_TILE_PAIRS], tl.float32)
    summed = tl.zeros([_TILE_PAIRS, head_dim], tl.float32)
    for split in range(num_splits):
        at = (split * num_items + item) * _TILE_PAIRS + own
        lse = tl.load(lses + at)
        part = tl.load(outs + at[:, None] * head_dim + d, mask=(lse > _HIDDEN)[:, None], other=0.0)
        new_peak = tl.maximum(peak, lse)
        weight, rescale = tl.exp2(lse - new_peak), tl.exp2(peak - new_peak)
        summed = summed * rescale[:, None] + part * weight[:, None]
        total = total * rescale + weight
        peak = new_peak
    pair = tile * _TILE_PAIRS + own
    at = (row_begin + pair // group).to(tl.int64) * num_heads + kv_head * group + pair % group
    is_pair = (pair < num_rows * group)[:, None]
    tl.store(out + at[:, None] * head_dim + d, (summed / total[:, None]).to(out.dtype.element_ty), mask=is_pair)
