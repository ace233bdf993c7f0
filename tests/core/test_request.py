"""What a request knows of itself, and the parameters it refuses."""

import math
from typing import Any

import pytest

from hotloop.core.config import EngineConfig
from hotloop.core.errors import RequestError
from hotloop.core.request import Priority, Request, SamplingParams


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", -0.1),
        ("temperature", math.nan),
        ("temperature", 101),
        ("top_p", 0),
        ("top_p", 1.01),
        ("top_k", -1),
        ("min_p", 1.5),
        ("repetition_penalty", 0),
        ("repetition_penalty", 1e-30),
        ("presence_penalty", 2.5),
        ("frequency_penalty", -math.inf),
        ("logit_bias", {5: 101}),
        ("logit_bias", {5: math.nan}),
        ("max_tokens", 0),
        ("min_tokens", -1),
        ("stop", ("",)),
        ("logprobs", 21),
    ],
)
def test_values_out_of_range_name_their_field(name: str, value: Any) -> None:
    with pytest.raises(RequestError, match=f"{name} is out of range") as caught:
        SamplingParams(**{name: value})
    assert caught.value.param == name


def test_too_many_biases_are_refused_in_a_short_sentence() -> None:
    SamplingParams(logit_bias=dict.fromkeys(range(1024), 1.0))
    with pytest.raises(RequestError, match=r"^logit_bias has 1025 entries; at most 1024 are taken$") as caught:
        SamplingParams(logit_bias=dict.fromkeys(range(1025), 1.0))
    assert caught.value.param == "logit_bias"


def test_at_least_cannot_exceed_at_most() -> None:
    assert SamplingParams(min_tokens=5).min_tokens == 5
    with pytest.raises(RequestError, match="min_tokens"):
        SamplingParams(min_tokens=5, max_tokens=4)


def test_a_temperature_next_to_nothing_is_greedy() -> None:
    assert SamplingParams(temperature=0).is_greedy
    assert SamplingParams(temperature=1e-300).is_greedy
    assert not SamplingParams(temperature=0.01).is_greedy


def test_tokens_and_counts() -> None:
    request = Request("r", (4, 5, 6), SamplingParams())
    request.token_ids.extend([7, 8])
    assert (request.num_prompt, request.num_tokens, request.num_output) == (3, 5, 2)
    assert request.output_ids.tolist() == [7, 8]
    assert (request.usage.num_prompt, request.usage.num_cached, request.usage.num_output) == (3, 0, 2)
    assert not request.is_finished


def test_a_token_id_no_vocabulary_has_is_refused() -> None:
    with pytest.raises(RequestError, match="outside the vocabulary"):
        Request("r", [2**31], SamplingParams())


def test_classes_wait_no_longer_than_promised() -> None:
    limits = EngineConfig().class_limits
    assert [limits[priority].max_wait_s for priority in Priority] == [0.010, 0.050, 0.500]
