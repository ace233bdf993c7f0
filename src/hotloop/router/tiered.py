"""Requests that name a route instead of a model: which tier answers, and, under a cascade, the answer itself.

model "auto" ─classify, choose─> a tier's model ─┬─ no cascade ──────────────> placed as any request
                                                 └─ ask, judge, go up ─> answered here, or the largest is placed
"""

import time
from typing import Any

import msgspec

from hotloop.core.errors import HotloopError
from hotloop.router.kinds import CHAT
from hotloop.router.proxy import Proxy
from hotloop.router.request import RoutedRequest, parse_request
from hotloop.router.spans import RouteSpan
from hotloop.router.summary import AnswerSummary
from hotloop.router.tiers.cascade import Cascaded, cascade, render_stream
from hotloop.router.tiers.config import Tier, TiersConfig
from hotloop.router.tiers.features import look_at
from hotloop.router.tiers.tiers import Reply, Saved, TierChoice, Tiers
from hotloop.wire.usage import ApiUsage


class TieredRequests:
    """Settles requests for routes, and keeps count of what that saves."""

    def __init__(self, config: TiersConfig, proxy: Proxy) -> None:
        self.saved = Saved(config.tiers)
        self._tiers = Tiers(config)
        self._proxy = proxy

    @property
    def config(self) -> TiersConfig:
        return self._tiers.config

    def is_route(self, model: str) -> bool:
        return self.config.route(model) is not None

    async def settle(self, request: RoutedRequest, span: RouteSpan) -> tuple[RoutedRequest, TierChoice, bytes | None]:
        """The request for a tier's model, why that, and the answer if a cascade has one. Raises RequestError."""
        body = request.read_body()
        features = look_at(body, num_tokens=request.num_tokens, task=request.task)

        async def ask(tier: Tier, question: dict[str, Any]) -> Reply:
            return await self._ask(question, request, span)

        config, now = self.config, time.monotonic()
        task, reply = await self._tiers.classify(request.model, features, ask)
        if reply:
            self.saved.record(config.tiers[0].name, reply.usage, reply.latency_s, is_answer=False)
        choice = self._tiers.choose(
            request.model, features, task=task, session=request.session, num_output=request.num_output, now=now
        )
        route = config.route(request.model)
        assert route
        answer = None
        if route.cascade and request.api == "chat" and body.get("n") in (None, 1):  # of several, the client chooses
            cascaded = await cascade(config, route.cascade, choice, body, ask)
            self._count(request.session, cascaded)
            choice, answer = cascaded.choice, cascaded.answer
        body_for_tier, tenant, scope = request.replace({"model": choice.model}), request.tenant, request.scope
        settled = parse_request(request.target, request.headers, body_for_tier, tenant, scope)
        if answer is None:
            return settled, choice, None
        rendered = b"".join(render_stream(answer, body)) if request.is_stream else msgspec.json.encode(answer)
        return settled, choice, rendered

    def learn(self, request: RoutedRequest, choice: TierChoice, summary: AnswerSummary, latency_s: float) -> None:
        """An answer that was not judged has come to its end. A stream without usage is counted by estimate."""
        usage = ApiUsage(request.num_tokens, 0, request.num_output)
        if summary.num_prompt is not None and summary.num_output is not None:
            usage = ApiUsage(summary.num_prompt, summary.num_cached, summary.num_output)
        self._tiers.learn(request.session, choice.tier, usage, time.monotonic())
        self.saved.record(choice.tier, usage, latency_s)

    def fail(self, request: RoutedRequest) -> None:
        """A tier gave it no answer, or half of one."""
        self._tiers.fail(request.session)

    def _count(self, session: str, cascaded: Cascaded) -> None:
        """All but an answer that was taken has only cost."""
        for attempt in cascaded.attempts:
            name, reply, is_answer = attempt.tier.name, attempt.reply, not attempt.doubt
            self.saved.record(name, reply.usage, reply.latency_s, is_answer=is_answer)
            if is_answer:
                self._tiers.learn(session, name, reply.usage, time.monotonic())

    async def _ask(self, question: dict[str, Any], request: RoutedRequest, span: RouteSpan) -> Reply:
        """A question of our own, or the client's as it is put to a tier; on the same road as any."""
        begun_at = time.monotonic()
        try:
            body = msgspec.json.encode(question)
            put = parse_request(CHAT, request.headers, body, request.tenant, request.scope)
            begun = await self._proxy.begin(put, span)
            try:
                content = b"".join([piece async for piece in begun.body])
            finally:
                await self._proxy.finish(begun)
            answer = msgspec.json.decode(content, type=dict[str, Any]) if begun.status == 200 else None
        except (HotloopError, msgspec.MsgspecError):
            answer = None
        return Reply(answer, time.monotonic() - begun_at)
