"""Tiers and routes as a fleet's file has them: frozen values, checked when they are parsed; complaints name the key.

Tiers stand from the smallest model to the largest: that order is what "up" means everywhere in this folder.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar, get_args

import msgspec

from hotloop.core.errors import ConfigError

Task = Literal["classification", "extraction", "summary", "qa", "reasoning", "code"]
TASKS: tuple[Task, ...] = get_args(Task)
ClassifierName = Literal["none", "labels", "embedding"]
Doubt = Literal["low_confidence", "invalid_output", "tool_error"]
DOUBTS: tuple[Doubt, ...] = get_args(Doubt)

_MILLION = 1e6
_PLACE = re.compile(r"(?P<what>.*) - at (?:`key` in )?`\$(?P<path>[^`]*)`", re.DOTALL)

_Table = TypeVar("_Table", bound=msgspec.Struct)


@dataclass(frozen=True, slots=True)
class Tokens:
    """What a request took."""

    num_prompt: int = 0
    num_cached: int = 0
    """Those of the prompt that had been read before."""
    num_output: int = 0


class Tier(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A model, and what a million of its tokens cost, in any currency."""

    name: str
    model: str
    """What it is called where it is served."""
    input_price: float = 0.0
    cached_price: float | None = None
    """Of prompt tokens that had been read before; as others if not given."""
    output_price: float = 0.0

    def cost(self, tokens: Tokens) -> float:
        cached_price = self.input_price if self.cached_price is None else self.cached_price
        num_read = tokens.num_prompt - tokens.num_cached
        paid = num_read * self.input_price + tokens.num_cached * cached_price + tokens.num_output * self.output_price
        return paid / _MILLION


class Rule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Requests for which all of this holds go to the tier. What is not given is not asked for."""

    tier: str
    tasks: tuple[Task, ...] = ()
    """Any of these, as the client or the classifier says."""
    min_tokens: int | None = None
    max_tokens: int | None = None
    """Of the prompt."""
    min_turns: int | None = None
    max_turns: int | None = None
    """How often the user has spoken."""
    min_tools: int | None = None
    max_tools: int | None = None
    has_shape: bool | None = None
    """Whether the answer must have a given shape (`response_format` and its kin)."""
    has_code: bool | None = None
    """Whether the newest words of the user have a fenced block."""


class CascadeConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """When an answer is thrown away and the next tier asked."""

    on: tuple[Doubt, ...] = DOUBTS
    min_logprob: float = -0.5
    """Mean over the tokens the model chose itself, below which an answer is of low confidence."""
    min_margin: float | None = None
    """If given: least lead of a token over the next likely one, over the least certain token of an answer."""
    judge_calls: bool = False
    """Whether confidence counts where tools are offered as well: probabilities keep a hotloop from forcing tokens."""

    def minds_confidence(self, request: Mapping[str, Any]) -> bool:
        return "low_confidence" in self.on and (self.judge_calls or not request.get("tools"))


class Route(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A name that clients give as their model, and how a tier is found for it."""

    name: str = "auto"
    default: str = ""
    """The tier where no rule fits; the largest if not given."""
    rules: tuple[Rule, ...] = ()
    """The first that fits counts."""
    classifier: ClassifierName = "none"
    """Who tells the task where the client does not: nobody, the smallest tier (`labels`), or n-grams (`embedding`)."""
    min_score: float = 0.2
    """Below this a classifier is not believed: its share among the labels, or the cosine of the nearest centre."""
    examples: dict[Task, tuple[str, ...]] = {}
    """What `embedding` learns from: some requests of each task."""
    cascade: CascadeConfig | None = None
    sticky_s: float = 300.0
    """How long what a session had read is thought to be cached; 0: every request is chosen for by itself."""


