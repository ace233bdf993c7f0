"""Replicas that say exactly what a test wrote, over real sockets on loopback."""

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Self

import pytest

from hotloop.http.url import split_url
from hotloop.router.upstream.http1 import Http1Upstream
from hotloop.router.upstream.wire import Timeouts, Upstream, UpstreamFailed, UpstreamRequest, UpstreamResponse

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
HALF = b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhalf"
CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
POST = UpstreamRequest("POST", "/v1/chat/completions", [(b"content-type", b"application/json")], b"{}")


@dataclass
class Visit:
    """One request, and the way to answer it."""

    number: int
    """How many came before it, over all connections."""
    head: bytes
    body: bytes
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def say(self, *parts: bytes) -> None:
        for part in parts:
            self.writer.write(part)
            await self.writer.drain()

    def hang_up(self) -> None:
        self.writer.close()


class Replica:
    """Answers each request as it is told, and counts who came and who left."""

    def __init__(
        self,
        answer: Callable[[Visit], Awaitable[None]],
        host: str = "127.0.0.1",
        certificate: ssl.SSLContext | None = None,
    ) -> None:
        self.visits: list[Visit] = []
        self.num_connections = 0
        self.num_gone = 0
        self._answer = answer
        self._host = host
        self._certificate = certificate
        self._open: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        self._changed = asyncio.Condition()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, self._host, 0, ssl=self._certificate)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        """No connection outlives a test, nor does a task that nobody waits for."""
        self._server.close()
        for writer in self._open.values():
            writer.transport.abort()
        await asyncio.gather(*self._open)
        await self._server.wait_closed()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        await asyncio.wait_for(asyncio.gather(*others), 30)

    @property
    def url(self) -> str:
        scheme = "https" if self._certificate else "http"
        return f"{scheme}://{'[::1]' if ':' in self._host else self._host}:{self.port}"

    def upstream(self, *, max_connections: int = 8, timeouts: Timeouts | None = None) -> Http1Upstream:
        timeouts = timeouts or Timeouts(connect_s=120)  # however busy the machine is
        return Http1Upstream(split_url(self.url), max_connections=max_connections, timeouts=timeouts)

    async def until(self, is_true: Callable[["Replica"], bool]) -> None:
        """Wait for what is about to happen here."""
        async with self._changed, asyncio.timeout(30):
            await self._changed.wait_for(lambda: is_true(self))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._open[task] = writer
        self.num_connections += 1
        try:
            while True:
                await self._one(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            del self._open[task]
            self.num_gone += 1
            writer.close()
        await self._tell()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = next((line for line in head.split(b"\r\n") if line.startswith(b"content-length: ")), b": 0")
        body = await reader.readexactly(int(length.split(b": ")[1]))
        visit = Visit(len(self.visits), head, body, reader, writer)
        self.visits.append(visit)
        await self._tell()
        await self._answer(visit)

    async def _tell(self) -> None:
        async with self._changed:
            self._changed.notify_all()


def saying(*parts: bytes, then_hang_up: bool = False) -> Callable[[Visit], Awaitable[None]]:
    """The same answer every time, in these pieces."""

    async def answer(visit: Visit) -> None:
        await visit.say(*parts)
        if then_hang_up:
            visit.hang_up()

    return answer


@contextmanager
def full_queue() -> Iterator[int]:
    """The port of one who accepts nobody: with its queue of one full, the system lets further connections wait."""
    with socket.socket() as full, socket.socket() as first, socket.socket() as second:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        for client in (first, second):
            client.setblocking(False)
            client.connect_ex(full.getsockname())
        yield full.getsockname()[1]


async def silent(visit: Visit) -> None:
    """Say no more until whoever asked is gone."""
    await visit.reader.read()


async def body_of(answer: UpstreamResponse) -> bytes:
    return b"".join([piece async for piece in answer])


async def failure_of(upstream: Upstream, ask: UpstreamRequest = POST) -> UpstreamFailed:
    """That of sending, or of reading the body; the place is given back either way."""
    with pytest.raises(UpstreamFailed) as caught:
        await body_of(await upstream.send(ask))
    assert "\n" not in str(caught.value)
    assert "127.0.0.1" not in str(caught.value)
    assert upstream.num_open == 0
    return caught.value
