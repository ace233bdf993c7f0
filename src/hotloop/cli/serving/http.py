"""`hotloop serve` once it has an engine, here or in another process: the API, the dashboard and the trace."""

import gc
import socket
import sys
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from hotloop.cli.serving.pages import live_of_engine, opened_store, page_of
from hotloop.cli.serving.reload import Reload, Served, Settings
from hotloop.cli.tracing import tracing
from hotloop.core.config import ServerConfig
from hotloop.engine.engine import Engine
from hotloop.server.app import HttpServer
from hotloop.server.engine_client import EngineFacts

if TYPE_CHECKING:
    from hotloop.server.fronts.remote import RemoteEngine
    from hotloop.ui.source import Live

_SWITCH_S = 0.0005  # so long the engine's thread waits at most for the one that answers clients


def serve_http(
    engine: "Engine | RemoteEngine",
    served: Served,
    listener: socket.socket,
    read: Callable[[], Served] | None,
    *,
    on_made: Callable[[HttpServer], None] = lambda server: None,
    on_ready: Callable[[], None] = lambda: None,
    on_closing: Callable[[], Awaitable[None]] | None = None,
    own_socket: Path | None = None,
    is_first: bool = True,
    heeds_signals: bool = True,
) -> None:
    """Blocks until the server has ended. `read` gives the settings a start would run with now. Of several fronts, of
    which each has its `own_socket`, the first says where they listen."""
    server = served.server
    reload = Reload(served.settings, lambda: (read or _nothing)().settings)
    facts = EngineFacts.of(engine) if isinstance(engine, Engine) else engine.facts
    name = server.served_name or facts.name

    def apply(settings: Settings[ServerConfig]) -> list[str]:
        _, config = settings.others
        engine.limit_classes(config)
        return []

    with tracing(served.trace) as tracer, opened_store(served.trace) as store:

        def announce(url: str, curl: str) -> None:
            on_ready()
            if is_first:
                _announce(name, facts, served, url, curl, has_dashboard=store is not None)

        page = None
        if store:
            names, show = (server.host, *server.allowed_hosts), partial(_live_of, engine)
            page = page_of(store, "hotloop serve", show, model=name, keys=reload.keys, names=names)
        shorten_pauses()
        http = HttpServer(
            engine,
            server,
            tracer=tracer,
            page=page,
            keys=reload.keys,
            reload=partial(reload, apply) if read else None,
            on_ready=announce,
            on_drain=_say_draining,
            on_closing=on_closing,
            own_socket=own_socket,
            heeds_signals=heeds_signals,
        )
        on_made(http)
        http.run([listener])


def _announce(name: str, facts: EngineFacts, served: Served, url: str, curl: str, *, has_dashboard: bool) -> None:
    dashboard = f"\ndashboard: {url}/ui" if has_dashboard else ""
    room = f"context {facts.max_context:,} tokens, KV for {facts.num_kv_tokens:,} tokens"
    print(
        f"{name} is at {url}\n{facts.device_note}\n{room}, precision {served.model.precision}{dashboard}\ntry: {curl}",
        flush=True,
    )


async def _live_of(engine: "Engine | RemoteEngine") -> "Live":
    if isinstance(engine, Engine):
        return await live_of_engine(engine)
    from hotloop.ui.source import Live

    return msgspec.convert(await engine.ask("live"), Live)


def shorten_pauses() -> None:
    """What is loaded by now stays: looking through it for garbage would stop all threads for tenths of a second."""
    gc.collect()
    gc.freeze()
    gc.enable()
    sys.setswitchinterval(_SWITCH_S)


def _nothing() -> Served:
    raise AssertionError("nobody reloads")


def _say_draining(num_running: int) -> None:
    if num_running:
        from hotloop.cli.output import count

        print(f"{count(num_running, 'request')} still running; press Ctrl-C again to abort", file=sys.stderr)
