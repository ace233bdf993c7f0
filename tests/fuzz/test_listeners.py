"""Bytes that are nearly requests, to a router and to a server: both stay up, and what the router passes on is what it
was asked for, with the same borders: one request is never read as two, nor two as one.

Behind the router is a replica that reads strictly: a request line, headers, exactly as many bytes as it is told.
FUZZ_INPUTS says how many connections (`make test-fuzz`: many), FUZZ_SEED which.
"""

import asyncio
import json
import os
import random
import re
from collections import Counter
from contextlib import suppress
from typing import Any
from urllib.parse import quote

import httptools
from tests.fuzz.mutate import mutate
from tests.router.conftest import running, until
from tests.server.serving import MODEL, Serving

from hotloop.core.config import RouterConfig
from hotloop.router.config import ReplicaConfig, RoutingConfig

NUM_INPUTS = int(os.environ.get("FUZZ_INPUTS", "100"))
SEED = int(os.environ.get("FUZZ_SEED", "0"))
NUM_AT_ONCE = 25
QUIET_S = 0.3  # after so long without a byte nothing more is expected
HEAD = re.compile(rb"(GET|POST|DELETE) (/[!-~]*) HTTP/1\.1\r\n((?:[!#$%&'*+.^_`|~0-9a-zA-Z-]+: [^\r\n\0]*\r\n)*)\r\n")

Seen = tuple[str, bytes]


def is_about_an_answer(path: str) -> bool:
    """Which goes on without a body, whether that comes or not."""
    return path.startswith("/v1/responses/")


def request_key(path: str, body: bytes) -> Seen:
    return path, b"" if is_about_an_answer(path) else body


class StrictReplica:
    """Takes nothing for a request that could be read in two ways."""

    def __init__(self) -> None:
        self.seen = Counter[Seen]()
        self.complaints: list[bytes] = []

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                found = HEAD.fullmatch(head)
                lengths = re.findall(rb"(?im)^content-length: (\d+)\r$", head)
                if not found or len(lengths) > 1 or b"transfer-encoding" in head.lower():
                    self.complaints.append(head)
                    break
                body = await reader.readexactly(int(lengths[0])) if lengths else b""
                path = found[2].decode()
                if found[1] == b"POST":
                    self.seen[request_key(path, body)] += 1
                said = {"data": [{"id": MODEL}]} if path == "/v1/models" else {"id": "chatcmpl-1", "choices": []}
                answer = json.dumps(said).encode()
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n")
                writer.write(b"content-length: %d\r\n\r\n%b" % (len(answer), answer))
                await writer.drain()
        writer.close()


class Overheard:
    """An application, and the requests that it was told of, to their end where that goes on."""

    def __init__(self, app: Any) -> None:
        self._app = app
        self.seen = Counter[Seen]()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        body, path = b"", quote(scope["path"])
        self.seen[request_key(path, body)] += is_about_an_answer(path)

        async def hear() -> Any:
            nonlocal body
            message = await receive()
            body += message.get("body", b"")
            if message["type"] == "http.request" and not message.get("more_body"):
                self.seen[request_key(path, body)] += not is_about_an_answer(path)
            return message

        await self._app(scope, hear, send)


def request(number: int, rng: random.Random) -> bytes:
    """One that says which it is, in one of the ways that are used to make two readers disagree."""
    body = json.dumps({"model": MODEL, "messages": [{"role": "user", "content": f"{SEED} {number}"}], "max_tokens": 1})
    inner = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n"
    data = body.encode()
    chunked = b"%x\r\n%b\r\n0\r\n\r\n" % (len(data), data)
    length = b"content-length: %d\r\n" % len(data)
    te = b"transfer-encoding: chunked\r\n"
    path, end, tail = b"/v1/chat/completions", b"\r\n", data
    headers = rng.choice(
        [
            *[length] * 8,
            length + length,
            length + b"content-length: 0\r\n",
            length + te,
            te + length,
            b"content-length: 5, 5\r\n",
            b"content-length: +%d\r\n" % len(data),
            b"content-length: 0x%x\r\n" % len(data),
            b"content-length : %d\r\n" % len(data),
            b"content-length:\r\n %d\r\n" % len(data),
            b"x: a\r\n\tb\r\n" + length,
            b"x\0y: 1\r\n" + length,
            b"connection: content-length, host, x\r\n" + length,
            b"upgrade: h2c\r\nconnection: upgrade, http2-settings\r\n" + length,
            b"expect: 100-continue\r\n" + length,
            b"".join(b"x-%d: %b\r\n" % (i, b"y" * rng.randint(0, 90)) for i in range(rng.choice((90, 1500)))) + length,
            b"x" * rng.choice((100, 70_000)) + b": 1\r\n" + length,
            b"x-request-id: a\rb\r\n" + length,
            b"authorization: Bearer \xff\xfe\r\nx-session-id: \xc3\xbc\r\n" + length,
        ]
    )
    if rng.random() < 0.4:
        names = (b"Transfer-Encoding", b"transfer-encoding ", b"transfer_encoding", b"Transfer-Encoding:")
        values = (
            b"chunked",
            b"identity, chunked",
            b"xchunked",
            b" chunked",
            b"chunked, identity",
            b"\x0bchunked",
            b"CHUNKED",
        )
        headers = b"%b: %b\r\n" % (rng.choice(names), rng.choice(values)) + rng.choice((b"", length))
        sizes = (b"%x", b"%x;ext=1", b"0x%x", b"+%x", b"%x\t", b"00000000%x", b"1%x", b"%x;\n", b"-%x")
        size = rng.choice(sizes) % len(data)
        tail = rng.choice(
            (chunked, size + b"\r\n" + data + b"\r\n0\r\n\r\n", b"0\r\n\r\n" + inner, chunked[:-2] + length + b"\r\n")
        )
    if rng.random() < 0.2:
        path = rng.choice(
            (
                b"http://evil/v1/models",
                b"*",
                b"/v1/responses/a%0d%0aX:%20y",
                b"/v1/responses/..%2f..%2fx",
                b"//x",
                b"/\t/",
            )
        )
    if rng.random() < 0.1:
        end = b"\n"
    version = rng.choice((b"HTTP/1.1", b"HTTP/1.1", b"HTTP/1.1", b"HTTP/1.0", b"HTTP/2.0", b"HTTP/1.1 "))
    headers = b"host: localhost\r\ncontent-type: application/json\r\n" + headers
    head = b"POST %b %b%b%b" % (path, version, end, headers.replace(b"\r\n", end))
    return head + end + tail + (inner if rng.random() < 0.2 else b"")


