"""The tensors of hybrid models by one set of names, whatever way a family's files fuse them.

In place of `q k v o` a layer of linear attention has

    `linear_qkv`   queries of all key heads, keys of them, values of all value heads
    `linear_conv`  the taps of each of those
    `linear_z`     the gate of what comes out
    `linear_b` `linear_a`  how much is written, and how much fades, for each value head
    `linear_a_log` `linear_dt_bias` `linear_norm` `linear_o`

and a layer of attention has `q_gate` beside `q`.
"""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from hotloop.models.fp8 import dequantise_fp8
from hotloop.models.heads import halves_first
from hotloop.models.layout import layer_shapes
from hotloop.models.spec import (
    AnyStored,
    FileTensor,
    Fp8Stored,
    LinearSpec,
    ModelSpec,
    Stored,
    Weights,
)

Array = NDArray[np.float32]

_FUSED_NAMES = ("q_and_gate", "linear_qkvz", "linear_ba")


class HybridWeights:
    """Rows of what the files fuse, and norms as what they multiply with."""

    def __init__(self, weights: Weights, spec: ModelSpec) -> None:
        assert spec.linear
        self._weights = weights
        self._fused = _fused_rows(spec, spec.linear)

    def read(self, name: str) -> Array:
        stored = self.stored(name)
        if isinstance(stored, Fp8Stored):
            return dequantise_fp8(stored)
        assert isinstance(stored, Stored), "four bits and heads that turn in part are refused together"
        return stored.floats()

    def stored(self, name: str) -> AnyStored:
        layer, _, part = name.rpartition(".")
        if part in self._fused:
            fused, rows = self._fused[part]
            return _plain(self._weights.stored(f"{layer}.{fused}"), rows)
        if part == "linear_conv":
            return _plain(self._weights.stored(name))
        if part.endswith("norm") and part != "linear_norm":
            norm = self._weights.read(name) + 1
            return Stored(norm.view(np.uint8), "F32", norm.shape)
        return self._weights.stored(name)


def split_shapes(spec: ModelSpec, layer: int) -> dict[str, tuple[int, ...]]:
    """Of a layer's tensors by the names above."""
    shapes = layer_shapes(spec, layer)
    if not spec.linear:
        return shapes
    for part, (fused, rows) in _fused_rows(spec, spec.linear).items():
        if fused in shapes:
            shapes[part] = (len(rows), spec.hidden_size)
    if "linear_conv" in shapes:
        shapes["linear_conv"] = (spec.linear.conv_size, spec.linear.conv_width)
    return {name: shape for name, shape in shapes.items() if name not in _FUSED_NAMES}


class StackedExperts:
    """Experts as Qwen3.5's files have them: those of a layer in one tensor, gates above ups."""

    NAMES = ("model.layers.{}.mlp.experts.gate_up_proj", "model.layers.{}.mlp.experts.down_proj")
    packed_names: frozenset[str] = frozenset()

    def __init__(self, spec: ModelSpec, located: Mapping[str, FileTensor]) -> None:
        assert spec.experts
        self._spec, self._experts, self._located = spec, spec.experts, located

    def wanted(self) -> dict[str, tuple[int, ...]]:
        """What the files call them, and the shapes they must have."""
        hidden, size, count = self._spec.hidden_size, self._experts.size, self._experts.num_experts
        shapes = (count, 2 * size, hidden), (count, hidden, size)
        layers = range(self._spec.num_layers)
        return {name.format(i): shape for i in layers for name, shape in zip(self.NAMES, shapes, strict=True)}

    def stored(self, name: str) -> Stored:
        """layers.N.experts.M.PART"""
        _, layer, _, expert, part = name.split(".")
        fused = self._located[self.NAMES[part == "down"].format(layer)].stored()
        size = self._experts.size
        rows = {"gate": slice(size), "up": slice(size, None)}.get(part, slice(None))
        data = fused.data[int(expert), rows]
        return Stored(data, fused.kind, (len(data), fused.shape[-1]))


def _plain(stored: AnyStored, rows: NDArray[np.intp] | slice = slice(None)) -> Stored | Fp8Stored:
    """Some rows of a matrix."""
    if isinstance(stored, Fp8Stored) and not isinstance(rows, slice):
        return stored.rows(rows.ravel())
    assert isinstance(stored, Stored)
    data = np.ascontiguousarray(stored.data.reshape(len(stored.data), -1)[rows])
    return Stored(data, stored.kind, (len(data), stored.shape[-1]))


def _fused_rows(spec: ModelSpec, linear: LinearSpec) -> dict[str, tuple[str, NDArray[np.intp]]]:
    """Of what is fused: the tensor of the files, and which rows of it.

    q_and_gate   [ query | gate ] of each head
    linear_qkvz  [ query | key | values | gates ] of each key head
    linear_ba    [ b of its value heads | a ] of each key head
    """
    heads = np.arange(spec.num_heads)[:, None] * 2 * spec.head_dim
    gates = heads + spec.head_dim + np.arange(spec.head_dim)
    found = {"q": ("q_and_gate", heads + halves_first(spec)), "q_gate": ("q_and_gate", gates)}
    if spec.family == "qwen3next":
        num_values = linear.value_size // linear.num_key_heads
        ends = np.cumsum([linear.key_dim, linear.key_dim, num_values])
        per_head = np.arange(linear.conv_size + linear.value_size).reshape(linear.num_key_heads, -1)
        q, k, v, z = (part.ravel() for part in np.split(per_head, ends, axis=1))
        rates = np.arange(2 * linear.num_value_heads).reshape(linear.num_key_heads, 2, -1)
        found |= {"linear_qkv": ("linear_qkvz", np.concatenate([q, k, v])), "linear_z": ("linear_qkvz", z)}
        found |= {"linear_b": ("linear_ba", rates[:, 0]), "linear_a": ("linear_ba", rates[:, 1])}
    return {part: (fused, rows.ravel()) for part, (fused, rows) in found.items()}
