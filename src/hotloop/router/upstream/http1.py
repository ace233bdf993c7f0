"""Plain HTTP/1.1 to one replica over kept connections, by hand: its cost is added to every request, and
aiohttp's is about three times as much (docs/routing.md, "What it costs").

A reused connection that ends before any byte of a response was probably closed by the replica while it lay idle: the
request is sent once more on a fresh one, if the caller allows it. Nothing else is ever sent twice.
"""

import asyncio
from urllib.parse import SplitResult

from hotloop.router.upstream.connection import Connection, Http1Response, Pool
from hotloop.router.upstream.wire import (
    MayResend,
    Timeouts,
    UpstreamFailed,
    UpstreamRequest,
    always,
    check_request,
    describe,
)

_WITHOUT_BODY = frozenset({"GET", "HEAD", "DELETE", "OPTIONS"})


class Http1Upstream:
    def __init__(self, url: SplitResult, *, max_connections: int, timeouts: Timeouts) -> None:
        self._host, self._port = url.hostname or "", url.port or 80
        self._prefix = url.path.rstrip("/")
        self._host_line = f"host: {url.netloc}\r\n".encode("ascii")
        self._timeouts = timeouts
        self._pool = Pool(max_connections)
        self._connections: set[Connection] = set()
        self._is_closed = False

    @property
    def num_open(self) -> int:
        return self._pool.num_open

    async def send(self, request: UpstreamRequest, may_resend: MayResend = always) -> Http1Response:
        head = self._render_head(request)
        connection = await self._take()
        response = self._start(connection, head, request)
        try:
            return await response.head()
        except UpstreamFailed as failure:
            is_stale = connection.num_requests > 1 and not response.has_begun and not failure.is_timeout
            if not is_stale or self._is_closed or not may_resend():
                raise
        return await self._start(await self._take(is_fresh=True), head, request).head()

    async def aclose(self) -> None:
        """Whoever waits for a place gets one as the connections go, and is turned away."""
        self._is_closed = True
        closing = [connection.closed for connection in self._connections]
        for connection in tuple(self._connections):
            connection.abort()
        await asyncio.gather(*closing)

    def check(self) -> None:
        self._pool.check()
        assert sum(not connection.is_lost for connection in self._connections) <= self.num_open

    def _start(self, connection: Connection, head: bytes, request: UpstreamRequest) -> Http1Response:
        response = Http1Response(connection, self._timeouts, has_body=request.method != "HEAD")
        connection.request(head, request.body, response)
        return response

    async def _take(self, *, is_fresh: bool = False) -> Connection:
        """A connection and its place, both the caller's. Where one is stale all probably are: none is tried then."""
        connection = await self._pool.take()
        if connection is not None and not is_fresh:
            return connection
        if connection is not None:
            connection.abort()
        try:
            if self._is_closed:
                raise UpstreamFailed.removed()
            return await self._open()
        except BaseException:
            self._pool.put()
            raise

    async def _open(self) -> Connection:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._timeouts.connect_s):
                _, connection = await loop.create_connection(lambda: Connection(self._pool), self._host, self._port)
        except TimeoutError:
            raise self._timeouts.expired("connect") from None
        except (OSError, UnicodeError) as error:
            raise UpstreamFailed(describe(error), stage="connect") from None
        if self._is_closed:
            connection.abort()
            raise UpstreamFailed.removed()
        self._connections.add(connection)
        connection.closed.add_done_callback(lambda _: self._connections.discard(connection))
        return connection

    def _render_head(self, request: UpstreamRequest) -> bytes:
        check_request(request)
        lines = [f"{request.method} {self._prefix}{request.target} HTTP/1.1\r\n".encode("ascii"), self._host_line]
        lines += [b"%b: %b\r\n" % header for header in request.headers]
        if request.body or request.method not in _WITHOUT_BODY:
            lines.append(b"content-length: %d\r\n" % len(request.body))
        lines.append(b"\r\n")
        return b"".join(lines)
