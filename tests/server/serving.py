"""A real server on loopback over a real engine without a model: what every test of the server talks to.

A token is a byte, so a test can force any text it likes with `logit_bias`, or have a script played.
"""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Self

import httpx
from starlette.applications import Starlette
from tests.backends.scripted import ScriptedBackend
from tests.engine.tiny import TOKENIZER
from tests.loopback import http_at, openai_at

from hotloop.backends.backend import Backend, Batch
from hotloop.backends.null import NullBackend
from hotloop.core.config import EngineConfig, RouterConfig, ServerConfig, parse_bytes
from hotloop.engine.engine import Engine
from hotloop.http.listen import bind, url_of
from hotloop.http.page import Application
from hotloop.models.template import ChatTemplate
from hotloop.models.tokenizer import Tokenizer
from hotloop.router.app import RouterApp
from hotloop.router.config import ReplicaConfig, RoutingConfig
from hotloop.router.serve import RouterServer
from hotloop.server.app import HttpServer
from hotloop.server.engine_client import EngineFacts
from hotloop.server.fronts.host import EngineHost
from hotloop.server.fronts.hub import Hub
from hotloop.server.fronts.remote import RemoteEngine
from hotloop.trace.tracer import Tracer

if TYPE_CHECKING:
    import openai

MODEL = "tiny"
CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
HELLO: list[Any] = [{"role": "user", "content": "hello"}]


def token(text: str) -> int:
    [token_id] = TOKENIZER.encode(text)
    return token_id


def only(text: str) -> dict[str, Any]:
    """Parameters under which the model says nothing but this character."""
    return {"logit_bias": {str(token(text)): 100}, "temperature": 0}


class Gate:
    """Stands before every step. Closed, it holds the engine inside a step; open, it lets it run at a gentle pace."""

    def __init__(self) -> None:
        self._is_open = threading.Event()
        self._is_open.set()

    def __call__(self, batch: Batch) -> None:
        assert self._is_open.wait(30), "a test left the gate closed"
        time.sleep(0.0005)

    def __enter__(self) -> Self:
        self._is_open.clear()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_open.set()


class Pause:
    """Before a certain step the model stops, until somebody has heard what it said so far."""

    def __init__(self, step: int) -> None:
        self._step = step
        self._steps = count()
        self._is_over = threading.Event()

    def __call__(self, batch: Batch) -> None:
        if next(self._steps) == self._step:
            assert self._is_over.wait(30), "nothing was heard of what was said"

    def end(self) -> None:
        self._is_over.set()


class Routing:
    """A router in a thread, in front of servers; `replica_key` is the key that it uses there."""

    def __init__(
        self,
        *replica_urls: str,
        replica_key: str | None = None,
        tracer: Tracer | None = None,
        page: Callable[[RouterApp], Application] | None = None,
        **settings: Any,
    ) -> None:
        router = RouterConfig(**{"port": 0, "health_interval_s": 0.1, "drain_timeout_s": 5.0} | settings)
        replicas = tuple(
            ReplicaConfig(url=url, name=f"r{i}", api_key=replica_key) for i, url in enumerate(replica_urls)
        )
        config = RoutingConfig(router=router, replicas=replicas)
        self._server = RouterServer(config, tracer=tracer, page=page, on_ready=self._on_ready)
        self._is_ready = threading.Event()
        self._thread = threading.Thread(target=self._server.run)

    def __enter__(self) -> str:
        self._thread.start()
        assert self._is_ready.wait(30)
        replica_set = self._server.app.replica_set
        until(lambda: all(each.state == "up" for each in replica_set.replicas.values()))
        return self.url

    def __exit__(self, *_: object) -> None:
        self._server.stop()
        self._thread.join(30)
        assert not self._thread.is_alive()

    def _on_ready(self, url: str) -> None:
        self.url = url
        self._is_ready.set()


class Hosting:
    """An engine's end of a link in a thread with an event loop of its own, as in the engine's process."""

    def __init__(self, engine: Engine, *socks: socket.socket) -> None:
        self._engine = engine
        self._socks = socks
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._is_ready.wait(30)
        return self

    def __exit__(self, *_: object) -> None:
        self.break_off()
        self._thread.join(30)
        assert not self._thread.is_alive()

    @property
    def num_hosted(self) -> int:
        return sum(host.num_hosted for host in self._hosts)

    def break_off(self) -> None:
        """As if the process had been killed."""
        assert self._loop
        with suppress(RuntimeError):  # the other end has closed the link, and the loop has ended
            self._loop.call_soon_threadsafe(self._gone.set)

    async def _run(self) -> None:
        self._loop, self._gone = asyncio.get_running_loop(), asyncio.Event()
        self.hub = Hub(self._engine, self._engine.name, num_fronts=len(self._socks))
        num_left = count(len(self._socks) - 1, -1)

        def note_gone() -> None:
            if not next(num_left):
                self._gone.set()

        self._hosts = [EngineHost(self._engine, self.hub, sock, on_gone=note_gone) for sock in self._socks]
        for host in self._hosts:
            host.start()
        self._is_ready.set()
        await self._gone.wait()
        for host in self._hosts:
            await host.close()


