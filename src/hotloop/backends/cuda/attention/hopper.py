"""Attention for chunks on Hopper's tensor cores: what prefill.py computes, half as fast again.

A tile has 128 pairs of a row and one of a kv head's query heads, 64 for each of two warpgroups. A warp of its own
loads keys and values by TMA, a few stages ahead of both:

    keys     0 ....... seen by every pair of a warpgroup ....... | diagonal |      past the last row: not read
    stages   [ blocks ][ blocks ][ blocks ] ...                    free again when both warpgroups have read one
    turn j   scores of stage j, then values of stage j - 1         on the tensor cores, while
                              softmax of stage j                   runs beside the values

The warpgroups issue their products in turn, so that one multiplies while the other exponentiates. Each multiprocessor
runs one program, which goes from tile to tile: the first keys of the next are on their way while the last is stored.
Which program has which tiles, or parts of one, is in steps/tiles.py.
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
from hotloop.backends.cuda.steps.tiles import TILE_INTS, TILE_PAIRS, Tiling

HEAD_DIM = 128
_TILE_PAIRS = tl.constexpr(TILE_PAIRS)
_TILE_INTS = tl.constexpr(TILE_INTS)
_STAGES = tl.constexpr(3)  # of two blocks each; more would not fit into shared memory
_copy = getattr(tma, "async_load", None) or tma.async_copy_global_to_shared  # as it was called before Triton 3.7
_HIDDEN = tl.constexpr(-1e30)  # a score that weighs nothing


def can_attend(kv: torch.Tensor) -> bool:
    """Whether this card, and a cache [..., blocks, kv heads, block size, head dim], are such as the kernel is for."""
    is_hopper = kv.is_cuda and torch.cuda.get_device_capability(kv.device)[0] == 9
    return is_hopper and kv.dtype == torch.bfloat16 and kv.shape[-2:] == (64, HEAD_DIM)


def tiling_for(num_heads: int, num_kv_heads: int, device: torch.device) -> Tiling:
    return Tiling(num_heads // num_kv_heads, num_kv_heads, num_multiprocessors(device))


def chunk_attention(
    q: torch.Tensor,  # [rows, num_heads, head_dim]
    k_cache: torch.Tensor,  # [num_blocks, num_kv_heads, block_size, head_dim]
    v_cache: torch.Tensor,
    block_ids: torch.Tensor,
    tiles: torch.Tensor,  # a plan of `tiling`
    out: torch.Tensor,  # [rows, num_heads, head_dim]
    *,
    tiling: Tiling,
    scale: float,
) -> torch.Tensor:
    """Of the rows whose tiles are named."""
    _, num_heads, head_dim = q.shape
    _, num_kv_heads, block_size, _ = k_cache.shape
    layout = gl.NVMMASharedLayout.get_default_for([block_size, head_dim], gl.bfloat16)
    k, v = (
        TensorDescriptor.from_tensor(cache.view(-1, head_dim), [block_size, head_dim], layout)
        for cache in (k_cache, v_cache)
    )
    num_parts, num_merges = num_kv_heads * tiling.max_parts, tiling.max_parts // 2
    outs = q.new_empty((num_parts, TILE_PAIRS, head_dim), dtype=torch.float32)
    lses = q.new_empty((num_parts, TILE_PAIRS), dtype=torch.float32)
    _attend[(tiling.num_programs,)](
        q, k, v, block_ids, tiles, out, outs, lses, scale * math.log2(math.e), num_heads, num_kv_heads, head_dim,
        block_size, layout, num_warps=4,
    )  # fmt: skip
    merges = tiles[len(tiles) - TILE_INTS * num_merges :]
    _merge[(num_merges, num_kv_heads)](outs, lses, tiles, merges, out, num_heads, num_kv_heads, head_dim)
    return out


@gluon.jit(do_not_specialize_on_alignment=["block_ids", "tiles"])
def _attend(
    q, k, v, block_ids, tiles, out, outs, lses, scale_log2, num_heads: gl.constexpr, num_kv_heads: gl.constexpr,
    head_dim: gl.constexpr, block_size: gl.constexpr, layout: gl.constexpr,
):  # fmt: skip
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
    shape: gl.constexpr = (num_heads, num_kv_heads, head_dim, block_size)
    gl.warp_specialize(
        [
            (_multiply, (0, shared, tiles, q, out, outs, lses, scale_log2, shape)),
            (_multiply, (1, shared, tiles, q, out, outs, lses, scale_log2, shape)),
            (_load, (shared, k, v, block_ids, tiles, shape)),
        ],
        [4, 1],
        [240, 24],
    )


@gluon.jit
def _count_own(tiles, num_kv_heads: gl.constexpr):
    """How many tiles this program has, of those of all kv heads."""
    num_items = gl.load(tiles) * num_kv_heads
    num_rounds = num_items // gl.num_programs(0)
    return num_rounds + gl.where(_deal(num_rounds) < num_items, 1, 0)


@gluon.jit
def _deal(nth):
    """This program's nth: there and back."""
    program, num_programs = gl.program_id(0), gl.num_programs(0)
    return nth * num_programs + gl.where(nth % 2 == 0, program, num_programs - 1 - program)


