"""The short convolution in front of linear attention: each channel of queries, keys and values over its last inputs.

A sequence goes on from the inputs that its state holds, and leaves its own last ones there:

    state   [ -3 -2 -1 ]
    rows              [ 0 1 2 3 ... n-1 ]      row 1 is the sum of -2, -1, 0 and 1, each times its tap
    state afterwards       [ n-3 n-2 n-1 ]

Heads of queries and keys are made one long on the way out, and queries divided by the root of their dimensions.
"""

import torch
import triton
import triton.language as tl

from hotloop.backends.cuda.overlap import let_next_begin, overlap, wait_for_previous
from hotloop.backends.cuda.steps.step import MAX_SHORT_ROWS
from hotloop.models.spec import LinearSpec

_TILE_ROWS = 16
_FEW_ROWS = (1, 8, MAX_SHORT_ROWS)
_EPS = tl.constexpr(1e-6)


def convolve(
    x: torch.Tensor,  # [rows, queries | keys | values | anything]
    taps: torch.Tensor,  # [channels, width]
    inputs: torch.Tensor,  # [slots, width - 1, channels] float32
    row_begins: torch.Tensor,  # [num_sequences + 1]
    states: torch.Tensor,  # [num_sequences * 2]: the slot that is read, -1 for none, and the slot that is written
    out: torch.Tensor,  # [rows, channels]
    spec: LinearSpec,
    *,
    num_sequences: int,
    max_rows: int | None,  # of a sequence, if they are few
) -> torch.Tensor:
    """Rows that belong to no sequence are left as they are."""
    num_heads = 2 * spec.num_key_heads + spec.num_value_heads
    dim_tile = triton.next_power_of_2(max(spec.key_dim, spec.value_dim))
    is_whole = max_rows is not None
    tile_rows = next(size for size in _FEW_ROWS if max_rows <= size) if max_rows else _TILE_ROWS
    if not x.is_cuda and not is_whole:
        tile_rows = 64  # the interpreter takes as long for a small tile as for a large one
    count = num_sequences if is_whole else num_tiles(len(x), num_sequences, tile_rows)
    _convolve[(count, num_heads)](
        x, taps, inputs, row_begins, states, out, x.stride(0), num_sequences, spec.num_key_heads, spec.num_value_heads,
        spec.key_dim, spec.value_dim, spec.conv_width, dim_tile, tile_rows,
        1 if is_whole else sequence_tile(num_sequences), is_whole, num_warps=1 if tile_rows == 1 else 4,
        **overlap(x.device),
    )  # fmt: skip
    return out


@triton.jit(do_not_specialize=["num_sequences"], do_not_specialize_on_alignment=["row_begins", "states"])
def _convolve(
    x, taps, inputs, row_begins, states, out, x_stride, num_sequences,
    num_key_heads: tl.constexpr, num_value_heads: tl.constexpr, key_dim: tl.constexpr, value_dim: tl.constexpr,
    width: tl.constexpr, dim_tile: tl.constexpr, tile_rows: tl.constexpr, sequences: tl.constexpr,
    is_whole: tl.constexpr, is_overlapped: tl.constexpr,
):  # fmt: skip
    """Program (tile of rows, head)."""
    let_next_begin(is_overlapped)
    wait_for_previous(is_overlapped)
    sequence, begin, first, num_rows = find_tile(row_begins, num_sequences, tile_rows, sequences, is_whole)
    if first >= num_rows:
        return
    num_keys: tl.constexpr = 2 * num_key_heads * key_dim
    num_channels: tl.constexpr = num_keys + num_value_heads * value_dim
    head = tl.program_id(1)
    is_value = head >= 2 * num_key_heads
    i = tl.arange(0, dim_tile)
    dim = tl.where(is_value, value_dim, key_dim)
    is_in = i < dim
    channel = i + tl.where(is_value, num_keys + (head - 2 * num_key_heads) * value_dim, head * key_dim)
    read, write = tl.load(states + 2 * sequence).to(tl.int64), tl.load(states + 2 * sequence + 1).to(tl.int64)
    first_known = tl.where(read >= 0, 1 - width, 0)  # nothing before the first row is, if there is no state
    past = inputs + (read * (width - 1) + width - 1) * num_channels + channel
    row = first + tl.arange(0, tile_rows)
    own = x + begin.to(tl.int64) * x_stride + channel

    total = tl.zeros([tile_rows, dim_tile], tl.float32)
    for j in tl.static_range(width):
        at = (row - (width - 1) + j)[:, None]
        is_own = (at >= 0) & (row < num_rows)[:, None] & is_in[None, :]
        is_past = (at < 0) & (at >= first_known) & is_in[None, :]
        value = tl.load(own[None, :] + at.to(tl.int64) * x_stride, mask=is_own, other=0.0).to(tl.float32)
        value += tl.load(past[None, :] + at * num_channels, mask=is_past, other=0.0)
        total += value * tl.load(taps + channel * width + j, mask=is_in, other=0.0).to(tl.float32)[None, :]
    total *= tl.sigmoid(total)
    length = tl.rsqrt(tl.sum(total * total, 1) + _EPS)
    length *= tl.where(head < num_key_heads, key_dim**-0.5, 1.0)
    total *= tl.where(is_value, 1.0, length)[:, None]
    target = out + (begin + row).to(tl.int64)[:, None] * num_channels + channel[None, :]
    tl.store(target, total.to(out.dtype.element_ty), mask=(row < num_rows)[:, None] & is_in[None, :])

    if first == 0:
        tl.debug_barrier()  # no warp may still read what is overwritten
        left = inputs + write * (width - 1) * num_channels + channel
        for j in tl.static_range(width - 1):
            last = num_rows - (width - 1) + j
            has_own, has_past = (
                i < tl.where(last >= 0, dim, 0),
                i < tl.where((last < 0) & (last >= first_known), dim, 0),
            )
            kept = tl.load(own + last.to(tl.int64) * x_stride, mask=has_own, other=0.0).to(tl.float32)
            kept += tl.load(past + last * num_channels, mask=has_past, other=0.0)
            tl.store(left + j * num_channels, kept, mask=is_in)


def num_tiles(num_rows: int, num_sequences: int, tile_rows: int) -> int:
    """Room for those of so many rows; see `find_tile`."""
    return num_rows // tile_rows + num_sequences


def sequence_tile(num_sequences: int) -> int:
    """What kernels look through at once: nearly always the same, so that they are compiled once."""
    return max(64, triton.next_power_of_2(num_sequences))


@triton.jit
def find_tile(row_begins, num_sequences, tile_rows: tl.constexpr, sequences: tl.constexpr, is_whole: tl.constexpr):
    """Of the tile that program_id(0) stands for: its sequence, where that begins, the tile's first row in it, and how
    many rows it has. A tile may lie past the end of its sequence.

    A sequence has the tiles from (rows before it // tile_rows + sequences before it) on, where it has room enough, so
    nobody has to count them.
    """
    tile = tl.program_id(0)
    if is_whole:
        sequence = tile
        first = 0
    else:
        i = tl.arange(0, sequences)
        zero = tl.load(row_begins)
        before = (tl.load(row_begins + i, mask=i < num_sequences, other=0) - zero) // tile_rows + i
        sequence = tl.sum(((before <= tile) & (i < num_sequences)).to(tl.int32), 0) - 1
        first = (tile - ((tl.load(row_begins + sequence) - zero) // tile_rows + sequence)) * tile_rows
    begin = tl.load(row_begins + sequence)
    return sequence, begin, first, tl.load(row_begins + sequence + 1) - begin
