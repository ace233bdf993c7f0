"""`hotloop serve` and `hotloop route`: a model, or many replicas, behind one address."""

import gc
import os
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from hotloop.cli.loading import load_engine
from hotloop.cli.output import count
from hotloop.cli.settings import (
    CONFIG_FILE,
    TRACED,
    ConfigFile,
    Disable,
    EngineFlags,
    ModelFlags,
    Reread,
    RouterFlags,
    ServerFlags,
    TraceFlags,
)
from hotloop.cli.tracing import tracing
from hotloop.core.config import EngineConfig, ModelConfig, RouterConfig, ServerConfig, without
from hotloop.core.errors import DeviceLost

if TYPE_CHECKING:
    from hotloop.cli.serving.reload import Settings
    from hotloop.http.page import Application
    from hotloop.router.app import RouterApp
    from hotloop.router.config import RoutingConfig
    from hotloop.ui.source import Live

_MODEL_HELP = "Model to serve: a name, hub id, GGUF file or folder. Overrides --model and settings."
MIN_LIFE_S = 60.0
_SWITCH_S = 0.0005  # so long the engine's thread waits at most for the one that answers clients


def serve(
    given: Annotated[str | None, Parameter(name="MODEL", help=_MODEL_HELP)] = None,
    /,
    *,
    model: ModelFlags = ModelConfig(),
    engine: EngineFlags = EngineConfig(),
    server: ServerFlags = ServerConfig(),
    disable: Disable = (),
    trace: TraceFlags = TRACED,
    config: ConfigFile = None,
    reread: Reread = None,
) -> None:
    """Serve a model over the OpenAI and Anthropic APIs.

    Baseline for comparisons (no prefix cache, no batching): --disable prefix_cache --max-running 1. SIGHUP reads the
    settings again and applies what can change at run time: API keys and the log level.
    """
    from hotloop.cli.serving.pages import live_of_engine, opened_store, page_of
    from hotloop.cli.serving.reload import Reload, Settings
    from hotloop.http.listen import bind
    from hotloop.http.logs import start_logging

    began_at = time.monotonic()
    model = replace(model, model=given or model.model)
    engine, server = without(engine, disable), without(server, disable)

    def read() -> "Settings[ServerConfig]":
        assert reread
        now = reread()
        named, off = replace(now["model"], model=given or now["model"].model), now["disable"]
        return Settings(without(now["server"], off), now["trace"], (named, without(now["engine"], off)))

    if reread:
        _hold_hangups()
    start_logging(server)
    reload = Reload(Settings(server, trace, (model, engine)), read)
    listener = bind(server.host, server.port)  # before the model is loaded: a taken port is told at once
    with listener, tracing(trace) as tracer, opened_store(trace) as store, load_engine(model, engine) as loaded:
        from hotloop.server.app import HttpServer

        name = server.served_name or loaded.name

        def announce(url: str, curl: str) -> None:
            dashboard = f"\ndashboard: {url}/ui" if store else ""
            room = f"context {loaded.max_context:,} tokens, KV for {loaded.num_kv_tokens:,} tokens"
            print(
                f"{name} is at {url}\n{loaded.device_note}\n{room}, precision {model.precision}{dashboard}\ntry: {curl}"
            )
            sys.stdout.flush()

        async def show() -> "Live":
            return await live_of_engine(loaded, engine.max_running)

        page = None
        if store:
            names = (server.host, *server.allowed_hosts)
            page = page_of(store, "hotloop serve", show, model=name, keys=reload.keys, names=names)
        _shorten_pauses()
        HttpServer(
            loaded,
            server,
            tracer=tracer,
            page=page,
            keys=reload.keys,
            reload=reload if reread else None,
            on_ready=announce,
            on_drain=_say_draining,
        ).run([listener])
    if isinstance(loaded.failure, DeviceLost):
        begin_again(loaded.failure, time.monotonic() - began_at)


def begin_again(failure: DeviceLost, lived_s: float) -> None:
    """Replace this process by a new one with the same arguments: no other can use a device that was lost.

    One that did not live long would only be lost again, so whoever started it hears of it instead.
    """
    if lived_s < MIN_LIFE_S:
        raise failure
    print(f"{failure}; starting again", file=sys.stderr, flush=True)
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def _hold_hangups() -> None:
    """A SIGHUP that comes before there is anything to reload waits until the server listens, which lets it through."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})


def _shorten_pauses() -> None:
    """What is loaded by now stays: looking through it for garbage would stop all threads for tenths of a second."""
    gc.collect()
    gc.freeze()
    sys.setswitchinterval(_SWITCH_S)


def _say_draining(num_running: int) -> None:
    if num_running:
        print(f"{count(num_running, 'request')} still running; press Ctrl-C again to abort", file=sys.stderr)


def route(
    *,
    router: RouterFlags = RouterConfig(),
    trace: TraceFlags = TRACED,
    config: ConfigFile = None,
    reread: Reread = None,
) -> None:
    """Route requests to many replicas: each goes to the one that has its prefix cached.

    Replicas may be hotloop, vLLM, SGLang, TGI, TensorRT-LLM, llama.cpp, Ollama, or hosted APIs; their type is detected
    automatically. Use --config replicas.toml for per-replica settings; SIGHUP reloads it without dropping streams.
    """
    from hotloop.cli.serving.pages import live_of_router, opened_store, page_of
    from hotloop.cli.serving.reload import Reload, Settings
    from hotloop.http.logs import start_logging
    from hotloop.router.config import read_routing
    from hotloop.router.serve import RouterServer

    def read() -> "Settings[RouterConfig]":
        assert reread
        now = reread()
        return Settings(now["router"], now["trace"])

    def read_replicas(router: RouterConfig) -> "RoutingConfig":
        return read_routing(router, config or (Path(CONFIG_FILE) if Path(CONFIG_FILE).exists() else None), os.environ)

    def apply(app: "RouterApp") -> str:
        return reload(lambda router: app.reload(read_replicas(router)))

    def announce(url: str) -> None:
        names = ", ".join(each.name for each in routing.replicas)
        dashboard = f"\ndashboard: {url}/ui" if store else ""
        replicas = f"{count(len(routing.replicas), 'replica')}, policy {router.policy}: {names}"
        print(f"the router is at {url}\n{replicas}{dashboard}", flush=True)

    def make_page(app: "RouterApp") -> "Application":
        assert store
        names = (router.host, *router.allowed_hosts)
        return page_of(store, "hotloop route", lambda: live_of_router(app), keys=reload.keys, names=names)

    if reread:
        _hold_hangups()
    start_logging(router)
    reload, routing = Reload(Settings(router, trace), read), read_replicas(router)
    with tracing(trace) as tracer, opened_store(trace) as store:
        RouterServer(
            routing,
            tracer=tracer,
            page=make_page if store else None,
            keys=reload.keys,
            reload=apply if reread else None,
            on_ready=announce,
        ).run()
    print("drained", file=sys.stderr)
