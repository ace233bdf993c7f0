"""A replica without a model: it says the same words to everybody, at once or piece by piece.

So fast that what is measured is whoever stands in front of it. It speaks OpenAI's chat completions and Anthropic's
messages, whole and streamed, and has hotloop's metrics. Its name stands in the id of every answer, so that a client can
tell who answered through any router.
"""

import asyncio
import socket
from collections import Counter
from collections.abc import Callable, Sequence
from typing import cast

import httptools
import msgspec

from benchmarks.route.answers import (
    CHAT,
    MESSAGES,
    numbered,
    render_error,
    render_models,
    render_response,
    streams,
    whole_answers,
)


class Manner(msgspec.Struct, frozen=True):
    """How it answers."""

    num_events: int = 8
    gap_s: float = 0.0
    """Between two events of a stream; none: all are written at once."""


class _StreamOptions(msgspec.Struct):
    include_usage: bool = False


class _Asked(msgspec.Struct):
    stream: bool = False
    stream_options: _StreamOptions | None = None


class Stub:
    """Listens once it is started. Belongs to one event loop."""

    def __init__(self, name: str, manner: Manner | None = None) -> None:
        self.name = name
        self.url = ""
        self.port = 0
        self.connections: set[Connection] = set()
        self._manner = manner or Manner()
        self.paths: Counter[str] = Counter()
        self._wholes = whole_answers(name, self._manner.num_events)
        self._streams = {
            is_counted: streams(name, self._manner.num_events, has_usage=is_counted) for is_counted in (False, True)
        }
        self._server: asyncio.AbstractServer | None = None

    @property
    def is_listening(self) -> bool:
        return self._server is not None

    async def start(self, port: int = 0) -> None:
        """Raises OSError where the port is taken."""
        server = await asyncio.get_running_loop().create_server(
            lambda: Connection(self), "127.0.0.1", port, backlog=1024
        )
        self.port = server.sockets[0].getsockname()[1]
        self._server = server
        self.url = f"http://127.0.0.1:{self.port}"

    async def close(self) -> None:
        self.refuse()
        for connection in list(self.connections):
            connection.transport.abort()

    def refuse(self) -> None:
        """No connections from now on; those with a request are left alone."""
        if self._server:
            self._server.close()
            self._server = None
        for connection in list(self.connections):
            if not connection.is_busy:
                connection.transport.close()

    @property
    def num_running(self) -> int:
        return sum(connection.is_busy for connection in self.connections)

    def hear(self, connection: "Connection", path: str, body: bytes) -> None:
        self.paths[path] += 1
        self.answer(connection, path, body)

    def answer(self, connection: "Connection", path: str, body: bytes) -> None:
        if path in self._wholes:
            self._complete(connection, path, body)
        elif path == "/v1/models":
            connection.send(render_response(200, render_models()))
        elif path == "/health":
            connection.send(render_response(200, b'{"status":"ok"}'))
        elif path == "/metrics":
            connection.send(render_response(200, self._metrics(), b"text/plain; version=0.0.4"))
        else:
            connection.send(render_response(404, render_error(f"there is no {path}")))

    def _complete(self, connection: "Connection", path: str, body: bytes) -> None:
        try:
            asked = msgspec.json.decode(body, type=_Asked)
        except msgspec.MsgspecError as error:
            connection.send(render_response(400, render_error(str(error))))
            return
        whole = self._wholes[path]
        halves = [whole[: len(whole) // 2], whole[len(whole) // 2 :]]
        options = asked.stream_options or _StreamOptions()
        pieces = self._streams[options.include_usage][path] if asked.stream else halves
        pieces = numbered(pieces, self.paths.total())
        self.say(connection, pieces, self._manner.gap_s if asked.stream else 0.0)

    def say(self, connection: "Connection", pieces: Sequence[bytes], gap_s: float) -> None:
        connection.send_pieces(pieces, gap_s)

    def _metrics(self) -> bytes:
        num_asked = self.paths[CHAT] + self.paths[MESSAGES]
        num_running = self.num_running - 1  # whoever asks for this
        metrics = {"requests_running": num_running, "requests_waiting": 0, "requests_total": num_asked}
        return "".join(f"hotloop_{name} {value}\n" for name, value in metrics.items()).encode()


class Connection(asyncio.Protocol):
    """One client, a request at a time. The `on_` methods are the parser's."""

    def __init__(self, stub: Stub) -> None:
        self.transport: asyncio.Transport
        self.is_busy = False
        self._stub = stub
        self._parser = httptools.HttpRequestParser(self)
        self._target = b""
        self._body: list[bytes] = []
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._stub.connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stub.connections.discard(self)
        if self._timer:
            self._timer.cancel()

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self.transport.close()

    def on_message_begin(self) -> None:
        self._target, self._body, self.is_busy = b"", [], True

    def on_url(self, url: bytes) -> None:
        self._target += url

    def on_body(self, body: bytes) -> None:
        self._body.append(body)

    def on_message_complete(self) -> None:
        path = self._target.partition(b"?")[0].decode("latin-1")
        self._stub.hear(self, path, b"".join(self._body))

    def send(self, response: bytes) -> None:
        self.transport.write(response)
        self._end()

    def send_pieces(self, pieces: Sequence[bytes], gap_s: float, *, is_cut: bool = False) -> None:
        if gap_s and len(pieces) > 1:
            self.transport.write(pieces[0])
            self.later(gap_s, lambda: self.send_pieces(pieces[1:], gap_s, is_cut=is_cut))
            return
        self.transport.write(b"".join(pieces))
        if is_cut:
            self.transport.close()
        self._end()

    def later(self, delay_s: float, act: Callable[[], None]) -> None:
        self._timer = asyncio.get_running_loop().call_later(delay_s, act)

    def _end(self) -> None:
        self.is_busy = False
        if not self._stub.is_listening or not self._parser.should_keep_alive():
            self.transport.close()
