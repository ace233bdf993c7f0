"""Chooses the tier of a request that names a route: what is asked for first, then what its session has cached.

`choose` only looks; `learn` is told afterwards what was read where. Knows no socket: whoever classifies by a model
hands in how to ask one.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from hotloop.router.tiers.config import Route, Task, Tier, TiersConfig, Tokens
from hotloop.router.tiers.embedding import Centres
from hotloop.router.tiers.features import Features
from hotloop.router.tiers.labels import labels_body, read_scores
from hotloop.router.tiers.rules import can_need_task, decide
from hotloop.router.tiers.sticky import Sessions, is_worth_staying


@dataclass(frozen=True, slots=True)
class Reply:
    """A whole chat completion and how long it took; no answer where asking failed, in whatever way."""

    answer: Mapping[str, Any] | None
    latency_s: float = 0.0


AskModel = Callable[[Tier, dict[str, Any]], Awaitable[Reply]]
"""Sends a chat request to the replicas of a tier; the body names its model already. Never raises for what they do."""


@dataclass(frozen=True, slots=True)
class TierChoice:
    """The tier, the model to ask for, and why: one line of plain words."""

    tier: str
    model: str
    reason: str


@dataclass(frozen=True, slots=True)
class Guess:
    """The task a classifier sees, and the reply that told it, where a model was asked."""

    task: Task | None
    reply: Reply | None = None


class Tiers:
    """One for a fleet. Bounded memory: a few numbers for each of the last sessions."""

    def __init__(self, config: TiersConfig) -> None:
        self.config = config
        self._sessions = Sessions()
        self._centres = {
            route.name: Centres(route.examples) for route in config.routes if route.classifier == "embedding"
        }

    def is_route(self, model: str) -> bool:
        return self.config.route(model) is not None

    async def classify(self, model: str, features: Features, ask: AskModel) -> Guess:
        """The task: what the client says, else what the classifier sees, if any rule cares."""
        route = self._route(model)
        if features.hint or route.classifier == "none" or not can_need_task(route, features):
            return Guess(features.hint)
        if route.classifier == "embedding":
            task, score = self._centres[route.name].nearest(features.text) or (None, 0.0)
            return Guess(task if score >= route.min_score else None)
        tier = self.config.tiers[0]
        reply = await ask(tier, labels_body(tier.model, features.text))
        scores = read_scores(reply.answer or {})
        likeliest = max(scores, key=lambda task: scores[task], default=None)
        is_sure = likeliest is not None and scores[likeliest] >= route.min_score
        return Guess(likeliest if is_sure else None, reply)

    def choose(
        self,
        model: str,
        features: Features,
        *,
        task: Task | None = None,
        session: str = "",
        num_output: int = 0,
        cached: Mapping[str, int] | None = None,
        now: float = 0.0,
    ) -> TierChoice:
        """`model` is a route. `num_output` is what is expected, `cached` what tiers are known to have of the prompt."""
        route = self._route(model)
        wanted, reason = self._wanted(route, features, task or features.hint)
        here = self._sessions.tier_of(session)
        if not here or not route.sticky_s or not self._is_below(wanted.name, here):
            return TierChoice(wanted.name, wanted.model, reason)
        known = cached or {}
        held = [
            known.get(name, self._sessions.num_cached(session, name, now=now, keep_s=route.sticky_s))
            for name in (here, wanted.name)
        ]
        stay = self.config.tier(here)
        if is_worth_staying(stay, wanted, features.num_tokens, num_output, cached=(held[0], held[1])):
            return TierChoice(stay.name, stay.model, f"cache worth more than {wanted.name} saves ({reason})")
        return TierChoice(wanted.name, wanted.model, reason)

    def learn(self, session: str, tier: str, tokens: Tokens, now: float) -> None:
        """An answer came from the tier, which has then read the prompt and what it wrote."""
        self._sessions.remember(session, tier, tokens.num_prompt + tokens.num_output, now)

    def _route(self, model: str) -> Route:
        route = self.config.route(model)
        assert route, f"{model} is no route"
        return route

    def _wanted(self, route: Route, features: Features, task: Task | None) -> tuple[Tier, str]:
        """What the rules ask for; one more where the last call failed and the cascade minds that."""
        decision = decide(route, features, task)
        tier = self.config.tier(decision.tier) if decision.tier else self.config.largest
        above = self.config.above(tier.name)
        if above and features.has_tool_error and route.cascade and "tool_error" in route.cascade.on:
            return above, "tool error"
        return tier, decision.reason

    def _is_below(self, name: str, other: str) -> bool:
        names = self.config.names
        return names.index(name) < names.index(other)
