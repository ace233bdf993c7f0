"""A mixed set of tasks, asked always of the large model, by rules, and with a cascade.

Each model is asked once a question, and each way is put together from what it would have asked: answers are greedy, so
asking again would give the same. The small one is always asked with probabilities, as the cascade needs them.
"""

import json
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import httpx

from benchmarks.tiers.questions import TierQuestion
from hotloop.core.errors import RemoteError
from hotloop.http.client import open_client
from hotloop.router.tiers.cascade import cascade
from hotloop.router.tiers.config import Tier, TiersConfig, parse_tiers
from hotloop.router.tiers.features import Features, look_at
from hotloop.router.tiers.tiers import Reply, TierChoice, Tiers
from hotloop.wire.usage import ApiUsage

WAYS = LARGE, RULES, CASCADE = "always large", "tiers, rules", "tiers, cascade"

_BYTES_PER_TOKEN = 4

_RULES = [
    {"tier": "small", "tasks": ["classification", "extraction", "qa"]},
    {"tier": "large", "tasks": ["reasoning"]},
    {"tier": "small", "min_tools": 1},
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What the ways are compared under."""

    price_ratio: float = 10.0
    """How many times the small model's price the large one's is."""
    min_logprob: float = -0.3
    min_margin: float = 0.3
    """Below either the cascade asks the large model."""

    def config(self, models: Mapping[str, str]) -> TiersConfig:
        """Two tiers with the models as their servers call them, and a route for each way that has rules."""
        prices = {"input_price": 1.0, "cached_price": 0.1, "output_price": 4.0}
        small = {name: price / self.price_ratio for name, price in prices.items()}
        doubts = {"on": ["low_confidence", "invalid_output"]}
        thresholds = {"min_logprob": self.min_logprob, "min_margin": self.min_margin}
        return parse_tiers(
            {
                "tiers": [
                    {"name": "small", "model": models["small"], **small},
                    {"name": "large", "model": models["large"], **prices},
                ],
                "routes": [
                    {"name": RULES, "rules": _RULES},
                    {"name": CASCADE, "rules": _RULES, "cascade": {**doubts, **thresholds}},
                ],
            }
        )


@dataclass(frozen=True, slots=True)
class Asked:
    """One question, asked one way: all that was sent for it."""

    question: TierQuestion
    is_right: bool
    latency_s: float
    spent: tuple[tuple[Tier, ApiUsage], ...]
    choice: TierChoice

    @property
    def cost(self) -> float:
        return sum(tier.cost(usage) for tier, usage in self.spent)


@dataclass(slots=True)
class Measured:
    """By way, in the order of the questions. A question that failed one way counts for none."""

    asked: dict[str, list[Asked]] = field(default_factory=lambda: {way: [] for way in WAYS})
    errors: list[str] = field(default_factory=list)


class TierServers:
    """The address of each tier, by its name. `failures` says what went wrong, newest last. An async context manager."""

    def __init__(self, urls: Mapping[str, str], *, transport: httpx.AsyncBaseTransport | None = None) -> None:
        self.failures: list[str] = []
        self._urls = {name: url.rstrip("/").removesuffix("/v1") for name, url in urls.items()}
        self._replies: dict[tuple[str, str], Reply] = {}
        self._http = open_client(transport=transport)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.aclose()

    async def find_models(self) -> dict[str, str]:
        """What each server calls its model, by tier."""
        models = {}
        for name, url in self._urls.items():
            try:
                models[name] = (await self._http.get(f"{url}/v1/models")).json()["data"][0]["id"]
            except (httpx.HTTPError, ValueError, LookupError, TypeError) as error:
                raise RemoteError(f"{url} does not list its model: {str(error) or type(error).__name__}") from None
        return models

    async def ask(self, tier: Tier, body: dict[str, Any]) -> Reply:
        """What was answered before, if that was asked before."""
        if tier.name == "small":
            body = {**body, "logprobs": True, "top_logprobs": 2}
        key = tier.name, json.dumps({name: value for name, value in body.items() if "logprobs" not in name})
        if key not in self._replies:
            self._replies[key] = await self._ask(f"{self._urls[tier.name]}/v1/chat/completions", body)
        return self._replies[key]

    async def _ask(self, url: str, body: dict[str, Any]) -> Reply:
        began_at = time.perf_counter()
        try:
            response = await self._http.post(url, json=body)
            answer = response.json() if response.status_code == 200 else None
            if answer is None:
                self.failures.append(f"{url} answered {response.status_code}: {response.text[:200]}")
        except (httpx.HTTPError, ValueError) as error:
            answer = None
            self.failures.append(f"{url}: {str(error) or type(error).__name__}")
        return Reply(answer, time.perf_counter() - began_at)


async def measure_tiers(
    servers: TierServers,
    config: TiersConfig,
    questions: Sequence[TierQuestion],
    watch: Callable[[], None] = lambda: None,
) -> Measured:
    """Ask every question all ways; `watch` is called after each question."""
    asker = _Asker(servers, config)
    measured = Measured()
    for question in questions:
        answered = {way: each for way in WAYS if (each := await asker.ask(way, question))}
        if len(answered) == len(WAYS):
            for way, each in answered.items():
                measured.asked[way].append(each)
        else:
            measured.errors.append(f"{question.id}: {servers.failures[-1]}")
        watch()
    if questions and not measured.asked[LARGE]:
        raise RemoteError(measured.errors[0])
    return measured


class _Asker:
    """Plays the router: chooses, cascades, and asks."""

    def __init__(self, servers: TierServers, config: TiersConfig) -> None:
        self._servers = servers
        self._config = config
        self._tiers = Tiers(config)

    async def ask(self, way: str, question: TierQuestion) -> Asked | None:
        """None where no answer came. It takes as long as all that is asked for it."""
        body = question.body
        spent: list[tuple[Tier, ApiUsage]] = []
        choice = self._choose(way, body, question)
        answer, latency_s = None, 0.0
        route = self._config.route(way)
        if route and route.cascade:
            cascaded = await cascade(self._config, route.cascade, choice, body, self._servers.ask)
            choice, answer = cascaded.choice, cascaded.answer
            spent += [(each.tier, each.reply.usage) for each in cascaded.attempts]
            latency_s += sum(each.reply.latency_s for each in cascaded.attempts)
        if answer is None:
            tier = self._config.tier(choice.tier)
            reply = await self._servers.ask(tier, {**body, "model": choice.model})
            answer = reply.answer
            spent.append((tier, reply.usage))
            latency_s += reply.latency_s
        if answer is None:
            return None
        is_right = question.is_right(answer["choices"][0]["message"])
        return Asked(question, is_right, latency_s, tuple(spent), choice)

    def _choose(self, way: str, body: Mapping[str, Any], question: TierQuestion) -> TierChoice:
        if way == LARGE:
            tier = self._config.tiers[-1]
            return TierChoice(tier.name, tier.model, way)
        return self._tiers.choose(way, _features_of(body, question))


def _features_of(body: Mapping[str, Any], question: TierQuestion) -> Features:
    size = len(str(body["messages"])) + len(str(body.get("tools", "")))
    return look_at(body, num_tokens=size // _BYTES_PER_TOKEN, task=question.task or "")


@dataclass(frozen=True, slots=True)
class WayFigures:
    """One way in figures."""

    label: str
    num_questions: int
    num_right: int
    cost: float
    """Of all questions, with what was thrown away, at prices per million tokens."""
    latency_mean_s: float
    large_share: float
    """Of the questions, those that the large model answered in the end."""
    num_discarded: int
    """Answers of the small model that the cascade did not take."""

    @property
    def quality(self) -> float:
        return self.num_right / self.num_questions if self.num_questions else 0.0


def figures_of(measured: Measured) -> list[WayFigures]:
    return [_figures(way, asked) for way, asked in measured.asked.items()]


def _figures(way: str, asked: Sequence[Asked]) -> WayFigures:
    latencies = [each.latency_s for each in asked] or [0.0]
    return WayFigures(
        label=way,
        num_questions=len(asked),
        num_right=sum(each.is_right for each in asked),
        cost=sum(each.cost for each in asked),
        latency_mean_s=statistics.fmean(latencies),
        large_share=sum(each.choice.tier == "large" for each in asked) / max(1, len(asked)),
        num_discarded=sum(len(each.spent) - 1 for each in asked),
    )
