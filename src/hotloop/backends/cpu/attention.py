"""Attention over paged KV: the protocol, our kernels behind it, and numpy for where nothing can be compiled."""

import ctypes
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import pairwise
from typing import Any, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from hotloop.backends.backend import Batch
from hotloop.backends.cpu.build import BUILD_ERRORS, load_library
from hotloop.core.errors import BackendError
from hotloop.models.memory import INT8_SCALE_BYTES, kv_token_bytes
from hotloop.models.spec import ModelSpec

log = logging.getLogger(__name__)

BLOCK_SIZE = 32  # OpenVINO's paged attention accepts no other
AMX_HEAD_DIMS = (64, 96, 128)
ITEM_BYTES = {"float": 4, "half": 2, "int8_t": 1, "bf16": 2, "byte_tiles": 1}
"""What attention can be compiled for, and what a number takes then; the last two are for AMX."""
_PANEL = 32  # outputs that stand together in a matrix of attention.cpp

Array = NDArray[np.float32]


class Attention(Protocol):
    """Rotary positions, writing keys and values into their blocks, and attention over them, a layer at a time."""

    kv: NDArray[np.uint8]
    """[layers, blocks, bytes]; gone once this is closed."""

    def set_norms(self, layer: int, q_norm: Array, k_norm: Array) -> None: ...
    def set_window(self, layer: int, window: int) -> None: ...
    def set_sinks(self, layer: int, sinks: Array) -> None: ...
    def set_latent(self, layer: int, up_keys: Array, up_values: Array) -> None:
        """What makes keys of latents [heads, nope_dim, kv_rank], and values [heads, kv_rank, value_dim]."""

    def plan(self, batch: Batch) -> None:
        """What the next calls of `run` compute."""

    def run(self, layer: int, qkv: Array, output: Array) -> None:
        """[tokens, query heads + key heads + value heads] -> [tokens, query heads]; one step at a time.

        With latents [tokens, query heads + latent + rotary key] -> [tokens, values of all heads].
        """

    def close(self) -> None: ...


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


def numpy_kernel(dtype: type[np.floating]) -> Kernel:
    """Needs no compiler, and is much slower for it."""
    return Kernel(f"numpy {np.dtype(dtype)}", np.dtype(dtype).itemsize, partial(_numpy_attention, dtype))


def _numpy_attention(dtype: type[np.floating], spec: ModelSpec, num_blocks: int, angles: Array) -> Attention:
    return (NumpyLatent if spec.latent else NumpyAttention)(dtype, spec, num_blocks, angles)


class NumpyAttention:
    """A token at a time, so that its numbers do not depend on what else is in the step."""

    def __init__(self, dtype: type[np.floating], spec: ModelSpec, num_blocks: int, angles: Array) -> None:
        self._spec = spec
        self._cos, self._sin = np.split(angles[:, None], 2, axis=-1)
        self._norms: dict[int, tuple[Array, Array]] = {}
        self._windows: dict[int, int] = {}
        self._sinks: dict[int, Array] = {}
        self._ups: dict[int, tuple[Array, Array]] = {}
        self._cache = np.zeros((spec.num_layers, num_blocks, *self._block_shape()), dtype)
        self.kv: NDArray[np.uint8] = self._cache.reshape(spec.num_layers, num_blocks, -1).view(np.uint8)
        self._sequences: list[tuple[range, NDArray[np.int32]]] = []  # rows of the step, and blocks
        self._positions = self._block_ids = np.zeros(0, np.int64)

    def set_norms(self, layer: int, q_norm: Array, k_norm: Array) -> None:
        self._norms[layer] = q_norm, k_norm

    def set_window(self, layer: int, window: int) -> None:
        self._windows[layer] = window

    def set_sinks(self, layer: int, sinks: Array) -> None:
        self._sinks[layer] = sinks.reshape(self._spec.num_kv_heads, -1, 1)

    def set_latent(self, layer: int, up_keys: Array, up_values: Array) -> None:
        self._ups[layer] = up_keys, up_values

    def plan(self, batch: Batch) -> None:
        tables = np.split(batch.block_ids, batch.block_begins[1:-1])
        rows = [range(begin, end) for begin, end in pairwise(batch.query_starts.tolist())]
        self._sequences = list(zip(rows, tables, strict=True))
        positions = [np.arange(len(each)) + past for each, past in zip(rows, batch.past_lens, strict=True)]
        self._positions = np.concatenate(positions)
        blocks = [table[at // BLOCK_SIZE] for table, at in zip(tables, positions, strict=True)]
        self._block_ids = np.concatenate(blocks).astype(np.int64)

    def run(self, layer: int, qkv: Array, output: Array) -> None:
        spec, cache = self._spec, self._cache[layer]
        q, k, v = np.split(
            qkv.reshape(len(qkv), -1, spec.head_dim), [spec.num_heads, spec.num_heads + spec.num_kv_heads], axis=1
        )
        if spec.has_qk_norm:
            q_norm, k_norm = self._norms[layer]
            q, k = self._normed(q, q_norm), self._normed(k, k_norm)
        q, k = self._turned(q) * np.float32(spec.head_dim**-0.5), self._turned(k)
        slots = self._positions % BLOCK_SIZE
        cache[self._block_ids, 0, :, slots], cache[self._block_ids, 1, :, slots] = k, v
        rows = output.reshape(len(qkv), spec.num_kv_heads, -1, spec.head_dim)
        queries = q.reshape(rows.shape)  # [tokens, KV heads, query heads of each, head_dim]
        for tokens, block_ids in self._sequences:
            keys, values = (self._gather(cache[block_ids, i]) for i in (0, 1))
            for token in tokens:
                num_keys = int(self._positions[token]) + 1
                seen = slice(max(0, num_keys - self._windows.get(layer, num_keys)), num_keys)
                rows[token] = _attend(queries[token], keys[:, seen], values[:, seen], self._sinks.get(layer))

    def close(self) -> None:
        self._cache = self._cache[:0].copy()
        self.kv = self.kv[:0].copy()

    def _block_shape(self) -> tuple[int, ...]:
        return 2, self._spec.num_kv_heads, BLOCK_SIZE, self._spec.head_dim

    def _gather(self, blocks: NDArray[np.floating]) -> Array:
        """[blocks, KV heads, slots, head_dim] -> [KV heads, keys, head_dim]"""
        joined = blocks.astype(np.float32).transpose(1, 0, 2, 3)
        return joined.reshape(self._spec.num_kv_heads, -1, self._spec.head_dim)

    def _normed(self, x: Array, weight: Array) -> Array:
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + np.float32(self._spec.rms_eps)) * weight

    def _turned(self, x: Array) -> Array:
        cos, sin = self._cos[self._positions], self._sin[self._positions]
        first, second = np.split(x, 2, axis=-1)
        return np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)


