"""Attention over the KV cache, by whichever kernel suits a sequence: few rows, many, or keys that others share."""

from collections.abc import Sequence

import torch

from hotloop.backends.cuda.attention import Workspace, decode_attention
from hotloop.backends.cuda.flash import Flash
from hotloop.backends.cuda.kernels import gate_heads, rotate_and_store
from hotloop.backends.cuda.layer_weights import LayerWeights
from hotloop.backends.cuda.linear import linear
from hotloop.backends.cuda.mixing.mixing import Room
from hotloop.backends.cuda.prefill import prefill_attention
from hotloop.backends.cuda.shared import shared_attention
from hotloop.backends.cuda.step import Shape, Views
from hotloop.models.spec import ModelSpec


class Attention:
    """Over a cache [layers, keys and values, blocks, kv heads, block size, head dim]. In a hybrid heads are gated."""

    def __init__(
        self,
        spec: ModelSpec,
        kv: torch.Tensor,
        windows: Sequence[int | None],
        cos_sin: torch.Tensor,
        workspace: Workspace,
        flash: Flash | None,
        dtype: torch.dtype,
    ) -> None:
        self._spec, self._kv, self._windows = spec, kv, windows
        self._cos_sin, self._workspace, self._flash = cos_sin, workspace, flash
        self._dtype = dtype
        self._scale = spec.head_dim**-0.5

    def room(self, shape: Shape) -> Room:
        heads = (shape.num_rows, self._spec.num_heads, self._spec.head_dim)
        return (torch.zeros(heads, dtype=self._dtype, device=self._kv.device),)

    def mix(
        self, index: int, layer: LayerWeights, x: torch.Tensor, step: Views, shape: Shape, room: Room
    ) -> torch.Tensor:
        (out,) = room
        assert layer.qkv is not None
        assert layer.o is not None
        qkv, rows = linear(x, layer.qkv, layer.qkv_bias), out.view(len(out), -1)
        if not self._spec.linear:
            self._attend(index, layer, qkv, step, shape, out)
        else:
            gates, qkv = qkv.tensor_split([rows.shape[1]], 1)
            self._attend(index, layer, qkv, step, shape, out)
            gate_heads(rows, gates)
        return linear(rows, layer.o, layer.o_bias)

    def _attend(
        self, index: int, layer: LayerWeights, qkv: torch.Tensor, step: Views, shape: Shape, out: torch.Tensor
    ) -> None:
        """Into `out` [rows, heads, head_dim]."""
        kv, window = self._kv[index], self._windows[index]
        q = torch.empty_like(out)
        rotate_and_store(
            qkv, q, kv[0], kv[1], step.positions, step.slots, self._cos_sin, layer.q_norm, layer.k_norm,
            self._spec.rms_eps, layer.kv_scales,
        )  # fmt: skip
        short, long = shape.num_short, shape.num_long
        short_q = q[: shape.num_short_rows]
        if shape.num_items and window is None:  # what sequences share comes first
            shared_attention(
                short_q, kv[0], kv[1], step.block_ids, step.folded, step.items, step.part_begins, self._workspace,
                scale=self._scale, kv_scales=layer.kv_scales,
            )  # fmt: skip
        if short:
            decode_attention(
                short_q, kv[0], kv[1], step.row_begins, step.lens[:short], step.block_ids, step.block_begins,
                step.splits, step.part_begins, out, self._workspace, max_rows=shape.max_short_rows,
                usual_rows=shape.usual_rows, scale=self._scale, kv_scales=layer.kv_scales, window=window,
                sinks=layer.sinks,
            )  # fmt: skip
        if self._flash and long and window is None and layer.sinks is None:
            self._flash.attend(
                q, kv[0], kv[1], step.row_begins[short + 1 :], step.lens[short:], step.table, out,
                max_rows=shape.max_long_rows, scale=self._scale,
            )  # fmt: skip
        elif long:
            prefill_attention(
                q, kv[0], kv[1], step.row_begins[short + 1 :], step.lens[short:], step.block_ids,
                step.block_begins[short:], out, num_sequences=long, max_rows=shape.max_long_rows, scale=self._scale,
                kv_scales=layer.kv_scales, window=window, sinks=layer.sinks,
            )  # fmt: skip
