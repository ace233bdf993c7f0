"""The forward pass: a decoder over one ragged batch, written for one reader and one card.

The matrix products are in `linear`, with q, k and v and gate and up each in one. Nothing here waits for the device, or
depends on what a tensor holds, so a call can be captured in a CUDA graph.
"""

from itertools import count

import numpy as np
import torch

from hotloop.backends.cuda.attention import Workspace, decode_attention, programs_to_fill
from hotloop.backends.cuda.delta.layer import DeltaNet
from hotloop.backends.cuda.experts import mix
from hotloop.backends.cuda.flash import Flash
from hotloop.backends.cuda.groups import Sharing
from hotloop.backends.cuda.kernels import add_norm, embed, gate_heads, rotate_and_store
from hotloop.backends.cuda.linear import gated, linear, logits
from hotloop.backends.cuda.parallel import Group
from hotloop.backends.cuda.prefill import prefill_attention
from hotloop.backends.cuda.shared import shared_attention, tile_rows_for
from hotloop.backends.cuda.splits import Splitting
from hotloop.backends.cuda.step import Shape, Views
from hotloop.backends.cuda.weights import DeviceWeights, LayerWeights
from hotloop.models.rope import rotary_table
from hotloop.models.spec import ModelSpec

_NUM_PARTS = 4096  # of rows of a step that there is room for
MIN_SAVED_BYTES = 160 << 20  # of a layer's KV that sharing must save in a step, to be worth its launches: measured


class Decoder:
    """The weights, the KV cache [layers that have any, keys and values, blocks, kv heads, block size, head dim], the
    recurrent states of a hybrid, and a workspace.

    Of several ranks each has its share of them, and adds what it finds to what the others find.
    """

    def __init__(
        self,
        spec: ModelSpec,
        weights: DeviceWeights,
        kv: torch.Tensor,
        group: Group,
        flash: Flash | None = None,
        min_saved_bytes: int = MIN_SAVED_BYTES,
        num_states: int = 0,
    ) -> None:
        self.spec = spec
        self._group = group
        self.kv = kv
        self.flash = flash
        self._weights = weights
        self._dtype = weights.embed.dtype
        self._device = weights.embed.device
        self._scale = spec.head_dim**-0.5
        self._deltas = DeltaNet(spec.linear, spec.rms_eps, num_states, self._device) if spec.linear else None
        num_positions = min(spec.max_context, kv.shape[2] * kv.shape[4])
        self._cos_sin = torch.from_numpy(rotary_table(spec, num_positions).astype(np.float32)).to(self._device)
        self._workspace = Workspace.allocate(_NUM_PARTS, spec.num_heads, spec.head_dim, self._device)
        num_programs = programs_to_fill(self._device, spec.num_kv_heads)
        self.splitting = Splitting(kv.shape[4], num_programs, _NUM_PARTS)
        self.sharing = Sharing(
            block_size=kv.shape[4],
            tile_rows=tile_rows_for(spec.num_heads, spec.num_kv_heads),
            num_programs=num_programs,
            min_saved=-(-min_saved_bytes // (2 * kv[0, 0, 0].nbytes)),
            split_rows=_NUM_PARTS,
        )

    def forward(self, step: Views, chosen: torch.Tensor, shape: Shape) -> torch.Tensor:
        """What the wanted rows come to [wanted, hidden], after the KV of every row went into its block."""
        num_rows = len(step.slots)
        residual = self._empty(num_rows, self.spec.hidden_size)
        normed = torch.empty_like(residual)
        out = self._empty(num_rows, self.spec.num_heads * self.spec.head_dim).zero_()  # rows that pad stay so
        linear_out = self._empty(num_rows, self.spec.linear.value_size if self.spec.linear else 0).zero_()
        embed(step.token_ids, step.sources, chosen, self._weights.embed, residual)
        added = None
        linear_layers, kv_layers = count(), iter(self.kv)
        for i, (layer, counts) in enumerate(zip(self._weights.layers, self._no_counts(), strict=True)):
            add_norm(added, residual, layer.attn_norm, self.spec.rms_eps, normed)
            if layer.linear and self._deltas:
                mixed = self._deltas.run(next(linear_layers), layer.linear, normed, step, shape, linear_out)
            else:
                mixed = self._attention(step, layer, self.spec.window(i), next(kv_layers), normed, shape, out)
            add_norm(self._group.all_reduce(mixed), residual, layer.mlp_norm, self.spec.rms_eps, normed)
            added = self._group.all_reduce(self._mlp(layer, normed, step.slots, counts))
        assert added is not None
        residual, added = (torch.index_select(each, 0, step.wanted) for each in (residual, added))
        return add_norm(added, residual, self._weights.final_norm, self.spec.rms_eps, torch.empty_like(residual))

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[wanted, vocabulary] in float32."""
        return self._group.gather_columns(logits(hidden, self._weights.head), self.spec.vocab_size)

    def _attention(
        self,
        step: Views,
        layer: LayerWeights,
        window: int | None,
        kv: torch.Tensor,
        normed: torch.Tensor,
        shape: Shape,
        out: torch.Tensor,
    ) -> torch.Tensor:
        """[rows, hidden], by way of `out` [rows, heads * head_dim]."""
        assert layer.qkv is not None
        assert layer.o is not None
        qkv = linear(normed, layer.qkv, layer.qkv_bias)
        gates, qkv = qkv.split([out.shape[1], qkv.shape[1] - out.shape[1]], 1) if self._deltas else (None, qkv)
        self._attend(step, layer, window, kv, qkv, shape, out.view(len(out), self.spec.num_heads, -1))
        if gates is not None:
            gate_heads(out, gates)
        return linear(out, layer.o, layer.o_bias)

    def _attend(
        self,
        step: Views,
        layer: LayerWeights,
        window: int | None,
        kv: torch.Tensor,
        qkv: torch.Tensor,
        shape: Shape,
        out: torch.Tensor,
    ) -> None:
        """Into `out` [rows, heads, head_dim]."""
        spec = self.spec
        q = self._empty(*out.shape)
        rotate_and_store(
            qkv, q, kv[0], kv[1], step.positions, step.slots, self._cos_sin, layer.q_norm, layer.k_norm, spec.rms_eps,
            layer.kv_scales,
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
        if self.flash and long and window is None and layer.sinks is None:
            self.flash.attend(
                q, kv[0], kv[1], step.row_begins[short + 1 :], step.lens[short:], step.table, out,
                max_rows=shape.max_long_rows, scale=self._scale,
            )  # fmt: skip
        elif long:
            prefill_attention(
                q, kv[0], kv[1], step.row_begins[short + 1 :], step.lens[short:], step.block_ids,
                step.block_begins[short:], out, num_sequences=long, max_rows=shape.max_long_rows, scale=self._scale,
                kv_scales=layer.kv_scales, window=window, sinks=layer.sinks,
            )  # fmt: skip

    def _mlp(self, layer: LayerWeights, x: torch.Tensor, slots: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
        if layer.experts and self.spec.experts:
            return mix(x, layer.experts, self.spec.experts, slots, counts)
        assert layer.gate_up is not None
        assert layer.down is not None
        return linear(gated(x, layer.gate_up), layer.down)

    def _no_counts(self) -> torch.Tensor:
        """[layers, experts]: how many rows went to each so far."""
        num_experts = self.spec.experts.num_experts if self.spec.experts else 0
        return torch.zeros(self.spec.num_layers, num_experts, dtype=torch.int32, device=self._device)

    def _empty(self, *shape: int) -> torch.Tensor:
        return torch.empty(shape, dtype=self._dtype, device=self._device)
