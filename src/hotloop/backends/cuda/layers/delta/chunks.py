"""The gated delta rule for sequences with many rows, in chunks of 64: three launches, of which only the second goes
from chunk to chunk.

What a row adds to the memory is its key times a change, u. With G the sum of the logs from the chunk's begin on, S the
memory in front of it, and all rows of a chunk at once, the rule (recurrence.py) says

    (1 + A) U = share (V - exp(G) K S)        A[i, j] = share[i] exp(G[i] - G[j]) k[i].k[j]      for j < i, else 0

    prepare     W = (1 + A)^-1 share exp(G) K       U = (1 + A)^-1 share V         every chunk by itself
    carry       U = U - W S;  S = exp(G_end) S + (exp(G_end - G) K)'U              from chunk to chunk
    read        o = exp(G) q S + (exp(G[i] - G[j]) q[i].k[j] for j <= i) U         every chunk by itself

1 + A is inverted in blocks of 16, row by row, and the blocks are put together by products: keys that are alike, as of a
token that repeats itself, would make powers of all of A too large to add up to anything.
"""

import torch
import triton
import triton.language as tl

from hotloop.backends.cuda.layers.delta.convolution import find_tile, num_tiles, sequence_tile
from hotloop.backends.cuda.layers.delta.recurrence import load_rates
from hotloop.models.spec import LinearSpec

CHUNK = 64
_VALUE_TILE = 32  # of the memory's columns, each carried by itself
_PREPARE_WARPS, _CARRY_WARPS, _READ_WARPS = 4, 4, 4
_CARRY_STAGES = 2  # with 1, what Triton 3.6 makes of it for Hopper reads where nothing is


def recur_chunks(
    mixed: torch.Tensor,  # [rows, queries | keys | values]
    gates: torch.Tensor,  # [rows, values], rows further apart
    rates: torch.Tensor,  # [rows, value heads of b | value heads of a]
    a_log: torch.Tensor,  # [value heads] float32
    dt_bias: torch.Tensor,  # [value heads] float32
    norm: torch.Tensor,  # [value_dim] float32
    memories: torch.Tensor,  # [slots, value heads, key_dim, value_dim] float32
    row_begins: torch.Tensor,  # [num_sequences + 1]
    states: torch.Tensor,  # [num_sequences * 2]: the slot that is read, -1 for none, and the slot that is written
    out: torch.Tensor,  # [rows, values]
    spec: LinearSpec,
    eps: float,
    *,
    num_sequences: int,
) -> torch.Tensor:
    """Rows that belong to no sequence are left as they are."""
    num_rows, heads = len(mixed), spec.num_value_heads
    count = num_tiles(num_rows, num_sequences, CHUNK)
    sums = torch.empty(num_rows, heads, dtype=torch.float32, device=mixed.device)
    written = mixed.new_empty(num_rows, heads, spec.key_dim)
    changes = mixed.new_empty(num_rows, heads, spec.value_dim)
    fronts = mixed.new_empty(count, heads, spec.key_dim, spec.value_dim)
    sizes = (spec.num_key_heads, heads, spec.key_dim, spec.value_dim, max(16, triton.next_power_of_2(spec.key_dim)))
    value_tile = max(16, triton.next_power_of_2(spec.value_dim))
    _prepare[(count, heads)](
        mixed, rates, a_log, dt_bias, row_begins, written, changes, sums, num_sequences, *sizes, value_tile,
        sequence_tile(num_sequences), CHUNK, num_warps=_PREPARE_WARPS,
    )  # fmt: skip
    part = min(_VALUE_TILE, value_tile)
    _carry[(triton.cdiv(spec.value_dim, part), heads, num_sequences)](
        mixed, written, changes, sums, fronts, memories, row_begins, states, *sizes, part, CHUNK,
        num_warps=_CARRY_WARPS, num_stages=_CARRY_STAGES,
    )  # fmt: skip
    _read[(count, heads)](
        mixed, gates, changes, sums, fronts, norm, row_begins, out, gates.stride(0), eps, num_sequences, *sizes,
        value_tile, sequence_tile(num_sequences), CHUNK, num_warps=_READ_WARPS,
    )  # fmt: skip
    return out


