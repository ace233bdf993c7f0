"""The gated delta rule row by row, for sequences with few rows: a memory S [key_dim, value_dim] for each value head.

    S = exp(log) S;  S = S + k (share (v - S'k))';  o = S'q

A program has a sequence's memory of one head in its registers: it is read once and written once, however many rows
there are, and its way there overlaps with the kernels in front. What is read from it is normed and gated at once.
"""

import torch
import triton
import triton.language as tl

from hotloop.backends.cuda.overlap import let_next_begin, overlap, wait_for_previous
from hotloop.models.spec import LinearSpec

_NUM_WARPS = 4


def recur(
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
    _recur[(num_sequences, spec.num_value_heads)](
        mixed, gates, rates, a_log, dt_bias, norm, memories, row_begins, states, out, gates.stride(0), eps,
        spec.num_key_heads, spec.num_value_heads, spec.key_dim, spec.value_dim,
        triton.next_power_of_2(spec.key_dim), triton.next_power_of_2(spec.value_dim), num_warps=_NUM_WARPS,
        **overlap(mixed.device),
    )  # fmt: skip
    return out


@triton.jit(do_not_specialize_on_alignment=["row_begins", "states"])
def _recur(
    mixed, gates, rates, a_log, dt_bias, norm, memories, row_begins, states, out, gate_stride, eps,
    num_key_heads: tl.constexpr, num_value_heads: tl.constexpr, key_dim: tl.constexpr, value_dim: tl.constexpr,
    key_tile: tl.constexpr, value_tile: tl.constexpr, is_overlapped: tl.constexpr,
):  # fmt: skip
    """Program (sequence, value head)."""
    let_next_begin(is_overlapped)
    sequence, head = tl.program_id(0), tl.program_id(1)
    begin, end = tl.load(row_begins + sequence), tl.load(row_begins + sequence + 1)
    if begin >= end:
        wait_for_previous(is_overlapped)
        return
    read, write = tl.load(states + 2 * sequence).to(tl.int64), tl.load(states + 2 * sequence + 1).to(tl.int64)
    i, j = tl.arange(0, key_tile), tl.arange(0, value_tile)
    is_key, is_value = i < key_dim, j < value_dim
    at = head * key_dim * value_dim + i[:, None] * value_dim + j[None, :]
    is_in = is_key[:, None] & is_value[None, :]
    slot_size: tl.constexpr = num_value_heads * key_dim * value_dim
    is_known = is_in & (i < tl.where(read >= 0, key_dim, 0))[:, None]
    memory = tl.load(memories + read * slot_size + at, mask=is_known, other=0.0)
    weight = tl.load(norm + j, mask=is_value, other=0.0)
    wait_for_previous(is_overlapped)

    num_keys: tl.constexpr = num_key_heads * key_dim
    num_channels: tl.constexpr = 2 * num_keys + num_value_heads * value_dim
    at_query = mixed + head // (num_value_heads // num_key_heads) * key_dim + i
    at_value = mixed + 2 * num_keys + head * value_dim + j
    row = begin.to(tl.int64)
    for _ in range(begin, end):
        query = tl.load(at_query + row * num_channels, mask=is_key, other=0.0).to(tl.float32)
        key = tl.load(at_query + num_keys + row * num_channels, mask=is_key, other=0.0).to(tl.float32)
        value = tl.load(at_value + row * num_channels, mask=is_value, other=0.0).to(tl.float32)
        share, log = load_rates(rates, a_log, dt_bias, row, head, num_value_heads)
        memory *= tl.exp(log)
        change = share * (value - tl.sum(memory * key[:, None], 0))
        memory += key[:, None] * change[None, :]
        found = tl.sum(memory * query[:, None], 0)
        found *= tl.rsqrt(tl.sum(found * found, 0) / value_dim + eps) * weight
        gate = tl.load(gates + row * gate_stride + head * value_dim + j, mask=is_value, other=0.0).to(tl.float32)
        found *= gate * tl.sigmoid(gate)
        target = out + (row * num_value_heads + head) * value_dim + j
        tl.store(target, found.to(out.dtype.element_ty), mask=is_value)
        row += 1
    tl.store(memories + write * slot_size + at, memory, mask=is_in)


@triton.jit
def load_rates(rates, a_log, dt_bias, row, head, num_value_heads: tl.constexpr, mask=None):
    """How much of its error a row, or each of several, writes, and the logarithm of what it leaves of the memory."""
    at = rates + row * 2 * num_value_heads + head
    share = tl.sigmoid(tl.load(at, mask=mask).to(tl.float32))
    raw = tl.load(at + num_value_heads, mask=mask).to(tl.float32) + tl.load(dt_bias + head)
    softplus = tl.where(raw > 20.0, raw, tl.log(1.0 + tl.exp(tl.minimum(raw, 20.0))))
    return share, -tl.exp(tl.load(a_log + head)) * softplus
