"""A client lean enough to share a processor with what it measures: requests at a constant rate, or some at a time.

Requests are bytes made beforehand. A request is sent when it is due whether or not others were answered (an open loop):
a slow server does not slow the questions down, and its delays are all seen. Connections are kept, but none is used that
was idle for as long as a server might close it at the same moment; so nothing is ever sent twice.
"""

import asyncio
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast
from urllib.parse import urlsplit

import httptools
import msgspec

_MAX_IDLE_S = 2.0
_NEVER = float("inf")

now = time.perf_counter
"""The clock of all that is measured here: the event loop's own may count whole milliseconds."""


@dataclass(slots=True, eq=False)
class Exchange:
    """One request and what came of it. Times are `now()`'s; what did not happen is at infinity."""

    due_at: float
    asked_at: float
    ended: "asyncio.Future[None]"
    first_at: float = _NEVER
    """The first byte of the answer's body."""
    ended_at: float = _NEVER
    status: int = 0
    """0: there was no answer."""
    headers: dict[bytes, bytes] = field(default_factory=dict)
    pieces: list[bytes] = field(default_factory=list)
    broken: str = ""
    """Why it did not come to its end, if it did not."""

    @property
    def body(self) -> bytes:
        return b"".join(self.pieces)

    @property
    def is_whole(self) -> bool:
        """An answer came, good or bad, and came to its end."""
        return bool(self.status) and not self.broken

    @property
    def late_s(self) -> float:
        """How much later than due it was sent, which is our own doing."""
        return self.asked_at - self.due_at

    @property
    def ttfb_s(self) -> float:
        return self.first_at - self.asked_at

    def end(self, at: float, broken: str = "") -> None:
        self.ended_at = at
        self.broken = broken
        if not self.ended.done():
            self.ended.set_result(None)


class LeanClient:
    """Asks one server over as many connections as it takes."""

    def __init__(self, url: str, *, timeout_s: float = 60.0) -> None:
        parts = urlsplit(url)
        self.host, self.port = parts.hostname or "", parts.port or 80
        self._timeout_s = timeout_s
        self._idle: list[_Connection] = []
        self._open: set[_Connection] = set()
        self._connecting: set[asyncio.Task[None]] = set()
        self._loop = asyncio.get_running_loop()

    @property
    def num_open(self) -> int:
        return len(self._open)

    def ask(self, request: bytes, due_at: float | None = None) -> Exchange:
        """Send it now; never waits. `exchange.ended` tells when it is over, however it ended."""
        asked_at = now()
        exchange = Exchange(asked_at if due_at is None else due_at, asked_at, self._loop.create_future())
        while self._idle:
            connection = self._idle.pop()
            if asked_at - connection.idle_since < _MAX_IDLE_S:
                connection.send(request, exchange)
                return exchange
            connection.close()
        task = self._loop.create_task(self._connect_and_send(request, exchange))
        self._connecting.add(task)
        task.add_done_callback(self._connecting.discard)
        return exchange

    async def _connect_and_send(self, request: bytes, exchange: Exchange) -> None:
        try:
            async with asyncio.timeout(self._timeout_s):
                _, connection = await self._loop.create_connection(lambda: _Connection(self), self.host, self.port)
        except (OSError, TimeoutError) as error:
            exchange.end(now(), f"cannot connect: {error or type(error).__name__}")
        else:
            connection.send(request, exchange)

    async def open(self, num_connections: int) -> None:
        """So many connections that nobody has to wait for one at first."""
        for _ in range(num_connections):
            _, connection = await self._loop.create_connection(lambda: _Connection(self), self.host, self.port)
            self.put_back(connection)

    async def close(self) -> None:
        """What is still being answered is broken off."""
        for task in self._connecting:
            task.cancel()
        for connection in list(self._open):
            connection.close()
        await asyncio.gather(*self._connecting, return_exceptions=True)

    def put_back(self, connection: "_Connection") -> None:
        connection.idle_since = now()
        self._idle.append(connection)

    def joined(self, connection: "_Connection") -> None:
        self._open.add(connection)

    def left(self, connection: "_Connection") -> None:
        self._open.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)

    def start_timer(self, connection: "_Connection") -> asyncio.TimerHandle:
        return self._loop.call_later(self._timeout_s, connection.time_out)


class _Connection(asyncio.Protocol):
    """Carries one exchange at a time. The `on_` methods are the parser's."""

    def __init__(self, client: LeanClient) -> None:
        self.idle_since = 0.0
        self._client = client
        self._transport: asyncio.Transport
        self._parser = httptools.HttpResponseParser(self)
        self._exchange: Exchange | None = None
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._client.joined(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._client.left(self)
        self._end(f"connection lost: {exc}" if exc else "connection closed")

    def send(self, request: bytes, exchange: Exchange) -> None:
        self._exchange = exchange
        self._timer = self._client.start_timer(self)
        self._transport.write(request)

    def close(self) -> None:
        self._transport.abort()

    def time_out(self) -> None:
        self._end("timeout")
        self.close()

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._end(f"not HTTP: {error}")
            self.close()

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._exchange:
            self._exchange.headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        if self._exchange:
            self._exchange.status = self._parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        exchange = self._exchange
        if exchange:
            if not exchange.pieces:
                exchange.first_at = now()
            exchange.pieces.append(body)

    def on_message_complete(self) -> None:
        can_stay = self._parser.should_keep_alive()
        self._end()
        if can_stay:
            self._client.put_back(self)
        else:
            self._transport.close()

    def _end(self, broken: str = "") -> None:
        if self._timer:
            self._timer.cancel()
        if self._exchange:
            self._exchange.end(now(), broken)
            self._exchange = None


def render_request(target: str, body: Mapping[str, Any], *, session: str = "", key: str = "") -> bytes:
    """A POST as it goes over the wire; the same for every server, so that all are asked alike."""
    data = msgspec.json.encode(body)
    session_line = f"x-session-id: {session}\r\n" if session else ""
    key_line = f"authorization: Bearer {key}\r\n" if key else ""
    head = (
        f"POST {target} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\naccept: */*\r\n"
        f"{session_line}{key_line}content-length: {len(data)}\r\n\r\n"
    )
    return head.encode() + data


async def ask_steadily(
    client: LeanClient,
    requests: Iterator[bytes],
    *,
    rate: float,
    duration_s: float,
    on_end: Callable[[Exchange], None] = lambda _: None,
) -> None:
    """One request every 1/rate seconds; returns when all have ended. Keeps none of them: `on_end` sees each."""
    began_at = now()
    endings: list[asyncio.Future[None]] = []
    for number in range(round(rate * duration_s)):
        due_at = began_at + number / rate
        await asyncio.sleep(max(0.0, due_at - now()))
        exchange = client.ask(next(requests), due_at)
        exchange.ended.add_done_callback(partial(_tell, on_end, exchange))
        endings.append(exchange.ended)
    await asyncio.gather(*endings)


def _tell(on_end: Callable[[Exchange], None], exchange: Exchange, _: "asyncio.Future[None]") -> None:
    on_end(exchange)
