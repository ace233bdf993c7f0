"""Routing and the products of experts beside their definition."""

from pathlib import Path

import pytest
import torch
from tests.backends import reference
from tests.engine.tiny import TOKENIZER
from tests.models.tiny import DictWeights, tiny_spec, tiny_weights

from hotloop.backends.cuda.experts import (
    ExpertWeights,
    Tiles,
    few_products,
    grouped_products,
    mix,
    route,
)
from hotloop.backends.cuda.fp8 import ScaledMatrix, quantise
from hotloop.backends.cuda.weights import load_weights
from hotloop.models.layout import share_of
from hotloop.models.model import Model
from hotloop.models.spec import ExpertsSpec, Family

HIDDEN = 48
SPEC = ExpertsSpec(num_experts=6, num_chosen=2, size=40)


def make_weights(spec: ExpertsSpec, device: str) -> ExpertWeights:
    def randn(*shape: int) -> torch.Tensor:
        return torch.randn(shape, device=device) / shape[-1] ** 0.5

    return ExpertWeights(
        router=randn(spec.num_experts, HIDDEN) * 3,
        gate_up=randn(spec.num_experts * 2 * spec.size, HIDDEN),
        down=randn(spec.num_experts * HIDDEN, spec.size),
    )


def wide(matrix: torch.Tensor | ScaledMatrix) -> torch.Tensor:
    return matrix.widened() if isinstance(matrix, ScaledMatrix) else matrix


def defined_scores(logits: torch.Tensor, spec: ExpertsSpec) -> torch.Tensor:
    """[rows, experts]: 0 where one was not chosen."""
    scores = logits.sigmoid() if spec.is_sigmoid else logits.softmax(-1)
    chosen = scores.topk(spec.num_chosen).indices
    kept = torch.zeros_like(scores).scatter(1, chosen, scores.gather(1, chosen))
    return kept / kept.sum(-1, keepdim=True) if spec.is_normed else kept


def defined_mix(x: torch.Tensor, weights: ExpertWeights, spec: ExpertsSpec) -> torch.Tensor:
    scores = defined_scores(x @ weights.router.t(), spec)
    gate_up = wide(weights.gate_up).view(spec.num_experts, 2, spec.size, HIDDEN)
    down = wide(weights.down).view(spec.num_experts, HIDDEN, spec.size)
    gate, up = torch.einsum("rh,epsh->pers", x, gate_up)
    return torch.einsum("ers,ehs,re->rh", torch.nn.functional.silu(gate) * up, down, scores)


def no_slots(num_rows: int, device: str, num_pads: int = 0) -> torch.Tensor:
    return torch.tensor([0] * num_rows + [-1] * num_pads, dtype=torch.int64, device=device)


def zeros(spec: ExpertsSpec, device: str) -> torch.Tensor:
    return torch.zeros(spec.num_experts, dtype=torch.int32, device=device)


@pytest.mark.parametrize("is_sigmoid", [False, True])
@pytest.mark.parametrize("is_normed", [False, True])
def test_a_row_goes_to_the_experts_of_the_highest_scores(device: str, is_sigmoid: bool, is_normed: bool) -> None:
    spec = ExpertsSpec(num_experts=6, num_chosen=3, size=8, is_sigmoid=is_sigmoid, is_normed=is_normed)
    logits = torch.randn(9, 6, device=device)
    routed = route(logits, None, spec, no_slots(7, device, num_pads=2), zeros(spec, device))
    want = defined_scores(logits, spec)[:7]
    got = torch.zeros_like(want).scatter(1, routed.ids[:7].long(), routed.scores[:7])
    torch.testing.assert_close(got, want)
    assert (routed.ids[7:] == -1).all()
    assert routed.counts.tolist() == (want > 0).sum(0).tolist()
    for expert, count in enumerate(routed.counts.tolist()):
        pairs = routed.order[expert, :count].cpu()
        assert sorted(pairs.tolist()) == (routed.ids.cpu().flatten() == expert).nonzero().flatten().tolist()


def test_logits_that_are_no_numbers_choose_experts_that_there_are(device: str) -> None:
    logits = torch.full((2, 6), float("nan"), device=device)
    ids = route(logits, None, SPEC, no_slots(2, device), zeros(SPEC, device)).ids
    assert ((ids >= 0) & (ids < 6)).all()


@pytest.mark.parametrize("is_fp8", [False, True])
@pytest.mark.parametrize("num_rows", [1, 3, 37])
def test_products_are_those_of_the_definition(device: str, num_rows: int, is_fp8: bool) -> None:
    weights = make_weights(SPEC, device)
    if is_fp8:
        weights = ExpertWeights(weights.router, quantise(weights.gate_up), quantise(weights.down))
    x = torch.randn(num_rows, HIDDEN, device=device)
    want = defined_mix(x, weights, SPEC)
    got = mix(x, weights, SPEC, no_slots(num_rows, device), zeros(SPEC, device))
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("pairs", [16, 32])
def test_both_ways_agree_with_rows_that_pad_and_experts_that_nobody_chose(device: str, pairs: int) -> None:
    spec = ExpertsSpec(num_experts=20, num_chosen=2, size=24)
    weights = make_weights(spec, device)
    x = torch.randn(5, HIDDEN, device=device)
    logits, slots = x @ weights.router.t(), no_slots(3, device, num_pads=2)
    few = few_products(x, weights, spec, route(logits, None, spec, slots, zeros(spec, device), is_few=True))
    tiles = Tiles(0, pairs, 32, 32, 4, 1)
    many = grouped_products(x, weights, spec, route(logits, None, spec, slots, zeros(spec, device)), tiles)
    torch.testing.assert_close(few[:3], many[:3], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(many[:3], defined_mix(x, weights, spec)[:3], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("family", ["qwen3moe", "gptoss", "glm4moe"])
def test_the_shares_of_several_ranks_come_to_the_whole(family: Family, device: str) -> None:
    spec = tiny_spec(family)
    assert spec.experts
    model = Model("tiny", Path("tiny"), "tiny", spec, TOKENIZER, None, DictWeights(tiny_weights(spec)), 0)
    x, slots = torch.randn(3, spec.hidden_size, device=device), no_slots(3, device)

    def mixed(rank: int, num_ranks: int) -> torch.Tensor:
        share = share_of(spec, num_ranks).experts
        layer = load_weights(model, device, torch.float32, rank=rank, num_ranks=num_ranks).layers[-1]
        assert share
        assert layer.experts
        return mix(x, layer.experts, share, slots, zeros(spec.experts, device))

    want = reference.experts(spec.experts, model.weights, f"layers.{spec.num_layers - 1}.", x.cpu().numpy())
    torch.testing.assert_close(mixed(0, 1).cpu(), torch.from_numpy(want), rtol=1e-3, atol=1e-2)
    torch.testing.assert_close(mixed(0, 2) + mixed(1, 2), mixed(0, 1), rtol=1e-4, atol=1e-2)
