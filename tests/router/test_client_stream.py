"""A client that waits hears of it: the head and a ping once a replica has accepted, pings while nothing comes."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from tests.router.conftest import MESSAGES, replica_configs, until
from tests.router.faults import Fault

from hotloop.http.listen import bind, url_of
from hotloop.router.client_stream import ClientStream
from hotloop.router.config import ReplicaConfig
from hotloop.router.proxy import send_whole

STREAM = {"model": "stub", "messages": MESSAGES, "stream": True, "max_tokens": 8}
PINGS = {"/v1/chat/completions": b": ping\n\n", "/v1/messages": b'event: ping\ndata: {"type":"ping"}\n\n'}
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


class Accepting:
    """A replica that accepts, pings and, when it is told to, dies without having said anything."""

    def __init__(self) -> None:
        self.num_accepted = 0
        self.is_over = asyncio.Event()

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        if head.startswith(b"POST"):
            self.num_accepted += 1
            pings = b": PROCESSING\n\n", *PINGS.values()
            writer.write(HEAD + b"".join(b"%x\r\n%b\r\n" % (len(ping), ping) for ping in pings))
            await self.is_over.wait()
        else:
            body = json.dumps({"data": [{"id": "stub"}], "status": "ok"}).encode()
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body))
            writer.write(body)
            await writer.drain()
        writer.close()


@asynccontextmanager
async def accepting(kind: Any = "openai") -> AsyncIterator[tuple[Accepting, ReplicaConfig]]:
    replica, listener = Accepting(), bind("127.0.0.1", 0)
    async with await asyncio.start_server(replica, sock=listener):
        yield replica, ReplicaConfig(url=url_of(listener), name="a", kind=kind)
        replica.is_over.set()


@pytest.mark.parametrize("path", PINGS)
async def test_who_was_accepted_hears_at_once_and_is_still_answered_elsewhere(stubs, route, path):
    [good] = await stubs(1)
    async with accepting("hotloop") as (replica, config):
        router = await route((config, *replica_configs([good])), policy="round_robin", health_interval_s=60.0)
        for _ in range(2):  # one of them goes to the replica that says nothing
            async with router.client.stream("POST", path, json=STREAM) as answer:
                chunks = answer.aiter_raw()
                content = await anext(chunks)
                assert (answer.status_code, content[: len(PINGS[path])]) == (200, PINGS[path])
                replica.is_over.set()
                content += b"".join([chunk async for chunk in chunks])
            assert good.name.encode() in content
            assert b"PROCESSING" not in content
        assert replica.num_accepted > 0


async def test_a_stream_that_was_accepted_and_fails_everywhere_ends_in_an_error(route):
    async with accepting() as (replica, config):
        router = await route((config,), health_interval_s=60.0, queue_timeout_s=0.2)
        asked = asyncio.create_task(router.client.post("/v1/chat/completions", json=STREAM))
        await until(lambda: replica.num_accepted == 1)
        replica.is_over.set()
        answer = await asked
    assert answer.status_code == 200
    *_, last = answer.text.removesuffix("\n\n").split("\n\n")
    assert json.loads(last.removeprefix("data: "))["error"]["code"]


async def test_what_a_replica_refuses_is_a_status(stubs, route):
    [stub] = await stubs(1)
    router = await route(replica_configs([stub]), health_interval_s=60.0, max_retries=0)
    await stub.set_fault(Fault("error", 60.0))
    assert (await router.chat(stream=True)).status_code >= 500


class Wire:
    def __init__(self) -> None:
        self.sent: list[dict[str, Any]] = []

    async def __call__(self, message: Any) -> None:
        self.sent.append(message)

    @property
    def bodies(self) -> list[bytes]:
        return [message["body"] for message in self.sent[1:]]


@pytest.mark.parametrize(("api", "path"), [("chat", "/v1/chat/completions"), ("messages", "/v1/messages")])
async def test_a_stream_nobody_accepts_is_opened_and_pinged(api: Any, path: str) -> None:
    wire = Wire()
    client = ClientStream(wire, [(b"x-request-id", b"r")], ping_s=0.01)
    async with client.kept_alive(api, is_stream=True):
        await until(lambda: len(wire.sent) > 3)
        await send_whole(client, 429, [], b'{"error": {"message": "too \\"much\\""}}', api, "r")
    assert wire.sent[0]["status"] == 200
    assert (b"x-request-id", b"r") in wire.sent[0]["headers"]
    *pings, last = wire.bodies
    assert set(pings) == {PINGS[path]}
    assert json.loads(last.partition(b"data: ")[2])["error"]["message"] == 'too "much"'
    assert (last.startswith(b"event: error"), wire.sent[-1]["more_body"]) == (api == "messages", False)


async def test_what_is_no_stream_is_never_pinged_nor_half_an_event() -> None:
    wire = Wire()
    client = ClientStream(wire, [], ping_s=0.002)
    async with client.kept_alive("chat", is_stream=False):
        await asyncio.sleep(0.02)
    assert wire.sent == []
    await client.begin(200, [])
    async with client.kept_alive("chat", is_stream=True):
        await client.write(b'data: {"half')
        await asyncio.sleep(0.02)
        await client.write(b'": 1}\n\n', is_last=False)
        await until(lambda: len(wire.sent) > 3)
    assert wire.bodies[:3] == [b'data: {"half', b'": 1}\n\n', b": ping\n\n"]


async def test_a_translated_stream_is_kept_alive_too(route):
    """A replica of another API: its pings say nothing in ours, so the router's own do."""
    async with accepting() as (replica, config):
        router = await route((config,), health_interval_s=60.0)
        body = {"model": "stub", "messages": MESSAGES, "stream": True, "max_tokens": 8}
        async with router.client.stream("POST", "/v1/messages", json=body) as answer:
            assert await anext(answer.aiter_raw()) == PINGS["/v1/messages"]
        assert isinstance(answer, httpx.Response)
        replica.is_over.set()


async def test_nothing_is_sent_behind_the_last():
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    client = ClientStream(send, [], ping_s=0.01)
    async with client.kept_alive("chat", is_stream=True):
        await client.begin(200, [])
        await client.write(b"data: [DONE]\n\n", is_last=True)
        await asyncio.sleep(0.1)
    assert [message.get("more_body") for message in sent] == [None, False]