@gluon.jit
def _load(shared, k, v, block_ids, tiles, shape: gl.constexpr):
    """Blocks of this program's turns, as stages become free. A turn's block past the last is the last one again: no row
    sees its keys."""
    _, keys, values, ready, free, _ = shared
    num_kv_heads: gl.constexpr = shape[1]
    head_dim: gl.constexpr = shape[2]
    block_size: gl.constexpr = shape[3]
    group: gl.constexpr = shape[0] // num_kv_heads
    num_bytes: gl.constexpr = 2 * block_size * head_dim * 2
    index = 0  # of a turn among all of this program's
    for nth in range(_count_own(tiles, num_kv_heads)):
        item = _deal(nth)
        kv_head, line = item % num_kv_heads, tiles + _TILE_INTS * (1 + item // num_kv_heads)
        last_row = gl.minimum(gl.load(line + 1), gl.cdiv((gl.load(line + 3) + 1) * _TILE_PAIRS, group))
        last_block = gl.cdiv(gl.load(line + 2) + last_row, block_size) - 1
        blocks = block_ids + gl.load(line + 6)
        for turn in range(gl.load(line + 4), gl.load(line + 5)):
            stage = index % _STAGES
            phase = index // _STAGES & 1
            mbarrier.wait(free.index(stage), phase ^ 1)
            mbarrier.expect(ready.index(stage), num_bytes)
            for i in gl.static_range(2):
                block = gl.load(blocks + gl.minimum(2 * turn + i, last_block))
                at = (block * num_kv_heads + kv_head) * block_size
                _copy(k, [at, 0], ready.index(stage), keys.index(2 * stage + i))
            mbarrier.wait(free.index(_STAGES + stage), phase ^ 1)
            mbarrier.expect(ready.index(_STAGES + stage), num_bytes)
            for i in gl.static_range(2):
                block = gl.load(blocks + gl.minimum(2 * turn + i, last_block))
                at = (block * num_kv_heads + kv_head) * block_size
                _copy(v, [at, 0], ready.index(_STAGES + stage), values.index(2 * stage + i))
            index += 1


@gluon.jit
def _multiply(c: gl.constexpr, shared, tiles, q, out, outs, lses, scale_log2, shape: gl.constexpr):
    """What one of the two warpgroups does for its 64 pairs of each tile."""
    if c == 0:
        mbarrier.arrive(shared[5].index(0), count=1)
    index = 0
    for nth in range(_count_own(tiles, shape[1])):
        index = _attend_tile(c, nth, index, shared, tiles, q, out, outs, lses, scale_log2, shape)


@gluon.jit
def _attend_tile(
    c: gl.constexpr, nth, first, shared, tiles, q, out, outs, lses, scale_log2, shape: gl.constexpr
):  # fmt: skip
    """Of this program's turns the first of this tile is `first`; returns the first of the next."""
    queries, keys, values, ready, free, _ = shared
    num_heads: gl.constexpr = shape[0]
    num_kv_heads: gl.constexpr = shape[1]
    head_dim: gl.constexpr = shape[2]
    block_size: gl.constexpr = shape[3]
    group: gl.constexpr = num_heads // num_kv_heads
    score_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, block_size, 16])
    out_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, head_dim, 16])
    item = _deal(nth)
    kv_head, line = item % num_kv_heads, tiles + _TILE_INTS * (1 + item // num_kv_heads)
    row_begin, num_rows, past = gl.load(line), gl.load(line + 1), gl.load(line + 2)
    first_pair = gl.load(line + 3) * _TILE_PAIRS + c * 64
    begin, end, part = gl.load(line + 4), gl.load(line + 5), gl.load(line + 7)

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
    mbarrier.wait(ready.index(first % _STAGES), first // _STAGES & 1)
    s0, s1 = _score(rows, keys, first % _STAGES, score_layout, block_size)
    s0, s1 = warpgroup_mma_wait(0, deps=[s0, s1])
    mbarrier.arrive(free.index(first % _STAGES), count=1)
    s0, s1 = _hide(s0, s1, begin, own_key, score_layout, block_size)
    w0, w1, _, peak, total = _weigh(s0, s1, peak, total, scale_log2, out_layout)
    for turn in range(begin + 1, num_whole):
        w0, w1, found, peak, total = _turn(
            turn, False, c, first + turn - begin, nth, shared, rows, w0, w1, found, peak, total, scale_log2, own_key,
            score_layout, out_layout, block_size,
        )  # fmt: skip
    for turn in range(gl.maximum(num_whole, begin + 1), end):
        w0, w1, found, peak, total = _turn(
            turn, True, c, first + turn - begin, nth, shared, rows, w0, w1, found, peak, total, scale_log2, own_key,
            score_layout, out_layout, block_size,
        )  # fmt: skip
    last = first + end - 1 - begin
    mbarrier.wait(ready.index(_STAGES + last % _STAGES), last // _STAGES & 1)
    found = _sum(w0, w1, values, last % _STAGES, found)
    found = warpgroup_mma_wait(0, deps=[found])
    mbarrier.arrive(free.index(_STAGES + last % _STAGES), count=1)

    found = found / gl.convert_layout(total, gl.SliceLayout(1, out_layout))[:, None]
    if part >= 0:
        lse = gl.convert_layout(peak + gl.log2(total), gl.SliceLayout(1, out_layout))
        at_part = (part * num_kv_heads + kv_head) * _TILE_PAIRS + c * 64
        _store_part(found, lse, at_part, outs, lses, out_layout, head_dim)
    else:
        num_pairs = num_rows * group
        _store_whole(found, first_pair, num_pairs, row_begin, kv_head, out, num_heads, group, out_layout, head_dim)
    return last + 1


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
    turn, is_hiding: gl.constexpr, c: gl.constexpr, index, nth, shared, rows, w0, w1, found, peak, total, scale_log2,
    own_key, score_layout: gl.constexpr, out_layout: gl.constexpr, block_size: gl.constexpr,
):  # fmt: skip
    """Scores of this turn's keys, while the values of the turn before are summed. The first turn of each tile has none
    before it, and is not taken in turns: of these there were `index - nth - 1` before."""
    _, keys, values, ready, free, turns = shared
    stage, last = index % _STAGES, (index - 1) % _STAGES
    mbarrier.wait(ready.index(stage), index // _STAGES & 1)
    mbarrier.wait(ready.index(_STAGES + last), (index - 1) // _STAGES & 1)
    mbarrier.wait(turns.index(c), (index - nth - 1) & 1)
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
def _place(pair, row_begin, kv_head, num_heads: gl.constexpr, group: gl.constexpr):
    """pairs   (0, h) (0, h+1) .. (1, h) (1, h+1) ..     h: the group's first head"""
    return (row_begin + pair // group).to(gl.int64) * num_heads + kv_head * group + pair % group


@triton.jit(do_not_specialize_on_alignment=["tiles", "merges"])
def _merge(outs, lses, tiles, merges, out, num_heads: tl.constexpr, num_kv_heads: tl.constexpr, head_dim: tl.constexpr):
    """A program a tile that was split, and a kv head: what its parts found, each weighed by what it summed."""
    group: tl.constexpr = num_heads // num_kv_heads
    kv_head, line = tl.program_id(1), merges + _TILE_INTS * tl.program_id(0)
    if tl.program_id(0) >= tl.load(tiles + 1):
        return
    row_begin, num_rows, tile = tl.load(line), tl.load(line + 1), tl.load(line + 3)
    first, num_parts = tl.load(line + 4), tl.load(line + 5)
    own = tl.arange(0, _TILE_PAIRS)
    d = tl.arange(0, head_dim)[None, :]
    peak = tl.full([_TILE_PAIRS], _HIDDEN, tl.float32)
    total = tl.zeros([_TILE_PAIRS], tl.float32)
    summed = tl.zeros([_TILE_PAIRS, head_dim], tl.float32)
    for part in range(first, first + num_parts):
        at = (part * num_kv_heads + kv_head) * _TILE_PAIRS + own
        lse = tl.load(lses + at)
        found = tl.load(outs + at[:, None] * head_dim + d, mask=(lse > _HIDDEN)[:, None], other=0.0)
        new_peak = tl.maximum(peak, lse)
        weight, rescale = tl.exp2(lse - new_peak), tl.exp2(peak - new_peak)
        summed = summed * rescale[:, None] + found * weight[:, None]
        total = total * rescale + weight
        peak = new_peak
    pair = tile * _TILE_PAIRS + own
    at = (row_begin + pair // group).to(tl.int64) * num_heads + kv_head * group + pair % group
    is_pair = (pair < num_rows * group)[:, None]
    tl.store(out + at[:, None] * head_dim + d, (summed / total[:, None]).to(out.dtype.element_ty), mask=is_pair)
