"""A client's connection, held to limits before anybody has looked at a key: how large its headers may be, how long a
request may take to arrive, how much of all bodies may be on its way, how long an answer may go unread, and how many
connections there may be.

    connected         headers end         body ends                  answered
    ├─ head_timeout_s ─┤├─ body_timeout_s ─┤├─ write_timeout_s unread ┤├─ keep-alive, then head_timeout_s again

What is refused is answered in JSON, like everything else, and can be read: the connection is closed for writing, what
still comes is dropped for a while, then it is closed. Closed at once, with bytes in it that nobody has read, it would
be reset, and the client would never see the answer.
"""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from hotloop.http.requests import render_refusal

log = logging.getLogger("hotloop.http")

_LOG_EVERY_S = 10.0
_SMALL_BODY = 64 << 10  # bytes; what uvicorn buffers of a body in any case
_UNHEARD = logging.getLogger("hotloop.http.uvicorn")  # a line for every request that is none: `tell` says it seldom
_UNHEARD.setLevel(logging.ERROR)


@dataclass(slots=True, kw_only=True)
class ConnectionLimits:
    """What a listener allows; shared by its connections."""

    max_connections: int = 8192
    max_header_bytes: int = 64 << 10
    head_timeout_s: float = 30.0
    body_timeout_s: float = 120.0
    write_timeout_s: float = 60.0
    linger_s: float = 2.0
    last_request_s: float = 0.5
    """How long an idle connection is kept once the listener has closed: longer than a request takes to arrive."""
    max_body_bytes: int = 64 << 20
    """Of all bodies that are arriving or, says `num_held_bytes`, have arrived and are held, but for small ones."""
    num_held_bytes: Callable[[], int] = lambda: 0
    _arriving: "dict[BoundedProtocol, int]" = field(default_factory=dict, init=False)  # the oldest first
    _num_arriving_bytes: int = field(default=0, init=False)
    _num_untold: Counter[str] = field(default_factory=Counter, init=False)
    _told_at: dict[str, float] = field(default_factory=dict, init=False)

    def tell(self, what: str, client: tuple[str, int] | None) -> None:
        """A line in the log now and then, however many connections are refused."""
        self._num_untold[what] += 1
        now = time.monotonic()
        if now - self._told_at.get(what, -_LOG_EVERY_S) >= _LOG_EVERY_S:
            self._told_at[what] = now
            log.warning("refused %d: %s (last from %s)", self._num_untold.pop(what), what, client[0] if client else "?")

    def count_body(self, connection: "BoundedProtocol", num_bytes: int) -> None:
        self._num_arriving_bytes += num_bytes - self._arriving.get(connection, 0)
        self._arriving[connection] = num_bytes

    def forget_body(self, connection: "BoundedProtocol") -> None:
        self._num_arriving_bytes -= self._arriving.pop(connection, 0)

    def make_room(self) -> None:
        """Bodies that are sent to be held arrive for longest, so they go first; the last one may always go on."""
        max_arriving_bytes = self.max_body_bytes - self.num_held_bytes()
        while len(self._arriving) > 1 and self._num_arriving_bytes > max_arriving_bytes:
            next(iter(self._arriving)).refuse_body()


class _TooLarge(Exception):
    """Stops the parser."""


