"""Tiers and routes out of a file: what is wrong is named."""

import tomllib
from typing import Any

import pytest

from hotloop.core.errors import ConfigError
from hotloop.router.tiers.config import TiersConfig, parse_tiers
from hotloop.wire.usage import ApiUsage

FILE = """
[[tiers]]
name = "fast"
model = "small"
input_price = 0.2
cached_price = 0.02
output_price = 0.8

[[tiers]]
name = "large"
model = "org/large"
input_price = 1
output_price = 4

[[routes]]
default = "fast"
classifier = "embedding"
examples = { code = ["write a function"], qa = ["who was"] }

[[routes.rules]]
tier = "large"
tasks = ["reasoning", "code"]
min_tokens = 100

[routes.cascade]
on = ["low_confidence"]
min_logprob = -0.4

[[routes]]
name = "cheap"
"""


def parse(text: str) -> TiersConfig:
    return parse_tiers(tomllib.loads(text))


def test_a_file():
    config = parse(FILE)
    auto, cheap = config.routes
    assert (config.names, config.largest.model) == (("fast", "large"), "org/large")
    assert (auto.name, auto.default, auto.rules[0].tasks, auto.rules[0].max_tokens) == (
        "auto",
        "fast",
        ("reasoning", "code"),
        None,
    )
    assert auto.cascade
    assert (auto.cascade.on, auto.cascade.min_logprob) == (("low_confidence",), -0.4)
    assert (cheap.name, cheap.cascade, cheap.rules) == ("cheap", None, ())
    assert (config.above("fast"), config.above("large")) == (config.tiers[1], None)
    assert config.route("nobody") is None


def test_nothing_is_a_config_too():
    assert parse_tiers({"replicas": []}) == TiersConfig()


def test_prices_are_per_million_and_cached_tokens_have_their_own():
    fast, large = parse(FILE).tiers
    usage = ApiUsage(num_prompt=1_000_000, num_cached=500_000, num_output=1_000_000)
    assert fast.cost(usage) == pytest.approx(0.1 + 0.01 + 0.8)
    assert large.cost(usage) == pytest.approx(5), "cached ones cost as others where no price is given"


TIER = {"name": "a", "model": "m"}
TWO = [TIER, {"name": "b", "model": "n"}]


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        ({"tiers": {"name": "a"}}, r"expected array, got object - at tiers"),
        ({"tiers": ["a"]}, r"expected object, got str - at tiers\[0\]"),
        ({"tiers": [{"name": "a"}]}, r"model - at tiers\[0\]"),
        ({"tiers": [TIER | {"price": 1}]}, r"price - at tiers\[0\]"),
        ({"tiers": [TIER | {"input_price": "1"}]}, r"expected float, got str - at tiers\[0\]\.input_price"),
        ({"tiers": [TIER | {"output_price": -1}]}, r"expected float >= 0.0 - at tiers\[0\]\.output_price"),
        ({"tiers": [TIER | {"output_price": float("nan")}]}, r"expected float >= 0.0 - at tiers\[0\]\.output_price"),
        ({"tiers": [TIER, TIER]}, r"tiers\[1\]\.name: 'a' is there already"),
        ({"tiers": [TIER | {"name": ""}]}, r"expected str of length >= 1 - at tiers\[0\]\.name"),
        ({"routes": [{}]}, r"routes\[0\]: a route needs \[\[tiers\]\]"),
        ({"tiers": [TIER], "routes": [{}, {}]}, r"routes\[1\]\.name: 'auto' is there already"),
        ({"tiers": [TIER], "routes": [{"default": "b"}]}, r"routes\[0\]\.default: there is no tier 'b'; there are a"),
        ({"tiers": [TIER], "routes": [{"rules": [{"tier": "b"}]}]}, r"routes\[0\]\.rules\[0\]\.tier: there is no tier"),
        ({"tiers": [TIER], "routes": [{"rules": [{"tier": "a", "task": 1}]}]}, r"task - at routes\[0\]\.rules\[0\]"),
        (
            {"tiers": [TIER], "routes": [{"rules": [{"tier": "a", "tasks": [""]}]}]},
            r"length >= 1 - at .*rules\[0\]\.tasks",
        ),
        ({"tiers": [TIER], "routes": [{"classifier": "magic"}]}, r"'magic' - at routes\[0\]\.classifier"),
        ({"tiers": [TIER], "routes": [{"classifier": "embedding"}]}, r"routes\[0\]\.examples: .*two tasks"),
        ({"tiers": [TIER], "routes": [{"name": "m"}]}, r"routes\[0\]\.name: 'm' is also the model"),
        ({"tiers": [TIER], "routes": [{"cascade": {}}]}, r"routes\[0\]\.cascade needs two tiers"),
        (
            {"tiers": TWO, "routes": [{"cascade": {"min_logprob": 1}}]},
            r"<= 0.0 - at .*\.min_logprob",
        ),
        ({"tiers": TWO, "routes": [{"cascade": {"on": ["mood"]}}]}, r"'mood' - at routes\[0\]\.cascade\.on"),
        ({"tiers": TWO, "routes": [{"sticky_s": -1}]}, r"expected float >= 0.0 - at routes\[0\]\.sticky_s"),
    ],
)
def test_what_is_wrong_is_named(data: dict[str, Any], complaint: str):
    with pytest.raises(ConfigError, match=complaint) as caught:
        parse_tiers(data)
    assert "\n" not in str(caught.value)
