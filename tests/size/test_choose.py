"""Which of the hardware is enough, and the cheapest."""

from dataclasses import replace

import pytest

from hotloop.core.errors import ConfigError
from hotloop.size.hardware import GPUS, Hardware
from hotloop.size.load import Load
from hotloop.size.roofline import Estimate, cheapest, estimate_all
from hotloop.size.shapes import SHAPES

LLAMA = SHAPES["llama-3.1-8b"]


def estimates(*hardware: Hardware, num_gpus: int | None = None, min_tokens_s: float = 20.0) -> list[Estimate]:
    return estimate_all(LLAMA, Load(), hardware, num_gpus=num_gpus, min_tokens_s=min_tokens_s)


def test_latents_are_all_of_the_kv_and_on_one_gpu() -> None:
    spec = SHAPES["deepseek-v2-lite"]
    load = Load(context=999, tokens_out=1)
    [found] = estimate_all(spec, load, [GPUS["h200"]], num_gpus=None, min_tokens_s=20)
    assert found.memory.session_bytes == 1000 * spec.num_layers * 576 * 2
    with pytest.raises(ConfigError, match="cannot be split over 2 GPUs"):
        estimate_all(spec, load, [GPUS["h200"]], num_gpus=2, min_tokens_s=20)


def test_as_few_as_are_enough():
    found = {each.hardware.name: each.keeps_up(20) for each in estimates(*GPUS.values())}
    assert found["H200"]
    assert found["2 x A100"]
    assert not found["8 x L4"]
    assert [each.hardware.num_gpus for each in estimates(GPUS["a100"], min_tokens_s=60)] == [4]


def test_as_many_as_asked_for():
    [found] = estimates(GPUS["h200"], num_gpus=8)
    assert found.hardware.num_gpus == 8
    with pytest.raises(ConfigError, match="8 heads of keys and values cannot be split over 3 GPUs"):
        estimates(GPUS["h200"], num_gpus=3)


def test_the_cheapest_is_enough_and_runs_hotloop():
    dear, cheap = GPUS["h200"], replace(GPUS["h200"], price_hour=1.0)
    found = estimates(dear, cheap, GPUS["mi300x"], GPUS["l4"])
    assert cheapest(found, 20) is found[1]
    assert cheapest(found, 1000) is None
    assert not GPUS["mi300x"].is_supported
    assert cheapest(estimates(GPUS["mi300x"]), 20) is None
