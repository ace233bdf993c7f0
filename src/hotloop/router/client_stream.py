"""What one client is sent: its head once, the answer, and pings where a stream would be silent.

    accepted          first event                     end
    ├── head, pings ──┤├── the answer, pings ──┤├ last ┤

Neither the head of a stream nor a ping says anything of an answer, so another replica may be asked until its first
event. A stream that no replica has accepted in a while gets its head too: what goes wrong then is its last event.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from starlette.types import Send

from hotloop.router.kinds import Api
from hotloop.wire.sse import COMMENT, PING_S, ends_event, write_event

_SSE = ((b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache"))

MAX_COPIED_BYTES = 4 << 20

Headers = Sequence[tuple[bytes, bytes]]


class ClientStream:
    def __init__(self, send: Send, headers: Headers, ping_s: float = PING_S) -> None:
        """`headers` are the router's own, and go with whatever is sent."""
        self.has_begun = False
        self.copy: bytearray | None = None
        """If given, gets what is sent, up to a limit."""
        self._send = send
        self._headers = [*headers]
        self._ping_s = ping_s
        self._ping = COMMENT
        self._is_silent = False
        self._is_between_events = True
        self._pinging: asyncio.Task[None] | None = None

    def add_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name, value))

    async def begin(self, status: int, headers: Headers) -> None:
        """Send the head, unless it has been sent."""
        if not self.has_begun:
            self.has_begun = True
            head = [*headers, *self._headers]
            await self._send({"type": "http.response.start", "status": status, "headers": head})

    async def write(self, data: bytes, *, is_last: bool = False) -> None:
        self._is_silent = False
        if self.copy is not None and len(self.copy) < MAX_COPIED_BYTES:
            self.copy += data
        self._is_between_events = not is_last and ends_event(data)
        await self._send({"type": "http.response.body", "body": data, "more_body": not is_last})

    async def send_whole(self, status: int, headers: Headers, body: bytes) -> None:
        await self.begin(status, [*headers, (b"content-length", str(len(body)).encode())])
        await self.write(body, is_last=True)

    async def accept(self, headers: Headers) -> None:
        """A replica has taken the request of a stream: so the client hears, at once."""
        if not self.has_begun:
            await self.begin(200, headers)
            await self.write(self._ping)

    @asynccontextmanager
    async def kept_alive(self, api: Api, *, is_stream: bool) -> AsyncIterator[None]:
        if not is_stream:
            yield
            return
        self._ping = write_event("ping") if api == "messages" else COMMENT
        self._look_later()
        try:
            yield
        finally:
            self._timer.cancel()
            if pinging := self._pinging:
                pinging.cancel()
                await asyncio.gather(pinging, return_exceptions=True)

    def _look_later(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._ping_s / 2, self._look)

    def _look(self) -> None:
        """Twice in the time there is: a ping is due if nothing was sent since."""
        if self._is_silent and self._is_between_events:
            self._pinging = asyncio.create_task(self._send_ping())
        else:
            self._is_silent = True
            self._look_later()

    async def _send_ping(self) -> None:
        """The client may be slow to take it."""
        await self.begin(200, _SSE)
        await self.write(self._ping)
        self._is_silent = True
        self._look_later()
