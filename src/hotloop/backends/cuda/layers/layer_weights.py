"""What a model's weights on the device look like: fused where one product reads them."""

from dataclasses import dataclass

from torch import Tensor

from hotloop.backends.cuda.layers.delta.weights import LinearWeights
from hotloop.backends.cuda.layers.expert_weights import ExpertWeights
from hotloop.backends.cuda.layers.linear import Matrix


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One layer. Matrices are [out, in]; all are contiguous. Those of the products may be in e4m3 or in four bits."""

    attn_norm: Tensor  # [hidden]
    qkv: Matrix | None  # [(heads + 2 * kv heads) * head_dim, hidden]: all of q, then k, then v, in front of them the
    # gates of heads that have some; or q (or q_a), then kv_a
    qkv_bias: Tensor | None  # [(heads + 2 * kv heads) * head_dim]
    q_norm: Tensor | None  # [head_dim], or of a latent
    k_norm: Tensor | None  # [head_dim], or of a latent
    q_b: Matrix | None  # [heads * head_dim, q_rank]
    kv_b: Tensor | None  # [heads * (nope_dim + value_dim), kv_rank]
    o: Matrix | None  # [hidden, heads * head_dim]
    o_bias: Tensor | None  # [hidden]; of several ranks only the first has one that is not zero
    sinks: Tensor | None  # [heads]
    mlp_norm: Tensor  # [hidden]
    gate_up: Matrix | None  # [2 * intermediate, hidden]: all of gate, then up
    down: Matrix | None  # [hidden, intermediate]
    experts: ExpertWeights | None = None  # in place of these
    linear: LinearWeights | None = None  # in place of attention
    kv_scales: Tensor | None = None  # [2 * kv heads] of keys, then values, where those are held in e4m3


@dataclass(frozen=True, slots=True)
class DeviceWeights:
    """All of a model. `head` is `embed` itself, or rows of it, where the two are tied and in one type."""

    embed: Tensor  # [vocab, hidden]
    layers: tuple[LayerWeights, ...]
    final_norm: Tensor  # [hidden]
    head: Matrix  # [vocab, hidden]; of several ranks each has some rows
