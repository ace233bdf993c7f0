"""The forward pass: a decoder over one ragged batch, written for one reader and one card.

The matrix products are in `linear`, with q, k and v and gate and up each in one. Nothing here waits for the device, or
depends on what a tensor holds, so a call can be captured in a CUDA graph.
"""

import numpy as np
import torch

from hotloop.backends.cuda.experts import mix
from hotloop.backends.cuda.kernels import add_norm, embed, rotate_and_store
from hotloop.backends.cuda.linear import gated, linear, logits
from hotloop.backends.cuda.paged import PagedAttention
from hotloop.backends.cuda.parallel import Group
from hotloop.backends.cuda.step import Shape, Views
from hotloop.backends.cuda.weights import DeviceWeights, LayerWeights
from hotloop.models.rope import rotary_table
from hotloop.models.spec import ModelSpec


class Decoder:
    """The weights and the KV cache. Of several ranks each has its share of them, and adds what it finds to what the
    others find.
    """

    def __init__(self, spec: ModelSpec, weights: DeviceWeights, attention: PagedAttention, group: Group) -> None:
        self.spec = spec
        self._group = group
        self.attention = attention
        self._weights = weights
        self._dtype = weights.embed.dtype
        self._device = weights.embed.device
        num_positions = min(spec.max_context, attention.kv.shape[2] * attention.kv.shape[4])
        self._cos_sin = torch.from_numpy(rotary_table(spec, num_positions).astype(np.float32)).to(self._device)

    def forward(self, step: Views, chosen: torch.Tensor, shape: Shape) -> torch.Tensor:
        """What the wanted rows come to [wanted, hidden], after the KV of every row went into its block."""
        num_rows = len(step.slots)
        residual = self._empty(num_rows, self.spec.hidden_size)
        normed = torch.empty_like(residual)
        out = self._empty(num_rows, self.spec.num_heads, self.spec.head_dim).zero_()  # rows that pad stay so
        embed(step.token_ids, step.sources, chosen, self._weights.embed, residual)
        added = None
        counts = self._no_counts()
        for i, (layer, count) in enumerate(zip(self._weights.layers, counts, strict=True)):
            add_norm(added, residual, layer.attn_norm, self.spec.rms_eps, normed)
            self._attend(step, i, layer, normed, shape, out)
            mixed = self._group.all_reduce(linear(out.view(num_rows, -1), layer.o, layer.o_bias))
            add_norm(mixed, residual, layer.mlp_norm, self.spec.rms_eps, normed)
            added = self._group.all_reduce(self._mlp(layer, normed, step.slots, count))
        assert added is not None
        residual, added = (torch.index_select(each, 0, step.wanted) for each in (residual, added))
        return add_norm(added, residual, self._weights.final_norm, self.spec.rms_eps, torch.empty_like(residual))

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[wanted, vocabulary] in float32."""
        return self._group.gather_columns(logits(hidden, self._weights.head), self.spec.vocab_size)

    def _attend(
        self, step: Views, index: int, layer: LayerWeights, normed: torch.Tensor, shape: Shape, out: torch.Tensor
    ) -> None:
        """Into `out` [rows, heads, head_dim]."""
        spec, (kv, slots) = self.spec, self.attention.place(step, index)
        qkv = linear(normed, layer.qkv, layer.qkv_bias)
        q = self._empty(len(normed), spec.num_heads, spec.head_dim)
        rotate_and_store(
            qkv, q, kv[0], kv[1], step.positions, slots, self._cos_sin, layer.q_norm, layer.k_norm, spec.rms_eps,
            layer.kv_scales,
        )  # fmt: skip
        self.attention.attend(
            step, shape, index, q, out, scale=spec.head_dim**-0.5, window=spec.window(index), sinks=layer.sinks,
            kv_scales=layer.kv_scales,
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
