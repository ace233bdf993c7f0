"""`hotloop serve`."""

import sys

from hotloop.cli.settings import ConfigFile, EngineFlags, ModelFlags, ServerFlags
from hotloop.core.config import EngineConfig, ModelConfig, ServerConfig


def serve(
    *,
    model: ModelFlags = ModelConfig(),
    engine: EngineFlags = EngineConfig(),
    server: ServerFlags = ServerConfig(),
    config: ConfigFile = None,
) -> None:
    """Serve a model over the OpenAI API.

    For the loop everybody starts with, no reuse and one request at a time: --no-prefix-cache --max-running 1
    """
    import logging

    from hotloop.cli.loading import load_engine

    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    with load_engine(model, engine) as loaded:
        from hotloop.server.app import serve as serve_engine

        def announce(url: str, curl: str) -> None:
            print(f"{server.served_name or loaded.name} is at {url}\ntry: {curl}", flush=True)

        serve_engine(loaded, server, on_ready=announce, on_drain=_say_draining)


def _say_draining(num_running: int) -> None:
    if num_running:
        print(f"finishing {num_running} requests; once more to abort them", file=sys.stderr)
