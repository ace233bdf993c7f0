"""The experts of a model on a CPU: how they are held, kept on disk, and computed with, a layer at a time.

They are mapped from a file that the first start makes, so a step reads those that its tokens go to, and no others:

    [ layer 0: values, scales, zero points of gate and up | the same of down | layer 1: ... ]

The graph leaves a placeholder for them. Routers, biases and shared experts are small: the former are held as float32,
the latter are a part of the graph.
"""

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby
from math import prod
from pathlib import Path
from typing import Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from hotloop.core.config import WeightFormat
from hotloop.core.home import home
from hotloop.models.memory import INT4_GROUP
from hotloop.models.model import Model
from hotloop.models.spec import ExpertsSpec, ModelSpec, Weights

Array = NDArray[np.float32]
Held = Literal["f32", "bf16", "int8", "int4"]

_FILE_VERSION = 1


@dataclass(frozen=True, slots=True)
class Matrices:
    """One of the matrices of all experts, below each other; `values` is [experts, rows, bytes of a row]."""

    values: NDArray[np.uint8]
    scales: NDArray[np.float16]  # [experts, rows, 1], or of each group
    zeros: NDArray[np.uint8]  # [experts, rows, groups]
    bias: Array | None  # [experts, rows]


@dataclass(frozen=True, slots=True)
class ExpertLayer:
    router: Array  # [experts, hidden]
    router_bias: Array | None  # [experts]
    gate_up: Matrices
    down: Matrices


class Experts(Protocol):
    """What computes them."""

    def run(self, layer: int, x: Array, output: Array) -> None:
        """[tokens, hidden] -> [tokens, hidden]"""


