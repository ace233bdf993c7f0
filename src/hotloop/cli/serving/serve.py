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

_MODEL_HELP = "Model to serve: a name, hub id, GGUF file or folder. Overrides --model and settings."
MIN_LIFE_S = 60.0


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
    settings again and applies those that can change at run time: API keys, how long classes may wait, the log level.
    """
    from hotloop.cli.serving.reload import Served
    from hotloop.http.listen import bind
    from hotloop.http.logs import start_logging

    gc.disable()  # until all is loaded: it would look for garbage among what stays
    began_at = time.monotonic()
    model = replace(model, model=given or model.model)
    served = Served(model, without(engine, disable), without(server, disable), trace)

    def read() -> Served:
        assert reread
        now = reread()
        named, off = replace(now["model"], model=given or now["model"].model), now["disable"]
        return Served(named, without(now["engine"], off), without(now["server"], off), now["trace"])

    if reread:
        _hold_hangups()
    start_logging(server)
    served.check()
    listener = bind(server.host, server.port)  # before the model is loaded: a taken port is told at once
    with listener, load_engine(served.model, served.engine, _import_server) as loaded:
        from hotloop.cli.serving.fronts import count_fronts, run_with_fronts
        from hotloop.cli.serving.http import serve_http

        if num_fronts := count_fronts(server.fronts, loaded):
            run_with_fronts(num_fronts, loaded, served, listener, read if reread else None)
        else:
            serve_http(loaded, served, listener, read if reread else None)
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


def _import_server() -> None:
    from hotloop.cli.serving import fronts, http  # noqa: F401


def _hold_hangups() -> None:
    """A SIGHUP that comes before there is anything to reload waits until the server listens, which lets it through."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})


def route(
    *,
    router: RouterFlags = RouterConfig(),
    disable: Disable = (),
    trace: TraceFlags = TRACED,
    config: ConfigFile = None,
    reread: Reread = None,
) -> None:
    """Route requests to many replicas: each goes to the one that has its prefix cached.

    Replicas may be hotloop, vLLM, SGLang, TGI, TensorRT-LLM, llama.cpp, Ollama, or hosted APIs; their type is detected
    automatically. Use --config replicas.toml for per-replica settings; SIGHUP reloads it without dropping streams.
    """
    from hotloop.cli.output import count
    from hotloop.cli.serving.pages import live_of_router, opened_store, page_of
    from hotloop.cli.serving.reload import Reload, Settings
    from hotloop.http.logs import start_logging
    from hotloop.router.config import read_routing
    from hotloop.router.serve import RouterServer

    def read() -> "Settings[RouterConfig]":
        assert reread
        now = reread()
        return Settings(without(now["router"], now["disable"]), now["trace"])

    def read_replicas(router: RouterConfig) -> "RoutingConfig":
        return read_routing(router, config or (Path(CONFIG_FILE) if Path(CONFIG_FILE).exists() else None), os.environ)

    def apply(app: "RouterApp") -> str:
        return reload(lambda settings: app.reload(read_replicas(settings.listener)))

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
    router = without(router, disable)
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
