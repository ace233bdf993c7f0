"""Which experts the rows of a step go to, by a router's logits: a launch that also puts an expert's pairs in order."""

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from hotloop.backends.cuda.overlap import let_next_begin, overlap, wait_for_previous
from hotloop.models.spec import ExpertsSpec


class Routed(NamedTuple):
    """Which experts the rows of a step go to."""

    ids: torch.Tensor  # [rows, chosen]; -1: none
    scores: torch.Tensor  # [rows, chosen] float32
    counts: torch.Tensor  # [experts] pairs
    order: torch.Tensor  # [experts, rows] pairs; what is past an expert's count means nothing


def route(
    logits: torch.Tensor,  # [rows, experts]
    bias: torch.Tensor | None,  # [experts]
    spec: ExpertsSpec,
    slots: torch.Tensor,
    counts: torch.Tensor,
    *,
    is_few: bool = False,
) -> Routed:
    """If few, pairs are neither counted nor put in order."""
    num_rows = len(logits)
    ids = torch.empty(num_rows, spec.num_chosen, dtype=torch.int32, device=logits.device)
    scores = torch.empty(num_rows, spec.num_chosen, dtype=torch.float32, device=logits.device)
    order = ids.new_empty(0 if is_few else spec.num_experts, num_rows)
    _route[(num_rows,)](
        logits, bias, slots, ids, scores, counts, order, num_rows, spec.num_experts, spec.num_chosen,
        triton.next_power_of_2(spec.num_experts), triton.next_power_of_2(spec.num_chosen), spec.is_sigmoid,
        spec.is_normed, spec.scale, spec.num_groups, spec.num_chosen_groups, is_few,
        num_warps=1 if spec.num_experts <= 128 else 4, **overlap(logits.device),
    )  # fmt: skip
    return Routed(ids, scores, counts, order)


@triton.jit(do_not_specialize=["num_rows"], do_not_specialize_on_alignment=["slots", "counts"])
def _route(
    logits, bias, slots, ids, scores, counts, order, num_rows,
    num_experts: tl.constexpr, num_chosen: tl.constexpr, expert_tile: tl.constexpr, chosen_tile: tl.constexpr,
    is_sigmoid: tl.constexpr, is_normed: tl.constexpr, scale: tl.constexpr, num_groups: tl.constexpr,
    num_chosen_groups: tl.constexpr, is_few: tl.constexpr, is_overlapped: tl.constexpr,
):  # fmt: skip
    """Program (row)."""
    let_next_begin(is_overlapped)
    wait_for_previous(is_overlapped)
    row = tl.program_id(0)
    expert, i = tl.arange(0, expert_tile), tl.arange(0, chosen_tile)
    is_real = tl.load(slots + row) >= 0
    nothing: tl.constexpr = 0.0 if is_sigmoid else -1e30
    logit = tl.load(logits + row * num_experts + expert, mask=expert < num_experts, other=nothing).to(tl.float32)
    added = 0.0
    if bias is not None:
        added = tl.load(bias + expert, mask=expert < num_experts, other=0.0).to(tl.float32)
    if is_sigmoid:
        score = tl.sigmoid(logit)
        left = score + added
    else:
        left = logit + added
        score = tl.exp(left - tl.max(left, 0))
    left = tl.where(expert < num_experts, left, -1e30)
    if num_groups > 1:
        left = _of_best_groups(left, expert, num_experts // num_groups, num_groups, num_chosen_groups, is_sigmoid)
    chosen = tl.zeros([chosen_tile], tl.int32)
    found = tl.zeros([chosen_tile], tl.float32)
    for j in tl.static_range(num_chosen):
        # the first of the largest; any there is if they are no numbers
        best = tl.min(tl.where(left == tl.max(left, 0), expert, num_experts - 1), 0)
        chosen = tl.where(i == j, best, chosen)
        found = tl.where(i == j, tl.sum(tl.where(expert == best, score, 0.0), 0), found)
        left = tl.where(expert == best, -1e30, left)
    if is_normed:
        found /= tl.sum(found, 0)
    elif not is_sigmoid:
        found /= tl.sum(score, 0)
    at = row * num_chosen + i
    tl.store(scores + at, found * scale, mask=i < num_chosen)
    tl.store(ids + at, tl.where(is_real, chosen, -1), mask=i < num_chosen)
    if not is_few:
        is_pair = i < tl.where(is_real, num_chosen, 0)
        place = tl.atomic_add(counts + chosen, 1, mask=is_pair)
        tl.store(order + chosen.to(tl.int64) * num_rows + place, at, mask=is_pair)


@triton.jit
def _of_best_groups(
    rank, expert, size: tl.constexpr, num_groups: tl.constexpr, num_chosen_groups: tl.constexpr, is_sum: tl.constexpr
):
    """Ranks, of the experts of other groups none. A group is as good as its best expert, or its best two together."""
    worth = tl.full(rank.shape, -1e30, tl.float32)  # at the first expert of each
    for g in tl.static_range(num_groups):
        own = tl.where(expert // size == g, rank, -1e30)
        best = tl.max(own, 0)
        if is_sum:
            first = tl.min(tl.where(own == best, expert, num_groups * size), 0)
            best += tl.max(tl.where(expert == first, -1e30, own), 0)
        worth = tl.where(expert == g * size, best, worth)
    kept = tl.full(rank.shape, -1e30, tl.float32)
    for _ in tl.static_range(num_chosen_groups):
        first = tl.min(tl.where(worth == tl.max(worth, 0), expert, (num_groups - 1) * size), 0)
        kept = tl.where(expert // size == first // size, rank, kept)
        worth = tl.where(expert == first, -1e30, worth)
    return kept