class _Shape(NamedTuple):
    """Of one matrix of an expert, as it is held."""

    num_rows: int
    num_columns: int
    held: Held

    @property
    def row_bytes(self) -> int:
        return {"f32": 8, "bf16": 4, "int8": 2, "int4": 1}[self.held] * self.num_columns // 2

    @property
    def num_scales(self) -> int:
        return {"int8": 1, "int4": self.num_columns // INT4_GROUP}.get(self.held, 0)

    @property
    def num_zeros(self) -> int:
        return self.num_scales if self.held == "int4" else 0


def held_format(spec: ModelSpec, weight_format: WeightFormat) -> Held:
    """int8 in place of int4 where rows are no whole number of groups."""
    assert spec.experts
    assert weight_format != "fp8" and weight_format != "auto" and weight_format != "stored"
    is_even = spec.hidden_size % INT4_GROUP == 0 and spec.experts.size % INT4_GROUP == 0
    return "int8" if weight_format == "int4" and not is_even else weight_format


def load_experts(model: Model, weight_format: WeightFormat) -> dict[int, ExpertLayer]:
    """Of each layer that has them: mapped from the file that was kept, or made, and kept if the disk has room."""
    spec, held = model.spec, held_format(model.spec, weight_format)
    path = home() / "cache" / model.fingerprint / f"experts-{held}-v{_FILE_VERSION}.bin"
    parts = list(_parts(spec, held))
    total = sum(prod(shape) for _, _, shape in parts)
    memory: NDArray[np.uint8] | None = None
    with suppress(OSError):
        if path.exists() and path.stat().st_size == total:
            memory = np.memmap(path, np.uint8, "r")
    if memory is None:
        memory = _make(spec, model.weights, held, path, total)
    views: dict[int, list[NDArray[np.uint8]]] = {}
    begin = 0
    for layer, _, shape in parts:
        views.setdefault(layer, []).append(memory[begin : begin + prod(shape)].reshape(shape))
        begin += prod(shape)
    return {layer: _layer(spec, model.weights, layer, each) for layer, each in views.items()}


def _parts(spec: ModelSpec, held: Held) -> Iterator[tuple[int, str, tuple[int, ...]]]:
    """(layer, matrix, shape in bytes) of what the file holds, in its order."""
    assert spec.experts
    count, size = spec.experts.num_experts, spec.experts.size
    shapes = {"gate_up": _Shape(2 * size, spec.hidden_size, held), "down": _Shape(spec.hidden_size, size, held)}
    for layer in range(spec.experts.num_dense, spec.num_layers):
        for name, shape in shapes.items():
            for width in (shape.row_bytes, 2 * shape.num_scales, shape.num_zeros):
                yield layer, name, (count, shape.num_rows, width)


def _make(spec: ModelSpec, weights: Weights, held: Held, path: Path, total: int) -> NDArray[np.uint8]:
    draft = path.with_name(f"{path.stem}-{os.getpid()}.bin")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        memory: NDArray[np.uint8] = np.memmap(draft, np.uint8, "w+", shape=(total,))
    except OSError:
        memory = np.empty(total, np.uint8)
    _fill(spec, weights, held, memory)
    with suppress(OSError):
        if isinstance(memory, np.memmap):
            memory.flush()
            os.replace(draft, path)
    return memory


def _fill(spec: ModelSpec, weights: Weights, held: Held, memory: NDArray[np.uint8]) -> None:
    begin = 0
    for (layer, name), group in groupby(_parts(spec, held), lambda part: part[:2]):
        rooms = []
        for _, _, shape in group:
            rooms.append(memory[begin : begin + prod(shape)].reshape(shape))
            begin += prod(shape)
        names = ("gate", "up") if name == "gate_up" else ("down",)
        for i in range(len(rooms[0])):
            matrix = np.concatenate([weights.read(f"layers.{layer}.experts.{i}.{each}") for each in names])
            for room, packed in zip(rooms, pack(matrix, held), strict=True):
                room[i] = packed


def pack(matrix: Array, held: Held) -> tuple[NDArray[np.uint8], NDArray[np.uint8], NDArray[np.uint8]]:
    """Values, scales and zero points of each row, all as bytes."""
    rows = len(matrix)
    nothing = np.zeros((rows, 0), np.uint8)
    if held == "f32":
        return np.ascontiguousarray(matrix).view(np.uint8), nothing, nothing
    if held == "bf16":
        bits = np.ascontiguousarray(matrix).view(np.uint32)
        return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16).view(np.uint8), nothing, nothing
    if held == "int8":
        scale = (np.abs(matrix).max(1, keepdims=True) / 127).astype(np.float16)
        scale[scale == 0] = 1
        values = np.clip(np.rint(matrix / scale.astype(np.float32)), -127, 127).astype(np.int8)
        return values.view(np.uint8), scale.view(np.uint8), nothing
    groups = matrix.reshape(rows, -1, INT4_GROUP)
    low, high = np.minimum(groups.min(2), 0), np.maximum(groups.max(2), 0)
    scale = ((high - low) / 15).astype(np.float16)
    scale[scale == 0] = 1
    wide = scale.astype(np.float32)
    zeros = np.clip(np.rint(-low / wide), 0, 15)
    values = np.clip(np.rint(groups / wide[..., None]) + zeros[..., None], 0, 15).astype(np.uint8)
    first, second = np.split(values, 2, axis=2)
    return (first | (second << 4)).reshape(rows, -1), scale.view(np.uint8), zeros.astype(np.uint8)


