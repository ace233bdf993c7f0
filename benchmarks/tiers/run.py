"""A mixed set of tasks, asked always of the large model, by rules, and with a cascade; with two tiers and with three.

A model is asked once for the same request, and each way is put together from what it would have asked: answers are
greedy, so asking again would give the same. Probabilities, which keep a server from forcing tokens, are asked for where
a cascade needs them, and nowhere else.
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
from hotloop.router.tiers.classify import labels_body, read_scores
from hotloop.router.tiers.config import Task, Tier, TiersConfig, parse_tiers
from hotloop.router.tiers.features import Features, look_at
from hotloop.router.tiers.tiers import Reply, TierChoice, Tiers
from hotloop.wire.usage import ApiUsage

WAYS = LARGE, RULES, CASCADE = "always large", "tiers, rules", "tiers, cascade"
PRICES = {"input_price": 1.0, "cached_price": 0.1, "output_price": 4.0}
"""Of the smallest model, for a million tokens."""
PRICE_RATIO = 10.0
"""How many times the price of a tier that of the next one up is."""

_BYTES_PER_TOKEN = 4
_CASCADE = {"on": ["low_confidence", "invalid_output"], "min_logprob": -0.3, "min_margin": 0.3}


def config_of(models: Mapping[str, str]) -> TiersConfig:
    """Tiers from the smallest to the largest, with the models as their servers call them, and a route for each way that
    has rules. Tools go to the smallest but one."""
    names = list(models)
    rules = [
        {"tier": names[0], "tasks": ["classification", "extraction"]},
        {"tier": names[-2], "tasks": ["qa"]},
        {"tier": names[-1], "tasks": ["reasoning"]},
        {"tier": names[-2], "min_tools": 1},
    ]
    tiers = [
        {"name": name, "model": model, **{each: price * PRICE_RATIO**i for each, price in PRICES.items()}}
        for i, (name, model) in enumerate(models.items())
    ]
    routes = [{"name": RULES, "rules": rules}, {"name": CASCADE, "rules": rules, "cascade": _CASCADE}]
    return parse_tiers({"tiers": tiers, "routes": routes})


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

    def parts(self, count: int) -> list["Measured"]:
        size = max(1, -(-len(self.asked[LARGE]) // count))
        begins = range(0, len(self.asked[LARGE]), size)
        return [Measured({way: asked[i : i + size] for way, asked in self.asked.items()}) for i in begins]

    def cost(self, way: str) -> float:
        """Of all questions, with what was thrown away."""
        return sum(each.cost for each in self.asked[way])

    def latency_s(self, way: str) -> float:
        return statistics.fmean(each.latency_s for each in self.asked[way])

    def right(self, way: str) -> float:
        return statistics.fmean(each.is_right for each in self.asked[way])


class TierServers:
    """The address of each tier, by its name, smallest first. `failures` says what went wrong, newest last. An async
    context manager."""

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
        key = tier.name, json.dumps(body, sort_keys=True)
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


async def classify(servers: TierServers, tier: Tier, questions: Sequence[TierQuestion]) -> list[Task | None]:
    """What the model of that tier takes each question for, which does not say what it is."""
    found: list[Task | None] = []
    for question in questions:
        text = features_of(question).text
        scores = read_scores((await servers.ask(tier, labels_body(tier.model, text))).answer or {})
        found.append(max(scores, key=lambda task: scores[task], default=None))
    return found


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
        choice = self._choose(way, question)
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

    def _choose(self, way: str, question: TierQuestion) -> TierChoice:
        if way == LARGE:
            return TierChoice(self._config.largest.name, self._config.largest.model, way)
        return self._tiers.choose(way, features_of(question))


def features_of(question: TierQuestion) -> Features:
    body = question.body
    size = len(str(body["messages"])) + len(str(body.get("tools", "")))
    return look_at(body, num_tokens=size // _BYTES_PER_TOKEN, task=question.task or "")
