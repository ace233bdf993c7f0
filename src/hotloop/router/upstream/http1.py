"""Plain HTTP/1.1 to one replica over kept connections, by hand: its cost is added to every request, and
aiohttp's is about three times as much (docs/architecture.md, "The way to a replica").

A connection that had been used before and ends before anything of an answer came was closed by the replica while it lay
idle; the request is sent once more, on a fresh one. Nothing else is ever sent twice: that is for the caller to decide.
"""

import asyncio

from hotloop.router.upstream.address import Address
from hotloop.router.upstream.connection import Connection, Http1Answer
from hotloop.router.upstream.pool import Pool
from hotloop.router.upstream.wire import Timeouts, UpstreamFailed, UpstreamRequest, check_ask, describe

_WITHOUT_BODY = frozenset({"GET", "HEAD", "DELETE", "OPTIONS"})


class Http1Upstream:
    """Pooled HTTP/1.1 connections to one replica."""

    def __init__(self, address: Address, *, max_connections: int, timeouts: Timeouts) -> None:
        self._address = address
        self._host_line = f"host: {address.authority}\r\n".encode("ascii")
        self._timeouts = timeouts
        self._pool: Pool[Connection] = Pool(max_connections)
        self._connections: set[Connection] = set()
        self._is_closed = False

    @property
    def num_open(self) -> int:
        return self._pool.num_open

    async def send(self, ask: UpstreamRequest) -> Http1Answer:
        head = self._render_head(ask)
        connection = await self._take()
        answer = self._start(connection, head, ask)
        try:
            return await self._head(answer)
        except UpstreamFailed as failure:
            is_stale = connection.num_asked > 1 and not answer.has_begun and not failure.is_timeout
            if not is_stale or self._is_closed:
                raise
        return await self._head(self._start(await self._take(is_fresh=True), head, ask))

    async def aclose(self) -> None:
        self._is_closed = True
        self._pool.close()
        closing = [connection.closed for connection in self._connections]
        for connection in tuple(self._connections):
            connection.abort()
        await asyncio.gather(*closing)

    def check(self) -> None:
        """What always holds."""
        self._pool.check()
        assert sum(not connection.is_lost for connection in self._connections) <= self.num_open

    def _start(self, connection: Connection, head: bytes, ask: UpstreamRequest) -> Http1Answer:
        answer = Http1Answer(connection, self._timeouts, has_body=ask.method != "HEAD")
        connection.ask(head, ask.body, answer)
        return answer

    async def _head(self, answer: Http1Answer) -> Http1Answer:
        try:
            return await answer.head()
        except asyncio.CancelledError:
            answer.close()
            raise

    async def _take(self, *, is_fresh: bool = False) -> Connection:
        """A connection and its place, both the caller's. Where one is stale all probably are: none is tried then."""
        connection = await self._pool.take()
        if connection is not None and not is_fresh and not connection.is_lost and not self._is_closed:
            return connection
        if connection is not None:
            connection.abort()
        try:
            return await self._open()
        except BaseException:
            self._pool.free()
            raise

    async def _open(self) -> Connection:
        if self._is_closed:
            raise UpstreamFailed.removed()
        loop, address = asyncio.get_running_loop(), self._address
        try:
            async with asyncio.timeout(self._timeouts.connect_s):
                _, connection = await loop.create_connection(lambda: Connection(self._pool), address.host, address.port)
        except TimeoutError:
            raise self._timeouts.expired("connect") from None
        except (OSError, UnicodeError) as error:
            raise UpstreamFailed(describe(error), stage="connect") from None
        self._connections.add(connection)
        connection.closed.add_done_callback(lambda _: self._connections.discard(connection))
        return connection

    def _render_head(self, ask: UpstreamRequest) -> bytes:
        check_ask(ask)
        lines = [f"{ask.method} {self._address.prefix}{ask.target} HTTP/1.1\r\n".encode("ascii"), self._host_line]
        lines += [b"%b: %b\r\n" % header for header in ask.headers]
        if ask.body or ask.method not in _WITHOUT_BODY:
            lines.append(b"content-length: %d\r\n" % len(ask.body))
        lines.append(b"\r\n")
        return b"".join(lines)
