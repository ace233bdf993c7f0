"""Connections to a replica: one of them, the pool they are in, and the response being read.

A connection carries one response at a time and is let go the moment that response's last byte has arrived, read or not
by the caller. It is reused only if the response was whole, nothing came after it, and all of the request was written.
A replica is not trusted: heads, trailers and what is buffered for a slow reader are bounded.
"""

import asyncio
import time
from typing import Self, cast

import httptools

from hotloop.http.headers import end_to_end
from hotloop.router.upstream.wire import SOCKET_OPTIONS, Headers, Stage, Timeouts, UpstreamFailed, describe

MAX_HEAD_BYTES = 64 * 1024
MAX_HEADERS = 256
MAX_BUFFERED_BYTES = 256 * 1024
"""Reading stops above this, and goes on when it is taken."""
MAX_IDLE_S = 60.0
"""How long a connection is kept unused."""
_MAX_TURN_S = 0.001
"""Reading that takes longer is followed by a rest."""
_ONE_READ_BYTES = 32 * 1024
"""Little enough that all of it in tiny chunks is soon parsed."""
_ONE_WRITE_BYTES = 64 * 1024
_FRAMING = (b"content-length", b"transfer-encoding")


class Connection(asyncio.BufferedProtocol):
    """A socket, the response that comes over it, and the place it holds in its pool."""

    def __init__(self, pool: "Pool") -> None:
        self.idle_since = 0.0
        self.is_lost = False
        self.num_requests = 0
        self.is_writing = False
        self._is_resting = False
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._pool = pool
        self._response: Http1Response | None = None
        self._deadline = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def request(self, head: bytes, body: bytes, response: "Http1Response") -> None:
        """Write it all: what does not go out at once follows while the response is waited for."""
        self._response = response
        self.num_requests += 1
        if len(body) <= _ONE_WRITE_BYTES:
            self._transport.write(head + body)
        else:
            self._transport.write(head)
            self._transport.write(body)

    def release(self, *, can_reuse: bool) -> None:
        self._response = None
        if can_reuse and not self.is_writing and not self.is_lost:
            self.resume()
        else:
            self.abort()
        self._pool.put(self)

    def expire_at(self, deadline: float) -> None:
        """End the response if it still waits then. Moving the deadline later, as each piece does, costs an assignment:
        the loop's timer stays where it is, and looks at the deadline when it comes."""
        self._deadline = deadline
        if self._timer is None or deadline < self._timer.when():
            if self._timer is not None:
                self._timer.cancel()
            self._timer = asyncio.get_running_loop().call_at(deadline, self._check_deadline)

    def _check_deadline(self) -> None:
        self._timer = None
        if self._response is None or not self._response.is_waiting:
            return
        if asyncio.get_running_loop().time() < self._deadline:
            self.expire_at(self._deadline)
        else:
            self._response.time_out()

    def pause(self) -> None:
        self._transport.pause_reading()

    def resume(self) -> None:
        if not self._is_resting and not self._transport.is_reading():
            self._transport.resume_reading()

    def abort(self) -> None:
        self.is_lost = True
        self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=0)
        socket = self._transport.get_extra_info("socket")
        for option in SOCKET_OPTIONS:
            socket.setsockopt(*option)

    def pause_writing(self) -> None:
        self.is_writing = True

    def resume_writing(self) -> None:
        self.is_writing = False

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._pool.read_buffer

    def buffer_updated(self, nbytes: int) -> None:
        if self._response is None:
            self._lose(None)
            self.abort()
            return
        begun_at = time.monotonic()
        self._response.feed(bytes(self._pool.read_buffer[:nbytes]))
        took_s = time.monotonic() - begun_at
        if took_s > _MAX_TURN_S and not self.is_lost:
            self._rest(took_s)

    def _rest(self, for_s: float) -> None:
        """Many tiny chunks take long: let others have the loop for as long. uvloop would read on and on otherwise."""
        self._is_resting = True
        if self._transport.is_reading():
            self.pause()
        asyncio.get_running_loop().call_later(for_s, self._end_rest)

    def _end_rest(self) -> None:
        self._is_resting = False
        if not self.is_lost and (self._response is None or self._response.num_buffered_bytes <= MAX_BUFFERED_BYTES):
            self.resume()

    def eof_received(self) -> None:
        self._lose(None)

    def connection_lost(self, error: Exception | None) -> None:
        self._lose(error)
        if self._timer is not None:
            self._timer.cancel()
        self.closed.set_result(None)

    def _lose(self, error: Exception | None) -> None:
        self.is_lost = True
        if self._response is None:
            self._pool.drop(self)
        else:
            self._response.feed_end(error)


