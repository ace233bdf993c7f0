"""Requests that name a route instead of a model: which tier answers, and, under a cascade, the answer itself.

model "auto" ─classify, choose─> a tier's model ─┬─ no cascade ──────────────> placed as any request
                                                 └─ ask, judge, go up ─> answered here, or the largest is placed;
                                                                         streams are judged by their beginning
"""

import time
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from hotloop.core.errors import HotloopError
from hotloop.router.answer import ProxiedAnswer
from hotloop.router.kinds import CHAT
from hotloop.router.proxy import Proxy
from hotloop.router.request import RoutedRequest, parse_request
from hotloop.router.spans import RouteSpan
from hotloop.router.summary import AnswerSummary
from hotloop.router.tiers.cascade import Cascaded, cascade, render_stream
from hotloop.router.tiers.config import CascadeConfig, Tier, TiersConfig
from hotloop.router.tiers.features import look_at
from hotloop.router.tiers.held import HeldStream
from hotloop.router.tiers.judge import find_doubt
from hotloop.router.tiers.tiers import Reply, Saved, TierChoice, Tiers
from hotloop.wire.usage import ApiUsage


@dataclass(frozen=True, slots=True)
class Settled:
    request: RoutedRequest
    """For a tier's model."""
    live: ProxiedAnswer | None
    """An answer of a cascade's that has begun: to be relayed, and given back."""
    choice: TierChoice
    answer: bytes | None = None
    """One that a cascade has whole."""
    discarded: tuple[tuple[str, ApiUsage], ...] = ()
    """What was written on the way and nobody is told, by model."""


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

    async def settle(self, request: RoutedRequest, span: RouteSpan) -> Settled:
        """Raises RequestError."""
        body = request.read_body()
        features = look_at(body, num_tokens=request.num_tokens, task=request.task)
        config, now = self.config, time.monotonic()
        asked = _Asked(request, span, self._proxy, body)

        async def ask(tier: Tier, question: dict[str, Any]) -> Reply:
            return await asked.ask(question)

        task, reply = await self._tiers.classify(request.model, features, ask)
        discarded: list[tuple[str, ApiUsage]] = []
        if reply:
            discarded.append((config.tiers[0].model, reply.usage))
            self.saved.record(config.tiers[0].name, reply.usage, reply.latency_s, is_answer=False)
        choice = self._tiers.choose(
            request.model, features, task=task, session=request.session, num_output=request.num_output, now=now
        )
        route = config.route(request.model)
        assert route
        answer = None
        asked.cascade = route.cascade
        if route.cascade and request.api == "chat" and body.get("n") in (None, 1):  # of several, the client chooses
            cascaded = await cascade(config, route.cascade, choice, body, ask)
            self._count(request.session, cascaded)
            choice, answer = cascaded.choice, cascaded.answer
            discarded += [(each.tier.model, each.reply.usage) for each in cascaded.attempts if each.doubt]
            if cascaded.is_live and asked.live:
                return Settled(*asked.live, choice, discarded=tuple(discarded))
        body_for_tier, tenant, scope = request.replace({"model": choice.model}), request.tenant, request.scope
        settled = parse_request(request.target, request.headers, body_for_tier, tenant, scope)
        if answer is None:
            return Settled(settled, None, choice, discarded=tuple(discarded))
        rendered = b"".join(render_stream(answer, body)) if request.is_stream else msgspec.json.encode(answer)
        return Settled(settled, None, choice, rendered, tuple(discarded))

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


@dataclass(slots=True)
class _Asked:
    """What is asked for one request, on the same road as any: questions of our own, and itself as tiers are put it."""

    request: RoutedRequest
    span: RouteSpan
    proxy: Proxy
    body: dict[str, Any]
    cascade: CascadeConfig | None = None
    """Once that judges."""
    live: tuple[RoutedRequest, ProxiedAnswer] | None = None
    """The answer that was judged by its beginning and goes on."""

    async def ask(self, question: dict[str, Any]) -> Reply:
        begun_at = time.monotonic()
        try:
            body = msgspec.json.encode(question)
            put = parse_request(CHAT, self.request.headers, body, self.request.tenant, self.request.scope)
            begun = await self.proxy.begin(put, self.span)
            try:
                reply = await self._hear(put, begun)
            finally:
                if not self.live:
                    await self.proxy.finish(begun)
        except (HotloopError, msgspec.MsgspecError):
            reply = Reply(None)
        return replace(reply, latency_s=time.monotonic() - begun_at)

    async def _hear(self, put: RoutedRequest, begun: ProxiedAnswer) -> Reply:
        config = self.cascade
        if begun.is_whole or not config:
            content = b"".join([piece async for piece in begun.body])
            return Reply(msgspec.json.decode(content, type=dict[str, Any]) if begun.status == 200 else None)
        held = HeldStream(begun.body, hides_logprobs=not self.body.get("logprobs"))
        is_over = await held.hear(config.hold_tokens)
        answer = held.answer
        if is_over or answer is None:
            return Reply(answer)
        doubt = find_doubt(answer, self.body, config) if config.minds_confidence(self.body) else ""
        if doubt:  # what it would have gone on to say is never written
            usage = {"prompt_tokens": put.num_tokens, "completion_tokens": held.num_tokens}
            return Reply({"usage": usage, **answer}, doubt=doubt)
        begun.body = held.tell()
        self.live = put, begun
        return Reply(None, is_live=True)
