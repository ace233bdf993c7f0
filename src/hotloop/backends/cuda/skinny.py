"""out = x @ w.T for up to 64 rows, on the tensor cores: the weights pass by once, from memory, and set the pace.

The weights are the left operand, for it is their rows that are many: x, padded to 16 rows or more, is the narrow one.
Where there are too few rows of weights to keep the card busy, several programs share them, each with its part of k:

    k        0 ...................................... k
    splits   [ 0          | 1          | 2            ]     whoever comes last adds the parts up, first to last

So the order of a sum never depends on who was faster.
"""

from dataclasses import dataclass
from typing import Self

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from hotloop.backends.cuda.gemv import finish, weight_rows

MAX_ROWS = 64
INT4_GROUP = 128
_MAX_TILES = 16384


@dataclass(frozen=True, slots=True)
class Tiling:
    """How a product is cut: rows of the weights and steps of k of a tile, and programs that share a row."""

    tile_n: int
    tile_k: int
    num_warps: int
    num_stages: int
    num_splits: int = 1
    ahead: int = 0  # steps of k that are fetched into the L2 cache before the kernel in front has ended


@dataclass(frozen=True, slots=True)
class Workspace:
    """The parts of split sums, and how many of each tile have come; zero between launches."""

    parts: torch.Tensor
    counters: torch.Tensor

    @classmethod
    def allocate(cls, max_items: int, device: torch.device | str) -> Self:
        return cls(
            torch.empty(max_items, dtype=torch.float32, device=device),
            torch.zeros(_MAX_TILES, dtype=torch.int32, device=device),
        )


def skinny(
    x: torch.Tensor,  # [rows, k]
    w: torch.Tensor,  # [n, k] bf16 or e4m3; or int4, two to a byte: [k / 128, n, 64] uint8
    out: torch.Tensor,  # [rows, n], or [rows, n / 2] if gated
    tiling: Tiling,
    workspace: Workspace,
    *,
    scales: torch.Tensor | None = None,  # [n] float32; of int4 [k / 128, n] bf16
    offsets: torch.Tensor | None = None,  # of int4: [k / 128, n] bf16
    bias: torch.Tensor | None = None,  # [n]
    is_gated: bool = False,  # out = silu(first half) * second half
    is_overlapped: bool = False,  # with the kernel in front; needs compute capability 9.0
) -> torch.Tensor:
    num_rows, k = x.shape
    is_int4 = w.ndim == 3
    n = w.shape[1] if is_int4 else len(w)
    row_tile = max(16, triton.next_power_of_2(num_rows))
    tile_k = INT4_GROUP if is_int4 else tiling.tile_k
    num_tiles = triton.cdiv(n, tiling.tile_n)
    num_splits = min(tiling.num_splits, triton.cdiv(k, tile_k))
    if num_splits > 1:
        assert num_tiles <= _MAX_TILES
        assert num_tiles * tiling.tile_n * row_tile * num_splits <= workspace.parts.numel()
    options = {"launch_pdl": True} if is_overlapped else {}
    _skinny[(num_tiles, num_splits)](
        x, w, scales, offsets, bias, out, workspace.parts, workspace.counters, num_rows,
        n, k, num_splits, row_tile, tiling.tile_n, tile_k, tiling.ahead,
        k % tile_k == 0, num_splits > 1, is_gated, is_int4, x.is_cuda, is_overlapped,
        num_warps=tiling.num_warps, num_stages=tiling.num_stages, **options,
    )  # fmt: skip
    return out


@triton.jit(do_not_specialize=["num_rows", "num_splits"])
def _skinny(
    x, w, scales, offsets, bias, out, parts, counters, num_rows, n, k, num_splits,
    row_tile: tl.constexpr, tile_n: tl.constexpr, tile_k: tl.constexpr, ahead: tl.constexpr, is_even: tl.constexpr,
    is_split: tl.constexpr, is_gated: tl.constexpr, is_int4: tl.constexpr, is_cuda: tl.constexpr,
    is_overlapped: tl.constexpr,
):  # fmt: skip
    """Program (tile of the weights' rows, split of k)."""
    if is_overlapped:
        gdc_launch_dependents()
    tile, split = tl.program_id(0), tl.program_id(1)
    column = weight_rows(tile, tile_n, n, is_gated)
    known = tl.minimum(column, n - 1).to(tl.int64)
    row = tl.arange(0, row_tile)
    is_row = (row < num_rows)[:, None]
    share = tl.cdiv(tl.cdiv(k, tile_k), num_splits) * tile_k
    begin = split * share
    end = tl.minimum(begin + share, k)
    if is_overlapped:
        if (ahead > 0) & (not is_int4):
            _prefetch(w + known[:, None] * k + begin, ahead * tile_k)
        gdc_wait()
    if is_int4:
        total = _sum_int4(x, w, scales, offsets, row, is_row, known, begin, end, n, k, row_tile, tile_n, is_cuda)
        finish_scales = None
    else:
        total = _sum_plain(x, w, row, is_row, known, begin, end, k, row_tile, tile_n, tile_k, is_even)
        finish_scales = scales
    if is_split:
        item = tl.arange(0, tile_n)[:, None] * row_tile + row[None, :]
        own = parts + tile * num_splits * tile_n * row_tile + item
        tl.store(own + split * tile_n * row_tile, total)
        tl.debug_barrier()
        num_before = tl.atomic_add(counters + tile, 1, sem="acq_rel")
        if num_before < num_splits - 1:
            return
        total = tl.zeros([tile_n, row_tile], tl.float32)
        for other in range(num_splits):
            total += tl.load(own + other * tile_n * row_tile, cache_modifier=".cg")
        tl.store(counters + tile, 0)
    finish(tl.trans(total), finish_scales, bias, out, row, is_row, column, n, is_gated)


