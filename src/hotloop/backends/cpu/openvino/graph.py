"""A transformer as an OpenVINO graph: plain operations in, an `ov.Model` out. Knows nothing of blocks or batches.

One decoder, two ways to attend. `PagedStyle` writes attention in the shape OpenVINO's paged-attention pass looks for (a
cache that is read, gathered, appended to and repeated for grouped heads, then scaled-dot-product attention).
`PlaceholderStyle` leaves a marked placeholder, from the fused projection to the mixed heads, that the runner fills with
our kernel; a graph with a placeholder can be saved, one with a kernel cannot. Experts are such a placeholder in either,
and so is linear attention.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import openvino as ov
import openvino.opset6 as op6
import openvino.opset13 as op
from numpy.typing import NDArray
from openvino import Node
from openvino.op.util import Variable, VariableInfo

from hotloop.core.config import WeightFormat
from hotloop.models.memory import INT4_GROUP
from hotloop.models.rope import rotary_frequencies
from hotloop.models.spec import ModelSpec, Weights

PLACEHOLDER = "attention."
EXPERTS_PLACEHOLDER = "experts."
LINEAR_PLACEHOLDER = "linear."


class Style(Protocol):
    """How attention is written: its parameters, and the way from q, k and v, fused, to the mixed heads."""

    parameters: list[Node]
    sinks: list[Node]

    def attend(self, layer: int, qkv: Node) -> Node: ...


@dataclass(frozen=True, slots=True)
class DecoderGraph:
    """Everything but attention; shapes are [..., features], whatever the style puts before."""

    spec: ModelSpec
    weights: Weights
    weight_format: WeightFormat
    style: Style

    def build(self) -> ov.Model:
        """The whole model, from the style's `input_ids` to logits."""
        embedding = compress(self.weights.read("embed"), self.weight_format, is_lookup=True)
        input_ids = self.style.parameters[0]
        x = op.gather(embedding, op.convert(input_ids, "i32"), _axis(0))
        for layer in range(self.spec.num_layers):
            x = self._layer(layer, x)
        x = norm(x, self.weights.read("final_norm"), self.spec.rms_eps)
        head = embedding if self.spec.has_tied_head else self._matrix("head")
        logits = op.matmul(x, head, False, True)
        return ov.Model([op.result(logits)], self.style.sinks, self.style.parameters, self.spec.family)

    def _layer(self, layer: int, x: Node) -> Node:
        name = f"layers.{layer}."
        h = norm(x, self.weights.read(name + "attn_norm"), self.spec.rms_eps)
        x = op.add(x, self._mixer(layer)(layer, h))
        h = norm(x, self.weights.read(name + "mlp_norm"), self.spec.rms_eps)
        experts = self.spec.experts
        if experts is None or not self.spec.has_experts(layer):
            return op.add(x, self._mlp(name, h, self.spec.intermediate_size))
        placeholder = op.slice(h, _ints(0), _ints(self.spec.hidden_size), _ints(1), _ints(-1))
        placeholder.set_friendly_name(f"{EXPERTS_PLACEHOLDER}{layer}")
        if experts.shared_size:
            shared = self._mlp(name + "shared_", h, experts.shared_size)
            if experts.has_shared_gate:
                router = op.constant(self._read(name + "shared_router"))
                logit = op.reduce_sum(op.multiply(h, router), _ints(-1), True)  # a matmul's sum depends on other rows
                shared = op.multiply(shared, op.sigmoid(logit))
            x = op.add(x, shared)
        return op.add(x, placeholder)

    def _mixer(self, layer: int) -> Callable[[int, Node], Node]:
        """What a layer has before its MLP."""
        if self.spec.is_linear(layer):
            return self._linear
        return self._latent if self.spec.latent else self._attention

    def _attention(self, layer: int, h: Node) -> Node:
        name = f"layers.{layer}."
        gate = [name + "q_gate"] if self.spec.linear else []
        qkv = op.matmul(h, self._matrix(name + "q", name + "k", name + "v", *gate), False, True)
        if self.spec.has_qkv_bias:
            qkv = op.add(qkv, op.constant(self._read(name + "q_bias", name + "k_bias", name + "v_bias")))
        if gate:
            heads = self.spec.num_heads, 2 * self.spec.num_kv_heads
            sizes = _ints(sum(heads) * self.spec.head_dim, heads[0] * self.spec.head_dim)
            qkv, gates = op.variadic_split(qkv, _axis(-1), sizes).outputs()
        mixed = self.style.attend(self.spec.kv_layers.index(layer), qkv)
        if gate:
            mixed = op.multiply(mixed, op.sigmoid(gates))
        out = op.matmul(mixed, self._matrix(name + "o"), False, True)
        return op.add(out, op.constant(self._read(name + "o_bias"))) if self.spec.has_o_bias else out

    def _latent(self, layer: int, h: Node) -> Node:
        """Queries, latents and rotary keys go into the placeholder; the kernel makes keys and values of latents."""
        spec, latent, name = self.spec, self.spec.latent, f"layers.{layer}."
        assert latent
        first, width = ("q_a", latent.q_rank) if latent.q_rank else ("q", spec.num_heads * spec.head_dim)
        fused = op.matmul(h, self._matrix(name + first, name + "kv_a"), False, True)
        parts = op.variadic_split(fused, _axis(-1), _ints(width, latent.kv_rank, latent.rope_dim))
        q, kept, keys = parts.outputs()
        if latent.q_rank:
            q = norm(q, self.weights.read(name + "q_a_norm"), latent.norm_eps)
            q = op.matmul(q, self._matrix(name + "q_b"), False, True)
        kept = norm(kept, self.weights.read(name + "kv_a_norm"), latent.norm_eps)
        mixed = self.style.attend(layer, op.concat([q, kept, keys], -1))
        return op.matmul(mixed, self._matrix(name + "o"), False, True)

    def _linear(self, layer: int, h: Node) -> Node:
        """A placeholder from the projections, of which those for decay and writing are never compressed, to `o`."""
        assert self.spec.linear
        name = f"layers.{layer}."
        fused = op.matmul(h, self._matrix(name + "linear_qkv", name + "linear_z"), False, True)
        rates = op.matmul(h, op.constant(self._read(name + "linear_b", name + "linear_a")), False, True)
        width = self.spec.linear.value_size
        placeholder = op.slice(op.concat([fused, rates], -1), _ints(0), _ints(width), _ints(1), _ints(-1))
        placeholder.set_friendly_name(f"{LINEAR_PLACEHOLDER}{self.spec.linear.layers.index(layer)}")
        return op.matmul(placeholder, self._matrix(name + "linear_o"), False, True)

    def _mlp(self, name: str, x: Node, size: int) -> Node:
        fused = op.matmul(x, self._matrix(name + "gate", name + "up"), False, True)
        gate, up = op.variadic_split(fused, _axis(-1), _ints(size, size)).outputs()
        return op.matmul(op.multiply(op.swish(gate), up), self._matrix(name + "down"), False, True)

    def _matrix(self, *names: str) -> Node:
        return compress(self._read(*names), self.weight_format)

    def _read(self, *names: str) -> NDArray[np.float32]:
        tensors = [self.weights.read(name) for name in names]
        return tensors[0] if len(tensors) == 1 else np.concatenate(tensors)


