"""Requests that name a route instead of a model: which tier answers, and, under a cascade, the answer itself.

model "auto" ─classify, choose─> a tier's model ─┬─ no cascade ──────────────> placed as any request
                                                 └─ ask, judge, go up ─> answered here, or the largest is placed
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from hotloop.core.errors import HotloopError
from hotloop.router.asked import Asked, parse_asked
from hotloop.router.proxy.proxy import Proxy
from hotloop.router.tiers.cascade import Cascaded, can_cascade, cascade
from hotloop.router.tiers.config import Tier, TiersConfig, Tokens
from hotloop.router.tiers.features import look_at
from hotloop.router.tiers.saved import Saved, tokens_of
from hotloop.router.tiers.stream import render_stream
from hotloop.router.tiers.tiers import Reply, TierChoice, Tiers
from hotloop.router.told import Told
from hotloop.router.traced import Way

CHAT = "/v1/chat/completions"
TASK_HEADER = "x-hotloop-task"


@dataclass(frozen=True, slots=True)
class Settled:
    """A request that has a model now; `answer` is there if a cascade has answered it already."""

    asked: Asked
    choice: TierChoice
    answer: bytes | None = None


class TieredRequests:
    """Settles requests for routes, and keeps count of what that saves."""

    def __init__(self, config: TiersConfig, proxy: Proxy) -> None:
        self.saved = Saved(config.tiers) if config.tiers else None
        self._tiers = Tiers(config)
        self._proxy = proxy

    def is_route(self, model: str) -> bool:
        return self._tiers.is_route(model)

    async def settle(self, asked: Asked, way: Way) -> Settled:
        """Raises RequestError where the body is not one."""
        body = asked.read_body()
        features = look_at(body, num_tokens=asked.num_tokens, hint=asked.headers.get(TASK_HEADER, ""))

        async def ask(tier: Tier, question: dict[str, Any]) -> Reply:
            return await self._ask(question, asked, way)

        guess = await self._tiers.classify(asked.model, features, ask)
        if guess.reply:
            self._count(self._tiers.config.tiers[0].name, guess.reply, is_answer=False)
        choice = self._tiers.choose(
            asked.model,
            features,
            task=guess.task,
            session=asked.session,
            num_output=asked.num_output,
            now=time.monotonic(),
        )
        route = self._tiers.config.route(asked.model)
        assert route
        if route.cascade and asked.api == "chat" and can_cascade(body):
            return self._conclude(asked, body, await cascade(self._tiers.config, route.cascade, choice, body, ask))
        return Settled(_for_model(asked, choice.model), choice)

    def learn(self, asked: Asked, choice: TierChoice, told: Told, latency_s: float) -> None:
        """An answer that was not judged has come to its end. A stream without usage is counted by estimate."""
        tokens = Tokens(asked.num_tokens, 0, asked.num_output)
        if told.num_prompt is not None and told.num_output is not None:
            tokens = Tokens(told.num_prompt, told.num_cached or 0, told.num_output)
        self._tiers.learn(asked.session, choice.tier, tokens, time.monotonic())
        if self.saved:
            self.saved.record(choice.tier, tokens, latency_s)

    def _conclude(self, asked: Asked, body: Mapping[str, Any], cascaded: Cascaded) -> Settled:
        """Count what was asked; all but an answer that was taken has only cost."""
        for attempt in cascaded.attempts:
            is_answer = cascaded.answer is not None and attempt is cascaded.attempts[-1]
            self._count(attempt.tier.name, attempt.reply, is_answer=is_answer)
            if is_answer:
                tokens = tokens_of(attempt.reply.answer or {})
                self._tiers.learn(asked.session, attempt.tier.name, tokens, time.monotonic())
        settled = _for_model(asked, cascaded.choice.model)
        if cascaded.answer is None:
            return Settled(settled, cascaded.choice)
        if asked.is_stream:
            return Settled(settled, cascaded.choice, b"".join(render_stream(cascaded.answer, body)))
        return Settled(settled, cascaded.choice, msgspec.json.encode(cascaded.answer))

    def _count(self, tier: str, reply: Reply, *, is_answer: bool) -> None:
        if self.saved:
            self.saved.record(tier, tokens_of(reply.answer or {}), reply.latency_s, is_answer=is_answer)

    async def _ask(self, question: dict[str, Any], asked: Asked, way: Way) -> Reply:
        """A question of our own, or the client's as it is put to a tier; on the same road as any."""
        begun_at = time.monotonic()
        try:
            put = parse_asked("chat", asked.headers, msgspec.json.encode(question))
            begun = await self._proxy.begin(put, way, CHAT)
            try:
                content = b"".join([piece async for piece in begun.body])
            finally:
                await self._proxy.finish(begun)
            answer = msgspec.json.decode(content, type=dict[str, Any]) if begun.status == 200 else None
        except (HotloopError, msgspec.MsgspecError):
            answer = None
        return Reply(answer, time.monotonic() - begun_at)


def _for_model(asked: Asked, model: str) -> Asked:
    """The same request for another model, which has read other prompts."""
    return parse_asked(asked.api, asked.headers, asked.rename(model))
