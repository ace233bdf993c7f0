"""`hotloop serve`."""

import sys
from typing import TYPE_CHECKING

from hotloop.cli.settings import ConfigFile, EngineFlags, ModelFlags, ServerFlags
from hotloop.core.config import EngineConfig, ModelConfig, ServerConfig

if TYPE_CHECKING:
    from hotloop.engine.engine import Engine


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
            print(
                f"{server.served_name or loaded.name} is at {url}\n{_summary(loaded, model, engine)}\ntry: {curl}",
                flush=True,
            )

        serve_engine(loaded, server, on_ready=announce, on_drain=_say_draining)


def _summary(loaded: "Engine", model: ModelConfig, engine: EngineConfig) -> str:
    return (
        f"context {loaded.max_context:,} tokens, KV {engine.kv_memory} for {loaded.num_kv_tokens:,} tokens, "
        f"weights {model.weights}, precision {model.precision}"
    )


def _say_draining(num_running: int) -> None:
    if num_running:
        print(f"still running: {num_running}; once more to abort", file=sys.stderr)