class PlaceholderStyle:
    """A row per token. Attention is a placeholder, marked by its name; unfilled, it passes queries through."""

    def __init__(self, spec: ModelSpec) -> None:
        self.parameters = [parameter("input_ids", [-1], np.int64)]
        self.sinks: list[Node] = []
        self._width = spec.mixed_size

    def attend(self, layer: int, qkv: Node) -> Node:
        placeholder = op.slice(qkv, _ints(0), _ints(self._width), _ints(1), _ints(1))
        placeholder.set_friendly_name(f"{PLACEHOLDER}{layer}")
        return placeholder


class PagedStyle:
    """[batch, length] as the pass expects it, with the mask and the beam index it will remove again."""

    def __init__(self, spec: ModelSpec, weights: Weights) -> None:
        self.spec = spec
        self.weights = weights
        input_ids = parameter("input_ids", [-1, -1], np.int64)
        mask = parameter("attention_mask", [-1, -1], np.int64)
        position_ids = parameter("position_ids", [-1, -1], np.int64)
        self.beam_idx = parameter("beam_idx", [-1], np.int32)
        self.parameters = [input_ids, mask, position_ids, self.beam_idx]
        self.sinks: list[Node] = []
        self.batch = op.gather(op.shape_of(input_ids), _ints(0), _axis(0))
        self.mask = op.convert(op.unsqueeze(op.unsqueeze(mask, _axis(1)), _axis(1)), "f32")
        self.cos, self.sin = self._rotary_tables(position_ids)

    def attend(self, layer: int, qkv: Node) -> Node:
        spec, name = self.spec, f"layers.{layer}."
        q, k, v = self._split(qkv)
        if spec.has_qk_norm:
            q = norm(q, self.weights.read(name + "q_norm"), spec.rms_eps)
            k = norm(k, self.weights.read(name + "k_norm"), spec.rms_eps)
        q, k, v = (op.transpose(part, _ints(0, 2, 1, 3)) for part in (q, k, v))
        keys, values = self._remember(name + "key", self._rotate(k)), self._remember(name + "value", v)
        mixed = op.scaled_dot_product_attention(self._rotate(q), keys, values, self.mask)
        mixed = op.transpose(mixed, _ints(0, 2, 1, 3))
        return op.reshape(mixed, _ints(0, 0, spec.num_heads * spec.head_dim), True)

    def _split(self, qkv: Node) -> list[Node]:
        """Each as [batch, length, heads, head_dim]."""
        counts = (self.spec.num_heads, self.spec.num_kv_heads, self.spec.num_kv_heads)
        parts = op.variadic_split(qkv, _axis(-1), _ints(*(count * self.spec.head_dim for count in counts))).outputs()
        shapes = (_ints(0, 0, count, self.spec.head_dim) for count in counts)
        return [op.reshape(part, shape, True) for part, shape in zip(parts, shapes, strict=True)]

    def _rotary_tables(self, position_ids: Node) -> tuple[Node, Node]:
        """cos and sin of every position's angles, [batch, 1, length, head_dim]."""
        inverse = rotary_frequencies(self.spec).reshape(1, -1, 1)
        shape = op.concat([self.batch, _ints(inverse.shape[1], 1)], 0)
        positions = op.convert(op.unsqueeze(position_ids, _axis(1)), "f32")
        angles = op.matmul(op.broadcast(op.constant(inverse), shape), positions, False, False)
        angles = op.transpose(angles, _ints(0, 2, 1))
        angles = op.concat([angles, angles], -1)
        tables = op.unsqueeze(op.cos(angles), _axis(1)), op.unsqueeze(op.sin(angles), _axis(1))
        scaling = self.spec.rope_scaling
        if scaling is None or scaling.magnitude == 1:
            return tables
        magnitude = op.constant(np.float32(scaling.magnitude))
        return op.multiply(tables[0], magnitude), op.multiply(tables[1], magnitude)

    def _rotate(self, x: Node) -> Node:
        half = self.spec.head_dim // 2
        first = op.slice(x, _ints(0), _ints(half), _ints(1), _ints(3))
        second = op.slice(x, _ints(half), _ints(2**31 - 1), _ints(1), _ints(3))
        minus_one = op.constant(np.full((1, 1, 1, 1), -1, np.float32))
        turned = op.concat([op.multiply(second, minus_one), first], -1)
        return op.add(op.multiply(x, self.cos), op.multiply(turned, self.sin))

    def _remember(self, name: str, x: Node) -> Node:
        """Append x to the cache of that name and repeat it to one key or value head per query head."""
        spec = self.spec
        info = VariableInfo()
        info.data_shape = ov.PartialShape([-1, spec.num_kv_heads, -1, spec.head_dim])
        info.data_type = ov.Type.f32
        info.variable_id = name
        cache = Variable(info)
        empty_shape = op.concat([self.batch, _ints(spec.num_kv_heads, 0, spec.head_dim)], 0)
        past = op6.read_value(op.broadcast(op.constant(np.float32(0)), empty_shape), cache)
        full = op.concat([op.gather(past, self.beam_idx, _axis(0)), x], -2)
        self.sinks.append(op6.assign(full, cache))
        if spec.num_heads == spec.num_kv_heads:
            return full
        shape = op.shape_of(full)
        batch, length = (op.gather(shape, _ints(i), _axis(0)) for i in (0, 2))
        group = spec.num_heads // spec.num_kv_heads
        wide_shape = op.concat([batch, _ints(spec.num_kv_heads, group), length, _ints(spec.head_dim)], 0)
        wide = op.broadcast(op.unsqueeze(full, _axis(2)), wide_shape, "BIDIRECTIONAL")
        return op.reshape(wide, _ints(0, spec.num_heads, -1, spec.head_dim), True)


