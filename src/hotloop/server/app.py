"""The application, and the process that serves it until it is told to stop.

first signal    not ready; after the drain delay the listener closes, the engine admits nothing more, and what runs may
                finish within the drain timeout
second signal   what still runs is aborted at once
a lost device   what ran has ended with an error; the listener closes, so that another process can begin
"""

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from hotloop.core.config import ServerConfig
from hotloop.core.errors import ConfigError, HotloopError
from hotloop.engine.engine import Engine
from hotloop.http.connection import ConnectionLimits
from hotloop.http.keys import ApiKeys, Keys, read_keys
from hotloop.http.page import Application
from hotloop.http.requests import HELLO_PATHS, REQUEST_ID_HEADER
from hotloop.http.serving import ApiServer, limits_of
from hotloop.http.tls import certificate_of
from hotloop.server import info, kv, messages, sessions
from hotloop.server.batches import api as batches
from hotloop.server.border import KeyCheck, RequestIds
from hotloop.server.engine_client import EngineClient, LocalEngine
from hotloop.server.errors import on_bug, on_error
from hotloop.server.openai.chat import chat_completions
from hotloop.server.openai.completions import completions
from hotloop.server.responses import api as responses
from hotloop.server.responses.compact import compact
from hotloop.server.responses.store import ResponseStore
from hotloop.server.service import Service
from hotloop.server.stream import JsonResponse
from hotloop.trace.tracer import NullTracer, Tracer

if TYPE_CHECKING:
    from hotloop.server.batches.runner import BatchRunner


async def _describe(request: Request) -> Response:
    from hotloop.server.openapi import describe  # noqa: PLC0415 - many classes, which few servers are asked about

    return JsonResponse(await asyncio.to_thread(describe, ROUTES))


ROUTES = (
    Route("/v1/chat/completions", chat_completions, methods=["POST"]),
    Route("/v1/completions", completions, methods=["POST"]),
    Route("/v1/messages", messages.messages, methods=["POST"]),
    Route("/v1/messages/count_tokens", messages.count_tokens, methods=["POST"]),
    Route("/v1/responses/compact", compact, methods=["POST"]),
    *responses.ROUTES,
    *sessions.ROUTES,
    *batches.ROUTES,
    Route("/v1/models", info.list_models),
    Route("/v1/models/{model:path}", info.show_model),
    Route("/v1/cache/explain/{id:path}", info.explain),
    Route("/health", info.health),
    *(Route(path, info.health) for path in HELLO_PATHS),
    Route("/ready", info.ready),
    Route("/version", info.version),
    Route("/tokenize", info.tokenize, methods=["POST"]),
    Route("/detokenize", info.detokenize, methods=["POST"]),
    Route("/metrics", info.metrics),
    Route("/openapi.json", _describe),
)


def create_app(
    engine: Engine | EngineClient,
    config: ServerConfig,
    tracer: Tracer | None = None,
    keys: ApiKeys | None = None,
    own_socket: Path | None = None,
) -> Starlette:
    """The whole API over one started engine, here or in another process. `app.state.service` is what its endpoints
    share. `keys` are those of the config unless given; `own_socket` is where other fronts reach this one."""
    keys = keys or ApiKeys(read_keys(config.api_key, config.api_key_file))
    client = LocalEngine(engine, config.served_name or engine.name) if isinstance(engine, Engine) else engine
    _check_isolation(client, config, keys.current)
    service = Service(client, config, tracer or NullTracer(), keys)
    middleware = [Middleware(RequestIds, metrics=service.metrics)]
    if config.cors_origins:
        cors: Any = {"allow_methods": ("GET", "POST", "DELETE"), "allow_headers": ("*",)}
        shown = (REQUEST_ID_HEADER, "retry-after")
        middleware.append(Middleware(CORSMiddleware, allow_origins=config.cors_origins, expose_headers=shown, **cors))
    middleware.append(Middleware(KeyCheck, keys=keys))
    if own_socket:
        from hotloop.server.fronts.elsewhere import Elsewhere  # noqa: PLC0415 - for several fronts, with a client

        middleware.append(Middleware(Elsewhere, own=own_socket, engine=client))
    handlers = {HotloopError: on_error, HTTPException: on_error, ClientDisconnect: on_error, Exception: on_bug}
    routes = (*ROUTES, *(kv.ROUTES if client.facts.kv_segments else ()), *info.NOT_SERVED)
    app = Starlette(routes=routes, middleware=middleware, exception_handlers=handlers)
    app.state.service = service
    app.state.responses = ResponseStore(sharing=client.sharing)
    app.state.batches = None
    if config.batch_dir:
        from hotloop.server.batches.runner import BatchRunner  # noqa: PLC0415 - with a client, too
        from hotloop.server.batches.store import BatchStore  # noqa: PLC0415

        inside = [Middleware(RequestIds, metrics=service.metrics)]
        unkeyed = Starlette(routes=(*ROUTES, *info.NOT_SERVED), middleware=inside, exception_handlers=handlers)
        unkeyed.state = app.state
        app.state.batches = BatchRunner(BatchStore(Path(config.batch_dir)), unkeyed)
    return app


