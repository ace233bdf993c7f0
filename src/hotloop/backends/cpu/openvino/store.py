"""Graphs kept on disk, compiled and run.

Converting every tensor takes seconds; reading the result back does not.
"""

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
from numpy.typing import NDArray

from hotloop.core.errors import BackendError
from hotloop.models.catalogue import home
from hotloop.models.model import Model

GRAPH_VERSION = 4


def infer(request: ov.InferRequest, feed: dict[str, NDArray[Any]], vocab_size: int) -> NDArray[np.float32]:
    try:
        for name, value in feed.items():
            request.set_tensor(name, ov.Tensor(np.asarray(value)))
        request.infer()
    except RuntimeError as error:
        raise failure("OpenVINO failed", error) from error
    logits: NDArray[np.float32] = request.get_output_tensor(0).data
    return logits.reshape(-1, vocab_size)


def load_graph(model: Model, name: str, build: Callable[[], ov.Model]) -> ov.Model:
    """The graph of that name: read back if it was made before, else made and kept. A damaged one is made again."""
    path = _graph_path(model, name)
    with suppress(RuntimeError):
        if path.exists():
            return ov.Core().read_model(path)
    graph = build()
    with suppress(OSError, RuntimeError):  # a full disk costs the next start some seconds, not this one its life
        _save(graph, path)
    return graph


def has_graph(model: Model, name: str) -> bool:
    """Whether the graph of that name was made before: its weights are then mapped, not held."""
    return _graph_path(model, name).exists()


def compile_graph(graph: ov.Model, options: dict[str, str]) -> ov.CompiledModel:
    try:
        return ov.Core().compile_model(graph, "CPU", {"PERFORMANCE_HINT": "LATENCY", **options})
    except RuntimeError as error:
        raise failure("OpenVINO cannot compile the model", error) from error


def cpu_property(name: str) -> Any:
    """What OpenVINO's plugin for CPUs says of this one."""
    return ov.Core().get_property("CPU", name)


def failure(what: str, error: RuntimeError) -> BackendError:
    """OpenVINO's errors are stack traces; what is wrong stands at their end. Ctrl-C, too, comes dressed as one."""
    if "KeyboardInterrupt" in str(error):
        raise KeyboardInterrupt from None
    lines = [line for line in str(error).splitlines() if line.strip()]
    return BackendError(f"{what}: {lines[-1].strip() if lines else 'no reason given'}")


def _graph_path(model: Model, name: str) -> Path:
    return home() / "cache" / model.fingerprint / f"{name}-v{GRAPH_VERSION}.xml"


def _save(graph: ov.Model, path: Path) -> None:
    """Weights first, then the description that names them: whoever sees the second finds the first whole.

    What older versions or a killed process left behind goes; another process that saves right now will save again.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    name = path.stem.removesuffix(f"-v{GRAPH_VERSION}")
    for stale in path.parent.glob(f"{name}-v*"):
        stale.unlink(missing_ok=True)
    draft = path.with_name(f"{path.stem}-{os.getpid()}.xml")
    try:
        ov.save_model(graph, draft, compress_to_fp16=False)
        os.replace(draft.with_suffix(".bin"), path.with_suffix(".bin"))
        os.replace(draft, path)
    finally:
        draft.unlink(missing_ok=True)
        draft.with_suffix(".bin").unlink(missing_ok=True)
