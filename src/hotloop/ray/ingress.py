"""The ingress on Ray: reads a request once, has it placed and answered, and passes the answer on as it comes.

A replica that is lost before the first byte of its answer costs another try, one lost later a clear last event.
"""

import logging
import os
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import quote

from cachetools import FIFOCache
from ray.exceptions import RayError
from ray.serve.exceptions import BackPressureError, RayServeException
from ray.serve.handle import DeploymentHandle
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from hotloop.core.errors import ConfigError, HotloopError, Overloaded
from hotloop.http.bodies import JsonBody
from hotloop.http.headers import end_to_end
from hotloop.http.keys import read_keys
from hotloop.http.requests import OPEN_PATHS, REQUEST_ID_HEADER, is_for_anthropic, parse_request_id
from hotloop.ray.tickets import AnswerHead, InFlight, Outline
from hotloop.router.errors import RouteError, as_route_error, error_headers, render_error, render_event
from hotloop.router.kinds import PATHS, Api
from hotloop.router.paths import OWNED
from hotloop.router.placement.policy import ReplicaChoice
from hotloop.router.proxy import ROUTE_HEADER, is_stream, kept_headers, render_route, whole_events
from hotloop.router.request import parse_request
from hotloop.router.summary import END_BYTES, AnswerSummary, read_id, summarize
from hotloop.router.upstream.wire import UpstreamRequest
from hotloop.wire.sse import is_ping

log = logging.getLogger(__name__)

MAX_TRIES = 3
MAX_ANSWERS = 100_000
"""How many answers are remembered by where they were made."""
_KEPT_HERE = (b"host", b"cookie")
_LOST = RouteError(502, "replica_lost", "the replica was lost while it answered")


@dataclass(slots=True)
class BegunAnswer:
    head: AnswerHead
    pieces: Any
    outline: Outline
    num_tried: int
    summary: AnswerSummary = field(default_factory=AnswerSummary)

    def render_headers(self) -> list[tuple[bytes, bytes]]:
        choice, name = self.head.choice, self.head.replica
        if not choice or choice.name != name:
            choice = ReplicaChoice(name, "another was chosen and did not take it")
        matched = f"{choice.matched_tokens}/{self.outline.num_tokens}"
        route = render_route(name, choice.reason, matched, self.num_tried)
        return [*kept_headers(self.head.headers), (ROUTE_HEADER, route)]


class AnswerResponse(StreamingResponse):
    """Whatever ends it, the replica is told to stop and the placement that it has."""

    def __init__(self, begun: BegunAnswer, body: AsyncIterator[bytes]) -> None:
        super().__init__(body, begun.head.status)
        self.raw_headers = begun.render_headers()
        self._begun = begun

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._begun.pieces.cancel()
            self._begun.outline.trip.ended.set_result(self._begun.summary)


class Ingress:
    """A Serve deployment that speaks HTTP. `engines` is the deployment that answers."""

    def __init__(self, engines: DeploymentHandle, *, api_key_env: str, max_body_bytes: int) -> None:
        self._answer = engines.options(method_name="answer", stream=True)
        self._max_body_bytes = max_body_bytes
        self._owners: FIFOCache[str, str] = FIFOCache(MAX_ANSWERS)
        self._keys = read_keys(os.environ.get(api_key_env), None)
        if api_key_env and not self._keys:
            raise ConfigError(f"api_key_env: {api_key_env} is not set where the ingress runs")

    async def __call__(self, request: Request) -> Response:
        path = request.url.path
        api = PATHS.get(path)
        request_id = parse_request_id(request.headers.get(REQUEST_ID_HEADER))
        try:
            if path not in OPEN_PATHS:
                self._keys.admit(dict(request.headers.raw), path)
            begun = await self._ask(*await self._read(request, api))
        except HotloopError as error:
            refusal = as_route_error(error)
            status, body = render_error(refusal, "messages" if is_for_anthropic(request.scope) else api, request_id)
            response = Response(body, status)
            response.raw_headers += error_headers(refusal)
            return response
        return AnswerResponse(begun, self._relay(begun, api, request_id))

    async def _read(self, request: Request, api: Api | None) -> tuple[UpstreamRequest, Outline]:
        """What the replica is sent, and what placing needs to know of it."""
        body = JsonBody()
        async for chunk in request.stream():
            body.add(chunk)
            if body.num_bytes > self._max_body_bytes:
                raise RouteError(413, "request_too_large", f"the body is larger than {self._max_body_bytes} bytes")
        path, query = request.url.path, request.url.query
        target = quote(request.scope["path"]) + (f"?{query}" if query else "")
        headers = [header for header in end_to_end(request.headers.raw) if header[0] not in _KEPT_HERE]
        sent = UpstreamRequest(request.method, target, headers, body.take())
        if api and request.method == "POST":
            routed = parse_request(path, request.headers, sent.body)
            owner = self._owners.get(routed.follows or "", "")
            return sent, Outline(routed.key, routed.num_tokens, routed.num_output, routed.session, owner)
        answer_id = next((path.removeprefix(start).partition("/")[0] for start in OWNED if path.startswith(start)), "")
        return sent, Outline(owner=self._owners.get(answer_id, ""))

    async def _ask(self, sent: UpstreamRequest, outline: Outline) -> BegunAnswer:
        """Raises Overloaded, or RouteError where nobody answers."""
        for num_tried in range(1, MAX_TRIES + 1):
            try:
                return await self._try(sent, replace(outline, trip=InFlight()), num_tried)
            except BackPressureError:
                raise Overloaded("too many requests are waiting already") from None
            except RayServeException:
                raise RouteError(503, "no_replica", "no replica is available", retry_after_s=5) from None
            except RayError as error:  # it was lost, or its engine was, before it said anything
                log.warning("a replica did not begin to answer: %s", error)
        raise RouteError(502, "replica_failed", f"{MAX_TRIES} replicas were tried, and none answered")

    async def _try(self, sent: UpstreamRequest, outline: Outline, num_tried: int) -> BegunAnswer:
        pieces = self._answer.remote(sent, outline)
        try:
            head: AnswerHead = await anext(pieces)
        except BaseException:
            pieces.cancel()
            outline.trip.ended.set_result(AnswerSummary())
            raise
        if not is_stream(head.headers):
            outline.trip.begun.set_result(None)
        return BegunAnswer(head, pieces, outline, num_tried)

    async def _relay(self, begun: BegunAnswer, api: Api | None, request_id: str) -> AsyncIterator[bytes]:
        has_events = is_stream(begun.head.headers)
        answer_id, end, is_broken = None, b"", False
        try:
            async for piece in whole_events(begun.pieces) if has_events else begun.pieces:
                yield piece
                if not end and is_ping(piece):  # nothing was said yet
                    continue
                if not begun.outline.trip.begun.done():
                    begun.outline.trip.begun.set_result(None)
                if not end and (answer_id := read_id(piece)):
                    self._owners[answer_id] = begun.head.replica
                end = (end + piece)[-END_BYTES:]
        except RayError:
            is_broken = True
            if not has_events or not api:
                raise
            yield render_event(_LOST, api, request_id)
        finally:
            begun.summary = summarize(answer_id, end, is_messages=api == "messages", is_broken=is_broken)
