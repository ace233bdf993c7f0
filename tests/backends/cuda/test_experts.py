"""Routing and the products of experts beside their definition."""

from dataclasses import replace
from pathlib import Path

import gguf
import pytest
import torch
from tests.backends import reference
from tests.engine.tiny import TOKENIZER
from tests.models.test_mxfp4 import write_packed
from tests.models.tiny import DictWeights, tiny_spec, tiny_weights
from tests.parity.models import read_model

from hotloop.backends.cuda.layers import experts
from hotloop.backends.cuda.layers.expert_weights import ExpertWeights, Matrices
from hotloop.backends.cuda.layers.experts import (
    Tiles,
    few_products,
    grouped_products,
    mix,
)
from hotloop.backends.cuda.layers.routing import route
from hotloop.backends.cuda.quant.fp8 import quantise
from hotloop.backends.cuda.quant.mxfp4 import Mxfp4Matrix
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


def wide(matrix: Matrices) -> torch.Tensor:
    return matrix if isinstance(matrix, torch.Tensor) else matrix.dequantised()


def defined_scores(logits: torch.Tensor, spec: ExpertsSpec) -> torch.Tensor:
    """[rows, experts]: 0 where one was not chosen."""
    scores = logits.sigmoid() if spec.is_sigmoid else logits.softmax(-1)
    groups = scores.unflatten(1, (spec.num_groups, -1))
    worth = groups.topk(2 if spec.is_sigmoid else 1).values.sum(-1)
    is_best = torch.zeros_like(worth).scatter(1, worth.topk(spec.num_chosen_groups).indices, 1)
    chosen = (groups * is_best[:, :, None]).flatten(1).topk(spec.num_chosen).indices
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
@pytest.mark.parametrize(("is_normed", "num_groups"), [(False, 1), (True, 1), (True, 3)])
def test_a_row_goes_to_the_experts_of_the_highest_scores(
    device: str, is_sigmoid: bool, is_normed: bool, num_groups: int
) -> None:
    spec = ExpertsSpec(num_experts=6, num_chosen=3, size=8, is_sigmoid=is_sigmoid, is_normed=is_normed)
    spec = replace(spec, num_groups=num_groups, num_chosen_groups=min(2, num_groups))
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


@pytest.mark.parametrize(("num_rows", "min_dequantised"), [(2, 1024), (21, 1024), (21, 16)])
def test_experts_in_mxfp4_are_read_as_they_are(
    device: str, num_rows: int, min_dequantised: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(experts, "_MIN_DEQUANTISED_ROWS", min_dequantised)
    hidden, spec = 96, ExpertsSpec(num_experts=5, num_chosen=2, size=64)

    def packed(num_rows: int, num_columns: int) -> Mxfp4Matrix:
        matrix = Mxfp4Matrix.empty(num_rows, num_columns, torch.device(device))
        blocks = torch.randint(0, 256, (num_rows, num_columns // 32, 17), dtype=torch.uint8)
        blocks[..., 0] = 122 + blocks[..., 0] % 4
        matrix.fill(blocks.flatten(1).to(device))
        want = gguf.dequantize(blocks.flatten(1).numpy(), gguf.GGMLQuantizationType.MXFP4)
        torch.testing.assert_close(matrix.dequantised().cpu(), torch.from_numpy(want))
        return matrix

    router = torch.randn(spec.num_experts, hidden, device=device)
    weights = ExpertWeights(router, packed(2 * 5 * 64, hidden), packed(5 * hidden, 64))
    same = ExpertWeights(router, wide(weights.gate_up), wide(weights.down))
    x = torch.randn(num_rows, hidden, device=device) / 8
    got, want = (mix(x, each, spec, no_slots(num_rows, device), zeros(spec, device)) for each in (weights, same))
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("rank", "num_ranks"), [(0, 1), (0, 3), (2, 3)])
def test_packed_files_are_held_packed(tmp_path: Path, device: str, rank: int, num_ranks: int) -> None:
    write_packed(tmp_path / "m", num_attention_heads=6, num_key_value_heads=3)
    model = read_model("gpt_oss", tmp_path / "m", TOKENIZER)
    layer = load_weights(model, device, torch.float32, rank=rank, num_ranks=num_ranks).layers[1]
    assert layer.experts
    assert isinstance(layer.experts.down, Mxfp4Matrix)
    width = 96 // num_ranks
    part = slice(rank * width, (rank + 1) * width)
    down, gate_up = (each.dequantised().cpu() for each in (layer.experts.down, layer.experts.gate_up))
    want = torch.from_numpy(model.weights.read("layers.1.experts.4.down"))
    torch.testing.assert_close(down.view(6, 64, width)[4], want[:, part])
    want = torch.from_numpy(model.weights.read("layers.1.experts.2.up"))
    torch.testing.assert_close(gate_up.view(6, 2, width, 64)[2, 1], want[part])
