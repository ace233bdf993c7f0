"""Tiers and routes as the configuration file has them: frozen values, checked as they are parsed; errors name the key.

Tiers stand from the smallest model to the largest: that order is what "up" means everywhere in this folder.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, get_args

import msgspec
from msgspec import Meta

from hotloop.core.errors import ConfigError
from hotloop.core.structs import compiled
from hotloop.wire.hints import MAX_TASK_CHARS
from hotloop.wire.usage import ApiUsage

Task = Annotated[str, Meta(min_length=1, max_length=MAX_TASK_CHARS)]
"""Any name; hints are compared without case."""
TASKS: tuple[Task, ...] = ("classification", "extraction", "summary", "qa", "reasoning", "code")
"""What a classifier can tell apart."""
_SMALL = ("entity_extraction", "intent_classification", *("classification", "extraction", "summary", "title"))
_LARGE = ("code_generation", "code", "reasoning", "planning")
TASK_SIZES: Mapping[Task, float] = {
    **dict.fromkeys((*_SMALL, "evaluation"), 0.0),
    **dict.fromkeys(("simple_qa", "qa"), 0.5),
    **dict.fromkeys(_LARGE, 1.0),
}
"""Which tier does a task where no rule of a route names any: from the smallest, 0, to the largest, 1."""
ClassifierName = Literal["none", "labels", "embedding"]
Doubt = Literal["low_confidence", "invalid_output", "tool_error"]
DOUBTS: tuple[Doubt, ...] = get_args(Doubt)

Name = Annotated[str, Meta(min_length=1)]
NotNegative = Annotated[float, Meta(ge=0)]

_MILLION = 1e6


@compiled
class Tier(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A model, and what a million of its tokens cost, in any currency."""

    name: Name
    model: str
    """What it is called where it is served."""
    input_price: NotNegative = 0.0
    cached_price: NotNegative | None = None
    """Of cached prompt tokens; as others if not given."""
    output_price: NotNegative = 0.0

    @property
    def has_price(self) -> bool:
        return self.input_price > 0 or self.output_price > 0

    def cost(self, usage: ApiUsage) -> float:
        num_cached = usage.num_cached or 0
        cached_price = self.input_price if self.cached_price is None else self.cached_price
        prompt = (usage.num_prompt - num_cached) * self.input_price + num_cached * cached_price
        return (prompt + usage.num_output * self.output_price) / _MILLION


class TierRule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
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


@compiled
class CascadeConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """When an answer is thrown away and the next tier asked."""

    on: tuple[Doubt, ...] = DOUBTS
    min_logprob: Annotated[float, Meta(le=0)] = -0.5
    """Mean over the tokens the model chose itself, below which an answer is of low confidence."""
    min_margin: float | None = None
    """If given: least lead of a token over the next likely one, over the least certain token of an answer."""
    hold_tokens: Annotated[int, Meta(ge=0)] = 32
    """Of free text that was asked for as a stream: after so many it is judged, and told from then on as it is written.
    0: only at its end."""
    judge_calls: bool = False
    """Whether confidence counts where tools are offered as well: probabilities keep a hotloop from forcing tokens."""

    def minds_confidence(self, request: Mapping[str, Any]) -> bool:
        return "low_confidence" in self.on and (self.judge_calls or not request.get("tools"))


@compiled
class Route(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A name that clients give as their model, and how a tier is found for it."""

    name: Name = "auto"
    default: str = ""
    """The tier where no rule fits; the largest if not given."""
    rules: tuple[TierRule, ...] = ()
    classifier: ClassifierName = "none"
    """Who tells the task where the client does not: nobody, the smallest tier (`labels`), or n-grams (`embedding`)."""
    min_score: float = 0.2
    """Below this a classifier is not believed: its share among the labels, or the cosine of the nearest centre."""
    examples: dict[Task, tuple[str, ...]] = {}
    """What `embedding` learns from: some requests of each task."""
    cascade: CascadeConfig | None = None
    stabilise: bool | None = None
    """Whether prompts are put in a stable form; as the setting says if not given."""
    sticky_s: NotNegative = 300.0
    """How long a session's prompt is thought to stay cached; 0: every request is chosen for by itself."""


@compiled
class TiersConfig(msgspec.Struct, frozen=True):
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

    def usual(self, task: Task | None) -> Tier | None:
        """The tier of a task that is known; None for any other."""
        size = TASK_SIZES.get(task or "")
        return None if size is None else self.tiers[round(size * (len(self.tiers) - 1))]

    def above(self, name: str) -> Tier | None:
        place = self.names.index(name) + 1
        return self.tiers[place] if place < len(self.tiers) else None


def parse_tiers(data: Mapping[str, Any]) -> TiersConfig:
    """The `[[tiers]]` and `[[routes]]` tables of a file; nothing else of it is looked at. Raises ConfigError."""
    try:
        config = msgspec.convert(data, TiersConfig)
    except msgspec.ValidationError as error:
        complaint = str(error).replace("`", "").replace("$.", "")
        raise ConfigError(complaint[0].lower() + complaint[1:]) from None
    for key, names in (("tiers", config.names), ("routes", tuple(route.name for route in config.routes))):
        for number, name in enumerate(names):
            if name in names[:number]:
                raise ConfigError(f"{key}[{number}].name: {name!r} is there already")
    for number, route in enumerate(config.routes):
        _check_route(config, route, f"routes[{number}]")
    return config


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
    if route.cascade and len(config.tiers) < 2:
        raise ConfigError(f"{place}.cascade needs two tiers at least")
