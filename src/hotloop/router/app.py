"""The router as an ASGI application: which path is what, who is let in, and one road for every request.

    body ─parse once─> RoutedRequest ─tier, place─> replica ─first byte─> relay ─> AnswerSummary ─> placement

Nothing is proxied that is not in `paths`: this is no way to anywhere else.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Coroutine
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from urllib.parse import quote

import msgspec
from starlette.types import Receive, Scope, Send

from hotloop.core.config import parse_bytes
from hotloop.core.errors import HotloopError, RequestError
from hotloop.core.structs import compiled
from hotloop.core.version import __version__
from hotloop.http.bodies import JsonBody, read_aside
from hotloop.http.keys import METRICS_PATH, ApiKeys, Tenant, read_keys
from hotloop.http.logs import FACTS, REFUSED
from hotloop.http.requests import (
    MODELS_PATH,
    OPEN_PATHS,
    REQUEST_ID_HEADER,
    is_for_anthropic,
    parse_request_id,
    render_ids,
)
from hotloop.router.answer import ProxiedAnswer
from hotloop.router.client_stream import ClientStream
from hotloop.router.config import RoutingConfig
from hotloop.router.errors import RouteError, as_route_error, error_headers, render_error, render_event
from hotloop.router.kinds import PATHS, Api
from hotloop.router.metrics import CONTENT_TYPE, RouterMetrics
from hotloop.router.paths import CLOSING, EXPLAIN, OWNED, find_path, is_path
from hotloop.router.proxy import BadAnswer, Proxy, is_redirect, kept_headers, relay, send_whole
from hotloop.router.replicas.replica import Replica
from hotloop.router.replicas.replica_set import ReplicaSet
from hotloop.router.request import NOBODY, RoutedRequest, parse_request
from hotloop.router.spans import RouteRecorder, RouteSpan
from hotloop.router.spending.spending import Metered, hold_class, open_spending
from hotloop.router.stabilise import HEADER, Stabilised, StablePrompts, find_format
from hotloop.router.summary import read_id, summarize
from hotloop.router.tiered import TieredRequests
from hotloop.router.tiers.config import parse_tiers
from hotloop.router.tiers.tiers import TierChoice
from hotloop.router.upstream.wire import (
    Headers,
    UpstreamFailed,
    UpstreamRequest,
    UpstreamResponse,
    fetch,
    parse_json,
    read_body,
)
from hotloop.trace import names
from hotloop.trace.tracer import NullTracer, Tracer
from hotloop.wire.hints import PRIORITY_HEADER, shorten
from hotloop.wire.models import ServedModel, render_model, render_models
from hotloop.wire.usage import ApiUsage

log = logging.getLogger("hotloop.router")


TIER_HEADER = b"x-hotloop-tier"
JSON = b"application/json"
_BETA = b"anthropic-beta"
_ID_HEADER = REQUEST_ID_HEADER.encode()


@compiled
class _ClosedSession(msgspec.Struct):
    session_id: str = ""


@dataclass(frozen=True, slots=True)
class ClientCall:
    """One call by a client. Everything sent to it carries its request id."""

    request_id: str
    headers: dict[bytes, bytes]
    receive: Receive
    client: ClientStream
    tenant: Tenant = NOBODY

    async def send_whole(self, status: int, headers: Headers, body: bytes) -> None:
        await self.client.send_whole(status, headers, body)

    async def read_body(self, max_bytes: int) -> bytes:
        """No more of it than allowed. One that does not say it is JSON is refused, as the server does."""
        media_type = self.headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
        if media_type != JSON:
            raise RouteError(415, "unsupported_media_type", "send `Content-Type: application/json`")
        body = JsonBody()
        while True:
            message = await self.receive()
            if message["type"] == "http.disconnect":
                raise RouteError(499, "client_closed_request", "the client closed the connection")
            body.add(message.get("body", b""))
            if body.num_bytes > max_bytes:
                raise RouteError(413, "request_too_large", f"the body is larger than {max_bytes} bytes")
            if not message.get("more_body"):
                return body.take()

    async def do_unless_gone(self, work: Coroutine[Any, Any, None]) -> bool:
        """Do the work, for which the body is read already, unless the client hangs up first; whether it was done."""
        doing = asyncio.current_task()
        assert doing
        leaving = asyncio.create_task(self._hang_up(doing))
        try:
            await work
            return True
        except asyncio.CancelledError:
            if not leaving.done() or doing.uncancel():  # somebody else wants an end, too
                raise
            return False
        finally:
            leaving.cancel()

    async def _hang_up(self, doing: "asyncio.Task[Any]") -> None:
        while (await self.receive())["type"] != "http.disconnect":
            pass
        doing.cancel()


class RouterApp:
    def __init__(self, config: RoutingConfig, tracer: Tracer | None = None, keys: ApiKeys | None = None) -> None:
        self.is_draining = False
        self.replica_set = ReplicaSet(config)
        self.recorder = RouteRecorder(tracer or NullTracer())
        self._stable = StablePrompts(self._cost)
        self.spending = open_spending(config.router.spend_file, self._cost)
        self.metrics = RouterMetrics(
            self.replica_set, lambda: self._tiered.saved, self.recorder.tracer, self._stable, self.spending
        )
        self._max_body = parse_bytes(config.router.max_body)
        self._proxy = Proxy(self.replica_set, self._max_body, self.metrics.count_failure, self.metrics.count_resume)
        self._tiered = TieredRequests(parse_tiers(config.tables), self._proxy)
        self._keys = keys or ApiKeys(read_keys(config.router.api_key, config.router.api_key_file))

    def start(self) -> None:
        self.replica_set.start()
        self._keeping = asyncio.create_task(self.spending.book.keep(), name="keep the book")

    async def aclose(self) -> None:
        self._keeping.cancel()
        await asyncio.gather(self._keeping, return_exceptions=True)
        await self.replica_set.aclose()

    def reload(self, config: RoutingConfig) -> list[str]:
        """Replicas come and go, and tiers are other ones; says what has changed. Raises ConfigError, and then nothing
        has."""
        tiers = parse_tiers(config.tables)
        changes = self.replica_set.reload(config)
        if tiers != self._tiered.config:
            self._tiered = TieredRequests(tiers, self._proxy)
            changes.append("tiers and routes")
        return changes

    def _cost(self, model: str, usage: ApiUsage) -> float:
        """By the prices of a tier, or of the model's name."""
        tier = next((each for each in self._tiered.config.tiers if each.model == model and each.has_price), None)
        if tier:
            return tier.cost(usage)
        prices, num_cached = self.replica_set.config.prices, usage.num_cached or 0
        return prices.cost(model, num_prompt=usage.num_prompt, num_cached=num_cached, num_output=usage.num_output)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        headers: dict[bytes, bytes] = dict(scope["headers"])
        request_id = parse_request_id(headers.get(_ID_HEADER, b"").decode("latin-1"))
        state = scope.setdefault("state", {})
        state["request_id"] = request_id
        headers[_ID_HEADER] = request_id.encode()
        client = ClientStream(send, render_ids(scope, request_id))
        caller = ClientCall(request_id, headers, receive, client)
        told: Api | None = "messages" if is_for_anthropic(scope) else PATHS.get(scope["path"])  # how what fails is told
        try:
            if scope["path"] not in OPEN_PATHS:
                caller = replace(caller, tenant=self._keys.current.admit(headers, scope["path"]))
                state["tenant"] = caller.tenant
            await self._dispatch(scope, caller)
        except HotloopError as error:
            state[REFUSED] = as_route_error(error).code
            await self._refuse(error, told, caller)
        except Exception:
            log.exception("request %s failed", request_id)
            state[REFUSED] = "internal_error"
            await self._refuse(RouteError(500, "internal_error", "the router failed; its log says how"), told, caller)

    async def _dispatch(self, scope: Scope, caller: ClientCall) -> None:
        method, path, query = scope["method"], scope["path"], scope["query_string"]
        if path.endswith("/") and not is_path(path) and is_path(path.rstrip("/")):
            location = quote(path.rstrip("/")).encode() + (b"?" + query if query else b"")
            await caller.send_whole(307, [(b"location", location)], b"")
            return
        by = find_path(method, path)
        method = "GET" if method == "HEAD" else method  # the listener leaves out the body
        if by == "placed":
            await self._place(scope, caller)
        elif by == "owner":
            await caller.do_unless_gone(self._ask_owner(method, path, query, caller))
        elif by == "sessions":
            name = await self._closed_session(path, caller)
            await caller.do_unless_gone(self._close_session(name, caller))
        elif by == "hotloop":
            await caller.do_unless_gone(self._ask_any(path, caller))
        elif path == METRICS_PATH:
            await caller.send_whole(200, [(b"content-type", CONTENT_TYPE)], self.metrics.render())
        elif path == "/ready":
            await self._tell_ready(caller)
        else:
            shown = self._show(path, caller.tenant, for_anthropic=is_for_anthropic(scope))
            await caller.send_whole(200, [(b"content-type", JSON)], msgspec.json.encode(shown))

    async def _place(self, scope: Scope, caller: ClientCall) -> None:
        path = scope["path"]
        body = await caller.read_body(self._max_body)
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in caller.headers.items()}
        parse = partial(parse_request, path, headers, body, caller.tenant, self._scope(caller.tenant))
        request = await read_aside(len(body), parse)
        held = hold_class(request, caller.tenant.limits)
        if held is not request:
            request = held
            caller.headers[PRIORITY_HEADER.encode()] = held.headers[PRIORITY_HEADER].encode()
        metered = self.spending.admit(request)
        try:
            await self._answer_admitted(request, scope, caller, metered)
        finally:
            self.spending.settle(metered)

    async def _answer_admitted(
        self, request: RoutedRequest, scope: Scope, caller: ClientCall, metered: Metered
    ) -> None:
        if stable := await self._stabilise(request):
            metered.request = request = stable.request
        if stable and stable.betas:
            caller.headers[_BETA] = b",".join(
                filter(None, (caller.headers.get(_BETA), ",".join(stable.betas).encode()))
            )
        with self.recorder.open(request, caller.headers, caller.request_id) as span:
            caller.client.copy = span.answer
            if stable:
                caller.client.add_header(HEADER, stable.render())
                span.facts |= {
                    names.STABILISED: [*stable.changes],
                    names.NUM_SAVED: stable.num_saved,
                    names.MONEY_SAVED: stable.money_saved,
                }
                caller.client.copy = bytearray() if span.answer is None else span.answer
            scope["state"][FACTS] = span.describe_access
            async with caller.client.kept_alive(request.api, is_stream=request.is_stream):
                if not await caller.do_unless_gone(self._answer(request, span, caller, metered)):
                    span.hang_up()

    async def _stabilise(self, request: RoutedRequest) -> Stabilised | None:
        """The request as it is to be sent, if it is to be put in a stable form."""
        route, is_on = self._tiered.config.route(request.model), self.replica_set.config.router.stabilise
        if not (is_on if route is None or route.stabilise is None else route.stabilise):
            return None
        if not find_format(request):
            return None
        tells_late_tools = self.replica_set.config.router.tell_late_tools
        return await self._stable.apply(request, self.replica_set.kinds_for(request), tells_late_tools=tells_late_tools)

    def _scope(self, tenant: Tenant) -> str:
        """Whose prefixes are not to be shared with others; empty where they are."""
        isolation = self.replica_set.config.router.cache_isolation
        return tenant.id if isolation == "key" or (isolation == "auto" and tenant.is_apart) else ""

    async def _answer(self, request: RoutedRequest, span: RouteSpan, caller: ClientCall, metered: Metered) -> None:
        if not self._tiered.is_route(request.model):
            await self._relay(request, span, caller, metered)
            return
        settled = await self._tiered.settle(request, span)
        metered.request, choice, answer = settled.request, settled.choice, settled.answer
        metered.discarded = settled.discarded
        if answer is None:
            await self._relay(settled.request, span, caller, metered, choice, settled.live)
            return
        kind = b"text/event-stream; charset=utf-8" if request.is_stream else JSON
        await caller.send_whole(200, [(b"content-type", kind), _tier_header(choice)], answer)
        metered.has_begun, metered.summary = True, summarize(read_id(answer), answer)
        span.end(metered.summary)

    async def _relay(
        self,
        request: RoutedRequest,
        span: RouteSpan,
        caller: ClientCall,
        metered: Metered,
        tier: TierChoice | None = None,
        live: ProxiedAnswer | None = None,
    ) -> None:
        """`live` is its answer if that has begun."""
        begun_at = time.monotonic()
        if tier:
            caller.client.add_header(*_tier_header(tier))
        try:
            begun = live or await self._proxy.begin(request, span, caller.client)
        except HotloopError:
            if tier:
                self._tiered.fail(request)
            raise
        replica, choice = begun.place.replica, begun.place.ticket.choice
        span.begin(choice, begun.status)
        metered.has_begun, metered.is_refused = True, begun.status >= 300
        try:
            if live:
                await caller.client.begin(live.status, live.headers)
            if begun.status >= 500:
                _log_failure(caller, begun.status, f"replica {replica.name} answered so")
            first_byte_s = time.monotonic() - begun_at
            self.metrics.count_begun(request.api, replica.name, begun.status, choice.reason, first_byte_s)
            summary = metered.summary = await relay(begun, request.api, caller.request_id, caller.client)
            self.replica_set.learn(begun.place, summary, request.tenant)
            self.metrics.count_ended(replica.name, summary, replica.config.pool)
            span.end(summary)
            if tier:
                self._tiered.learn(request, tier, summary, time.monotonic() - begun_at)
                if summary.is_broken or begun.status >= 500:
                    self._tiered.fail(request)
            if (said := caller.client.copy) and self._stable.may_learn(said):
                copy = bytes(said)
                await asyncio.to_thread(self._stable.learn, request, copy, is_stream=request.is_stream)
        finally:
            await self._proxy.finish(begun)

    async def _ask_owner(self, method: str, path: str, query: bytes, caller: ClientCall) -> None:
        """GET, DELETE or cancel something that one replica knows of; if it is not known which, each is asked."""
        prefix = next(each for each in OWNED if path.startswith(each))
        name = path.removeprefix(prefix)
        # With our key nobody gets at another path of a replica, whatever is in front of it makes of dots and escapes.
        is_name = not {".", ".."} & {*name.split("/")}
        target = quote(path) + (f"?{query.decode('latin-1')}" if query else "")
        for replica in self.replica_set.makers(name.partition("/")[0], caller.tenant) if is_name else ():
            if prefix == EXPLAIN and caller.tenant.is_apart and not replica.kind.keeps_tenants:
                continue  # an explanation quotes other prompts, whoever asks for it
            if await self._ask(replica, method, target, caller):
                return
        raise RouteError(404, OWNED[prefix], f"no replica has {name!r:.200}; it may have expired")

    async def _ask_any(self, path: str, caller: ClientCall) -> None:
        """GET what every hotloop tells alike."""
        for replica in [each for each in self.replica_set.replicas.values() if each.state == "up"]:
            with contextlib.suppress(UpstreamFailed):
                if replica.kind.name == "hotloop" and await self._ask(replica, "GET", path, caller):
                    return
        raise RouteError(404, "unknown_url", f"no replica that is a hotloop is up, and no other has {path}")

    async def _closed_session(self, path: str, caller: ClientCall) -> str:
        """By the path, or else the body."""
        match = CLOSING.fullmatch(path)
        given = match["id"] if match else None
        if not given and (body := parse_json(await caller.read_body(self._max_body), _ClosedSession)):
            given = body.session_id
        if not given:
            raise RequestError("session_id must be a text", param="session_id")
        return given

    async def _close_session(self, given: str, caller: ClientCall) -> None:
        """Tell all that keep sessions that one is over, by the name that each of them has for it."""
        closed = []
        for replica in [each for each in self.replica_set.replicas.values() if each.state == "up"]:
            if not replica.kind.close_path:
                continue
            name = shorten(given) if replica.kind.keeps_tenants else caller.tenant.qualify(shorten(given))
            sent = msgspec.json.encode({"session_id": name})
            headers = [*replica.headers({b"content-type": JSON}, caller.tenant)]
            request = UpstreamRequest("POST", replica.kind.close_path, headers, sent)
            with contextlib.suppress(UpstreamFailed):
                status, _, _ = await fetch(replica.upstream, request, self._max_body)
                closed += [replica.name] if status == 200 else []
        shown = {"id": given, "object": "session.closed", "replicas": closed}
        await caller.send_whole(200, [(b"content-type", JSON)], msgspec.json.encode(shown))

    async def _ask(self, replica: Replica, method: str, target: str, caller: ClientCall) -> bool:
        """Whether a replica knew what was asked; then the client has its answer."""
        headers = replica.headers(caller.headers, caller.tenant)
        response = await replica.upstream.send(UpstreamRequest(method, target, headers))
        try:
            if response.status == 404:
                return False
            await self._hand_on(response, caller)
            return True
        finally:
            await response.aclose()

    async def _hand_on(self, response: UpstreamResponse, caller: ClientCall) -> None:
        """A stream piece by piece. One that breaks off ends early: its client can come back for the rest."""
        if is_redirect(response):
            raise RouteError(502, "replica_failed", f"a replica answered {response.status}")
        headers = kept_headers(response.headers)
        if not dict(headers).get(b"content-type", b"").startswith(b"text/event-stream"):
            await caller.send_whole(response.status, headers, await read_body(response, self._max_body))
            return
        await caller.client.begin(response.status, headers)
        with contextlib.suppress(UpstreamFailed):
            async for piece in response:
                await caller.client.write(piece)
        await caller.client.write(b"", is_last=True)

    async def _tell_ready(self, caller: ClientCall) -> None:
        """Not ready is no failure, of which the log would tell."""
        status, body = 200, msgspec.json.encode({"status": "ready"})
        if self.is_draining:
            error = RouteError(503, "shutting_down", "the router is shutting down")
            status, body = render_error(error, None, caller.request_id)
        elif not any(each.state == "up" for each in self.replica_set.replicas.values()):
            status, body = render_error(RouteError(503, "no_replica", "no replica is up"), None, caller.request_id)
        await caller.send_whole(status, [(b"content-type", JSON)], body)

    def _show(self, path: str, tenant: Tenant, *, for_anthropic: bool) -> Any:
        if path == "/router/replicas":
            return self._show_replicas()
        if path == "/version":
            return {"version": __version__}
        if not path.startswith(MODELS_PATH):
            return {"status": "ok"}
        models = [model for model in self._list_models() if tenant.limits.allows(model.id)]
        if path == MODELS_PATH:
            return render_models(models, for_anthropic=for_anthropic)
        name = path.removeprefix(f"{MODELS_PATH}/")
        for model in models:
            if model.id == name:
                return render_model(model, for_anthropic=for_anthropic)
        raise RouteError(404, "model_not_found", f"no replica has the model {name!r:.200}", param="model")

    def _list_models(self) -> list[ServedModel]:
        """Those of replicas, and routes, which are asked for as models are."""
        return [*self.replica_set.list_models(), *(ServedModel(each.name) for each in self._tiered.config.routes)]

    def _show_replicas(self) -> dict[str, Any]:
        """How each replica is, those on their way out too. No key is ever part of it."""
        shown = [
            {
                "name": each.name,
                "url": each.config.url,
                "kind": each.kind.name,
                "pool": each.config.pool,
                "state": each.state,
                "why": each.why,
                "models": sorted(each.models),
                "apis": sorted(each.apis),
                "running": each.num_running,
                "elsewhere": each.num_elsewhere,
                "connections": each.upstream.num_open,
            }
            for each in (*self.replica_set.replicas.values(), *self.replica_set.leaving)
        ]
        return {
            "policy": self.replica_set.config.router.policy,
            "waiting": len(self.replica_set.room),
            "replicas": shown,
        }

    async def _refuse(self, error: HotloopError, api: Api | None, caller: ClientCall) -> None:
        refusal = as_route_error(error)
        self.metrics.count_refusal(refusal.code)
        if refusal.status >= 500:
            _log_failure(caller, refusal.status, f"{refusal.code}: {refusal}")
        if isinstance(error, BadAnswer) and error.is_for_client:
            headers = kept_headers(error.headers)
            await send_whole(caller.client, error.status, headers, error.body, api or "chat", caller.request_id)
        elif caller.client.has_begun:
            await caller.client.write(render_event(refusal, api or "chat", caller.request_id), is_last=True)
        else:
            status, body = render_error(refusal, api, caller.request_id)
            await caller.send_whole(status, error_headers(refusal), body)


def _log_failure(caller: ClientCall, status: int, reason: str) -> None:
    log.warning("request failed: request=%s status=%d reason=%s", caller.request_id, status, reason)


def _tier_header(choice: TierChoice) -> tuple[bytes, bytes]:
    about = f"tier={choice.tier}; model={choice.model}; reason={choice.reason.replace(' ', '_')}"
    return TIER_HEADER, about.encode("ascii", "replace")[:500]
