"""Attention over the KV cache: what is before it and behind it in a layer of ours."""

import torch

from hotloop.backends.cuda.attention.paged import PagedAttention
from hotloop.backends.cuda.layers.kernels import gate_heads, rotate_and_store
from hotloop.backends.cuda.layers.layer_weights import LayerWeights
from hotloop.backends.cuda.layers.linear import linear
from hotloop.backends.cuda.layers.mixing.mixing import Buffers
from hotloop.backends.cuda.steps.step import Shape, Views
from hotloop.models.spec import ModelSpec


class Attention:
    """Over a paged cache. In a hybrid heads are gated."""

    def __init__(self, spec: ModelSpec, paged: PagedAttention, cos_sin: torch.Tensor, dtype: torch.dtype) -> None:
        self._spec, self._paged, self._cos_sin, self._dtype = spec, paged, cos_sin, dtype
        self._scale = spec.head_dim**-0.5

    def buffers(self, shape: Shape) -> Buffers:
        heads = (shape.num_rows, self._spec.num_heads, self._spec.head_dim)
        return (torch.zeros(heads, dtype=self._dtype, device=self._cos_sin.device),)

    def mix(
        self, index: int, layer: LayerWeights, x: torch.Tensor, step: Views, shape: Shape, buffers: Buffers
    ) -> torch.Tensor:
        (out,) = buffers
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
        kv, slots = self._paged.place(step, index)
        q = torch.empty_like(out)
        rotate_and_store(
            qkv, q, kv[0], kv[1], step.positions, slots, self._cos_sin, layer.q_norm, layer.k_norm,
            self._spec.rms_eps, layer.kv_scales,
        )  # fmt: skip
        self._paged.attend(step, shape, index, q, out, scale=self._scale, sinks=layer.sinks, kv_scales=layer.kv_scales)