class Pool:
    """Places for connections. The connection used last is used next, and over the bound a caller waits its turn.

    num_open = idle + taken <= max_connections        whoever takes a place gives it back with `put`
    """

    def __init__(self, max_connections: int, max_idle_s: float = MAX_IDLE_S) -> None:
        self._max_open = max_connections
        self._max_idle_s = max_idle_s
        self._places = asyncio.Semaphore(max_connections)
        self._num_taken = 0
        self._idle: list[Connection] = []
        self._is_sweeping = False
        self.read_buffer = memoryview(bytearray(_ONE_READ_BYTES))  # of whichever connection is read from just now

    @property
    def num_open(self) -> int:
        return self._num_taken + len(self._idle)

    async def take(self) -> Connection | None:
        """A place, in order of asking: with an idle connection, or None where one has to be opened."""
        await self._places.acquire()
        self._num_taken += 1
        return self._idle.pop() if self._idle else None

    def put(self, connection: Connection | None = None) -> None:
        """Give a place back, with its connection unless that is lost."""
        self._num_taken -= 1
        self._places.release()
        if connection is None or connection.is_lost:
            return
        connection.idle_since = asyncio.get_running_loop().time()
        self._idle.append(connection)
        if not self._is_sweeping:
            self._sweep()

    def drop(self, connection: Connection) -> None:
        if connection in self._idle:
            self._idle.remove(connection)

    def check(self) -> None:
        assert 0 <= self._num_taken <= self.num_open <= self._max_open
        assert not any(connection.is_lost for connection in self._idle)
        assert self._idle == sorted(self._idle, key=lambda connection: connection.idle_since)

    def _sweep(self) -> None:
        """Close what was idle too long. The oldest are first, since the last put is the first taken."""
        loop = asyncio.get_running_loop()
        while self._idle and loop.time() - self._idle[0].idle_since >= self._max_idle_s:
            self._idle.pop(0).abort()
        self._is_sweeping = bool(self._idle)
        if self._idle:
            loop.call_at(self._idle[0].idle_since + self._max_idle_s, self._sweep)


