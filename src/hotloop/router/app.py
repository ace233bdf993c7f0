"""The router as an ASGI application: which path is what, who is let in, and one road for every request.

    body ─parse once─> Asked ─tier, place─> replica ─first byte─> relay ─> told (id, cached tokens) ─> placement

Nothing is proxied that is not in `PATHS` or answered here: this is no way to anywhere else.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any

import msgspec

from hotloop.border.requests import OPEN_PATHS, REQUEST_ID_HEADER, has_key, parse_request_id
from hotloop.core.config import parse_bytes
from hotloop.core.errors import HotloopError
from hotloop.router.config import FleetConfig
from hotloop.router.errors import RouteError, as_route_error, error_headers, render_error
from hotloop.router.kinds import PATHS, Api
from hotloop.router.metrics import CONTENT_TYPE, RouterMetrics
from hotloop.router.proxy.proxy import BadAnswer, Begun, Proxy, ask_whole
from hotloop.router.proxy.relay import kept_headers, relay
from hotloop.router.replicas.fleet import Fleet, Place
from hotloop.router.replicas.replica import Replica
from hotloop.router.request import RoutedRequest, parse_request
from hotloop.router.spans import RouteRecorder, RouteSpan
from hotloop.router.status import list_models, show_model, show_replicas
from hotloop.router.summary import AnswerSummary
from hotloop.router.tiered import Settled, TieredRequests
from hotloop.router.tiers.config import parse_tiers
from hotloop.router.tiers.tiers import TierChoice
from hotloop.router.translate import can_translate
from hotloop.router.upstream.wire import UpstreamRequest
from hotloop.trace.tracer import NullTracer, Tracer

log = logging.getLogger("hotloop.router")

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

ROUTE_HEADER = b"x-hotloop-route"
NOTES_HEADER = b"x-hotloop-notes"
TIER_HEADER = b"x-hotloop-tier"
COUNT_TOKENS = "/v1/messages/count_tokens"
OWNED = {"/v1/responses/": "response_not_found", "/v1/cache/explain/": "explanation_not_found"}
"""What is asked about an answer is asked where it was made; and what is said if nobody knows where."""
JSON = [(b"content-type", b"application/json")]


class RouterApp:
    """One fleet behind one address."""

    def __init__(self, config: FleetConfig, tracer: Tracer | None = None) -> None:
        self.fleet = Fleet(config, can_translate=can_translate)
        self._max_body = parse_bytes(config.router.max_body)
        self._proxy = Proxy(self.fleet, self._max_body, on_retry=self._note_failure)
        self._tiered = TieredRequests(parse_tiers(config.tables), self._proxy)
        self.recorder = RouteRecorder(tracer or NullTracer())
        self.metrics = RouterMetrics(self.fleet, lambda: self._tiered.saved, self.recorder.tracer)
        self._key = config.router.api_key.encode() if config.router.api_key else None

    def reload(self, config: FleetConfig) -> None:
        """Replicas come and go, and tiers are other ones. Raises ConfigError, and then nothing has changed."""
        tiered = TieredRequests(parse_tiers(config.tables), self._proxy)
        self.fleet.reload(config)
        self._tiered = tiered

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        headers: dict[bytes, bytes] = dict(scope["headers"])
        request_id = parse_request_id(headers.get(REQUEST_ID_HEADER.encode(), b"").decode("latin-1"))
        headers[REQUEST_ID_HEADER.encode()] = request_id.encode()
        api = PATHS.get(scope["path"]) or ("messages" if scope["path"] == COUNT_TOKENS else None)
        try:
            if self._key and scope["path"] not in OPEN_PATHS and not has_key(headers, self._key):
                raise RouteError(401, "invalid_api_key", "the API key is missing or wrong")
            await self._dispatch(scope, receive, send, api, headers, request_id)
        except HotloopError as error:
            await self._refuse(error, api, request_id, send)
        except Exception:
            log.exception("request %s failed", request_id)
            bug = RouteError(500, "internal_error", "the router failed; its log says how")
            await self._refuse(bug, api, request_id, send)

    async def _dispatch(
        self, scope: Scope, receive: Receive, send: Send, api: Api | None, headers: dict[bytes, bytes], request_id: str
    ) -> None:
        method, path = scope["method"], scope["path"]
        if api:
            if method != "POST":
                raise RouteError(405, "method_not_allowed", f"{path} does not answer {method}")
            body = await read_body(receive, headers, self._max_body)
            request = parse_request(api, _as_text(headers), body, is_question=path == COUNT_TOKENS)
            with self.recorder.open(request, headers, request_id) as span:
                if not await _until_gone(receive, self._answer(request, span, path, request_id, send)):
                    span.hang_up()
        elif path.startswith(tuple(OWNED)):
            await self._ask_maker(method, path, scope["query_string"], headers, request_id, send)
        elif method == "GET":
            await self._show(path, request_id, send)
        else:
            raise RouteError(404, "unknown_url", f"there is no {method} {path:.200} here")

    async def _answer(self, request: RoutedRequest, span: RouteSpan, target: str, request_id: str, send: Send) -> None:
        if self._tiered.is_route(request.model):
            settled = await self._tiered.settle(request, span)
            if settled.answer is not None:
                await _send_settled(send, settled, request_id)
                span.settle(settled.answer)
                return
            await self._relay(settled.request, span, target, request_id, send, settled.choice)
        else:
            await self._relay(request, span, target, request_id, send)

    async def _relay(
        self,
        request: RoutedRequest,
        span: RouteSpan,
        target: str,
        request_id: str,
        send: Send,
        tier: TierChoice | None = None,
    ) -> None:
        begun_at = time.monotonic()
        begun = await self._proxy.begin(request, span, target)
        replica, choice = begun.place.replica, begun.place.ticket.choice
        span.begin(choice, begun.status)
        try:
            first_byte_s = time.monotonic() - begun_at
            self.metrics.count_begun(request.api, replica.name, begun.status, choice.reason, first_byte_s)
            said = [*_route_headers(begun, request, request_id), *(_tier_headers(tier) if tier else ())]
            summary = await relay(begun, request.api, said, request_id, send)
            self._learn(begun.place, summary)
            span.learn(summary)
            if tier:
                self._tiered.learn(request, tier, summary, time.monotonic() - begun_at)
        finally:
            await self._proxy.finish(begun)

    def _learn(self, place: Place, summary: AnswerSummary) -> None:
        self.fleet.learn(place, summary)
        self.metrics.count_told(place.replica.name, summary.num_prompt, summary.num_cached, is_broken=summary.is_broken)

    async def _ask_maker(
        self, method: str, path: str, query: bytes, headers: Mapping[bytes, bytes], request_id: str, send: Send
    ) -> None:
        """GET, DELETE or cancel something that one replica knows of; if it is not known which, each is asked."""
        prefix = next(each for each in OWNED if path.startswith(each))
        target = path + (f"?{query.decode('latin-1')}" if query else "")
        for replica in self.fleet.possible_makers(path.removeprefix(prefix).partition("/")[0]):
            status, said, body = await ask_whole(
                replica, UpstreamRequest(method, target, replica.headers(headers)), self._max_body
            )
            if status != 404:
                await _send_whole(send, status, [*kept_headers(said), _id_header(request_id)], body)
                return
        raise RouteError(404, OWNED[prefix], f"nobody here knows {path.removeprefix(prefix)!r:.200}, or no longer")

    async def _show(self, path: str, request_id: str, send: Send) -> None:
        is_up = any(each.state == "up" for each in self.fleet.replicas.values())
        if path == "/health":
            status, body, headers = 200, b'{"status":"ok"}', JSON
        elif path == "/ready":
            status, body, headers = (200 if is_up else 503), msgspec.json.encode({"ready": is_up}), JSON
        elif path == "/metrics":
            status, body, headers = 200, self.metrics.render(), [(b"content-type", CONTENT_TYPE)]
        elif path == "/router/replicas":
            status, body, headers = 200, msgspec.json.encode(show_replicas(self.fleet)), JSON
        elif path == "/v1/models":
            status, body, headers = 200, msgspec.json.encode(list_models(self.fleet)), JSON
        elif path.startswith("/v1/models/"):
            status, body, headers = 200, msgspec.json.encode(show_model(self.fleet, path[11:])), JSON
        else:
            raise RouteError(404, "unknown_url", f"there is no GET {path:.200} here")
        await _send_whole(send, status, [*headers, _id_header(request_id)], body)

    async def _refuse(self, error: HotloopError, api: Api | None, request_id: str, send: Send) -> None:
        """An error of our own, or the last that a replica gave."""
        refusal = as_route_error(error)
        self.metrics.count_refusal(refusal.code)
        if isinstance(error, BadAnswer) and error.is_for_client:
            await _send_whole(send, error.status, [*kept_headers(error.headers), _id_header(request_id)], error.body)
            return
        headers = [*error_headers(refusal), _id_header(request_id)]
        await _send_whole(send, refusal.status, headers, render_error(refusal, api, request_id))

    def _note_failure(self, replica: Replica, why: str) -> None:
        self.metrics.count_failure(replica.name, why)


async def read_body(receive: Receive, headers: Mapping[bytes, bytes], max_bytes: int) -> bytes:
    """No more of it than allowed. One that does not say it is JSON is refused, as the server does."""
    media_type = headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
    if media_type != b"application/json":
        raise RouteError(415, "unsupported_media_type", "send `Content-Type: application/json`")
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise RouteError(499, "client_closed_request", "the client closed the connection")
        body += message.get("body", b"")
        if len(body) > max_bytes:
            raise RouteError(413, "request_too_large", f"the body is larger than the {max_bytes} bytes that are read")
        if not message.get("more_body"):
            return bytes(body)


async def _until_gone(receive: Receive, work: Any) -> bool:
    """Do the work unless the client hangs up first; whether it was done."""
    task = asyncio.current_task()
    assert task
    is_gone = False

    async def watch() -> None:
        nonlocal is_gone
        while (await receive())["type"] != "http.disconnect":
            pass
        is_gone = True
        task.cancel()

    watcher = asyncio.create_task(watch())
    try:
        await work
    except asyncio.CancelledError:
        if not is_gone:
            raise
        task.uncancel()
        return False
    else:
        return True
    finally:
        watcher.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await watcher


def _route_headers(begun: Begun, request: RoutedRequest, request_id: str) -> list[tuple[bytes, bytes]]:
    """Where it went, why, and how much of it was expected to be warm there."""
    choice = begun.place.ticket.choice
    said = (
        f"replica={choice.name}; reason={choice.reason.replace(' ', '_')}; "
        f"matched={choice.matched_tokens}/{request.num_tokens}; tried={begun.num_tried}"
    )
    headers = [(ROUTE_HEADER, said.encode("latin-1", "replace")), _id_header(request_id)]
    if begun.notes:
        headers.append((NOTES_HEADER, "; ".join(begun.notes).encode("ascii", "replace")[:1000]))
    return headers


def _tier_headers(choice: TierChoice) -> list[tuple[bytes, bytes]]:
    said = f"tier={choice.tier}; model={choice.model}; reason={choice.reason.replace(' ', '_')}"
    return [(TIER_HEADER, said.encode("ascii", "replace")[:500])]


async def _send_settled(send: Send, settled: Settled, request_id: str) -> None:
    """An answer that a cascade took."""
    assert settled.answer is not None
    kind = b"text/event-stream; charset=utf-8" if settled.request.is_stream else b"application/json"
    headers = [(b"content-type", kind), _id_header(request_id), *_tier_headers(settled.choice)]
    await _send_whole(send, 200, headers, settled.answer)


def _as_text(headers: Mapping[bytes, bytes]) -> dict[str, str]:
    return {name.decode("latin-1"): value.decode("latin-1") for name, value in headers.items()}


def _id_header(request_id: str) -> tuple[bytes, bytes]:
    return REQUEST_ID_HEADER.encode(), request_id.encode("latin-1")


async def _send_whole(send: Send, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
    headers = [*headers, (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
