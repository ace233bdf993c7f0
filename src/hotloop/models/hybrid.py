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

from hotloop.models.spec import AnyStored, FileTensor, LinearSpec, ModelSpec, Stored, Weights, halves_first

Array = NDArray[np.float32]


class HybridWeights:
    """Reads what the files fuse, and norms as what they multiply with."""

    def __init__(self, weights: Weights, spec: ModelSpec) -> None:
        assert spec.linear
        self._weights = weights
        self._spec, self._linear = spec, spec.linear
        self._order = halves_first(spec)

    def stored(self, name: str) -> AnyStored:
        return self._weights.stored(name)

    def read(self, name: str) -> Array:
        layer, _, part = name.rpartition(".")
        if part in ("q", "q_gate"):
            both = self._weights.read(f"{layer}.q_and_gate").reshape(-1, 2, self._spec.head_dim, self._spec.hidden_size)
            wanted = both[:, 1] if part == "q_gate" else both[:, 0, self._order]
            return np.ascontiguousarray(wanted).reshape(-1, self._spec.hidden_size)
        if self._spec.family == "qwen3next" and part in ("linear_qkv", "linear_z"):
            qkv, z = _split_qkvz(self._weights.read(f"{layer}.linear_qkvz"), self._linear)
            return qkv if part == "linear_qkv" else z
        if self._spec.family == "qwen3next" and part in ("linear_b", "linear_a"):
            fused = self._weights.read(f"{layer}.linear_ba")
            parts = fused.reshape(self._linear.num_key_heads, 2, -1, self._spec.hidden_size)
            return np.ascontiguousarray(parts[:, int(part == "linear_a")]).reshape(-1, self._spec.hidden_size)
        found = self._weights.read(name)
        if part == "linear_conv":
            return found.reshape(self._linear.conv_size, self._linear.conv_width)
        return found + 1 if part.endswith("norm") and part != "linear_norm" else found


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


def _split_qkvz(fused: Array, linear: LinearSpec) -> tuple[Array, Array]:
    """From [query | key | values | gates] of each key head to [queries | keys | values] of all, and gates of all."""
    per_head = fused.reshape(linear.num_key_heads, -1, fused.shape[-1])
    num_values = linear.value_size // linear.num_key_heads
    ends = np.cumsum([linear.key_dim, linear.key_dim, num_values])
    q, k, v, z = (part.reshape(-1, fused.shape[-1]) for part in np.split(per_head, ends, axis=1))
    return np.concatenate([q, k, v]), np.ascontiguousarray(z)
