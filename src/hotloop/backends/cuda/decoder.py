"""The forward pass: a decoder over one ragged batch, written for one reader and one card.

The matrix products are in `linear`, with q, k and v and gate and up each in one. Nothing here waits for the device, or
depends on what a tensor holds, so a call can be captured in a CUDA graph.
"""

import numpy as np
import torch

from hotloop.backends.cuda.attention import Workspace, decode_attention, programs_to_fill
from hotloop.backends.cuda.experts import mix
from hotloop.backends.cuda.flash import Flash
from hotloop.backends.cuda.groups import Sharing
from hotloop.backends.cuda.kernels import add_norm, embed, rotate_and_store
from hotloop.backends.cuda.latent import heads_product, latent_attention, norm_rows, rotate_and_keep
from hotloop.backends.cuda.latent_prefill import MIN_ROWS, made_attention
from hotloop.backends.cuda.linear import gated, linear, logits
from hotloop.backends.cuda.parallel import Group
from hotloop.backends.cuda.prefill import prefill_attention
from hotloop.backends.cuda.shared import shared_attention, tile_rows_for
from hotloop.backends.cuda.splits import Splitting
from hotloop.backends.cuda.step import Shape, Views
from hotloop.backends.cuda.weights import DeviceWeights, LayerWeights
from hotloop.models.rope import rotary_table
from hotloop.models.spec import LatentSpec, ModelSpec

_NUM_PARTS = 4096  # of rows of a step that there is room for
_NUM_LATENT_PARTS = 2048  # the same, of parts that are several times as wide
MIN_SAVED_BYTES = 160 << 20  # of a layer's KV that sharing must save in a step, to be worth its launches: measured


def _is_made(shape: Shape) -> bool:
    """Whether keys and values are made of the latents of sequences with many rows. Graphs have no table for that."""
    return shape.table_width > 0 and shape.max_long_rows >= MIN_ROWS


