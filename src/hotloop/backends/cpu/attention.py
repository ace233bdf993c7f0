"""Attention over paged KV: rotary positions, writing keys and values into their blocks, and attending to them."""

import ctypes
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from hotloop.backends.backend import Batch
from hotloop.core.errors import BackendError
from hotloop.models.memory import INT8_SCALE_BYTES, kv_token_bytes
from hotloop.models.spec import ModelSpec

BLOCK_SIZE = 32
AMX_HEAD_DIMS = (64, 96, 128)
ITEM_BYTES = {"float": 4, "half": 2, "int8_t": 1, "bf16": 2, "byte_tiles": 1}
"""What attention can be compiled for, and what a number takes then; the last two are for AMX."""
_PANEL = 32  # outputs that stand together in a matrix of attention.cpp

Array = NDArray[np.float32]


class Attention:
    """A kernel, its KV blocks and the plan of the step at hand. One step at a time, from one thread."""

    def __init__(
        self,
        library: ctypes.CDLL,
        kv_type: str,
        sizes: tuple[int, int],
        spec: ModelSpec,
        num_blocks: int,
        angles: NDArray[np.float32],
    ) -> None:
        """`sizes`: the bytes of a number, and of a scale."""
        self.library = library
        self._entries = entries = _declare(library, kv_type)
        self._keep = [angles]
        self._handle = _create(entries, spec, num_blocks, angles)
        if not self._handle:
            raise BackendError("the native attention could not be set up: not enough memory, or AMX is not permitted")
        memory = ctypes.cast(entries.kv(self._handle), ctypes.POINTER(ctypes.c_uint8))
        layer_bytes = BLOCK_SIZE * kv_token_bytes(replace(spec, num_layers=1, linear=None), *sizes)
        self.kv: NDArray[np.uint8] = np.ctypeslib.as_array(memory, (spec.num_layers, num_blocks, layer_bytes))
        """The memory of the blocks; gone once this is closed."""

    def set_norms(self, layer: int, q_norm: NDArray[np.float32], k_norm: NDArray[np.float32]) -> None:
        norms = [np.ascontiguousarray(norm, np.float32) for norm in (q_norm, k_norm)]
        self._keep += norms  # the kernel reads them where they are
        self._entries.set_norms(self._handle, layer, *(norm.ctypes.data for norm in norms))

    def set_window(self, layer: int, window: int) -> None:
        self._entries.set_window(self._handle, layer, window)

    def set_sinks(self, layer: int, sinks: NDArray[np.float32]) -> None:
        self._keep.append(sinks := np.ascontiguousarray(sinks, np.float32))
        self._entries.set_sinks(self._handle, layer, sinks.ctypes.data)

    def set_latent(self, layer: int, up_keys: NDArray[np.float32], up_values: NDArray[np.float32]) -> None:
        ups = [_in_spans(up) for up in (up_keys, up_values)]
        self._keep += ups
        self._entries.set_latent(self._handle, layer, *(up.ctypes.data for up in ups))

    def plan(self, batch: Batch) -> None:
        arrays = (batch.query_starts, batch.past_lens, batch.block_ids, batch.block_begins)
        self._entries.plan(self._handle, len(batch.past_lens), *(array.ctypes.data for array in arrays))

    def run(self, layer: int, qkv: NDArray[np.float32], output: NDArray[np.float32]) -> None:
        self._entries.run(self._handle, layer, qkv.ctypes.data, output.ctypes.data)

    @property
    def entry(self) -> tuple[int, int]:
        """The function that `run` calls and its first argument, for those who call it from C."""
        function = ctypes.cast(self._entries.run, ctypes.c_void_p).value
        assert function
        assert self._handle
        return function, self._handle

    def close(self) -> None:
        self.kv = self.kv[:, :0].copy()  # before its memory goes
        self._entries.destroy(self._handle)
        self._keep.clear()


@dataclass(frozen=True, slots=True)
class Kernel:
    """Something that attention is made with."""

    name: str
    """Says in what form keys and values are stored."""
    item_bytes: int
    """What a number among them takes."""
    create: Callable[[ModelSpec, int, Array], Attention]
    """From the model's shape, the number of blocks, and for each position the cosines, then the sines, of half of the
    dimensions that turn."""
    scale_bytes: int = 0
    """What the scale takes that the keys of a token and head have in common, and its values."""

    def token_bytes(self, spec: ModelSpec) -> int:
        return kv_token_bytes(spec, self.item_bytes, self.scale_bytes)


def _in_spans(up: NDArray[np.float32]) -> NDArray[np.float32]:
    """[heads, in, out] as the kernel reads it: [heads, spans of outputs, in, outputs of a span]"""
    heads, num_in, num_out = up.shape
    padded = np.pad(up, ((0, 0), (0, 0), (0, -num_out % _PANEL))).reshape(heads, num_in, -1, _PANEL)
    return np.ascontiguousarray(padded.transpose(0, 2, 1, 3), np.float32)


def _create(entries: SimpleNamespace, spec: ModelSpec, num_blocks: int, angles: NDArray[np.float32]) -> int | None:
    latent = spec.latent
    counts = spec.num_layers, spec.num_heads
    if latent is None:
        shape = (spec.num_kv_heads, spec.head_dim, num_blocks)
        return cast("int | None", entries.create(*counts, *shape, spec.rms_eps, angles.ctypes.data))
    dims = (latent.kv_rank, latent.nope_dim, latent.rope_dim, latent.value_dim)
    handle = entries.create_latent(*counts, *dims, num_blocks, latent.scale, angles.ctypes.data)
    return cast("int | None", handle)


def kernel_of(library: ctypes.CDLL, kv_type: str) -> Kernel:
    """The attention of a library that was compiled with it."""
    item_bytes = ITEM_BYTES[kv_type]
    scale_bytes = INT8_SCALE_BYTES if item_bytes == 1 else 0
    create = partial(Attention, library, kv_type, (item_bytes, scale_bytes))
    return Kernel(kv_type, item_bytes, create, scale_bytes)


def _declare(library: ctypes.CDLL, kv_type: str) -> SimpleNamespace:
    """Its functions for keys and values of that type."""
    pointer, number = ctypes.c_void_p, ctypes.c_int
    signatures: dict[str, tuple[Any, list[Any]]] = {
        "create": (pointer, [number] * 5 + [ctypes.c_float, pointer]),
        "destroy": (None, [pointer]),
        "kv": (pointer, [pointer]),
        "set_norms": (None, [pointer, number, pointer, pointer]),
        "plan": (None, [pointer, number, pointer, pointer, pointer, pointer]),
        "run": (None, [pointer, number, pointer, pointer]),
    }
    if hasattr(library, f"{kv_type}_set_window"):  # which the one for AMX has not
        signatures["set_window"] = None, [pointer, number, number]
        signatures["set_sinks"] = None, [pointer, number, pointer]
        signatures["create_latent"] = pointer, [number] * 7 + [ctypes.c_float, pointer]
        signatures["set_latent"] = None, [pointer, number, pointer, pointer]
    entries = {name: getattr(library, f"{kv_type}_{name}") for name in signatures}
    for name, (result, arguments) in signatures.items():
        entries[name].restype, entries[name].argtypes = result, arguments
    return SimpleNamespace(**entries)
