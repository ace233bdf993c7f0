"""What fills a graph's placeholder for attention: the protocol, and numpy for where there is nothing better."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from hotloop.backends.backend import Batch
from hotloop.models.memory import kv_token_bytes
from hotloop.models.spec import ModelSpec

BLOCK_SIZE = 32  # OpenVINO's paged attention accepts no other

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

    item_bytes: int
    """What a number among the keys and values takes."""
    version: str
    """Changes whenever keys and values are stored or computed in another way."""
    create: Callable[[ModelSpec, int, Array], Attention]
    """From the model's shape, the number of blocks, and for each position the cosines, then the sines, of half of the
    dimensions that turn."""
    scale_bytes: int = 0
    """What the scale takes that the keys of a token and head have in common, and its values."""

    def token_bytes(self, spec: ModelSpec) -> int:
        return kv_token_bytes(spec, self.item_bytes, self.scale_bytes)


def numpy_kernel(dtype: type[np.floating]) -> Kernel:
    """Needs no compiler, and is much slower for it."""
    return Kernel(np.dtype(dtype).itemsize, "numpy-1", partial(_numpy_attention, dtype))


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
