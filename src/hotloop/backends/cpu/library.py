"""The library behind ctypes: built for this machine, declared once, and its objects as Python's."""

import ctypes
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from mmap import mmap
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from hotloop.backends.cpu.attention import Kernel, kernel_of
from hotloop.backends.cpu.build import BUILD_ERRORS, has_amx
from hotloop.backends.cpu.build import load_library as load_shipped
from hotloop.backends.cpu.cores import num_cores
from hotloop.core.errors import BackendError
from hotloop.models.gguf import quantise
from hotloop.models.spec import Stored

Array = NDArray[np.float32]
Format = Literal["int8", "bf16", "packed_ggml", "f32"]
Then = Literal["store", "add", "gate", "gate_floats"]
KvType = Literal["float", "half", "int8_t", "bf16", "byte_tiles"]
"""What keys and values are, as C++ calls it; for AMX they stand in tiles, in bf16 or as bytes (`int8_t`)."""
TILES: tuple[KvType, ...] = ("bf16", "byte_tiles")

_FORMATS: tuple[Format, ...] = ("int8", "bf16", "packed_ggml", "f32")
STRIP, GROUP = 16, 32
_MAX_COPIED_BYTES = 256 << 20
"""Of rows that are in no file and wait to be packed."""
STRIP_KINDS = {
    "MXFP4": (39, 4.5),
    "Q4_0": (2, 4.5), "Q4_1": (3, 5), "Q5_0": (6, 5.5), "Q5_1": (7, 6), "Q8_0": (8, 8.5),
    "Q2_K": (10, 6), "Q3_K": (11, 5), "Q4_K": (12, 5), "Q5_K": (13, 6), "Q6_K": (14, 7),
}  # fmt: skip
"""The kinds of GGUF rows that strips can be made of: GGML's number, and the bits that a weight then takes in all."""
FLOAT_KINDS = {"F32": (0, 8.5), "F16": (1, 8.5), "BF16": (30, 8.5), "narrow": (1000, 5)}
"""The same of floats, which are rounded to eight bits, or, as `narrow` float32, to four."""
_THEN: tuple[Then, ...] = ("store", "add", "gate", "gate_floats")


@cache
def load_library(*flags: str, kv_type: KvType = "float") -> ctypes.CDLL:
    """With attention over keys and values of that type in it. Raises one of BUILD_ERRORS."""
    return _declare(load_shipped(kv_type, *flags))


@cache
def load_kernel(kv_type: KvType = "float", *flags: str) -> Kernel:
    """The attention of that library, which runs on the workers of whoever is at it."""
    return kernel_of(load_library(*flags, kv_type=kv_type), kv_type)


@contextmanager
def open_product(matrix: Array) -> Iterator[Callable[[Array], Array]]:
    """Rows times a matrix, [out, in], as quickly as this CPU does: to measure it."""
    try:
        library = load_library()
    except BUILD_ERRORS:
        yield lambda rows: rows @ matrix.T
        return
    native = Native(num_cores(), library)
    weights = native.pack(matrix, "int8") if has_amx() else native.pack_parts([quantise(matrix)], "packed_ggml")
    out = np.empty((0, len(matrix)), np.float32)

    def multiply(rows: Array) -> Array:
        nonlocal out
        out = out if len(out) == len(rows) else np.empty((len(rows), len(matrix)), np.float32)
        native.pack_rows(rows)
        native.matmul(weights, out)
        return out

    try:
        yield multiply
    finally:
        native.close()


