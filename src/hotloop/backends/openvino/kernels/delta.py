"""The gated delta rule by `linear.cpp`, where it can be compiled."""

import ctypes
from functools import cache

import numpy as np
from numpy.typing import NDArray

from hotloop.backends.openvino.kernels import load_or_warn
from hotloop.backends.openvino.linear import Array, DeltaRule, numpy_delta
from hotloop.models.spec import LinearSpec


class _Linear(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int) for name in ("num_key_heads", "num_value_heads", "key_dim", "value_dim")]


def open_delta(spec: LinearSpec) -> DeltaRule:
    """What computes it quickest here."""
    library = _library()
    if library is None:
        return numpy_delta
    shape = _Linear(spec.num_key_heads, spec.num_value_heads, spec.key_dim, spec.value_dim)

    def run(
        begins: NDArray[np.int32], slots: NDArray[np.int32], inputs: tuple[Array, ...], memories: Array, output: Array
    ) -> None:
        kept = [np.ascontiguousarray(each) for each in (begins, slots, *inputs)]
        assert memories.flags.c_contiguous
        assert output.flags.c_contiguous
        pointers = (each.ctypes.data for each in (*kept, memories, output))
        library.linear_run(ctypes.byref(shape), len(slots), *pointers)

    return run


@cache
def _library() -> ctypes.CDLL | None:
    library = load_or_warn("linear", "linear attention is")
    if library is None:
        return None
    library.linear_run.restype = None
    library.linear_run.argtypes = [ctypes.c_void_p, ctypes.c_int, *[ctypes.c_void_p] * 9]
    return library