class Serving:
    """The server in a thread, and ways to talk to it; with `pytest --through-router`, through one, and with `pytest
    --apart` with a link between server and engine, as between two processes. With `--fronts` there are so many servers,
    and each request goes to any of them."""

    is_routed = False
    is_apart = False
    num_fronts = 1

    def __init__(
        self,
        config: ServerConfig | None = None,
        engine_config: EngineConfig | None = None,
        *,
        has_template: bool = True,
        template: str = CHATML,
        num_blocks: int = 512,
        script: Sequence[str] | None = None,
        on_run: Callable[[Batch], None] | None = None,
        tokenizer: Tokenizer = TOKENIZER,
        tracer: Tracer | None = None,
        backend: Backend | None = None,
        page: Callable[[Engine], Application] | None = None,
        num_fronts: int | None = None,
    ) -> None:
        self.gate = Gate()
        self.notices: list[str] = []
        size = {"block_size": 16, "num_blocks": num_blocks}
        null = NullBackend(**size, vocab_size=tokenizer.vocab_size, max_context=4096, on_run=self.gate)
        backend = backend or (null if script is None else ScriptedBackend(tokenizer, script, **size, on_run=on_run))
        chat_template = ChatTemplate(template, bos_token="", eos_token="<|im_end|>") if has_template else None
        engine_config = engine_config or EngineConfig(debug_checks=True, draft_history_tokens=10_000)
        self.engine = Engine(tokenizer, backend, engine_config, name=MODEL, template=chat_template)
        self._hosted, self._routed = ExitStack(), ExitStack()
        self.num_fronts = num_fronts or self.num_fronts
        self.is_apart = self.is_apart or self.num_fronts > 1
        folder = Path(self._hosted.enter_context(TemporaryDirectory()))
        self.servers = [
            HttpServer(
                each,
                config or ServerConfig(port=0),
                tracer=tracer,
                page=page(self.engine) if page else None,
                on_ready=self._on_ready,
                on_drain=self._on_drain,
                own_socket=folder / str(i) if self.num_fronts > 1 else None,
            )
            for i, each in enumerate(self._engines_apart(engine_config) if self.is_apart else [self.engine])
        ]
        self._num_ready = threading.Semaphore(0)
        self._threads: list[threading.Thread] = []

    def _engines_apart(self, config: EngineConfig) -> list[RemoteEngine]:
        pairs = [socket.socketpair() for _ in range(self.num_fronts)]
        self._hosting = Hosting(self.engine, *(ours for ours, _ in pairs))
        facts = EngineFacts.of(self.engine, num_fronts=self.num_fronts)
        model = self.engine.tokenizer, self.engine.template
        grammar_bytes = parse_bytes(config.grammar_memory)
        return [RemoteEngine(theirs, facts, *model, grammar_bytes=grammar_bytes) for _, theirs in pairs]

    def _start(self) -> None:
        """Several accept from one listener, and each from one of its own."""
        shared = bind(self.server.config.host, self.server.config.port)
        self.urls = []
        for server in self.servers:
            sockets = [shared.dup()]
            if self.num_fronts > 1:
                server.config.headers.append(("connection", "close"))  # so the next one may go to another
                sockets.append(bind("127.0.0.1", 0))
                self.urls.append(url_of(sockets[1]))
            thread = threading.Thread(target=server.run, args=(sockets,))
            thread.start()
            self._threads.append(thread)
        for _ in self.servers:
            assert self._num_ready.acquire(timeout=30)
        shared.close()

    @property
    def server(self) -> HttpServer:
        return self.servers[0]

    @property
    def hub(self) -> Hub:
        return self._hosting.hub

    @property
    def num_hosted(self) -> int:
        return self._hosting.num_hosted

    def __enter__(self) -> Self:
        self.engine.start()
        if self.is_apart:
            self._hosted.enter_context(self._hosting)
        self._start()
        if self.is_routed:
            self.url = self._routed.enter_context(Routing(self.url))
        self.http = http_at(self.url)
        return self

    def __exit__(self, *_: object) -> None:
        self.http.close()
        self._routed.close()
        self.stop()
        self.join()
        self._hosted.close()
        self.engine.close()

    def stop(self) -> None:
        for server in self.servers:
            server.stop()

    @property
    def app(self) -> Starlette:
        """Behind the check of names and the access log."""
        app: Any = self.server.config.app
        while not isinstance(app, Starlette):
            app = getattr(app, "app", None) or app._app
        return app

    def join(self) -> None:
        for thread in self._threads:
            thread.join(30)
            assert not thread.is_alive()

    def openai(self, api_key: str = "none") -> openai.OpenAI:
        return openai_at(self.url, api_key)

    def chat(self, **fields: Any) -> httpx.Response:
        return self.http.post("/v1/chat/completions", json={"messages": HELLO, "max_tokens": 4, **fields})

    def complete(self, **fields: Any) -> httpx.Response:
        return self.http.post("/v1/completions", json={"prompt": "hello", "max_tokens": 4, **fields})

    def _on_ready(self, url: str, curl: str) -> None:
        self.url, self.curl = url, curl
        self._num_ready.release()

    def _on_drain(self, num_running: int) -> None:
        self.notices.append(f"draining {num_running}")


def until(is_true: Callable[[], bool]) -> None:
    """Wait for what another thread is about to do."""
    deadline = time.monotonic() + 120
    while not is_true():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.002)


def check_error(response: httpx.Response, status: int, code: str | None = None) -> dict[str, Any]:
    """Every failure has OpenAI's shape."""
    assert response.status_code == status, response.text
    error: dict[str, Any] = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code", "request_id"}
    assert isinstance(error["message"], str)
    assert error["message"]
    assert "\n" not in error["message"]
    assert isinstance(error["type"], str)
    assert error["param"] is None or isinstance(error["param"], str)
    assert error["request_id"] == response.headers["x-request-id"]
    assert code is None or error["code"] == code
    return error
