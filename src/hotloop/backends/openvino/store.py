"""Graphs kept on disk and compiled, and what the backends that run them share.

Converting every tensor takes seconds; reading the result back does not.
"""

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import openvino.opset13 as op
from numpy.typing import NDArray

from hotloop.backends.backend import Batch, HostMemory
from hotloop.backends.host import HostCopy, HostFlight
from hotloop.backends.openvino.attention import BLOCK_SIZE
from hotloop.core.errors import BackendError, ConfigError
from hotloop.core.home import home
from hotloop.models.model import Model

GRAPH_VERSION = 4


class CpuBackend(ABC):
    """Computes a batch when it is waited for, and leaves the logits on the host."""

    depth = 1
    step_tokens = 512
    step_sizes: Sequence[int] = ()
    max_solo_prefill = 16.0
    block_size = BLOCK_SIZE
    host_memory: HostMemory | None = None
    num_states = state_bytes = 0
    num_window_blocks = window = 0

    def __init__(self, model: Model, kv_bytes: int, block_bytes: int, kv_layout: str) -> None:
        self.vocab_size = model.spec.vocab_size
        self.max_context = model.spec.max_context
        self.block_bytes = block_bytes
        self.num_blocks = kv_bytes // block_bytes
        self.kv_layout = kv_layout
        if self.num_blocks < 2:
            raise ConfigError(f"kv_memory does not hold two blocks of KV for {model.name}; give it more")

    def launch(self, batch: Batch) -> HostFlight:
        return HostFlight(lambda: self.run(batch))

    @abstractmethod
    def run(self, batch: Batch) -> NDArray[np.float32]:
        """Logits [logits, vocabulary], valid until the next call."""

    def read_state(self, slot: int) -> HostCopy:
        raise NotImplementedError("this backend has no recurrent states")

    def write_state(self, slot: int, data: memoryview) -> None:
        raise NotImplementedError("this backend has no recurrent states")

    def infer(self, request: ov.InferRequest, feed: dict[str, NDArray[Any]]) -> NDArray[np.float32]:
        try:
            for name, value in feed.items():
                request.set_tensor(name, ov.Tensor(np.asarray(value)))
            request.infer()
        except RuntimeError as error:
            raise failure("OpenVINO failed", error) from error
        logits: NDArray[np.float32] = request.get_output_tensor(0).data
        return logits.reshape(-1, self.vocab_size)


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


def compile_matmul(num_rows: int, width: int) -> ov.InferRequest:
    """One product of float32 rows with a square matrix, to measure how fast this CPU multiplies."""
    rows = op.parameter([num_rows, width], np.float32)
    weights = op.constant(np.full((width, width), 0.01, np.float32))
    return compile_graph(ov.Model([op.matmul(rows, weights, False, True)], [rows]), {}).create_infer_request()


def cpu_property(name: str) -> Any:
    """What OpenVINO's plugin for CPUs says of this one."""
    return ov.Core().get_property("CPU", name)


def describe_kv(model: Model, *how: str) -> str:
    """What the bytes of a KV block depend on: the model's files, the graph, and whoever computes it on what machine."""
    device = cpu_property("FULL_DEVICE_NAME")
    return " ".join((model.fingerprint, f"v{GRAPH_VERSION}", ov.__version__, device, *how))


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
