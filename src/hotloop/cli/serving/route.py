"""`hotloop route`."""

import logging
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from hotloop.cli.output import count
from hotloop.cli.settings import CONFIG_FILE, TRACED, ConfigFile, RouterFlags, TraceFlags
from hotloop.cli.tracing import tracing
from hotloop.core.config import RouterConfig

if TYPE_CHECKING:
    from hotloop.border.page import Application
    from hotloop.router.app import RouterApp
    from hotloop.router.config import FleetConfig


def route(*, router: RouterFlags = RouterConfig(), trace: TraceFlags = TRACED, config: ConfigFile = None) -> None:
    """Put one address in front of many replicas: each request goes where its prefix is warm.

    Replicas may be hotloop, vLLM, SGLang, TGI, TensorRT-LLM, llama.cpp, Ollama, or hosted APIs; what they are is found
    out. A file (--config fleet.toml) can say more about each; SIGHUP reads it again, and no stream is dropped.
    """
    from hotloop.cli.serving.pages import live_of_router, opened_store, page_of
    from hotloop.router.config import read_fleet
    from hotloop.router.serve import RouterServer

    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    path = config or (Path(CONFIG_FILE) if Path(CONFIG_FILE).exists() else None)

    def read() -> "FleetConfig":
        return read_fleet(router, path, os.environ)

    def announce(url: str) -> None:
        names = ", ".join(each.name for each in fleet.replicas)
        look = f"\nlook: {url}/ui" if store else ""
        print(
            f"the fleet is at {url}\n{count(len(fleet.replicas), 'replica')}, policy {router.policy}: {names}{look}",
            flush=True,
        )

    def make_page(app: "RouterApp") -> "Application":
        assert store
        return page_of(store, "hotloop route", lambda: live_of_router(app), api_key=router.api_key, host=router.host)

    fleet = read()
    with tracing(trace) as tracer, opened_store(trace) as store:
        page = make_page if store else None
        RouterServer(fleet, tracer=tracer, page=page, read_again=read, on_ready=announce).run()
    print("drained", file=sys.stderr)