def _declare(library: ctypes.CDLL) -> ctypes.CDLL:
    pointer, number, size, real = ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t, ctypes.c_float
    signatures: dict[str, tuple[Any, list[Any]]] = {
        "native_create": (pointer, [number]),
        "native_destroy": (None, [pointer]),
        "native_pack": (pointer, [pointer, number, pointer, pointer, *[number] * 4]),
        "native_pack_parts": (pointer, [pointer, number, number, pointer, pointer, *[number] * 3]),
        "native_finish": (None, [pointer]),
        "native_cancel": (None, [pointer]),
        "native_drop": (None, [pointer]),
        "native_rows_create": (pointer, []),
        "native_rows_destroy": (None, [pointer]),
        "native_pack_rows": (None, [*[pointer] * 4, number, pointer, real]),
        "native_matmul": (None, [pointer, pointer, pointer, number, pointer, size]),
        "decoder_create": (pointer, [pointer] * 2),
        "decoder_destroy": (None, [pointer]),
        "decoder_set_ends": (None, [pointer] * 4),
        "decoder_set_layer": (None, [pointer, number, pointer]),
        "decoder_step": (number, [pointer, number, pointer, number, *[pointer] * 3]),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


def address_of(array: NDArray[Any] | None) -> int | None:
    assert array is None or array.flags.c_contiguous
    return None if array is None else array.ctypes.data


class Part(ctypes.Structure):
    """Rows of a kind that strips can be made of."""

    _fields_ = [("kind", ctypes.c_int), ("rows", ctypes.c_void_p), ("num_rows", ctypes.c_int)]

    @classmethod
    def of(cls, stored: Stored) -> "Part":
        return cls((STRIP_KINDS | FLOAT_KINDS)[stored.kind][0], address_of(stored.data), len(stored.data))


@dataclass(frozen=True, slots=True)
class Weights:
    """A matrix in the order of products; gated: two of them, the gate above the up. Gone once its owner is closed."""

    handle: int


class Native:
    """Worker threads, and what is computed by them. One call at a time."""

    def __init__(self, num_workers: int, library: ctypes.CDLL) -> None:
        self.library = library
        self.handle = library.native_create(num_workers)
        if not self.handle:
            raise BackendError("the native decoder could not be set up: not enough memory, or AMX is not permitted")
        self._rows = library.native_rows_create()
        self._weights: list[Weights] = []
        self._unpacked: list[Sequence[Stored]] = []
        self._num_copied = 0
        self._inputs: tuple[Array, Array | None, float] | None = None

    def pack(
        self,
        matrix: Array,
        form: Format,
        *,
        bias: Array | None = None,
        is_gated: bool = False,
        in_floats: bool = False,
    ) -> Weights:
        """In floats: to be multiplied so, whatever it is held as."""
        matrix = np.ascontiguousarray(matrix, np.float32)
        arrays, flags = (address_of(matrix), address_of(bias)), (int(is_gated), int(in_floats or form == "f32"))
        return self._own(self.library.native_pack(self.handle, _FORMATS.index(form), *arrays, *matrix.shape, *flags))

    def pack_parts(
        self,
        parts: Sequence[Stored],
        form: Format,
        *,
        bias: Array | None = None,
        is_gated: bool = False,
        in_floats: bool = False,
    ) -> Weights:
        """A matrix from such rows, one part below the other, as strips or int8; where kinds meet they have multiples of
        16 rows. They are packed in the background, until `finish`.
        """
        own = (Part * len(parts))(*map(Part.of, parts))
        num_in = parts[0].shape[1]
        arguments = len(parts), ctypes.addressof(own), address_of(bias), num_in, int(is_gated), int(in_floats)
        weights = self._own(self.library.native_pack_parts(self.handle, _FORMATS.index(form), *arguments))
        self._unpacked.append(parts)
        self._num_copied += sum(part.data.nbytes for part in parts if not _is_mapped(part.data))
        if self._num_copied > _MAX_COPIED_BYTES:
            self.finish()
        return weights

    def finish(self) -> None:
        """Wait until all is packed."""
        self.library.native_finish(self.handle)
        self._unpacked.clear()
        self._num_copied = 0

    def _own(self, handle: int | None) -> Weights:
        if not handle:
            raise BackendError("not enough memory for the weights")
        self._weights.append(Weights(handle))
        return self._weights[-1]

    def pack_rows(self, x: Array, norm: Array | None = None, eps: float = 0.0) -> None:
        """The rows that the next products are of."""
        self._inputs = x, norm, eps

    def matmul(self, weights: Weights, out: NDArray[Any], then: Then = "store") -> None:
        """Rows times weights: stored, added, or, as silu(gate) * up in bf16 (uint16) or floats, gated."""
        assert self._inputs
        self.finish()
        (x, norm, eps), which = self._inputs, _THEN.index(then)
        rows = address_of(x), len(x), address_of(norm), eps
        self.library.native_pack_rows(self.handle, self._rows, weights.handle, *rows)
        self.library.native_matmul(self.handle, self._rows, weights.handle, which, address_of(out), out.shape[1])

    def close(self) -> None:
        self.library.native_cancel(self.handle)
        self._unpacked.clear()
        while self._weights:
            self.library.native_drop(self._weights.pop().handle)
        self.library.native_rows_destroy(self._rows)
        self.library.native_destroy(self.handle)


def _is_mapped(array: object) -> bool:
    """Whether it is part of a file, which takes no memory of its own."""
    while isinstance(array, np.ndarray | memoryview):
        array = array.base if isinstance(array, np.ndarray) else array.obj
    return isinstance(array, mmap)
