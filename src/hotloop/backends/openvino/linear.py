"""Linear attention by the gated delta rule, in numpy: what fills the gap a graph leaves for it.

A layer has for each value head a memory S [key_dim, value_dim]. A token with query q, key k and value v first lets it
fade, then corrects what it says of k by a share of the error, and reads it:

    S = exp(g) S;  S = S + k (b (v - S'k))';  o = S'q

q, k and v went through a short convolution before, so the last inputs of that are a part of the state as well.
Of many tokens in a row the corrections depend on each other as a triangular system says, which is solved for a chunk
of them at a time.
"""

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from hotloop.backends.backend import Batch
from hotloop.models.spec import ModelSpec, Weights

CHUNK = 64  # tokens whose corrections are solved for together
_EPS = np.float32(1e-6)

Array = NDArray[np.float32]


class DeltaNet:
    """The states of all slots, and the layers that read and write them, numbered among themselves."""

    def __init__(self, spec: ModelSpec, weights: Weights, num_slots: int) -> None:
        assert spec.linear
        self._spec, self._eps = spec.linear, np.float32(spec.rms_eps)
        layers = [f"layers.{layer}." for layer in spec.linear.layers]
        self._taps = [
            np.ascontiguousarray(weights.read(name + "linear_conv").T) for name in layers
        ]  # [width, channels]
        self._fading = [-np.exp(weights.read(name + "linear_a_log")) for name in layers]
        self._biases = [weights.read(name + "linear_dt_bias") for name in layers]
        self._norms = [weights.read(name + "linear_norm") for name in layers]
        count, each = len(layers), spec.linear
        self._inputs = np.zeros((count, num_slots, each.conv_width - 1, each.conv_size), np.float32)
        self._memories = np.zeros((count, num_slots, each.num_value_heads, each.key_dim, each.value_dim), np.float32)
        self._sequences: list[tuple[slice, int, int]] = []  # rows of the step, the slot that is read, the one written

    def plan(self, batch: Batch) -> None:
        """What the next calls of `run` compute; without slots it goes where the next request begins anew anyway."""
        rows = [slice(begin, end) for begin, end in pairwise(batch.begins.tolist())]
        slots = [[-1, 0]] * len(rows) if batch.states is None else batch.states.tolist()
        self._sequences = [(each, read, write) for each, (read, write) in zip(rows, slots, strict=True)]

    def run(self, layer: int, x: Array, output: Array) -> None:
        """[tokens, queries + keys + values + gates + b + a] -> [tokens, value heads]"""
        spec = self._spec
        sizes = np.cumsum([spec.conv_size, spec.value_size, spec.num_value_heads])
        qkv, z, b, a = np.split(x, sizes, axis=1)
        shares = _sigmoid(b)
        logs = self._fading[layer] * np.logaddexp(np.float32(0), a + self._biases[layer])
        mixed = self._convolve(layer, qkv)
        q, k, v = np.split(mixed, np.cumsum([spec.key_size, spec.key_size]), axis=1)
        q, k = (self._widen(_unit(part.reshape(len(x), -1, spec.key_dim))) for part in (q, k))
        q *= np.float32(spec.key_dim**-0.5)
        v = v.reshape(len(x), -1, spec.value_dim)
        found = np.empty_like(v)
        memories = self._memories[layer]
        for rows, read, write in self._sequences:
            memory = memories[read].copy() if read >= 0 else np.zeros_like(memories[write])
            for begin in range(rows.start, rows.stop, CHUNK):
                part = slice(begin, min(begin + CHUNK, rows.stop))
                compute = _step if part.stop - begin == 1 else _chunk
                found[part] = compute(memory, q[part], k[part], v[part], logs[part], shares[part])
            memories[write] = memory
        scale = np.sqrt((found * found).mean(-1, keepdims=True) + self._eps)
        gates = z.reshape(found.shape)
        output[:] = (found / scale * self._norms[layer] * gates * _sigmoid(gates)).reshape(output.shape)

    def close(self) -> None:
        self._inputs, self._memories = self._inputs[:, :0].copy(), self._memories[:, :0].copy()

    def _convolve(self, layer: int, x: Array) -> Array:
        """Each channel with its own taps, over the tokens before as well; then SiLU."""
        taps, before = self._taps[layer], self._inputs[layer]
        mixed = np.empty_like(x)
        for rows, read, write in self._sequences:
            past = before[read] if read >= 0 else np.zeros_like(before[write])
            inputs = np.concatenate([past, x[rows]])
            count = rows.stop - rows.start
            mixed[rows] = sum(tap * inputs[i : i + count] for i, tap in enumerate(taps))
            before[write] = inputs[count:]
        return np.asarray(mixed * _sigmoid(mixed), np.float32)

    def _widen(self, x: Array) -> Array:
        """One for each value head, from one for each key head."""
        return np.repeat(x, self._spec.num_value_heads // self._spec.num_key_heads, axis=1)


def _step(memory: Array, q: Array, k: Array, v: Array, log: Array, share: Array) -> Array:
    """One token: [1, heads, dim] each; the memory [heads, key_dim, value_dim] is changed in place."""
    memory *= np.exp(log[0])[:, None, None]
    error = v[0] - (k[0][:, None] @ memory)[:, 0]
    memory += k[0][:, :, None] * (share[0][:, None] * error)[:, None]
    read: Array = q[0][:, None] @ memory
    return read.reshape(v.shape)


def _chunk(memory: Array, q: Array, k: Array, v: Array, log: Array, share: Array) -> Array:
    """Many tokens, as `_step` would have them one by one. With d the fading since the chunk began:

    corrections  (I + tril(b d/d' kk', -1)) c = b (v - d k S)
    read         o = d q S + tril(d/d' qk') c
    """
    q, k, v = (part.transpose(1, 0, 2) for part in (q, k, v))  # [heads, tokens, dim]
    total = np.cumsum(log.T, axis=1)  # [heads, tokens]
    ratio = np.exp(np.minimum(total[:, :, None] - total[:, None], 0))
    share, faded = share.T[:, :, None], np.exp(total)[:, :, None]
    keys = k.transpose(0, 2, 1)
    system = np.eye(q.shape[1], dtype=np.float32) + np.tril(share * ratio * (k @ keys), -1)
    corrections = np.linalg.solve(system, share * (v - faded * (k @ memory)))
    read = faded * (q @ memory) + np.tril(ratio * (q @ keys)) @ corrections
    left = np.exp(total[:, -1:] - total)[:, :, None]
    memory *= faded[:, -1:]
    memory += (left * k).transpose(0, 2, 1) @ corrections
    return np.asarray(read.transpose(1, 0, 2), np.float32)


def _unit(x: Array) -> Array:
    return np.asarray(x / np.sqrt((x * x).sum(-1, keepdims=True) + _EPS), np.float32)


def _sigmoid(x: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-x)), np.float32)