def _check_isolation(engine: EngineClient, config: ServerConfig, keys: Keys) -> None:
    if engine.facts.publishes_kv and config.cache_isolation == "key":
        raise ConfigError("kv_events and cache_isolation=key cannot be combined: isolated prefixes are never published")
    if engine.facts.publishes_kv and config.cache_isolation == "auto" and keys.is_shared:
        reason = "with several API keys prefixes are shared by none of them, and kv_events publishes nothing"
        raise ConfigError(f"{reason}: leave it out, or share prefixes between keys (cache_isolation none)")


_MAX_JOBS = 32  # prompts and grammars in the making


class HttpServer(ApiServer):
    """It ends also when the engine is lost. `on_ready` gets the address and a curl line to try, `on_drain` how many
    still run; `on_closing` is awaited before the listener is closed. With `own_socket` it is one front of several.
    """

    def __init__(
        self,
        engine: Engine | EngineClient,
        config: ServerConfig,
        *,
        tracer: Tracer | None = None,
        page: Application | None = None,
        keys: ApiKeys | None = None,
        reload: Callable[[], str] | None = None,
        on_ready: Callable[[str, str], None] = lambda url, curl: None,
        on_drain: Callable[[int], None] = lambda num_running: None,
        on_closing: Callable[[], Awaitable[None]] | None = None,
        own_socket: Path | None = None,
        heeds_signals: bool = True,
    ) -> None:
        app = create_app(engine, config, tracer, keys, own_socket)
        service: Service = app.state.service
        # The drain ends every stream by itself; the time beyond is for a client that does not read what it is sent.
        self._has_key = bool(config.api_key or config.api_key_file)
        super().__init__(
            app,
            page,
            host=config.host,
            port=config.port,
            grace_s=config.drain_timeout_s + 5,
            drain_delay_s=config.drain_delay_s,
            is_open=not self._has_key,
            allowed_hosts=config.allowed_hosts,
            limits=_limits(service, config),
            reload=reload,
            certificate=certificate_of(config),
            own_socket=own_socket,
            heeds_signals=heeds_signals,
        )
        self._batches: BatchRunner | None = app.state.batches
        self._engine = service.engine
        self._settings = config
        self._service = service
        self._on_ready = on_ready
        self._on_drain = on_drain
        self._on_closing = on_closing
        self._aborting = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    def stop(self) -> None:
        super().stop()
        if self.force_exit and self._loop:
            with contextlib.suppress(RuntimeError):  # it has stopped already
                self._loop.call_soon_threadsafe(self._aborting.set)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        # Most of a slow grammar's time its thread only waits: plain prompts must not queue behind it.
        self._loop.set_default_executor(ThreadPoolExecutor(_MAX_JOBS, thread_name_prefix="hotloop-job"))
        self._engine.start()
        await super().startup(sockets)
        assert sockets
        url = self.url_of(sockets[0])
        self._service.recorder.listen_at(sockets[0].getsockname()[1])
        if self._batches:
            self._batches.start()
        is_chat = self._engine.template is not None
        self._on_ready(url, curl_line(url, is_chat=is_chat, has_key=self._has_key))

    async def on_tick(self, counter: int) -> bool:
        """Asked ten times a second whether to stop. A device that is lost will serve nobody in this process."""
        return await super().on_tick(counter) or self._engine.is_lost

    def begin_drain(self) -> None:
        self._service.is_draining = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._on_drain(self._service.bridge.num_running)
        if self._batches:
            await self._batches.close()
        if self._on_closing:
            await self._on_closing()
        tasks = [
            asyncio.create_task(self._engine.drain(self._settings.drain_timeout_s)),
            asyncio.create_task(self._abort()),
        ]
        try:
            await super().shutdown(sockets)
        finally:
            for task in tasks:
                task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.gather(*tasks)
            self._engine.stop()

    async def _abort(self) -> None:
        await self._aborting.wait()
        self._service.bridge.abort_all()


def _limits(service: Service, config: ServerConfig) -> ConnectionLimits:
    """Those of a server are divided among its fronts."""
    limits = limits_of(config)
    max_body_bytes = limits.max_body_bytes // service.engine.facts.num_fronts
    return replace(limits, max_body_bytes=max_body_bytes, num_held_bytes=lambda: service.body_room.num_held_bytes)


def curl_line(url: str, *, is_chat: bool, has_key: bool) -> str:
    path = "chat/completions" if is_chat else "completions"
    body = '{"messages": [{"role": "user", "content": "Hello!"}]}' if is_chat else '{"prompt": "Once upon a time"}'
    key = ' -H "Authorization: Bearer $HOTLOOP_API_KEY"' if has_key else ""
    return f"curl {url}/v1/{path} -H 'Content-Type: application/json'{key} -d '{body}'"
