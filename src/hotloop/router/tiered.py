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
from hotloop.router.proxy.proxy import Proxy
from hotloop.router.request import RoutedRequest, parse_request
from hotloop.router.spans import RouteSpan
from hotloop.router.summary import AnswerSummary
from hotloop.router.tiers.cascade import Cascaded, can_cascade, cascade
from hotloop.router.tiers.config import Tier, TiersConfig, Tokens
from hotloop.router.tiers.features import look_at
from hotloop.router.tiers.saved import Saved, tokens_of
from hotloop.router.tiers.stream import render_stream
from hotloop.router.tiers.tiers import Reply, TierChoice, Tiers

CHAT = "/v1/chat/completions"
TASK_HEADER = "x-hotloop-task"


@dataclass(frozen=True, slots=True)
class Settled:
    """A request that has a model now; `answer` is there if a cascade has answered it already."""

    request: RoutedRequest
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

    async def settle(self, request: RoutedRequest, span: RouteSpan) -> Settled:
        """Raises RequestError where the body is not one."""
        body = request.read_body()
        features = look_at(body, num_tokens=request.num_tokens, hint=request.headers.get(TASK_HEADER, ""))

        async def ask(tier: Tier, question: dict[str, Any]) -> Reply:
            return await self._ask(question, request, span)

        guess = await self._tiers.classify(request.model, features, ask)
        if guess.reply:
            self._count(self._tiers.config.tiers[0].name, guess.reply, is_answer=False)
        choice = self._tiers.choose(
            request.model,
            features,
            task=guess.task,
            session=request.session,
            num_output=request.num_output,
            now=time.monotonic(),
        )
        route = self._tiers.config.route(request.model)
        assert route
        if route.cascade and request.api == "chat" and can_cascade(body):
            return self._conclude(request, body, await cascade(self._tiers.config, route.cascade, choice, body, ask))
        return Settled(_for_model(request, choice.model), choice)

    def learn(self, request: RoutedRequest, choice: TierChoice, summary: AnswerSummary, latency_s: float) -> None:
        """An answer that was not judged has come to its end. A stream without usage is counted by estimate."""
        tokens = Tokens(request.num_tokens, 0, request.num_output)
        if summary.num_prompt is not None and summary.num_output is not None:
            tokens = Tokens(summary.num_prompt, summary.num_cached or 0, summary.num_output)
        self._tiers.learn(request.session, choice.tier, tokens, time.monotonic())
        if self.saved:
            self.saved.record(choice.tier, tokens, latency_s)

    def _conclude(self, request: RoutedRequest, body: Mapping[str, Any], cascaded: Cascaded) -> Settled:
        """Count what was asked; all but an answer that was taken has only cost."""
        for attempt in cascaded.attempts:
            is_answer = cascaded.answer is not None and attempt is cascaded.attempts[-1]
            self._count(attempt.tier.name, attempt.reply, is_answer=is_answer)
            if is_answer:
                tokens = tokens_of(attempt.reply.answer or {})
                self._tiers.learn(request.session, attempt.tier.name, tokens, time.monotonic())
        settled = _for_model(request, cascaded.choice.model)
        if cascaded.answer is None:
            return Settled(settled, cascaded.choice)
        if request.is_stream:
            return Settled(settled, cascaded.choice, b"".join(render_stream(cascaded.answer, body)))
        return Settled(settled, cascaded.choice, msgspec.json.encode(cascaded.answer))

    def _count(self, tier: str, reply: Reply, *, is_answer: bool) -> None:
        if self.saved:
            self.saved.record(tier, tokens_of(reply.answer or {}), reply.latency_s, is_answer=is_answer)

    async def _ask(self, question: dict[str, Any], request: RoutedRequest, span: RouteSpan) -> Reply:
        """A question of our own, or the client's as it is put to a tier; on the same road as any."""
        begun_at = time.monotonic()
        try:
            put = parse_request("chat", request.headers, msgspec.json.encode(question))
            begun = await self._proxy.begin(put, span, CHAT)
            try:
                content = b"".join([piece async for piece in begun.body])
            finally:
                await self._proxy.finish(begun)
            answer = msgspec.json.decode(content, type=dict[str, Any]) if begun.status == 200 else None
        except (HotloopError, msgspec.MsgspecError):
            answer = None
        return Reply(answer, time.monotonic() - begun_at)


def _for_model(request: RoutedRequest, model: str) -> RoutedRequest:
    """The same request for another model, which has read other prompts."""
    return parse_request(request.api, request.headers, request.rename(model))
