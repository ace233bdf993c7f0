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
        x = x + attention(spec, weights, name, norm(x, weights.read(name + "attn_norm"), spec.rms_eps))
        h = norm(x, weights.read(name + "mlp_norm"), spec.rms_eps)
        x = x + (experts(spec.experts, weights, name, h) if spec.experts else mlp(weights, name, h))
    x = norm(x, weights.read("final_norm"), spec.rms_eps)
    return x @ weights.read("embed" if spec.has_tied_head else "head").T


def mlp(weights: Weights, name: str, x: Array) -> Array:
    gate, up = x @ weights.read(name + "gate").T, x @ weights.read(name + "up").T
    return (gate / (1 + np.exp(-gate)) * up) @ weights.read(name + "down").T


def experts(spec: ExpertsSpec, weights: Weights, name: str, x: Array) -> Array:
    logits = x @ weights.read(name + "router").T
    scores = np.exp(logits - logits.max(-1, keepdims=True))
    scores = scores / scores.sum(-1, keepdims=True)
    out = np.zeros_like(x)
    for row, score in enumerate(scores):
        chosen = np.argsort(-score, kind="stable")[: spec.num_chosen]
        total = score[chosen].sum() if spec.is_normed else np.float32(1)
        for i in chosen:
            out[row] += score[i] / total * mlp(weights, f"{name}experts.{i}.", x[row])
    return out


def attention(spec: ModelSpec, weights: Weights, name: str, x: Array) -> Array:
    q = heads(spec, weights, name + "q", x)  # [heads, length, head_dim]
    k, v = heads(spec, weights, name + "k", x), heads(spec, weights, name + "v", x)
    if spec.has_qk_norm:
        q = norm(q, weights.read(name + "q_norm"), spec.rms_eps)
        k = norm(k, weights.read(name + "k_norm"), spec.rms_eps)
    q, k = rotate(spec, q), rotate(spec, k)
    group = spec.num_heads // spec.num_kv_heads
    k, v = np.repeat(k, group, 0), np.repeat(v, group, 0)
    scores = q @ k.transpose(0, 2, 1) / np.float32(np.sqrt(spec.head_dim))
    scores = np.where(np.tri(len(x), dtype=bool), scores, -np.inf)
    shares = np.exp(scores - scores.max(-1, keepdims=True))
    mixed = (shares / shares.sum(-1, keepdims=True)) @ v
    return mixed.transpose(1, 0, 2).reshape(len(x), -1) @ weights.read(name + "o").T


def heads(spec: ModelSpec, weights: Weights, name: str, x: Array) -> Array:
    projected = x @ weights.read(name).T
    if spec.has_qkv_bias:
        projected = projected + weights.read(name + "_bias")
    return projected.reshape(len(x), -1, spec.head_dim).transpose(1, 0, 2)


def rotate(spec: ModelSpec, x: Array) -> Array:
    half = spec.head_dim // 2
    frequencies = spec.rope_theta ** (-np.arange(half) / half)
    angles = np.outer(np.arange(x.shape[1]), frequencies)
    cos, sin = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
    a, b = x[..., :half], x[..., half:]
    return np.concatenate([a * cos - b * sin, b * cos + a * sin], -1)


def norm(x: Array, weight: Array, eps: float) -> Array:
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + np.float32(eps)) * weight