def norm(x: Node, weight: NDArray[np.float32], eps: float) -> Node:
    """RMS norm over the last axis, in the shape the plugin fuses."""
    mean = op.reduce_mean(op.power(x, op.constant(np.float32(2))), _ints(-1), True)
    scale = op.divide(op.constant(np.float32(1)), op.sqrt(op.add(mean, op.constant(np.float32(eps)))))
    return op.multiply(op.constant(weight), op.multiply(x, scale))


def parameter(name: str, shape: Sequence[int], dtype: type[np.generic]) -> Node:
    """The pass finds parameters by friendly name, requests by tensor name: set both."""
    node = op.parameter(shape, dtype, name)
    node.set_friendly_name(name)
    node.output(0).get_tensor().set_names({name})
    return node


def gather_logit_rows(graph: ov.Model) -> None:
    """Pick the rows with logits before the vocabulary matmul: a long chunk needs one row of logits, not thousands."""
    node = graph.outputs[0].get_node().input_value(0).get_node()
    while node.get_type_name() != "MatMul":
        node = node.input_value(0).get_node()
    logit_rows = parameter("logit_rows", [-1], np.int64)
    rows = op.gather(node.input_value(0), logit_rows, _axis(0))
    node.input(0).replace_source_output(rows.output(0))
    graph.add_parameters([logit_rows])
    graph.validate_nodes_and_infer_types()