class NumpyLatent(NumpyAttention):
    """The same over latents, which are never made into keys and values: queries are made into latents instead."""

    def _block_shape(self) -> tuple[int, ...]:
        assert self._spec.latent
        return BLOCK_SIZE, self._spec.latent.width

    def run(self, layer: int, qkv: Array, output: Array) -> None:
        spec, latent, cache = self._spec, self._spec.latent, self._cache[layer]
        assert latent
        up_keys, up_values = self._ups[layer]
        queries, kept, keys = np.split(qkv, np.cumsum([spec.num_heads * spec.head_dim, latent.kv_rank]), axis=1)
        still, turning = np.split(queries.reshape(len(qkv), spec.num_heads, -1), [latent.nope_dim], axis=2)
        turning = self._turned(turning)
        cache[self._block_ids, self._positions % BLOCK_SIZE] = np.concatenate(
            [kept, self._turned(keys[:, None])[:, 0]], axis=1
        )
        rows = output.reshape(len(qkv), spec.num_heads, 1, -1)
        for tokens, block_ids in self._sequences:
            past = cache[block_ids].astype(np.float32).reshape(1, -1, latent.width)
            for token in tokens:
                query = np.concatenate([still[token, :, None] @ up_keys, turning[token, :, None]], axis=2)
                seen = past[:, : int(self._positions[token]) + 1]
                mixed = _attend(query * np.float32(latent.scale), seen, seen[..., : latent.kv_rank], None)
                rows[token] = mixed @ up_values


def _attend(queries: Array, keys: Array, values: Array, sinks: Array | None) -> Array:
    scores = queries @ keys.transpose(0, 2, 1)
    largest = scores.max(-1, keepdims=True)
    shares = np.exp(scores - largest)
    total = shares.sum(-1, keepdims=True)
    if sinks is not None:
        total = total + np.exp(sinks - largest)
    mixed: Array = (shares @ values) / total
    return mixed


