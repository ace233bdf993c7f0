"""Latent attention (MLA): over the latents themselves where rows are few, over keys and values made of them where a
sequence has many.
"""

import torch

from hotloop.backends.cuda.attention.decode import Workspace
from hotloop.backends.cuda.attention.latent import heads_product, latent_attention, norm_rows, rotate_and_keep
from hotloop.backends.cuda.attention.latent_prefill import MIN_ROWS, made_attention
from hotloop.backends.cuda.layers.layer_weights import LayerWeights
from hotloop.backends.cuda.layers.linear import linear
from hotloop.backends.cuda.layers.mixing.mixing import Buffers
from hotloop.backends.cuda.steps.step import Shape, Views
from hotloop.models.spec import LatentSpec


def _is_made(shape: Shape) -> bool:
    """Whether keys and values are made of the latents of sequences with many rows. Graphs have no table for that."""
    return shape.table_width > 0 and shape.max_long_rows >= MIN_ROWS


class LatentAttention:
    """Over a cache [layers, 1, blocks, 1, block size, latent and rotary key]."""

    def __init__(
        self,
        spec: LatentSpec,
        num_heads: int,
        kv: torch.Tensor,
        cos_sin: torch.Tensor,
        workspace: Workspace,
        dtype: torch.dtype,
    ) -> None:
        self._spec, self._num_heads, self._kv = spec, num_heads, kv
        self._cos_sin, self._workspace, self._dtype = cos_sin, workspace, dtype

    def buffers(self, shape: Shape) -> Buffers:
        """What rows find among latents: all rows, or those of sequences with few where the others have keys and values
        made for them; and what becomes of it.
        """
        num_rows = shape.num_short_rows if _is_made(shape) else shape.num_rows
        return self._zeros(num_rows, self._spec.kv_rank), self._zeros(shape.num_rows, self._spec.value_dim)

    def mix(
        self, index: int, layer: LayerWeights, x: torch.Tensor, step: Views, shape: Shape, buffers: Buffers
    ) -> torch.Tensor:
        found, out = buffers
        assert layer.qkv is not None
        assert layer.o is not None
        q, kept = linear(x, layer.qkv).tensor_split([len(layer.qkv) - self._spec.width], 1)
        if layer.q_b is not None and layer.q_norm is not None:
            q = linear(norm_rows(q, layer.q_norm, self._spec.norm_eps), layer.q_b)
        self._attend(index, layer, q.unflatten(1, (self._num_heads, -1)), kept, step, shape, found, out)
        return linear(out.view(len(out), -1), layer.o, layer.o_bias)

    def _attend(
        self,
        index: int,
        layer: LayerWeights,
        q: torch.Tensor,
        kept: torch.Tensor,
        step: Views,
        shape: Shape,
        found: torch.Tensor,
        out: torch.Tensor,
    ) -> None:
        """Into `out` [rows, heads, value_dim], by way of `found` [rows, heads, kv_rank]."""
        latent, cache = self._spec, self._kv[index, 0]
        assert layer.kv_b is not None
        assert layer.k_norm is not None
        rotate_and_keep(q, kept, cache, step.positions, step.slots, self._cos_sin, layer.k_norm, latent)
        up_keys, up_values = layer.kv_b.view(self._num_heads, -1, latent.kv_rank).tensor_split([latent.nope_dim], 1)
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

    def _zeros(self, num_rows: int, size: int) -> torch.Tensor:
        return torch.zeros(num_rows, self._num_heads, size, dtype=self._dtype, device=self._kv.device)