def divide_by_roots(graph: ov.Model) -> None:
    """x * (1 / root) of a norm as x / root: an eighth of the time of a prompt.

    The plugin would compute the former, and the latter if it were not told to leave it, with a call of powf a number.
    The one for x86 fuses a norm as it is.
    """
    for node in graph.get_ordered_ops():
        if node.get_type_name() == "Divide":
            [factor] = node.output(0).get_target_inputs()
            product = factor.get_node()
            quotient = op.divide(product.input_value(0), node.input_value(1))
            quotient.get_rt_info()["nonconvertable_divide_0"] = True
            for target in product.output(0).get_target_inputs():
                target.replace_source_output(quotient.output(0))
    graph.validate_nodes_and_infer_types()


def _ints(*values: int) -> Node:
    return op.constant(np.array(values, np.int64))


def _axis(value: int) -> Node:
    return op.constant(np.int32(value))


def compress(matrix: NDArray[np.float32], weight_format: WeightFormat, *, is_lookup: bool = False) -> ov.Node:
    """A [rows, columns] matrix as a float32 node. A lookup table (the embedding) is never held below int8.

    Compressed ones are Constant -> Convert -> Multiply, which the CPU plugin keeps compressed in memory and unpacks
    inside the matmul. A constant must not share memory with its tensor, which only borrows that of an array.
    """
    if weight_format == "int4" and not is_lookup and matrix.shape[1] % INT4_GROUP == 0:
        return _int4(matrix)
    if weight_format in ("int8", "int4"):
        return _int8(matrix)
    if weight_format == "bf16":
        return op.convert(_bf16(matrix), "f32")
    return op.constant(matrix)


def _int8(matrix: NDArray[np.float32]) -> ov.Node:
    scale = (np.abs(matrix).max(1, keepdims=True) / 127).astype(np.float16)
    scale[scale == 0] = 1
    quantised = np.clip(np.rint(matrix / scale.astype(np.float32)), -127, 127).astype(np.int8)
    return op.convert(op.multiply(op.convert(op.constant(quantised), "f16"), op.constant(scale)), "f32")


def _int4(matrix: NDArray[np.float32]) -> ov.Node:
    """Asymmetric, one scale and zero point for each group of a row."""
    rows, columns = matrix.shape
    groups = matrix.reshape(rows, columns // INT4_GROUP, INT4_GROUP)
    low, high = groups.min(2, keepdims=True), groups.max(2, keepdims=True)
    low, high = np.minimum(low, 0), np.maximum(high, 0)
    scale = ((high - low) / 15).astype(np.float16)
    scale[scale == 0] = 1
    zero = np.clip(np.rint(-low / scale.astype(np.float32)), 0, 15)
    quantised = np.clip(np.rint(groups / scale.astype(np.float32)) + zero, 0, 15)
    shifted = op.subtract(op.convert(_u4(quantised), "f16"), op.convert(_u4(zero), "f16"))
    unpacked = op.reshape(op.multiply(shifted, op.constant(scale)), op.constant(np.array([rows, columns])), False)
    return op.convert(unpacked, "f32")


def _u4(values: NDArray[np.float32]) -> ov.Node:
    """Two values a byte, the first in the low half, as OpenVINO packs u4."""
    flat = values.astype(np.uint8).reshape(-1)
    if flat.size % 2:
        flat = np.append(flat, np.uint8(0))
    packed = flat[0::2] | (flat[1::2] << 4)
    return op.constant(ov.Tensor(packed, ov.Shape(values.shape), ov.Type.u4), shared_memory=False)


def _bf16(matrix: NDArray[np.float32]) -> ov.Node:
    """Rounded to nearest even by hand: numpy has no bfloat16."""
    bits = matrix.view(np.uint32)
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return op.constant(ov.Tensor(rounded, ov.Shape(matrix.shape), ov.Type.bf16), shared_memory=False)
