"""Our own attention for CPUs with AMX, compiled once by the machine's C++ compiler; see attention.cpp for what it does.

Where there is no AMX or no compiler, `load_native` gives nothing, says why in the log, and the backend falls back to
OpenVINO's paged attention.
"""

import ctypes
import hashlib
import logging
import os
import platform
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

import numpy as np
import openvino as ov
from numpy.typing import NDArray

from hotloop.backends.backend import Batch
from hotloop.core.errors import BackendError
from hotloop.models.catalogue import home
from hotloop.models.spec import ModelSpec

log = logging.getLogger(__name__)

HEAD_DIMS = (64, 96, 128)
BLOCK_SIZE = 32
_SOURCE = Path(__file__).with_name("attention.cpp")
_FLAGS = ("-O3", "-std=c++17", "-march=sapphirerapids", "-fPIC", "-shared")
_COMPILE_TIMEOUT_S = 60


class NativeAttention:
    """The kernel, its KV blocks and the plan of the step at hand. One step at a time, from one thread."""

    def __init__(self, library: ctypes.CDLL, spec: ModelSpec, num_blocks: int, angles: NDArray[np.float32]) -> None:
        """`angles`: for each position the cosines, then the sines, of half a head's dimensions."""
        self._library = library
        self._keep = [angles]
        self._handle = library.attention_create(
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
        memory = ctypes.cast(library.attention_kv(self._handle), ctypes.POINTER(ctypes.c_uint8))
        shape = (spec.num_layers, num_blocks, block_bytes(spec) // spec.num_layers)
        self.kv: NDArray[np.uint8] = np.ctypeslib.as_array(memory, shape)
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


def block_bytes(spec: ModelSpec) -> int:
    """What one block of the native KV takes: bf16 keys and values of every layer."""
    return 2 * 2 * spec.num_layers * spec.num_kv_heads * spec.head_dim * BLOCK_SIZE


def kernel_version() -> str:
    """Changes with the kernel's source, and so whenever keys and values are stored in another way."""
    return hashlib.sha256(_SOURCE.read_bytes()).hexdigest()[:16]


@cache
def load_native() -> ctypes.CDLL | None:
    """The compiled kernel; None, and a line in the log that says why, where it cannot be had."""
    reason = _why_not()
    if reason is None:
        try:
            return _declare(_load(_target()))
        except (OSError, AttributeError, subprocess.SubprocessError) as error:
            reason = f"it could not be built: {error}"
    log.warning("attention is OpenVINO's, not our own, which is much quicker on CPUs with AMX: %s", reason)
    return None


def _why_not() -> str | None:
    if platform.system() != "Linux" or platform.machine() != "x86_64":
        return "ours is for Linux on x86-64"
    if not {"amx_bf16", "avx512_bf16"} <= set(Path("/proc/cpuinfo").read_text().split()):
        return "this CPU has none"
    if _compiler() is None:
        return "there is no C++ compiler here (c++, g++ or clang++)"
    return None


def _compiler() -> str | None:
    return next((path for name in ("c++", "g++", "clang++") if (path := shutil.which(name))), None)


def _target() -> Path:
    """Compiled code is kept under a name made from all that went into it, in a folder of ours that can be written."""
    recipe = "\0".join((_SOURCE.read_text(), ov.__version__, _compiler() or "", *_FLAGS))
    name = f"attention-{hashlib.sha256(recipe.encode()).hexdigest()[:16]}.so"
    folder = home() / "cache" / "native"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        folder = Path(tempfile.mkdtemp(prefix="hotloop-"))
    return folder / name


def _load(path: Path) -> ctypes.CDLL:
    """What was compiled before, if it is whole: its size stands beside it, since loading half a library is fatal."""
    size = path.with_suffix(".size")
    if not path.exists() or not size.exists() or size.read_text() != str(path.stat().st_size):
        _compile(path)
        size.write_text(str(path.stat().st_size))
    return ctypes.CDLL(str(path))


def _compile(path: Path) -> None:
    openvino = Path(ov.__file__).parent
    tbb = next((openvino / "libs").glob("libtbb.so*"), None)
    compiler = _compiler()
    if tbb is None or compiler is None:
        raise FileNotFoundError("OpenVINO came without its TBB library")
    draft = path.with_name(f"{path.stem}-{os.getpid()}.so")
    command = [compiler, *_FLAGS, f"-I{openvino / 'include'}", str(_SOURCE), "-o", str(draft), str(tbb)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_COMPILE_TIMEOUT_S, check=False)
        if done.returncode:
            errors = [line for line in done.stderr.splitlines() if "error" in line]
            raise OSError(errors[0] if errors else f"the compiler ended with status {done.returncode}")
        os.replace(draft, path)
    finally:
        draft.unlink(missing_ok=True)


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
    for function in (library.attention_destroy, library.attention_set_norms, library.attention_plan):
        function.restype = None
    library.attention_run.restype = None
    return library
