"""`hotloop route`."""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from hotloop.cli.settings import CONFIG_FILE, ConfigFile, RouterFlags
from hotloop.core.config import RouterConfig

if TYPE_CHECKING:
    from hotloop.router.config import FleetConfig


def route(*, router: RouterFlags = RouterConfig(), config: ConfigFile = None) -> None:
    """Put one address in front of many replicas: each request goes where its prefix is warm.

    Replicas may be hotloop, vLLM, SGLang, TGI, TensorRT-LLM, llama.cpp, Ollama, or hosted APIs; what they are is found
    out. A file (--config fleet.toml) can say more about each; SIGHUP reads it again, and no stream is dropped.
    """
    import logging

    from hotloop.router.config import read_fleet
    from hotloop.router.serve import RouterServer

    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    path = config or (Path(CONFIG_FILE) if Path(CONFIG_FILE).exists() else None)

    def read() -> "FleetConfig":
        return read_fleet(router, path, os.environ)

    def announce(url: str) -> None:
        names = ", ".join(each.name for each in fleet.replicas)
        print(f"the fleet is at {url}\n{len(fleet.replicas)} replicas, policy {router.policy}: {names}", flush=True)

    fleet = read()
    server = RouterServer(fleet, read_again=read, on_ready=announce)
    server.run()
    print("drained", file=sys.stderr)
