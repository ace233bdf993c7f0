"""Attention of our own, in C++: one set of functions, written twice.

    attention.cpp   for CPUs with AMX: bf16 keys and values, stored as AMX tiles
    portable.cpp    for any CPU: float32 or float16 keys and values, exact

Where a kernel cannot be had, `load_amx` and `load_portable` give nothing and say why in the log.
"""

import ctypes
import hashlib
import logging
import platform
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hotloop.backends.backend import Batch
from hotloop.backends.openvino.attention import BLOCK_SIZE
from hotloop.backends.openvino.native.library import BUILD_ERRORS, build, compiler
from hotloop.core.errors import BackendError
from hotloop.models.spec import ModelSpec

log = logging.getLogger(__name__)

AMX_HEAD_DIMS = (64, 96, 128)
_FOLDER = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class NativeKernel:
    """A compiled kernel, and what the bytes of its keys and values depend on."""

    library: ctypes.CDLL
    item_bytes: int
    version: str

    def create(self, spec: ModelSpec, num_blocks: int, angles: NDArray[np.float32]) -> "NativeAttention":
        return NativeAttention(self, spec, num_blocks, angles)


class NativeAttention:
    """A kernel, its KV blocks and the plan of the step at hand. One step at a time, from one thread."""

    def __init__(self, kernel: NativeKernel, spec: ModelSpec, num_blocks: int, angles: NDArray[np.float32]) -> None:
        """`angles`: for each position the cosines, then the sines, of half a head's dimensions."""
        self._library = kernel.library
        self._keep = [angles]
        self._handle = kernel.library.attention_create(
            spec.num_layers,
            spec.num_heads,
            spec.num_kv_heads,
            spec.head_dim,
            num_blocks,
            spec.rms_eps,
            angles.ctypes.data,
        )
        if not self._handle:
            raise BackendError("the native attention could not be set up: not enough memory, or AMX is not permitted")
        memory = ctypes.cast(kernel.library.attention_kv(self._handle), ctypes.POINTER(ctypes.c_uint8))
        layer_bytes = 2 * spec.num_kv_heads * spec.head_dim * BLOCK_SIZE * kernel.item_bytes
        self.kv: NDArray[np.uint8] = np.ctypeslib.as_array(memory, (spec.num_layers, num_blocks, layer_bytes))
        """The memory of the blocks; gone once this is closed."""

    def set_norms(self, layer: int, q_norm: NDArray[np.float32], k_norm: NDArray[np.float32]) -> None:
        norms = [np.ascontiguousarray(norm, np.float32) for norm in (q_norm, k_norm)]
        self._keep += norms  # the kernel reads them where they are
        self._library.attention_set_norms(self._handle, layer, *(norm.ctypes.data for norm in norms))

    def plan(self, batch: Batch) -> None:
        """What the next calls of `run` compute."""
        arrays = (batch.begins, batch.past_lens, batch.block_ids, batch.block_begins)
        self._library.attention_plan(self._handle, len(batch.past_lens), *(array.ctypes.data for array in arrays))

    def run(self, layer: int, qkv: NDArray[np.float32], output: NDArray[np.float32]) -> None:
        self._library.attention_run(self._handle, layer, qkv.ctypes.data, output.ctypes.data)

    def close(self) -> None:
        self._library.attention_destroy(self._handle)


@cache
def load_amx() -> NativeKernel | None:
    """The kernel for CPUs with AMX; None where it cannot be had."""
    reason = _why_no_amx()
    if reason is None:
        try:
            return _load("attention.cpp", 2, "-march=sapphirerapids")
        except BUILD_ERRORS as error:
            reason = f"it could not be built: {error}"
    log.warning("attention is OpenVINO's, not our own, which is much quicker on CPUs with AMX: %s", reason)
    return None


@cache
def load_portable(kv_type: str, item_bytes: int) -> NativeKernel | None:
    """The kernel for any CPU, with keys and values of that C++ type; None where it cannot be built."""
    try:
        return _load("portable.cpp", item_bytes, f"-DKV={kv_type}")
    except BUILD_ERRORS as error:
        log.warning("attention is computed by numpy, which is much slower than our own, since that fails: %s", error)
    return None


def _why_no_amx() -> str | None:
    if platform.system() != "Linux" or platform.machine() != "x86_64":
        return "ours is for Linux on x86-64"
    if not {"amx_bf16", "avx512_bf16"} <= set(Path("/proc/cpuinfo").read_text().split()):
        return "this CPU has none"
    if compiler() is None:
        return "there is no C++ compiler here (c++, g++ or clang++)"
    return None


def _load(name: str, item_bytes: int, *flags: str) -> NativeKernel:
    """The version changes with the source, and so whenever keys and values are stored in another way."""
    source = _FOLDER / name
    version = hashlib.sha256(source.read_bytes()).hexdigest()[:16]
    return NativeKernel(_declare(build(source, *flags)), item_bytes, version)


def _declare(library: ctypes.CDLL) -> ctypes.CDLL:
    pointer, number = ctypes.c_void_p, ctypes.c_int
    library.attention_create.restype = pointer
    library.attention_create.argtypes = [number, number, number, number, number, ctypes.c_float, pointer]
    library.attention_destroy.argtypes = [pointer]
    library.attention_kv.restype = pointer
    library.attention_kv.argtypes = [pointer]
    library.attention_set_norms.argtypes = [pointer, number, pointer, pointer]
    library.attention_plan.argtypes = [pointer, number, pointer, pointer, pointer, pointer]
    library.attention_run.argtypes = [pointer, number, pointer, pointer]
    for name in ("destroy", "set_norms", "plan", "run"):
        getattr(library, f"attention_{name}").restype = None
    return library