@triton.jit(do_not_specialize=["num_sequences"], do_not_specialize_on_alignment=["row_begins"])
def _prepare(
    mixed, rates, a_log, dt_bias, row_begins, written, changes, sums, num_sequences,
    num_key_heads: tl.constexpr, num_value_heads: tl.constexpr, key_dim: tl.constexpr, value_dim: tl.constexpr,
    key_tile: tl.constexpr, value_tile: tl.constexpr, sequences: tl.constexpr, chunk: tl.constexpr,
):  # fmt: skip
    """Program (chunk, value head)."""
    _, begin, first, num_rows = find_tile(row_begins, num_sequences, chunk, sequences, False)
    if first >= num_rows:
        return
    head = tl.program_id(1)
    n = tl.arange(0, chunk)
    row, is_row = (begin + first + n).to(tl.int64), first + n < num_rows
    share, log = load_rates(rates, a_log, dt_bias, row, head, num_value_heads, is_row)
    share = tl.where(is_row, share, 0.0)
    total = tl.cumsum(tl.where(is_row, log, 0.0), 0)
    tl.store(sums + row * num_value_heads + head, total, mask=is_row)

    num_keys: tl.constexpr = num_key_heads * key_dim
    num_channels: tl.constexpr = 2 * num_keys + num_value_heads * value_dim
    i, j = tl.arange(0, key_tile), tl.arange(0, value_tile)
    is_key, is_value = is_row[:, None] & (i < key_dim)[None, :], is_row[:, None] & (j < value_dim)[None, :]
    own = mixed + row[:, None] * num_channels
    key_head = head // (num_value_heads // num_key_heads)
    key = tl.load(own + num_keys + key_head * key_dim + i[None, :], mask=is_key, other=0.0)
    likeness = tl.dot(key, tl.trans(key), input_precision="tf32x3")
    likeness *= _fading(total, n[:, None] > n[None, :]) * share[:, None]
    is_exact: tl.constexpr = key.dtype == tl.float32
    inverse = _invert(likeness, n, "tf32x3" if is_exact else "tf32").to(key.dtype)

    factor = (key * (share * tl.exp(total))[:, None]).to(key.dtype)
    found = tl.dot(inverse, factor, input_precision="tf32x3")
    place = row[:, None] * num_value_heads + head
    tl.store(written + place * key_dim + i[None, :], found.to(written.dtype.element_ty), mask=is_key)
    value = tl.load(own + 2 * num_keys + head * value_dim + j[None, :], mask=is_value, other=0.0)
    found = tl.dot(inverse, (value * share[:, None]).to(key.dtype), input_precision="tf32x3")
    tl.store(changes + place * value_dim + j[None, :], found.to(changes.dtype.element_ty), mask=is_value)


@triton.jit
def _fading(total, is_before):
    """[i, j]: what is left of j at i, where j is before it. Nothing grows, but sums past the end mean nothing."""
    return tl.where(is_before, tl.exp(tl.minimum(total[:, None] - total[None, :], 0.0)), 0.0)


@triton.jit
def _invert(lower, n, precision: tl.constexpr):
    """(1 + lower)^-1. With D the inverse of its blocks of 16, and M = D times what is outside of them, M^4 is 0, so it
    is (1 - M + M^2 - M^3) D.
    """
    i, j = n[:, None], n[None, :]
    is_near = i // 16 == j // 16
    near = tl.where(is_near, lower, 0.0)
    inverse = tl.where(i == j, 1.0, 0.0)
    for at in range(1, 16):  # that row of all blocks
        is_at = i % 16 == at
        line = tl.sum(tl.where(is_at, near, 0.0), 0)
        found = tl.sum(line[:, None] * inverse, 0)
        inverse -= tl.where(is_at & is_near, found[None, :], 0.0)
    m = tl.dot(inverse, lower - near, input_precision=precision)
    square = tl.dot(m, m, input_precision=precision)
    factor = tl.where(i == j, 1.0, 0.0) - m + square - tl.dot(m, square, input_precision=precision)
    return tl.dot(factor, inverse, input_precision=precision)