class Http1Response:
    """A response as it is parsed: a head, then pieces. Iterating over it gives its body."""

    status = 0
    headers: Headers = ()

    def __init__(self, connection: Connection, timeouts: Timeouts, *, has_body: bool) -> None:
        self.has_begun = False
        self._connection: Connection | None = connection
        self._parser: httptools.HttpResponseParser | None = httptools.HttpResponseParser(self)
        self._timeouts = timeouts
        self._has_body = has_body
        self._raw_headers: list[tuple[bytes, bytes]] = []
        self._buffer = bytearray()  # of the body, since the last piece was taken
        self._num_head_bytes = 0  # or of trailers: since the last piece of the body
        self._has_head = self._is_whole = self._keeps_alive = self._ends_with_connection = False
        self._fault: str | None = None
        self._failure: UpstreamFailed | None = None
        self._arrival: asyncio.Future[None] | None = None

    async def head(self) -> Self:
        """Itself, once status and headers are there. Raises UpstreamFailed if they never are."""
        try:
            if not self._has_head and self._connection is not None:
                await self._wait(self._timeouts.head_s)
        except asyncio.CancelledError:
            await self.aclose()
            raise
        if not self._has_head:
            assert self._failure is not None
            raise self._failure
        return self

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        while not self._buffer:
            if self._connection is None:
                raise self._failure or StopAsyncIteration
            await self._wait(self._timeouts.idle_s)
        piece = bytes(self._buffer)
        self._buffer.clear()
        if self._connection is not None:
            self._connection.resume()
        return piece

    async def aclose(self) -> None:
        self._buffer.clear()
        self._fail("it was not read to its end")

    @property
    def num_buffered_bytes(self) -> int:
        return len(self._buffer)

    def feed(self, data: bytes) -> None:
        assert self._parser is not None and self._connection is not None
        self.has_begun = True
        self._num_head_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._fault = self._fault or f"it does not speak HTTP/1.1 ({error})"
        if self._buffer:
            self._wake()
        if self._is_whole:
            self._end()
        elif self._fault is not None:
            self._fail(self._fault)
        elif self._num_head_bytes > MAX_HEAD_BYTES:
            self._fail("its headers are too long")
        elif self.num_buffered_bytes > MAX_BUFFERED_BYTES:
            self._connection.pause()

    def feed_end(self, error: Exception | None) -> None:
        if self._ends_with_connection and error is None:
            self._end()
        else:
            self._fail("it closed the connection" if error is None else describe(error))

    def on_message_begin(self) -> None:
        """Also of a 1xx before the response, and of a response nobody asked for after it."""
        self._raw_headers.clear()
        if self._has_head:
            self._keeps_alive = False

    def on_header(self, name: bytes, value: bytes) -> None:
        self._raw_headers.append((name, value))

    def on_headers_complete(self) -> None:
        assert self._parser is not None
        status = self._parser.get_status_code()
        if self._has_head or 100 <= status < 200:
            return
        headers = self._raw_headers
        if not 200 <= status < 600:
            self._fault = f"it answered with the status {status}"
            return
        if len(headers) > MAX_HEADERS or sum(len(name) + len(value) for name, value in headers) > MAX_HEAD_BYTES:
            self._fault = "its headers are too long"
            return
        self._has_head = True
        self._num_head_bytes = 0
        self.status, self.headers = status, end_to_end(headers)
        self._keeps_alive = self._has_body and self._parser.should_keep_alive()
        self._is_whole = not self._has_body
        self._ends_with_connection = not any(name.lower() in _FRAMING for name, _ in headers)
        self._wake()

    def on_body(self, piece: bytes) -> None:
        if self._has_head and not self._is_whole:
            self._num_head_bytes = 0
            self._buffer += piece

    def on_message_complete(self) -> None:
        self._is_whole = self._has_head

    @property
    def is_waiting(self) -> bool:
        return self._arrival is not None

    async def _wait(self, limit_s: float) -> None:
        assert self._connection is not None
        loop = asyncio.get_running_loop()
        self._arrival = loop.create_future()
        self._connection.expire_at(loop.time() + limit_s)
        try:
            await self._arrival
        finally:
            self._arrival = None

    def _wake(self) -> None:
        if self._arrival is not None and not self._arrival.done():
            self._arrival.set_result(None)

    def time_out(self) -> None:
        self._end(self._timeouts.expired(self._stage()))

    def _stage(self) -> Stage:
        assert self._connection is not None
        if self._has_head:
            return "body"
        return "send" if self._connection.is_writing else "head"

    def _fail(self, reason: str) -> None:
        if self._connection is not None:
            self._end(UpstreamFailed(reason, stage=self._stage()))

    def _end(self, failure: UpstreamFailed | None = None) -> None:
        assert self._connection is not None
        connection, self._connection, self._parser, self._failure = self._connection, None, None, failure
        connection.release(can_reuse=failure is None and self._keeps_alive and self._fault is None)
        self._wake()
