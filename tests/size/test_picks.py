"""Which models are recommended: the table is of real shapes, and what is named fits."""

import re
from math import prod
from pathlib import Path

import pytest

from hotloop.models.layout import tensor_places
from hotloop.size.hardware import GIB, GPUS, Hardware
from hotloop.size.load import Load
from hotloop.size.picks import PICKS, Pick, best, choose
from hotloop.size.shapes import SHAPES

LOAD = Load(sessions=4, context=8192)


def cpu(gib: float) -> Hardware:
    return Hardware(name="cpu", memory_bytes=int(gib * GIB), bytes_s=50e9, flop_s=2e12, is_measured=True)


@pytest.mark.parametrize(
    ("shape", "billions"),
    [
        ("qwen2.5-0.5b", 0.494),
        ("qwen2.5-1.5b", 1.54),
        ("qwen2.5-7b", 7.62),
        ("qwen2.5-14b", 14.77),
        ("qwen2.5-32b", 32.76),
        ("qwen3-0.6b", 0.596),
        ("qwen3-1.7b", 1.72),
        ("qwen3-4b", 4.02),
        ("qwen3-8b", 8.19),
        ("qwen3-14b", 14.77),
        ("qwen3-32b", 32.76),
        ("llama-3.1-70b", 70.55),
        ("deepseek-v2-lite", 15.7),
        ("glm-4.7-flash", 30),
    ],
)
def test_shapes_have_as_many_parameters_as_is_published(shape: str, billions: float):
    assert sum(prod(place.shape) for place in tensor_places(SHAPES[shape])) / 1e9 == pytest.approx(billions, rel=0.005)


def test_the_manual_has_the_same_table():
    page = (Path(__file__).parents[2] / "docs" / "models.md").read_text("utf-8")
    section = page.partition("## Which model")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `(\S+/\S+)` \| (.+) \|$", section, re.MULTILINE)
    assert rows == [(pick.model, pick.good_for) for pick in PICKS]


def test_every_pick_has_a_shape_and_is_listed_once():
    assert {pick.shape for pick in PICKS} <= SHAPES.keys()
    assert len({pick.model for pick in PICKS}) == len(PICKS)


@pytest.mark.parametrize(
    "hardware", [cpu(8), cpu(32), GPUS["l4"], GPUS["h100"], GPUS["h200"]], ids=lambda each: each.name
)
def test_what_is_named_fits(hardware: Hardware):
    choices = choose(hardware, LOAD)
    assert choices
    for choice in choices:
        assert choice.needed_bytes <= hardware.memory_bytes * hardware.memory_share
        assert choice.needed_bytes > choice.estimate.memory.weights_bytes


def test_more_memory_never_names_fewer():
    counts = [len(choose(cpu(gib), LOAD)) for gib in (2, 8, 16, 64, 256)]
    assert counts == sorted(counts)
    assert counts[-1] == len(PICKS)
    assert not choose(cpu(0.5), LOAD)


def test_weights_are_made_smaller_only_where_they_must():
    formats = {choice.pick.model: choice for choice in choose(GPUS["l4"], LOAD)}
    assert (formats["Qwen/Qwen3-4B-Instruct-2507"].weights, formats["Qwen/Qwen3-8B"].weights) == ("bf16", "fp8")
    assert formats["Qwen/Qwen3-4B-Instruct-2507"].command == "hotloop serve Qwen/Qwen3-4B-Instruct-2507"
    assert formats["Qwen/Qwen3-8B"].command == "hotloop serve Qwen/Qwen3-8B --weights fp8"
    assert {choice.weights for gib in range(8, 40) for choice in choose(cpu(gib), LOAD)} == {"int8", "int4"}


def test_the_best_is_the_strongest_that_is_quick_enough():
    choices = choose(GPUS["h200"], LOAD)
    assert best(choices, 10) is choices[-1]
    quick = best(choices, 100)
    assert quick in choices[:-1]
    assert quick.estimate.latency.tokens_s_user >= 100
    assert best(choices, 1e9) is None


def test_a_context_too_long_for_a_model_leaves_it_out():
    picks = [Pick("a/short", "qwen3-0.6b", ""), Pick("a/long", "qwen3-4b", "")]
    assert [choice.pick.model for choice in choose(GPUS["h200"], Load(sessions=1, context=100_000), picks)] == [
        "a/long"
    ]