class Decoder:
    """The weights, the KV cache [layers, keys and values, blocks, kv heads, block size, head dim], and a workspace.
    Of latents the cache is [layers, 1, blocks, 1, block size, latent and rotary key].

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
    ) -> None:
        self.spec = spec
        self._group = group
        self.kv = kv
        self.flash = flash
        self._weights = weights
        self._dtype = weights.embed.dtype
        self._device = weights.embed.device
        self._scale = spec.head_dim**-0.5
        num_kv_heads, found_dim = (1, spec.latent.kv_rank) if spec.latent else (spec.num_kv_heads, spec.head_dim)
        num_positions = min(spec.max_context, kv.shape[2] * kv.shape[4])
        self._cos_sin = torch.from_numpy(rotary_table(spec, num_positions).astype(np.float32)).to(self._device)
        num_parts = _NUM_LATENT_PARTS if spec.latent else _NUM_PARTS
        self._workspace = Workspace.allocate(num_parts, spec.num_heads, found_dim, self._device)
        num_programs = programs_to_fill(self._device, num_kv_heads)
        self.splitting = Splitting(kv.shape[4], num_programs, num_parts)
        self.sharing = Sharing(
            block_size=kv.shape[4],
            tile_rows=tile_rows_for(spec.num_heads, spec.num_kv_heads),
            num_programs=num_programs,
            min_saved=-(-min_saved_bytes // (kv.shape[1] * kv[0, 0, 0].nbytes)),
            split_rows=num_parts,
        )

    def forward(self, step: Views, chosen: torch.Tensor, shape: Shape) -> torch.Tensor:
        """What the wanted rows come to [wanted, hidden], after the KV of every row went into its block."""
        num_rows = len(step.slots)
        residual = self._empty(num_rows, self.spec.hidden_size)
        normed = torch.empty_like(residual)
        out = self._empty(num_rows, self.spec.mixed_size).zero_()  # rows that pad stay so
        found = self._room_for_latents(shape)
        embed(step.token_ids, step.sources, chosen, self._weights.embed, residual)
        added = None
        counts = self._no_counts()
        for i, (layer, kv, count) in enumerate(zip(self._weights.layers, self.kv, counts, strict=True)):
            add_norm(added, residual, layer.attn_norm, self.spec.rms_eps, normed)
            if self.spec.latent:
                self._attend_latents(step, layer, self.spec.latent, kv[0], normed, shape, found, out)
            else:
                self._attend(step, layer, self.spec.window(i), kv, normed, shape, out)
            mixed = self._group.all_reduce(linear(out, layer.o, layer.o_bias))
            add_norm(mixed, residual, layer.mlp_norm, self.spec.rms_eps, normed)
            added = self._group.all_reduce(self._mlp(layer, normed, step.slots, count))
        assert added is not None
        residual, added = (torch.index_select(each, 0, step.wanted) for each in (residual, added))
        return add_norm(added, residual, self._weights.final_norm, self.spec.rms_eps, torch.empty_like(residual))

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[wanted, vocabulary] in float32."""
        return self._group.gather_columns(logits(hidden, self._weights.head), self.spec.vocab_size)

    def _attend(
        self,
        step: Views,
        layer: LayerWeights,
        window: int | None,
        kv: torch.Tensor,
        normed: torch.Tensor,
        shape: Shape,
        out: torch.Tensor,
    ) -> None:
        """Into `out` [rows, heads * head_dim]."""
        spec, num_rows = self.spec, len(normed)
        out = out.view(num_rows, spec.num_heads, -1)
        qkv = linear(normed, layer.qkv, layer.qkv_bias)
        q = self._empty(num_rows, spec.num_heads, spec.head_dim)
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

    def _attend_latents(
        self,
        step: Views,
        layer: LayerWeights,
        latent: LatentSpec,
        cache: torch.Tensor,
        normed: torch.Tensor,
        shape: Shape,
        found: torch.Tensor,
        out: torch.Tensor,
    ) -> None:
        """Into `out` [rows, heads * value_dim], by way of `found` [rows, heads, kv_rank]."""
        spec, num_rows = self.spec, len(normed)
        assert layer.kv_b is not None
        assert layer.k_norm is not None
        heads = (num_rows, spec.num_heads, -1)
        q, kept = linear(normed, layer.qkv).tensor_split([len(layer.qkv) - latent.width], 1)
        if layer.q_b is not None and layer.q_norm is not None:
            q = linear(norm_rows(q, layer.q_norm, latent.norm_eps), layer.q_b)
        q, out = q.unflatten(1, heads[1:]), out.view(heads)
        rotate_and_keep(q, kept, cache, step.positions, step.slots, self._cos_sin, layer.k_norm, latent)
        up_keys, up_values = layer.kv_b.view(spec.num_heads, -1, latent.kv_rank).tensor_split([latent.nope_dim], 1)
        short, long = shape.num_short, shape.num_long
        latents = heads_product(q[: len(found), :, : latent.nope_dim], up_keys, torch.empty_like(found))
        if short:
            latent_attention(
                latents, q, cache, step.row_begins, step.lens[:short], step.block_ids, step.block_begins, found,
                max_rows=shape.max_short_rows, usual_rows=shape.usual_rows, scale=latent.scale, splits=step.splits,
                part_begins=step.part_begins, workspace=self._workspace,
            )  # fmt: skip
        long_rows, long_lens = step.row_begins[short + 1 :], step.lens[short:]
        if long and not _is_made(shape):
            latent_attention(
                latents, q, cache, long_rows, long_lens, step.block_ids, step.block_begins[short:], found,
                max_rows=shape.max_long_rows, usual_rows=shape.max_long_rows, scale=latent.scale,
            )  # fmt: skip
        heads_product(found, up_values.transpose(1, 2), out[: len(found)])
        if long and _is_made(shape):
            rows = {"max_rows": shape.max_long_rows}
            made_attention(q, cache, layer.kv_b, long_rows, long_lens, step.table, out, latent, **rows)

    def _room_for_latents(self, shape: Shape) -> torch.Tensor:
        """What rows find among latents: all rows, or those of sequences with few where the others have keys and values
        made for them."""
        num_rows = shape.num_short_rows if _is_made(shape) else shape.num_rows
        rank = self.spec.latent.kv_rank if self.spec.latent else 0
        return self._empty(num_rows, self.spec.num_heads, rank).zero_()

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