def connection_bytes(number: int) -> bytes:
    rng = random.Random(f"listener {SEED} {number}")
    data = b"".join(request(number, rng) for _ in range(rng.choice((1, 1, 1, 2, 3))))
    return mutate(data, rng) if rng.random() < 0.4 else data


async def send(address: tuple[str, int], data: bytes) -> bytes:
    """All that is answered until it is quiet, or over."""
    reader, writer = await asyncio.open_connection(*address)
    heard = b""
    with suppress(ConnectionError, TimeoutError):
        writer.write(data)
        await writer.drain()
        while True:
            async with asyncio.timeout(QUIET_S):
                if not (piece := await reader.read(65536)):
                    break
                heard += piece
    writer.close()
    with suppress(ConnectionError):
        await writer.wait_closed()
    return heard


def statuses(heard: bytes) -> list[int]:
    """Of the answers, which must be nothing but answers."""
    found: list[int] = []

    class Answers:
        def on_headers_complete(self) -> None:
            found.append(parser.get_status_code())

    parser = httptools.HttpResponseParser(Answers())
    parser.feed_data(heard)
    return found


async def send_all(address: tuple[str, int]) -> Counter[int]:
    told = Counter[int]()
    for begin in range(0, NUM_INPUTS, NUM_AT_ONCE):
        numbers = range(begin, min(NUM_INPUTS, begin + NUM_AT_ONCE))
        answers = await asyncio.gather(*(send(address, connection_bytes(number)) for number in numbers))
        for number, heard in zip(numbers, answers, strict=True):
            try:
                told.update(statuses(heard))
            except httptools.HttpParserError as error:
                raise AssertionError(f"seed {SEED}, connection {number}: {error}: {heard[:300]!r}") from None
    return told


async def test_what_a_router_passes_on_is_what_it_was_asked_for() -> None:
    replica = StrictReplica()
    behind = await asyncio.start_server(replica, "127.0.0.1", 0)
    url = "http://{}:{}".format(*behind.sockets[0].getsockname())
    config = RoutingConfig(
        router=RouterConfig(port=0, health_interval_s=5.0), replicas=(ReplicaConfig(url=url, name="r"),)
    )
    async with behind, running(config) as router:
        await router.until(lambda: all(each.state == "up" for each in router.replica_set.replicas.values()))
        front = Overheard(router.server.config.loaded_app)
        router.server.config.loaded_app = front
        host, port = router.client.base_url.host, router.client.base_url.port
        told = await send_all((host, port or 0))
        print(f"seed {SEED}: {NUM_INPUTS} connections to a router, answered {dict(told)}")
        assert not replica.complaints, replica.complaints[0]
        assert replica.seen <= front.seen, [*(replica.seen - front.seen)][:3]
        assert replica.seen
        assert 500 not in told
        assert (await router.chat("still there?", model=MODEL)).status_code == 200
        await until(lambda: len(router.server.server_state.connections) <= 1)
        assert router.replica_set.replicas["r"].num_running == 0
    behind.close()


async def test_a_server_stays_up() -> None:
    with Serving() as serving:
        host, port = serving.http.base_url.host, serving.http.base_url.port
        told = await send_all((host, port or 0))
        print(f"seed {SEED}: {NUM_INPUTS} connections to a server, answered {dict(told)}")
        assert 500 not in told
        assert (await asyncio.to_thread(serving.chat)).status_code == 200
        await until(lambda: len(serving.server.server_state.connections) <= 1)
        await until(lambda: serving.engine.stats().num_running == 0)
        assert serving.engine.stats().num_blocks_used == 0