class BoundedProtocol(HttpToolsProtocol):
    def __init__(self, *args: Any, limits: ConnectionLimits, **options: Any) -> None:
        super().__init__(*args, **options)
        self.logger = _UNHEARD
        self.is_lingering = False
        self._limits = limits
        self._timer: asyncio.TimerHandle | None = None
        self._is_in_head = True
        self._is_whole = True  # whether nothing is missing of a request that has begun
        self._num_head_bytes = 0
        self._num_body_bytes = 0
        self._write_timer: asyncio.TimerHandle | None = None
        self._is_too_large = False
        self._refusal: tuple[int, str, str] | None = None  # of a request behind others, which are answered first

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._socket = transport
        self.transport = _LingeringTransport(transport, self)  # type: ignore[assignment]
        if len(self.connections) > self._limits.max_connections:
            self._refuse(503, "too_many_connections", "there are too many connections already: try again later")
        else:
            self._arm(self._limits.head_timeout_s)

    def connection_lost(self, exc: Exception | None) -> None:
        self._disarm()
        self._limits.forget_body(self)
        if self._write_timer:
            self._write_timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.is_lingering or self._refusal:
            return
        if self._is_in_head:
            self._num_head_bytes += len(data)
        super().data_received(data)
        self._limits.make_room()
        if self._is_in_head and self._num_head_bytes > self._limits.max_header_bytes and not self.is_lingering:
            self._refuse_headers()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._is_in_head, self._is_whole = True, False
        self._arm(self._limits.head_timeout_s)

    def on_headers_complete(self) -> None:
        size = len(self.url) + sum(len(name) + len(value) for name, value in self.headers)
        if size > self._limits.max_header_bytes:
            self._is_too_large = True
            raise _TooLarge
        super().on_headers_complete()
        self._is_in_head, self._num_head_bytes, self._num_body_bytes = False, 0, 0
        self._arm(self._limits.body_timeout_s)

    def on_body(self, body: bytes) -> None:
        super().on_body(body)
        self._num_body_bytes += len(body)
        if self._num_body_bytes > _SMALL_BODY and not self.cycle.response_complete:
            self._limits.count_body(self, self._num_body_bytes)

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._limits.forget_body(self)
        self._is_in_head = self._is_whole = True
        self._disarm()

    def on_response_complete(self) -> None:
        is_last = not self.pipeline
        self._limits.forget_body(self)
        super().on_response_complete()
        if self._refusal and is_last and not self.transport.is_closing():
            self._refuse(*self._refusal)

    def send_400_response(self, msg: str) -> None:
        if self._is_too_large:
            self._refuse_headers()
        else:
            self._refuse(400, "invalid_http", msg)

    def shutdown(self) -> None:
        """The listener has closed. Of an idle connection nobody knows whether a request is on its way: it is closed
        when none has come for a moment, and one that comes is answered."""
        is_idle = self._is_whole and not self._num_head_bytes and not self._is_answering
        if is_idle and not self.is_lingering:
            self._arm(self._limits.last_request_s)
        else:
            super().shutdown()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch_reader(self._socket.get_write_buffer_size())

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._write_timer:
            self._write_timer.cancel()

    def _watch_reader(self, num_unsent: int) -> None:
        """A slow reader may go on, however long it takes; one who takes nothing at all is cut off."""

        def look() -> None:
            if (num_left := self._socket.get_write_buffer_size()) < num_unsent:
                self._watch_reader(num_left)
            else:
                self._limits.tell(f"the client read nothing for {self._limits.write_timeout_s:g} s", self.client)
                self._socket.abort()

        self._write_timer = self.loop.call_later(self._limits.write_timeout_s, look)

    def close(self) -> None:
        """At once if all that was sent has been read, else when the client had the time to read what it was told."""
        if self._is_whole or self._socket.is_closing():
            self._socket.close()
        elif not self.is_lingering:
            self.is_lingering = True
            if self._socket.can_write_eof():
                self._socket.write_eof()
            self.flow.resume_reading()
            self._arm(self._limits.linger_s)

    def _arm(self, timeout_s: float) -> None:
        self._disarm()
        self._timer = self.loop.call_later(timeout_s, self._expire)

    def _disarm(self) -> None:
        if self._timer:
            self._timer.cancel()
            self._timer = None

    def _expire(self) -> None:
        if self.is_lingering:
            self._socket.close()
        elif self._is_behind:
            self._arm(self._limits.head_timeout_s)  # the client is ahead of us: it is not the one who is late
        elif self._is_in_head and self._num_head_bytes:
            self._refuse_late("headers", self._limits.head_timeout_s)
        elif self._is_answering and not self.cycle.response_started:
            self._refuse_late("body", self._limits.body_timeout_s)
        else:  # nothing was asked, or it has been answered already
            self._socket.close()

    @property
    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    @property
    def _is_behind(self) -> bool:
        """Whether what comes now is behind a request that has not been answered."""
        return bool(self.pipeline) or (self._is_in_head and self._is_answering)

    def refuse_body(self) -> None:
        self._limits.forget_body(self)
        if self.cycle.response_started:
            self._socket.close()
        else:
            self._refuse(503, "too_many_bodies", "too many large requests are arriving: try again later")

    def _refuse_late(self, part: str, limit_s: float) -> None:
        self._refuse(408, "request_timeout", f"the request's {part} did not arrive within {limit_s:g} s")

    def _refuse_headers(self) -> None:
        limit = self._limits.max_header_bytes
        self._refuse(431, "headers_too_large", f"the request's headers are larger than {limit} bytes")

    def _refuse(self, status: int, code: str, message: str) -> None:
        """Answer a request that no application hears of; one that has heard of it sees the client leave."""
        if self._is_behind:
            if not self._is_in_head:
                self.pipeline.popleft()  # it is the last of those that wait
            self._refusal = status, code, message
            self._disarm()
            return
        self._limits.tell(f"{status} {message}", self.client)
        headers, body = render_refusal(status, code, message)
        headers += [(b"connection", b"close"), *([(b"retry-after", b"1")] if status == 503 else [])]
        head = b"".join(b"%s: %s\r\n" % header for header in headers)
        self._socket.write(STATUS_LINE[status] + head + b"\r\n" + body)
        if self._is_answering:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        self._is_whole = False
        self.close()


class _LingeringTransport:
    """What uvicorn writes to, and means to close at once."""

    def __init__(self, inner: asyncio.Transport, protocol: BoundedProtocol) -> None:
        self._inner = inner
        self._protocol = protocol

    def close(self) -> None:
        self._protocol.close()

    def is_closing(self) -> bool:
        return self._protocol.is_lingering or self._inner.is_closing()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)
