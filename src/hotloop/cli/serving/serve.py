"""`hotloop serve`."""

import logging
import os
import sys
import time
from typing import TYPE_CHECKING

from hotloop.cli.loading import load_engine
from hotloop.cli.settings import TRACED, ConfigFile, EngineFlags, ModelFlags, ServerFlags, TraceFlags
from hotloop.cli.tracing import tracing
from hotloop.core.config import EngineConfig, ModelConfig, ServerConfig
from hotloop.core.errors import DeviceLost

if TYPE_CHECKING:
    from hotloop.engine.engine import Engine
    from hotloop.ui.source import Live

MIN_LIFE_S = 60.0


def serve(
    *,
    model: ModelFlags = ModelConfig(),
    engine: EngineFlags = EngineConfig(),
    server: ServerFlags = ServerConfig(),
    trace: TraceFlags = TRACED,
    config: ConfigFile = None,
) -> None:
    """Serve a model over the OpenAI API.

    For the loop everybody starts with, no reuse and one request at a time: --no-prefix-cache --max-running 1
    """
    from hotloop.cli.serving.pages import live_of_engine, opened_store, page_of

    began_at = time.monotonic()
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    with tracing(trace) as tracer, opened_store(trace) as store, load_engine(model, engine) as loaded:
        from hotloop.server.app import HttpServer

        name = server.served_name or loaded.name

        def announce(url: str, curl: str) -> None:
            look = f"\nlook: {url}/ui" if store else ""
            print(f"{name} is at {url}\n{_summary(loaded, model)}{look}\ntry: {curl}", flush=True)

        async def show() -> "Live":
            return await live_of_engine(loaded, engine.max_running)

        page = None
        if store:
            page = page_of(store, "hotloop serve", show, model=name, api_key=server.api_key, host=server.host)
        HttpServer(loaded, server, tracer=tracer, page=page, on_ready=announce, on_drain=_say_draining).run()
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


def _summary(loaded: "Engine", model: ModelConfig) -> str:
    context, kv = f"context {loaded.max_context:,} tokens", f"KV for {loaded.num_kv_tokens:,} tokens"
    return f"{loaded.device_note}\n{context}, {kv}, precision {model.precision}"


def _say_draining(num_running: int) -> None:
    if num_running:
        print(f"still running: {num_running}; once more to abort", file=sys.stderr)