def unpack(matrices: Matrices, expert: int, held: Held) -> Array:
    """[rows, columns] of one expert."""
    values = matrices.values[expert]
    if held == "f32":
        return values.view(np.float32)
    if held == "bf16":
        return np.left_shift(values.view(np.uint16), 16, dtype=np.uint32).view(np.float32)
    scales = matrices.scales[expert].astype(np.float32)
    if held == "int8":
        return values.view(np.int8) * scales
    packed = values.reshape(len(values), -1, INT4_GROUP // 2)
    numbers = np.concatenate([packed & 15, packed >> 4], axis=2).astype(np.float32)
    return ((numbers - matrices.zeros[expert][..., None]) * scales[..., None]).reshape(len(values), -1)


def _layer(spec: ModelSpec, weights: Weights, layer: int, views: list[NDArray[np.uint8]]) -> ExpertLayer:
    assert spec.experts
    name, experts = f"layers.{layer}.", spec.experts
    biases: list[Array | None] = [None, None]
    if experts.has_bias:
        of_each = [f"{name}experts.{i}." for i in range(experts.num_experts)]
        ups = [np.concatenate([weights.read(f"{each}{part}_bias") for part in ("gate", "up")]) for each in of_each]
        biases = [np.stack(ups), np.stack([weights.read(f"{each}down_bias") for each in of_each])]
    gate_up, down = (
        Matrices(values, scales.view(np.float16), zeros, bias)
        for (values, scales, zeros), bias in zip((views[:3], views[3:]), biases, strict=True)
    )
    router_bias = weights.read(name + "router_bias") if experts.has_router_bias else None
    return ExpertLayer(np.ascontiguousarray(weights.read(name + "router")), router_bias, gate_up, down)


class NumpyExperts:
    """Needs no compiler, and is slower for it. Weights are dequantised, and what they are multiplied with is exact."""

    def __init__(self, spec: ModelSpec, layers: dict[int, ExpertLayer], held: Held) -> None:
        assert spec.experts
        self._spec, self._layers, self._held = spec.experts, layers, held

    def run(self, layer: int, x: Array, output: Array) -> None:
        weights = self._layers[layer]
        scores = chosen_scores(self._spec, x @ weights.router.T, weights.router_bias)
        output[:] = 0
        for expert in np.flatnonzero(scores.any(0)).tolist():
            rows = np.flatnonzero(scores[:, expert])
            both = _product(x[rows], weights.gate_up, expert, self._held)
            mixed = _product(_gated(self._spec, *np.split(both, 2, axis=1)), weights.down, expert, self._held)
            output[rows] += scores[rows, expert, None] * mixed


def chosen_scores(spec: ExpertsSpec, logits: Array, bias: Array | None) -> Array:
    """[tokens, experts]: 0 for those that were not chosen."""
    added = np.float32(0) if bias is None else bias
    scores: Array
    if spec.is_sigmoid:
        scores = np.reciprocal(1 + np.exp(-logits))
        ranks = scores + added
    else:
        ranks = logits + added
        scores = np.exp(ranks - ranks.max(1, keepdims=True))
        scores /= scores.sum(1, keepdims=True)
    ranks = _of_best_groups(spec, ranks)
    order = np.argsort(-ranks, axis=1, kind="stable")[:, : spec.num_chosen]
    chosen = np.zeros_like(scores)
    np.put_along_axis(chosen, order, np.take_along_axis(scores, order, 1), 1)
    total = chosen.sum(1, keepdims=True) if spec.is_normed else np.float32(1)
    return np.asarray(chosen / total * np.float32(spec.scale), np.float32)


def _of_best_groups(spec: ExpertsSpec, ranks: Array) -> Array:
    """Ranks, of the experts of other groups none."""
    if spec.num_groups == 1:
        return ranks
    groups = ranks.reshape(len(ranks), spec.num_groups, -1)
    worth = np.sort(groups, axis=2)[..., -(2 if spec.is_sigmoid else 1) :].sum(2)
    order = np.argsort(-worth, axis=1, kind="stable")[:, spec.num_chosen_groups :]
    others = np.zeros(worth.shape, bool)
    np.put_along_axis(others, order, True, 1)
    return np.where(others[..., None], np.float32(-np.inf), groups).reshape(ranks.shape)


def _product(x: Array, matrices: Matrices, expert: int, held: Held) -> Array:
    product: Array = x @ unpack(matrices, expert, held).T
    return product if matrices.bias is None else product + matrices.bias[expert]


def _gated(spec: ExpertsSpec, gate: Array, up: Array) -> Array:
    if spec.gate_limit is None:
        return gate / (1 + np.exp(-gate)) * up
    limit = np.float32(spec.gate_limit)
    gate, up = np.minimum(gate, limit), np.clip(up, -limit, limit)
    return gate / (1 + np.exp(-np.float32(spec.gate_slope) * gate)) * (up + 1)
