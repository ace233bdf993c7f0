"""Linear attention by the gated delta rule: what fills the placeholder a graph leaves for it.

A layer has for each value head a memory S [key_dim, value_dim]. A token with query q, key k and value v first lets it
fade, then corrects what it says of k by a share of the error, and reads it:

    S = exp(log) S;  S = S + k (share (v - S'k))';  o = S'q

q, k and v went through a short convolution before, so the last inputs of that are a part of the state as well. The rule
itself is computed in C++ (csrc/delta.cpp), or here in numpy; a token is computed alike whatever step it is in.
"""

import ctypes
from collections.abc import Callable
from functools import cache
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from hotloop.backends.backend import Batch
from hotloop.backends.cpu.build import load_or_warn
from hotloop.models.spec import LinearSpec, ModelSpec, Weights

_EPS = np.float32(1e-6)

Array = NDArray[np.float32]
DeltaRule = Callable[[NDArray[np.int32], NDArray[np.int32], tuple[Array, ...], Array, Array], None]
"""(begins of the sequences, slots [sequences, 2], (q, k, v, logs, shares), memories [slots, ...], what is read)"""


class DeltaNet:
    """The states of all slots, and the layers that read and write them, numbered among themselves."""

    def __init__(self, spec: ModelSpec, weights: Weights, num_slots: int, rule: DeltaRule) -> None:
        assert spec.linear
        self._spec, self._eps, self._rule = spec.linear, np.float32(spec.rms_eps), rule
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
        self._begins, self._slots = np.zeros(1, np.int32), np.zeros((0, 2), np.int32)

    def plan(self, batch: Batch) -> None:
        """What the next calls of `run` compute; without slots it goes where the next request begins anew anyway."""
        self._begins = batch.query_starts
        nowhere = np.array([[-1, 0]] * len(batch.past_lens), np.int32)
        self._slots = nowhere if batch.states is None else batch.states

    def run(self, layer: int, x: Array, output: Array) -> None:
        """[tokens, queries + keys + values + gates + b + a] -> [tokens, value heads]"""
        spec = self._spec
        qkv, z, b, a = np.split(x, np.cumsum([spec.conv_size, spec.value_size, spec.num_value_heads]), axis=1)
        logs = self._fading[layer] * np.logaddexp(np.float32(0), a + self._biases[layer])
        parts = np.split(self._convolve(layer, qkv), np.cumsum([spec.key_size, spec.key_size]), axis=1)
        q, k = (_unit(part.reshape(len(x), -1, spec.key_dim)) for part in parts[:2])
        q *= np.float32(spec.key_dim**-0.5)
        v = parts[2].reshape(len(x), -1, spec.value_dim)
        found = np.empty(v.shape, np.float32)
        self._rule(self._begins, self._slots, (q, k, v, logs, _sigmoid(b)), self._memories[layer], found)
        scale = np.sqrt((found * found).mean(-1, keepdims=True) + self._eps)
        gates = z.reshape(found.shape)
        output[:] = (found / scale * self._norms[layer] * gates * _sigmoid(gates)).reshape(output.shape)

    def read(self, slot: int) -> NDArray[np.uint8]:
        """A copy of a state, in one piece."""
        pieces = [each[:, slot].reshape(-1) for each in (self._inputs, self._memories)]
        return np.concatenate(pieces).view(np.uint8)

    def write(self, slot: int, data: memoryview) -> None:
        inputs, memories = np.split(np.frombuffer(data, np.float32), [self._inputs[:, 0].size])
        self._inputs[:, slot] = inputs.reshape(self._inputs[:, 0].shape)
        self._memories[:, slot] = memories.reshape(self._memories[:, 0].shape)

    def close(self) -> None:
        self._inputs, self._memories = self._inputs[:, :0].copy(), self._memories[:, :0].copy()

    def _convolve(self, layer: int, x: Array) -> Array:
        """Each channel with its own taps, over the tokens before as well; then SiLU."""
        taps, before = self._taps[layer], self._inputs[layer]
        mixed = np.empty(x.shape, np.float32)
        for (begin, end), (read, write) in zip(pairwise(self._begins.tolist()), self._slots.tolist(), strict=True):
            past = before[read] if read >= 0 else np.zeros_like(before[write])
            inputs = np.concatenate([past, x[begin:end]])
            mixed[begin:end] = sum(tap * inputs[i : i + end - begin] for i, tap in enumerate(taps))
            before[write] = inputs[end - begin :]
        return np.asarray(mixed * _sigmoid(mixed), np.float32)


def numpy_delta(
    begins: NDArray[np.int32], slots: NDArray[np.int32], inputs: tuple[Array, ...], memories: Array, output: Array
) -> None:
    """Needs no compiler, and is much slower for it."""
    q, k, v, logs, shares = inputs
    q, k = (np.repeat(part, v.shape[1] // part.shape[1], axis=1) for part in (q, k))  # one for each value head
    for (begin, end), (read, write) in zip(pairwise(begins.tolist()), slots.tolist(), strict=True):
        memory = memories[read].copy() if read >= 0 else np.zeros_like(memories[write])
        for row in range(begin, end):
            memory *= np.exp(logs[row])[:, None, None]
            error = v[row] - (k[row][:, None] @ memory)[:, 0]
            memory += k[row][:, :, None] * (shares[row][:, None] * error)[:, None]
            output[row] = (q[row][:, None] @ memory)[:, 0]
        memories[write] = memory


def _unit(x: Array) -> Array:
    return np.asarray(x / np.sqrt((x * x).sum(-1, keepdims=True) + _EPS), np.float32)


def _sigmoid(x: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-x)), np.float32)


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
    library = load_or_warn("delta", "linear attention is")
    if library is None:
        return None
    library.linear_run.restype = None
    library.linear_run.argtypes = [ctypes.c_void_p, ctypes.c_int, *[ctypes.c_void_p] * 9]
    return library
