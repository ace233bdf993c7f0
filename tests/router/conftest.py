"""A router over stubs, and over a replica that tells what it was sent, all in the test's own event loop."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

import httpx
import pytest
import uvicorn
from benchmarks.route.stub import Manner
from tests.router.faults import FaultyStub

from hotloop.core.config import RouterConfig
from hotloop.http.listen import bind, url_of
from hotloop.router.config import ReplicaConfig, RoutingConfig
from hotloop.router.serve import RouterServer
from hotloop.trace.tracer import Tracer

MESSAGES = [{"role": "user", "content": "Where is my order?"}]


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110  nobody tells when it is so
            await asyncio.sleep(0.01)


class Router:
    """A running router and a client of its own."""

    def __init__(self, server: RouterServer, url: str, client: httpx.AsyncClient) -> None:
        self.server = server
        self.url = url
        self.client = client

    @property
    def replica_set(self) -> Any:
        return self.server.app.replica_set

    async def chat(self, content: str = "Hello", **fields: Any) -> httpx.Response:
        body = {"model": "stub", "messages": [{"role": "user", "content": content}], **fields}
        return await self.client.post("/v1/chat/completions", json=body)

    async def states(self) -> dict[str, str]:
        page = (await self.client.get("/router/replicas")).json()
        return {each["name"]: each["state"] for each in page["replicas"]}

    async def until(self, condition: Callable[[], bool]) -> None:
        await until(condition)


def replica_configs(stubs: list[FaultyStub], **fields: Any) -> tuple[ReplicaConfig, ...]:
    return tuple(ReplicaConfig(url=stub.url, name=stub.name, **fields) for stub in stubs)


@asynccontextmanager
async def running(config: RoutingConfig, tracer: Tracer | None = None) -> AsyncIterator[Router]:
    listener = bind("127.0.0.1", 0)
    server = RouterServer(config, tracer=tracer)
    task = asyncio.create_task(server.serve(sockets=[listener]))
    url = url_of(listener)
    try:
        async with httpx.AsyncClient(base_url=url, timeout=30, verify=False) as client:
            router = Router(server, url, client)
            await router.until(lambda: server.started)
            yield router
    finally:
        server.stop()
        await task
        listener.close()


@pytest.fixture
async def stubs() -> AsyncIterator[Callable[..., Awaitable[list[FaultyStub]]]]:
    started: list[FaultyStub] = []

    async def start(count: int, manner: Manner | None = None) -> list[FaultyStub]:
        new = [FaultyStub(f"s{len(started) + i}", manner) for i in range(count)]
        for stub in new:
            await stub.start()
        started.extend(new)
        return new

    yield start
    for stub in started:
        await stub.close()


@pytest.fixture
async def route() -> AsyncIterator[Callable[..., Awaitable[Router]]]:
    """Starts a router over replicas, and waits until they are up."""
    async with AsyncExitStack() as stack:

        async def start(replicas: tuple[ReplicaConfig, ...], **settings: Any) -> Router:
            settings = {"health_interval_s": 0.05, "drain_timeout_s": 5.0, **settings}
            config = RoutingConfig(router=RouterConfig(**settings), replicas=replicas)
            router = await stack.enter_async_context(running(config))
            await router.until(lambda: all(each.state == "up" for each in router.replica_set.replicas.values()))
            return router

        yield start


class Mirror:
    """A replica that answers every request with what it was sent."""

    def __init__(self) -> None:
        self.url = ""
        self.seen: list[dict[str, Any]] = []
        self.paths: list[str] = []
        self.reply: tuple[int, dict[str, Any]] | None = None
        self.headers: list[tuple[bytes, bytes]] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        body = b""
        self.paths.append(scope["path"])
        while True:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        if scope["method"] == "POST":
            self.seen.append({"path": scope["path"], "headers": headers, "raw": body})
        status, said = self.reply or (200, {"id": "mirror-1", "object": "chat.completion"})
        if scope["path"] == "/v1/models":
            status, said = 200, {"data": [{"id": "own-name"}]}
        content = json.dumps(said).encode()
        head = [(b"content-type", b"application/json"), (b"set-cookie", b"a=b"), (b"x-other", b"kept"), *self.headers]
        await send({"type": "http.response.start", "status": status, "headers": head})
        await send({"type": "http.response.body", "body": content})


@dataclass
class Page:
    """What a replica answers, in pieces of `size` bytes each."""

    body: bytes
    status: int = 200
    content_type: bytes = b"application/json"
    size: int = 1 << 20


class ScriptedReplica:
    """A replica that answers each path with the page set for it, and remembers what it was sent. Other paths do not
    exist, in the words of vLLM."""

    def __init__(self) -> None:
        self.url = ""
        self.seen: list[tuple[str, dict[str, Any]]] = []
        self.truncated: set[str] = set()
        """Paths whose answers break off behind what is set for them."""
        self.pages: dict[str, Page] = {
            "/health": Page(b"{}"),
            "/metrics": Page(b"vllm:num_requests_running 0\n"),
            "/v1/models": Page(b'{"data":[{"id":"m"}]}'),
        }
        self.missing = Page(b'{"error":{"message":"Not Found","type":"Not Found","param":null,"code":404}}', 404)

    @property
    def paths(self) -> list[str]:
        return [path for path, _ in self.seen]

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        if scope["method"] == "POST":
            self.seen.append((scope["path"], json.loads(body)))
        page = self.pages.get(scope["path"], self.missing)
        head = [(b"content-type", page.content_type)]
        await send({"type": "http.response.start", "status": page.status, "headers": head})
        for begin in range(0, len(page.body), page.size):
            piece = page.body[begin : begin + page.size]
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        if scope["path"] in self.truncated:
            await asyncio.sleep(0)  # what was sent is sent
            raise ConnectionError("the machine is gone")
        await send({"type": "http.response.body", "body": b""})


@asynccontextmanager
async def serving(app: Any) -> AsyncIterator[None]:
    listener = bind("127.0.0.1", 0)
    server = uvicorn.Server(uvicorn.Config(app, log_config=None, lifespan="off", ws="none"))
    task = asyncio.create_task(server.serve(sockets=[listener]))
    app.url = url_of(listener)
    await until(lambda: server.started)
    try:
        yield
    finally:
        server.should_exit = True
        await task
        listener.close()


@pytest.fixture
async def mirror() -> AsyncIterator[Mirror]:
    app = Mirror()
    async with serving(app):
        yield app


@pytest.fixture
async def scripted() -> AsyncIterator[ScriptedReplica]:
    app = ScriptedReplica()
    async with serving(app):
        yield app


def with_key(config: ReplicaConfig, key: str) -> ReplicaConfig:
    return replace(config, api_key=key)