@dataclass(frozen=True, slots=True)
class TiersConfig:
    """All tiers, smallest first, and all routes."""

    tiers: tuple[Tier, ...] = ()
    routes: tuple[Route, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(tier.name for tier in self.tiers)

    @property
    def largest(self) -> Tier:
        return self.tiers[-1]

    def tier(self, name: str) -> Tier:
        return self.tiers[self.names.index(name)]

    def route(self, name: str) -> Route | None:
        return next((route for route in self.routes if route.name == name), None)

    def above(self, name: str) -> Tier | None:
        """The next larger one."""
        place = self.names.index(name) + 1
        return self.tiers[place] if place < len(self.tiers) else None


def parse_tiers(data: Mapping[str, Any]) -> TiersConfig:
    """The `[[tiers]]` and `[[routes]]` tables of a file; nothing else of it is looked at. Raises ConfigError."""
    tiers: tuple[Tier, ...] = tuple(_tables(data, "tiers", Tier))
    routes: tuple[Route, ...] = tuple(_tables(data, "routes", Route))
    config = TiersConfig(tiers, routes)
    _check_names("tiers", config.names)
    _check_names("routes", [route.name for route in routes])
    for number, tier in enumerate(tiers):
        _check_prices(tier, f"tiers[{number}]")
    for number, route in enumerate(routes):
        _check_route(config, route, f"routes[{number}]")
    return config


def _tables(data: Mapping[str, Any], key: str, kind: type[_Table]) -> Iterator[_Table]:
    tables = data.get(key, [])
    if not isinstance(tables, list):
        raise ConfigError(f"{key}: write [[{key}]], once for each")
    for number, table in enumerate(tables):
        try:
            yield msgspec.convert(table, kind)
        except msgspec.ValidationError as error:
            raise ConfigError(_explain(str(error), f"{key}[{number}]")) from None


def _explain(complaint: str, place: str) -> str:
    """`Expected float, got str - at $.input_price` -> `tiers[0].input_price: expected float, got str`."""
    found = _PLACE.match(complaint)
    what, path = (found["what"], found["path"]) if found else (complaint, "")
    return f"{place}{path}: {what[0].lower()}{what[1:]}".replace("`", "")


def _check_names(key: str, names: Sequence[str]) -> None:
    for number, name in enumerate(names):
        if not name:
            raise ConfigError(f"{key}[{number}].name is empty")
        if name in names[:number]:
            raise ConfigError(f"{key}[{number}].name: {name!r} is there already")


def _check_prices(tier: Tier, place: str) -> None:
    for key in ("input_price", "cached_price", "output_price"):
        price = getattr(tier, key)
        if price is not None and not 0 <= price < float("inf"):
            raise ConfigError(f"{place}.{key} must be 0 or more, not {price}")


def _check_route(config: TiersConfig, route: Route, place: str) -> None:
    if not config.tiers:
        raise ConfigError(f"{place}: a route needs [[tiers]]")
    named = [(f"{place}.default", route.default)] if route.default else []
    named += [(f"{place}.rules[{number}].tier", rule.tier) for number, rule in enumerate(route.rules)]
    for key, name in named:
        if name not in config.names:
            raise ConfigError(f"{key}: there is no tier {name!r}; there are {', '.join(config.names)}")
    if route.name in {tier.model for tier in config.tiers}:
        raise ConfigError(f"{place}.name: {route.name!r} is also the model of a tier")
    if route.classifier == "embedding" and sum(map(bool, route.examples.values())) < 2:
        raise ConfigError(f"{place}.examples: embedding needs examples of two tasks at least")
    if route.cascade and route.cascade.min_logprob > 0:
        raise ConfigError(f"{place}.cascade.min_logprob must be 0 or less, not {route.cascade.min_logprob}")
    if route.cascade and len(config.tiers) < 2:
        raise ConfigError(f"{place}.cascade needs two tiers at least")
    if route.sticky_s < 0:
        raise ConfigError(f"{place}.sticky_s must be 0 or more, not {route.sticky_s}")