@triton.jit(do_not_specialize_on_alignment=["row_begins", "states"])
def _carry(
    mixed, written, changes, sums, fronts, memories, row_begins, states,
    num_key_heads: tl.constexpr, num_value_heads: tl.constexpr, key_dim: tl.constexpr, value_dim: tl.constexpr,
    key_tile: tl.constexpr, part: tl.constexpr, chunk: tl.constexpr,
):  # fmt: skip
    """Program (some columns of the memory, value head, sequence)."""
    head, sequence = tl.program_id(1), tl.program_id(2)
    begin, end = tl.load(row_begins + sequence), tl.load(row_begins + sequence + 1)
    if begin >= end:
        return
    read, write = tl.load(states + 2 * sequence).to(tl.int64), tl.load(states + 2 * sequence + 1).to(tl.int64)
    n, i = tl.arange(0, chunk), tl.arange(0, key_tile)
    j = tl.program_id(0) * part + tl.arange(0, part)
    is_key, is_value = (i < key_dim)[None, :], (j < value_dim)[None, :]
    is_in = (i < key_dim)[:, None] & is_value
    at = head * key_dim * value_dim + i[:, None] * value_dim + j[None, :]
    slot_size: tl.constexpr = num_value_heads * key_dim * value_dim
    is_known = is_in & (i < tl.where(read >= 0, key_dim, 0))[:, None]
    memory = tl.load(memories + read * slot_size + at, mask=is_known, other=0.0)

    num_keys: tl.constexpr = num_key_heads * key_dim
    num_channels: tl.constexpr = 2 * num_keys + num_value_heads * value_dim
    at_key = mixed + num_keys + head // (num_value_heads // num_key_heads) * key_dim + i[None, :]
    front = fronts + ((begin - tl.load(row_begins)) // chunk + sequence).to(tl.int64) * slot_size + at
    for first in range(begin, end, chunk):
        tl.store(front, memory.to(fronts.dtype.element_ty), mask=is_in)
        front += slot_size
        row, is_row = (first + n).to(tl.int64), first + n < end
        place = row * num_value_heads + head
        total = tl.load(sums + place, mask=is_row, other=0.0)
        at_end = tl.load(sums + (tl.minimum(first + chunk, end) - 1).to(tl.int64) * num_value_heads + head)
        factor = tl.load(
            written + place[:, None] * key_dim + i[None, :], mask=is_row[:, None] & is_key, other=0.0
        )  # fmt: skip
        key = tl.load(at_key + row[:, None] * num_channels, mask=is_row[:, None] & is_key, other=0.0)
        at_change = changes + place[:, None] * value_dim + j[None, :]
        change = tl.load(at_change, mask=is_row[:, None] & is_value, other=0.0).to(tl.float32)
        change -= tl.dot(factor, memory.to(factor.dtype), input_precision="tf32x3")
        tl.store(at_change, change.to(changes.dtype.element_ty), mask=is_row[:, None] & is_value)
        change *= tl.where(is_row, tl.exp(at_end - total), 0.0)[:, None]
        memory *= tl.exp(at_end)
        memory = tl.dot(tl.trans(key), change.to(key.dtype), memory, input_precision="tf32x3")
    tl.store(memories + write * slot_size + at, memory, mask=is_in)


@triton.jit(do_not_specialize=["num_sequences"], do_not_specialize_on_alignment=["row_begins"])
def _read(
    mixed, gates, changes, sums, fronts, norm, row_begins, out, gate_stride, eps, num_sequences,
    num_key_heads: tl.constexpr, num_value_heads: tl.constexpr, key_dim: tl.constexpr, value_dim: tl.constexpr,
    key_tile: tl.constexpr, value_tile: tl.constexpr, sequences: tl.constexpr, chunk: tl.constexpr,
):  # fmt: skip
    """Program (chunk, value head): read, normed and gated."""
    _, begin, first, num_rows = find_tile(row_begins, num_sequences, chunk, sequences, False)
    if first >= num_rows:
        return
    head = tl.program_id(1)
    n, i, j = tl.arange(0, chunk), tl.arange(0, key_tile), tl.arange(0, value_tile)
    row, is_row = (begin + first + n).to(tl.int64), first + n < num_rows
    is_key, is_value = is_row[:, None] & (i < key_dim)[None, :], is_row[:, None] & (j < value_dim)[None, :]
    num_keys: tl.constexpr = num_key_heads * key_dim
    num_channels: tl.constexpr = 2 * num_keys + num_value_heads * value_dim
    own = mixed + row[:, None] * num_channels + head // (num_value_heads // num_key_heads) * key_dim + i[None, :]
    query, key = tl.load(own, mask=is_key, other=0.0), tl.load(own + num_keys, mask=is_key, other=0.0)
    place = row * num_value_heads + head
    total = tl.load(sums + place, mask=is_row, other=0.0)
    front = fronts + (tl.program_id(0).to(tl.int64) * num_value_heads + head) * key_dim * value_dim
    is_in = (i < key_dim)[:, None] & (j < value_dim)[None, :]
    memory = tl.load(front + i[:, None] * value_dim + j[None, :], mask=is_in, other=0.0)
    found = tl.dot(query, memory, input_precision="tf32x3") * tl.exp(total)[:, None]
    weight = tl.dot(query, tl.trans(key), input_precision="tf32x3") * _fading(total, n[:, None] >= n[None, :])
    change = tl.load(changes + place[:, None] * value_dim + j[None, :], mask=is_value, other=0.0)
    found = tl.dot(weight.to(change.dtype), change, found, input_precision="tf32x3")

    found *= tl.rsqrt(tl.sum(found * found, 1) / value_dim + eps)[:, None]
    found *= tl.load(norm + j, mask=j < value_dim, other=0.0)[None, :]
    at_gate = gates + row[:, None] * gate_stride + head * value_dim + j[None, :]
    gate = tl.load(at_gate, mask=is_value, other=0.0).to(tl.float32)
    found *= gate * tl.sigmoid(gate)
    tl.store(out + place[:, None] * value_dim + j[None, :], found.to(out.dtype.element_ty), mask=is_value)
