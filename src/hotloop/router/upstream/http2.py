"""HTTPS to one replica, by httpx: HTTP/2 where it is offered, HTTP/1.1 where it is not.

Below httpx's client, which follows redirects, keeps cookies and adds headers: what is asked goes out, and what is
answered comes back, as it is. What httpx tells while it works (its trace) says how far a request had got when it
failed, and whether its connection had been used before; if it had, and gave nothing, it is asked once more.

httpx does not tell a replica that a stream is no longer wanted, and never gives back the window that stream used up. So
connections on which a stream was left unread take no more requests, and are closed when their last answer is over.
"""

import asyncio
import ssl
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager
from typing import Any, Self, cast

import h2.exceptions
import httpx

from hotloop.border.headers import end_to_end
from hotloop.router.upstream.address import Address
from hotloop.router.upstream.pool import MAX_IDLE_S
from hotloop.router.upstream.sockets import SOCKET_OPTIONS
from hotloop.router.upstream.wire import Headers, Stage, Timeouts, UpstreamFailed, UpstreamRequest, check_ask, describe


class Lane:
    """Connections that still take requests, or no longer do; and how many answers are under way on them."""

    def __init__(self, transport: httpx.AsyncHTTPTransport) -> None:
        self.transport = transport
        self.num_answers = 0
        self.is_retired = False


class Attempt:
    """How far a request has got, as httpx tells it. The time for a head runs from when something is sent."""

    def __init__(self, timeouts: Timeouts) -> None:
        self.timeouts = timeouts
        self.stage: Stage = "connect"
        self.is_fresh = False
        """Whether a connection was opened for it."""
        self.is_shared = False
        """Whether other answers come over the same connection."""
        self.limit = asyncio.timeout(None)

    async def __call__(self, event: str, details: dict[str, Any]) -> None:
        protocol, _, step = event.partition(".")
        self.is_shared = self.is_shared or protocol == "http2"
        if step == "connect_tcp.started":
            self.is_fresh = True
        elif step == "send_request_headers.started":
            self.stage = "send"
            self.limit.reschedule(asyncio.get_running_loop().time() + self.timeouts.head_s)
        elif step == "receive_response_headers.started":
            self.stage = "head"


class HttpxUpstream:
    """Encrypted connections to one replica."""

    def __init__(
        self, address: Address, *, max_connections: int, timeouts: Timeouts, trusted: ssl.SSLContext | None = None
    ) -> None:
        self._url = f"https://{address.authority}"
        self._prefix = address.prefix
        self._max_connections = max_connections
        self._timeouts = timeouts
        self._trusted = trusted or _known_authorities()
        self._lanes: set[Lane] = set()
        self._is_closed = False
        self._lane = self._open_lane()

    @property
    def num_open(self) -> int:
        return sum(lane.num_answers for lane in self._lanes)

    async def send(self, ask: UpstreamRequest) -> "HttpxAnswer":
        check_ask(ask)
        attempt = Attempt(self._timeouts)
        try:
            return await self._try(ask, attempt)
        except UpstreamFailed as failure:
            if attempt.is_fresh or failure.stage == "connect" or failure.is_timeout:
                raise
        return await self._try(ask, Attempt(self._timeouts))

    async def aclose(self) -> None:
        self._is_closed = True
        for lane in tuple(self._lanes):
            self._lanes.discard(lane)
            await lane.transport.aclose()

    async def leave(self, lane: Lane, *, is_spoilt: bool) -> None:
        """An answer is over; `is_spoilt`: not all of it was read, on a connection that others share."""
        lane.num_answers -= 1
        lane.is_retired = lane.is_retired or is_spoilt
        if lane.is_retired and lane is self._lane and not self._is_closed:
            self._lane = self._open_lane()
        if lane.is_retired and not lane.num_answers:
            self._lanes.discard(lane)
            await lane.transport.aclose()

    async def _try(self, ask: UpstreamRequest, attempt: Attempt) -> "HttpxAnswer":
        if self._is_closed:
            raise UpstreamFailed.removed()
        lane = self._lane
        lane.num_answers += 1
        try:
            with _failures(attempt):
                async with attempt.limit:
                    response = await lane.transport.handle_async_request(self._render(ask, attempt))
        except BaseException:
            await self.leave(lane, is_spoilt=attempt.is_shared)
            raise
        attempt.stage = "body"
        return HttpxAnswer(self, lane, attempt, response)

    def _render(self, ask: UpstreamRequest, attempt: Attempt) -> httpx.Request:
        """The target goes beside the address, since httpx would write it its own way."""
        timeout = {"connect": self._timeouts.connect_s, "read": None, "write": None, "pool": None}
        extensions = {"target": f"{self._prefix}{ask.target}".encode("ascii"), "timeout": timeout, "trace": attempt}
        return httpx.Request(
            ask.method, self._url, headers=list(ask.headers), content=ask.body or None, extensions=extensions
        )

    def _open_lane(self) -> Lane:
        limits = httpx.Limits(max_connections=self._max_connections, keepalive_expiry=MAX_IDLE_S)
        lane = Lane(
            httpx.AsyncHTTPTransport(
                verify=self._trusted, http2=True, trust_env=False, limits=limits, socket_options=SOCKET_OPTIONS
            )
        )
        self._lanes.add(lane)
        return lane


class HttpxAnswer:
    """An answer as httpx reads it. Its iteration is its body."""

    def __init__(self, upstream: HttpxUpstream, lane: Lane, attempt: Attempt, response: httpx.Response) -> None:
        self.status = response.status_code
        self.headers: Headers = end_to_end(response.headers.raw)
        self._upstream = upstream
        self._lane = lane
        self._attempt = attempt
        self._response = response
        self._pieces = cast(AsyncGenerator[bytes, None], response.aiter_raw())
        self._is_whole = self._is_over = False

    def chunks(self) -> Self:
        return self

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        try:
            with _failures(self._attempt):
                async with asyncio.timeout(self._attempt.timeouts.idle_s):
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
            await self._pieces.aclose()
            await self._response.aclose()
        finally:
            await self._upstream.leave(self._lane, is_spoilt=self._attempt.is_shared and not self._is_whole)


@contextmanager
def _failures(attempt: Attempt) -> Iterator[None]:
    """What httpx and those below it raise, as one kind of failure."""
    try:
        yield
    except httpx.ConnectTimeout:
        raise attempt.timeouts.expired("connect") from None
    except TimeoutError:
        raise attempt.timeouts.expired(attempt.stage) from None
    except (httpx.TransportError, h2.exceptions.H2Error, OSError) as error:
        raise UpstreamFailed(describe(error), stage=attempt.stage) from None


def _known_authorities() -> ssl.SSLContext:
    """Those httpx comes with, and those of this system: a house may have its own."""
    trusted = httpx.create_ssl_context(trust_env=False)
    trusted.load_default_certs()
    return trusted
