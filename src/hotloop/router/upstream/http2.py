"""HTTPS to one replica, by httpx: HTTP/2 where it is offered, HTTP/1.1 where it is not.

Below httpx's client, which follows redirects, keeps cookies and adds headers. httpx's trace says how far a request had
got when it failed, and whether its connection had been used before; if it had, and gave nothing, it is sent once more.

httpx does not reset a stream that is no longer wanted, and never gives back the window it used up. So connections on
which a stream was left unread take no more requests, and are closed when their last response is over.
"""

import asyncio
import ssl
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager
from typing import Any, Self, cast
from urllib.parse import SplitResult

import h2.exceptions
import httpx

from hotloop.http.headers import end_to_end
from hotloop.router.upstream.connection import MAX_IDLE_S
from hotloop.router.upstream.wire import (
    SOCKET_OPTIONS,
    Headers,
    MayResend,
    Stage,
    Timeouts,
    UpstreamFailed,
    UpstreamRequest,
    always,
    check_request,
    describe,
)


class Lane(httpx.AsyncHTTPTransport):
    """Connections, how many responses are under way on them, and whether they take no more requests."""

    num_responses = 0
    is_retired = False


class HttpxUpstream:
    def __init__(
        self, url: SplitResult, *, max_connections: int, timeouts: Timeouts, trusted: ssl.SSLContext | None = None
    ) -> None:
        self._url = f"https://{url.netloc}"
        self._prefix = url.path.rstrip("/")
        self._max_connections = max_connections
        self._timeouts = timeouts
        if trusted is None:  # the authorities httpx comes with, and those of this system
            trusted = httpx.create_ssl_context(trust_env=False)
            trusted.load_default_certs()
        self._trusted = trusted
        self._lanes: set[Lane] = set()
        self._is_closed = False
        self._lane = self._open_lane()

    @property
    def num_open(self) -> int:
        return sum(lane.num_responses for lane in self._lanes)

    async def send(self, request: UpstreamRequest, may_resend: MayResend = always) -> "HttpxResponse":
        check_request(request)
        response = HttpxResponse(self, self._lane, self._timeouts)
        try:
            return await self._begin(response, request)
        except UpstreamFailed as failure:
            if response.is_fresh or failure.stage == "connect" or failure.is_timeout or not may_resend():
                raise
        return await self._begin(HttpxResponse(self, self._lane, self._timeouts), request)

    async def aclose(self) -> None:
        self._is_closed = True
        for lane in tuple(self._lanes):
            self._lanes.discard(lane)
            await lane.aclose()

    async def leave(self, lane: Lane, *, is_spoilt: bool) -> None:
        """A response is over; `is_spoilt`: not all of it was read, on a connection that others share."""
        lane.num_responses -= 1
        lane.is_retired = lane.is_retired or is_spoilt
        if lane.is_retired and lane is self._lane and not self._is_closed:
            self._lane = self._open_lane()
        if lane.is_retired and not lane.num_responses:
            self._lanes.discard(lane)
            await lane.aclose()

    async def _begin(self, response: "HttpxResponse", request: UpstreamRequest) -> "HttpxResponse":
        """The target goes beside the address, since httpx would write it its own way."""
        if self._is_closed:
            raise UpstreamFailed.removed()
        extensions = {
            "target": f"{self._prefix}{request.target}".encode("ascii"),
            "timeout": {"connect": self._timeouts.connect_s, "read": None, "write": None, "pool": None},
            "trace": response.trace,
        }
        body, headers = request.body or None, list(request.headers)
        return await response.begin(
            httpx.Request(request.method, self._url, headers=headers, content=body, extensions=extensions)
        )

    def _open_lane(self) -> Lane:
        limits = httpx.Limits(max_connections=self._max_connections, keepalive_expiry=MAX_IDLE_S)
        lane = Lane(verify=self._trusted, http2=True, trust_env=False, limits=limits, socket_options=SOCKET_OPTIONS)
        self._lanes.add(lane)
        return lane


class HttpxResponse:
    """A response as httpx reads it, from before its request is sent. Iterating over it gives its body."""

    status = 0
    headers: Headers = ()

    def __init__(self, upstream: HttpxUpstream, lane: Lane, timeouts: Timeouts) -> None:
        self.is_fresh = False
        self._is_shared = False
        """Whether other responses come over the same connection."""
        self._upstream = upstream
        self._lane = lane
        self._timeouts = timeouts
        self._stage: Stage = "connect"
        self._head_limit = asyncio.timeout(None)
        self._response: httpx.Response | None = None
        self._is_whole = self._is_over = False

    async def begin(self, request: httpx.Request) -> Self:
        self._lane.num_responses += 1
        try:
            with self._failures():
                async with self._head_limit:
                    self._response = await self._lane.handle_async_request(request)
        except BaseException:
            await self.aclose()
            raise
        self._stage = "body"
        self.status, self.headers = self._response.status_code, end_to_end(self._response.headers.raw)
        self._pieces = cast(AsyncGenerator[bytes, None], self._response.aiter_raw())
        return self

    async def trace(self, event: str, details: dict[str, Any]) -> None:
        """httpx tells how far it has got. The time for a head runs from when something is sent."""
        protocol, _, step = event.partition(".")
        self._is_shared = self._is_shared or protocol == "http2"
        if step == "connect_tcp.started":
            self.is_fresh = True
        elif step == "send_request_headers.started":
            self._stage = "send"
            self._head_limit.reschedule(asyncio.get_running_loop().time() + self._timeouts.head_s)
        elif step == "receive_response_headers.started":
            self._stage = "head"

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        try:
            with self._failures():
                async with asyncio.timeout(self._timeouts.idle_s):
                    return await anext(self._pieces)
        except StopAsyncIteration:
            self._is_whole = True
            await self.aclose()
            raise
        except BaseException:
            await self.aclose()
            raise

    async def aclose(self) -> None:
        if self._is_over:
            return
        self._is_over = True
        try:
            if self._response is not None:
                await self._pieces.aclose()
                await self._response.aclose()
        finally:
            await self._upstream.leave(self._lane, is_spoilt=self._is_shared and not self._is_whole)

    @contextmanager
    def _failures(self) -> Iterator[None]:
        try:
            yield
        except httpx.ConnectTimeout:
            raise self._timeouts.expired("connect") from None
        except TimeoutError:
            raise self._timeouts.expired(self._stage) from None
        except (httpx.TransportError, h2.exceptions.H2Error, OSError) as error:
            raise UpstreamFailed(describe(error), stage=self._stage) from None