class NativeAttention:
    """A kernel, its KV blocks and the plan of the step at hand. One step at a time, from one thread."""

    def __init__(
        self,
        library: ctypes.CDLL,
        sizes: tuple[int, int],
        spec: ModelSpec,
        num_blocks: int,
        angles: NDArray[np.float32],
    ) -> None:
        """`sizes`: the bytes of a number, and of a scale."""
        self.library = self._library = library
        self._keep = [angles]
        self._handle = _create(library, spec, num_blocks, angles)
        if not self._handle:
            raise BackendError("the native attention could not be set up: not enough memory, or AMX is not permitted")
        memory = ctypes.cast(library.attention_kv(self._handle), ctypes.POINTER(ctypes.c_uint8))
        layer_bytes = BLOCK_SIZE * kv_token_bytes(replace(spec, num_layers=1, linear=None), *sizes)
        self.kv: NDArray[np.uint8] = np.ctypeslib.as_array(memory, (spec.num_layers, num_blocks, layer_bytes))
        """The memory of the blocks; gone once this is closed."""

    def set_norms(self, layer: int, q_norm: NDArray[np.float32], k_norm: NDArray[np.float32]) -> None:
        norms = [np.ascontiguousarray(norm, np.float32) for norm in (q_norm, k_norm)]
        self._keep += norms  # the kernel reads them where they are
        self._library.attention_set_norms(self._handle, layer, *(norm.ctypes.data for norm in norms))

    def set_window(self, layer: int, window: int) -> None:
        self._library.attention_set_window(self._handle, layer, window)

    def set_sinks(self, layer: int, sinks: NDArray[np.float32]) -> None:
        self._keep.append(sinks := np.ascontiguousarray(sinks, np.float32))
        self._library.attention_set_sinks(self._handle, layer, sinks.ctypes.data)

    def set_latent(self, layer: int, up_keys: NDArray[np.float32], up_values: NDArray[np.float32]) -> None:
        ups = [_in_spans(up) for up in (up_keys, up_values)]
        self._keep += ups
        self._library.attention_set_latent(self._handle, layer, *(up.ctypes.data for up in ups))

    def plan(self, batch: Batch) -> None:
        arrays = (batch.query_starts, batch.past_lens, batch.block_ids, batch.block_begins)
        self._library.attention_plan(self._handle, len(batch.past_lens), *(array.ctypes.data for array in arrays))

    def run(self, layer: int, qkv: NDArray[np.float32], output: NDArray[np.float32]) -> None:
        self._library.attention_run(self._handle, layer, qkv.ctypes.data, output.ctypes.data)

    @property
    def entry(self) -> tuple[int, int]:
        """The function that `run` calls and its first argument, for those who call it from C."""
        function = ctypes.cast(self._library.attention_run, ctypes.c_void_p).value
        assert function
        assert self._handle
        return function, self._handle

    def close(self) -> None:
        self.kv = self.kv[:, :0].copy()  # before its memory goes
        self._library.attention_destroy(self._handle)
        self._keep.clear()


def _in_spans(up: NDArray[np.float32]) -> NDArray[np.float32]:
    """[heads, in, out] as the kernel reads it: [heads, spans of outputs, in, outputs of a span]"""
    heads, num_in, num_out = up.shape
    padded = np.pad(up, ((0, 0), (0, 0), (0, -num_out % _PANEL))).reshape(heads, num_in, -1, _PANEL)
    return np.ascontiguousarray(padded.transpose(0, 2, 1, 3), np.float32)


def _create(library: ctypes.CDLL, spec: ModelSpec, num_blocks: int, angles: NDArray[np.float32]) -> int | None:
    latent = spec.latent
    counts = spec.num_layers, spec.num_heads
    if latent is None:
        shape = (spec.num_kv_heads, spec.head_dim, num_blocks)
        return cast("int | None", library.attention_create(*counts, *shape, spec.rms_eps, angles.ctypes.data))
    dims = (latent.kv_rank, latent.nope_dim, latent.rope_dim, latent.value_dim)
    handle = library.attention_create_latent(*counts, *dims, num_blocks, latent.scale, angles.ctypes.data)
    return cast("int | None", handle)


@cache
def load_portable(kv_type: str) -> Kernel | None:
    """The kernel for any CPU, with keys and values of that C++ type; None where it cannot be built."""
    try:
        return kernel_of(load_library(f"portable-{kv_type}"), kv_type)
    except BUILD_ERRORS as error:
        log.warning("attention is left to numpy, which is much slower than our own, since that fails: %s", error)
    return None


def kernel_of(library: ctypes.CDLL, kv_type: str) -> Kernel:
    """The attention of a library that was compiled with it."""
    item_bytes = ITEM_BYTES[kv_type]
    scale_bytes = INT8_SCALE_BYTES if item_bytes == 1 else 0
    create = partial(NativeAttention, _declare(library), (item_bytes, scale_bytes))
    return Kernel(kv_type, item_bytes, create, scale_bytes)


def _declare(library: ctypes.CDLL) -> ctypes.CDLL:
    pointer, number = ctypes.c_void_p, ctypes.c_int
    signatures: dict[str, tuple[Any, list[Any]]] = {
        "create": (pointer, [number] * 5 + [ctypes.c_float, pointer]),
        "destroy": (None, [pointer]),
        "kv": (pointer, [pointer]),
        "set_norms": (None, [pointer, number, pointer, pointer]),
        "plan": (None, [pointer, number, pointer, pointer, pointer, pointer]),
        "run": (None, [pointer, number, pointer, pointer]),
    }
    if hasattr(library, "attention_set_window"):  # which the one for AMX has not
        signatures["set_window"] = None, [pointer, number, number]
        signatures["set_sinks"] = None, [pointer, number, pointer]
        signatures["create_latent"] = pointer, [number] * 7 + [ctypes.c_float, pointer]
        signatures["set_latent"] = None, [pointer, number, pointer, pointer]
    for name, (result, arguments) in signatures.items():
        function = getattr(library, f"attention_{name}")
        function.restype, function.argtypes = result, arguments
    return library
