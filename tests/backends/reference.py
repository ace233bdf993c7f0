"""A transformer in plain numpy float32, read as its definition: no cache, no batch, one sequence at a time."""

import numpy as np
from numpy.typing import NDArray

from hotloop.models.spec import ExpertsSpec, ModelSpec, Weights

Array = NDArray[np.float32]


def reference_logits(spec: ModelSpec, weights: Weights, token_ids: list[int]) -> Array:
    """Logits of every position, [length, vocab]."""
    x = weights.read("embed")[token_ids]
    for layer in range(spec.num_layers):
        name = f"layers.{layer}."
        h = norm(x, weights.read(name + "attn_norm"), spec.rms_eps)
        x = x + attention(spec, weights, name, h, spec.window(layer))
        h = norm(x, weights.read(name + "mlp_norm"), spec.rms_eps)
        is_mixed = spec.experts and spec.has_experts(layer)
        x = x + (experts(spec.experts, weights, name, h) if is_mixed else mlp(weights, name, h))
    x = norm(x, weights.read("final_norm"), spec.rms_eps)
    return x @ weights.read("embed" if spec.has_tied_head else "head").T


def mlp(weights: Weights, name: str, x: Array) -> Array:
    gate, up = x @ weights.read(name + "gate").T, x @ weights.read(name + "up").T
    return (gate / (1 + np.exp(-gate)) * up) @ weights.read(name + "down").T


def experts(spec: ExpertsSpec, weights: Weights, name: str, x: Array) -> Array:
    logits = x @ weights.read(name + "router").T
    bias = weights.read(name + "router_bias") if spec.has_router_bias else np.float32(0)
    if spec.is_sigmoid:
        scores = 1 / (1 + np.exp(-logits))
        ranks = scores + bias
    else:
        ranks = logits + bias
        scores = np.exp(ranks - ranks.max(-1, keepdims=True))
        scores = scores / scores.sum(-1, keepdims=True)
    out = mlp(weights, name + "shared_", x) if spec.shared_size else np.zeros_like(x)
    for row, score in enumerate(scores):
        chosen = np.argsort(-ranks[row], kind="stable")[: spec.num_chosen]
        total = score[chosen].sum() if spec.is_normed else np.float32(1)
        for i in chosen:
            out[row] += spec.scale * score[i] / total * expert(spec, weights, f"{name}experts.{i}.", x[row])
    return out


def expert(spec: ExpertsSpec, weights: Weights, name: str, x: Array) -> Array:
    if spec.gate_limit is None:
        return mlp(weights, name, x)
    gate, up = (x @ weights.read(name + part).T + weights.read(f"{name}{part}_bias") for part in ("gate", "up"))
    gate, up = np.minimum(gate, spec.gate_limit), np.clip(up, -spec.gate_limit, spec.gate_limit)
    gated = gate / (1 + np.exp(-spec.gate_slope * gate)) * (up + 1)
    return gated @ weights.read(name + "down").T + weights.read(name + "down_bias")


def attention(spec: ModelSpec, weights: Weights, name: str, x: Array, window: int | None = None) -> Array:
    q = heads(spec, weights, name + "q", x)  # [heads, length, head_dim]
    k, v = heads(spec, weights, name + "k", x), heads(spec, weights, name + "v", x)
    if spec.has_qk_norm:
        q = norm(q, weights.read(name + "q_norm"), spec.rms_eps)
        k = norm(k, weights.read(name + "k_norm"), spec.rms_eps)
    q, k = rotate(spec, q), rotate(spec, k)
    group = spec.num_heads // spec.num_kv_heads
    k, v = np.repeat(k, group, 0), np.repeat(v, group, 0)
    scores = q @ k.transpose(0, 2, 1) / np.float32(np.sqrt(spec.head_dim))
    is_seen = np.tri(len(x), dtype=bool) & ~np.tri(len(x), k=-(window or len(x)), dtype=bool)
    scores = np.where(is_seen, scores, -np.inf)
    if spec.has_sinks:
        sinks = np.broadcast_to(weights.read(name + "sinks")[:, None, None], (*scores.shape[:2], 1))
        scores, v = np.concatenate([scores, sinks], -1), np.pad(v, ((0, 0), (0, 1), (0, 0)))
    shares = np.exp(scores - scores.max(-1, keepdims=True))
    mixed = (shares / shares.sum(-1, keepdims=True)) @ v
    out = mixed.transpose(1, 0, 2).reshape(len(x), -1) @ weights.read(name + "o").T
    return out + weights.read(name + "o_bias") if spec.has_o_bias else out


def heads(spec: ModelSpec, weights: Weights, name: str, x: Array) -> Array:
    projected = x @ weights.read(name).T
    if spec.has_qkv_bias:
        projected = projected + weights.read(name + "_bias")
    return projected.reshape(len(x), -1, spec.head_dim).transpose(1, 0, 2)


def rotate(spec: ModelSpec, x: Array) -> Array:
    half, turning = spec.head_dim // 2, (spec.rotary_dim or spec.head_dim) // 2
    frequencies = np.pad(spec.rope_theta ** (-np.arange(turning) / turning), (0, half - turning))
    angles = np.outer(np.arange(x.shape[1]), frequencies)
    cos, sin = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
    a, b = x[..., :half], x[..., half:]
    return np.concatenate([a * cos - b * sin, b * cos + a * sin], -1)


def norm(x: Array, weight: Array, eps: float) -> Array:
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + np.float32(eps)) * weight