@triton.jit
def _sum_plain(
    x, w, row, is_row, column, begin, end, k,
    row_tile: tl.constexpr, tile_n: tl.constexpr, tile_k: tl.constexpr, is_even: tl.constexpr,
):  # fmt: skip
    """[tile_n, row_tile]. e4m3 is widened on its way from shared memory to the tensor cores."""
    total = tl.zeros([tile_n, row_tile], tl.float32)
    i = tl.arange(0, tile_k)
    for step in range(begin, end, tile_k):
        at_w = w + column[:, None] * k + (step + i)[None, :]
        at_x = x + row[:, None] * k + (step + i)[None, :]
        if is_even:
            weights = tl.load(at_w, eviction_policy="evict_first")
            values = tl.load(at_x, mask=is_row, other=0.0)
        else:
            is_in = (step + i < k)[None, :]
            weights = tl.load(at_w, mask=is_in, other=0.0, eviction_policy="evict_first")
            values = tl.load(at_x, mask=is_row & is_in, other=0.0)
        total = tl.dot(weights.to(values.dtype), tl.trans(values), total)
    return total


@triton.jit
def _sum_int4(
    x, w, scales, offsets, row, is_row, column, begin, end, n, k,
    row_tile: tl.constexpr, tile_n: tl.constexpr, is_cuda: tl.constexpr,
):  # fmt: skip
    """[tile_n, row_tile]. A group of 128 is 64 bytes: the low halves are its first 64 weights, the high ones the rest.

    What is multiplied is 128 + q, which is exact in bf16 and takes no conversion; the offset, 128 + zero point, is
    taken off the sum of a group.
    """
    total = tl.zeros([tile_n, row_tile], tl.float32)
    i = tl.arange(0, 64)
    for step in range(begin, end, 128):
        group = step // 128
        packed = tl.load(w + (group * n + column)[:, None] * 64 + i[None, :], eviction_policy="evict_first")
        at_x = x + row[:, None] * k + step + i[None, :]
        first, second = tl.load(at_x, mask=is_row, other=0.0), tl.load(at_x + 64, mask=is_row, other=0.0)
        low, high = _unpack(packed, is_cuda)
        part = tl.dot(low.to(first.dtype), tl.trans(first))
        part = tl.dot(high.to(first.dtype), tl.trans(second), part)
        sums = tl.sum(first.to(tl.float32), 1) + tl.sum(second.to(tl.float32), 1)
        scale = tl.load(scales + group * n + column).to(tl.float32)
        offset = tl.load(offsets + group * n + column).to(tl.float32)
        total += scale[:, None] * (part - offset[:, None] * sums[None, :])
    return total


@triton.jit
def _unpack(packed, is_cuda: tl.constexpr):
    """128 + the low and 128 + the high half of bytes, in bf16. 0x4300 is 128, whose last bits count ones."""
    if is_cuda:
        return tl.inline_asm_elementwise(
            """{
            .reg .b32 p;
            prmt.b32 p, $4, $4, 0x3120;
            lop3.b32 $0, p, 0x000f000f, 0x43004300, 0xea;
            shr.u32 p, p, 4;
            lop3.b32 $2, p, 0x000f000f, 0x43004300, 0xea;
            shr.u32 p, p, 4;
            lop3.b32 $1, p, 0x000f000f, 0x43004300, 0xea;
            shr.u32 p, p, 4;
            lop3.b32 $3, p, 0x000f000f, 0x43004300, 0xea;
            }""",
            "=r,=r,=r,=r,r",
            [packed],
            dtype=(tl.bfloat16, tl.bfloat16),
            is_pure=True,
            pack=4,
        )
    return (packed & 15).to(tl.bfloat16) + 128, (packed >> 4).to(tl.bfloat16) + 128


@triton.jit
def _prefetch(at, num_items: tl.constexpr):
    """Fetch the first items of each row into the L2 cache, a line at a time."""
    line: tl.constexpr = 1024 // at.dtype.element_ty.primitive_bitwidth
    lines = (at + tl.arange(0, num_items // line)[None, :] * line).to(tl.int64)
    tl.inline_asm_elementwise(
        "prefetch.global.L2 [$1]; mov.u32 $0, 0;", "=r,l", [lines], dtype=tl.int32, is_pure=False, pack=1
    )
