"""Batches on a CPU, a step at a time in C++: our own products around our own attention.

Weights are packed once and held once. The embedding stays in its file, and is read row by row.
"""

import ctypes
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from math import prod

import numpy as np
from numpy.typing import NDArray

from hotloop.backends.backend import Batch
from hotloop.backends.cpu.attention import Attention, Kernel
from hotloop.backends.cpu.base import CpuBackend, describe_kv
from hotloop.backends.cpu.build import has_amx
from hotloop.backends.cpu.cores import num_cores
from hotloop.backends.cpu.library import (
    FLOAT_KINDS,
    GROUP,
    STRIP,
    STRIP_KINDS,
    Array,
    Format,
    Native,
    Part,
    address_of,
)
from hotloop.backends.host import HostCopy
from hotloop.core.config import Precision, WeightFormat
from hotloop.core.errors import BackendError
from hotloop.models.hybrid import HybridWeights
from hotloop.models.layout import each_shape, outer_shapes, tensor_places
from hotloop.models.model import Model
from hotloop.models.spec import AnyStored, LinearSpec, ModelSpec, Stored
from hotloop.models.spec import Weights as ModelWeights

_FLOAT_BITS = {"bf16": 16, "f32": 32}


@dataclass(frozen=True, slots=True)
class Holding:
    """How matrices are held, and multiplied."""

    form: Format | None
    """None: each as its file has it."""
    in_floats: bool = False
    is_narrow: bool = False
    """Whether floats become codes of four bits in place of eight."""

    def form_of(self, stored: object, num_in: int) -> Format:
        """Of one matrix. What is no whole number of groups wide is held in float32."""
        kind = stored.kind if isinstance(stored, Stored) else ""
        form = self.form or ("packed_ggml" if kind in STRIP_KINDS else "bf16" if kind == "BF16" else "f32")
        return "f32" if form == "packed_ggml" and num_in % GROUP else form

    def bits_of(self, stored: object, num_in: int) -> float:
        """What a weight of it takes."""
        form = self.form_of(stored, num_in)
        if form != "packed_ggml":
            return _FLOAT_BITS.get(form, 8)
        kind = stored.kind if isinstance(stored, Stored) else ""
        return STRIP_KINDS[kind][1] if kind in STRIP_KINDS else FLOAT_KINDS["narrow" if self.is_narrow else "F32"][1]

    def __str__(self) -> str:
        names = {"packed_ggml": "int4" if self.is_narrow else "codes", None: "stored"}
        return f"{names.get(self.form, self.form)}{' in floats' if self.in_floats else ''}"


def choose_holding(weight_format: WeightFormat, precision: Precision, *, amx: bool | None = None) -> Holding:
    """Tiles want bytes, and making these of codes in each step takes longer than reading them."""
    amx, is_exact = has_amx() if amx is None else amx, precision == "exact"
    match weight_format:
        case "f32":
            return Holding("f32", in_floats=True)
        case "bf16":
            return Holding("bf16", in_floats=is_exact or not amx)
        case "auto" | "stored" if is_exact:
            return Holding(None, in_floats=True)
        case "auto" | "int8" if amx and not is_exact:
            return Holding("int8")
        case _:
            return Holding("packed_ggml", in_floats=is_exact, is_narrow=weight_format == "int4")


def is_quantised(model: Model) -> bool:
    """Whether a file's own codes can be computed with: those of the largest matrices."""
    stored = _largest(model)
    return isinstance(stored, Stored) and stored.kind in STRIP_KINDS and not stored.shape[1] % GROUP


def _largest(model: Model) -> AnyStored:
    """One of the largest matrices."""
    return model.weights.stored("layers.0.experts.0.gate" if model.spec.has_experts(0) else "layers.0.gate")


def held_bytes(model: Model, holding: Holding) -> int:
    """What all weights take; an embedding that is not the head as well is left in the file. Only files with codes are
    looked at tensor by tensor: of others one shows what all are.
    """
    spec, num_bits, largest = model.spec, 0.0, _largest(model)
    if not is_quantised(model):
        outer = {name: shape for name, shape in outer_shapes(spec).items() if name != "embed" or spec.has_tied_head}
        shapes = [*((name, shape, 1) for name, shape in outer.items()), *each_shape(spec)]
        return int(
            sum(count * prod(shape) * _bits_of(holding, name, shape, largest) for name, shape, count in shapes) / 8
        )
    for place in tensor_places(spec):
        if place.expert or (place.name == "embed" and not spec.has_tied_head):  # of experts the first stands for all
            continue
        count = prod(place.shape) * (spec.experts.num_experts if spec.experts and place.expert == 0 else 1)
        num_bits += count * _bits_of(holding, place.name, place.shape, model.weights.stored(place.name))
    return int(num_bits / 8)


_IN_FLOATS = ("router", "linear_b", "linear_a", "linear_ba", "kv_b")


def _bits_of(holding: Holding, name: str, shape: tuple[int, ...], stored: AnyStored) -> float:
    if len(shape) != 2 or name.endswith(_IN_FLOATS):
        return 32
    if holding.form == "int8" and "experts." in name:
        holding = Holding("packed_ggml")
    return holding.bits_of(stored, shape[1])


def coded(weights: ModelWeights, name: str, *, is_narrow: bool = False) -> Stored:
    """A matrix that strips can be made of: its own codes, else floats."""
    stored = weights.stored(name)
    if isinstance(stored, Stored) and (stored.kind in STRIP_KINDS or (stored.kind in FLOAT_KINDS and not is_narrow)):
        return replace(stored, data=np.ascontiguousarray(stored.data))
    matrix = np.ascontiguousarray(weights.read(name), np.float32)
    return Stored(matrix.view(np.uint8), "narrow" if is_narrow else "F32", matrix.shape)


def parts_of(weights: ModelWeights, names: Sequence[str], *, is_narrow: bool = False) -> list[Stored]:
    """Matrices one below the other, all of the same kind if a strip would have columns of two."""
    parts = [coded(weights, name, is_narrow=is_narrow) for name in names]
    if len({part.kind for part in parts}) > 1 and any(len(part.data) % STRIP for part in parts):
        matrices = [np.ascontiguousarray(weights.read(name), np.float32) for name in names]
        return [Stored(matrix.view(np.uint8), "F32", matrix.shape) for matrix in matrices]
    return parts


class NativeBackend(CpuBackend):
    def __init__(
        self,
        model: Model,
        kv_bytes: int,
        kernel: Kernel,
        *,
        holding: Holding,
        num_workers: int | None = None,
        drops_windows: bool = False,
        meanwhile: Callable[[], object] = lambda: None,
    ) -> None:
        """What is done `meanwhile` has a core to itself while the others pack the weights."""
        if model.spec.linear:
            model = replace(model, weights=HybridWeights(model.weights, model.spec))
        layout = describe_kv(model, str(holding), kernel.name)
        super().__init__(model, kv_bytes, kernel, kv_layout=layout, drops_windows=drops_windows)
        self._states = np.zeros((max(1, self.num_states), self.state_bytes // 4), np.float32)
        with ExitStack() as opened:  # what one that cannot be opened has taken is given back
            opened.callback(super().close)
            library = self._attention.library
            native = Native(num_workers or num_cores(), library)
            opened.callback(native.close)
            self._decoder = Decoder(native, model, holding, self.places)
            opened.callback(self._decoder.close)
            meanwhile()
            native.finish()
            self._opened = opened.pop_all()

    def run(self, batch: Batch) -> NDArray[np.float32]:
        self.plan(batch)
        return self._decoder.step(batch, self._states)

    def read_state(self, slot: int) -> HostCopy:
        return HostCopy(self._states[slot].copy().view(np.uint8).data)

    def write_state(self, slot: int, data: memoryview) -> None:
        self._states[slot] = np.frombuffer(data, np.float32)

    def close(self) -> None:
        self._opened.close()
        self._states = self._states[:0].copy()


_INT, _FLOAT, _POINTER = ctypes.c_int, ctypes.c_float, ctypes.c_void_p
_EXPERT_NUMBERS = ("num_experts", "num_chosen", "size", "is_sigmoid", "is_normed", "num_groups", "num_chosen_groups")
_DELTA_NUMBERS = ("num_key_heads", "num_value_heads", "key_dim", "value_dim", "conv_width")


class _ExpertsShape(ctypes.Structure):
    _fields_ = [
        *((name, _INT) for name in (*_EXPERT_NUMBERS, "shared_size", "has_shared_gate")),
        *((name, _FLOAT) for name in ("scale", "limit", "slope")),
    ]


class _DeltaShape(ctypes.Structure):
    _fields_ = [*((name, _INT) for name in _DELTA_NUMBERS), ("eps", _FLOAT)]


class _Shape(ctypes.Structure):
    _fields_ = [
        *((name, _INT) for name in ("num_layers", "hidden_size", "qkv_size", "mixed_size", "intermediate_size")),
        *((name, _INT) for name in ("vocab_size", "query_size", "q_rank", "kv_rank")),
        ("eps", _FLOAT),
        ("latent_eps", _FLOAT),
        ("experts", _ExpertsShape),
        ("delta", _DeltaShape),
    ]


class _Layer(ctypes.Structure):
    """As `Layer` in decoder.h."""

    _fields_ = [
        *((name, _POINTER) for name in ("attention_norm", "mlp_norm", "attend", "attention")),
        ("index", _INT),
        *((name, _POINTER) for name in ("qkv", "gate", "o", "q_a", "kv_a", "q_a_norm", "kv_a_norm", "rates")),
        *((name, _POINTER) for name in ("taps", "fading", "bias", "linear_norm")),
        ("offset", ctypes.c_size_t),
        *((name, _POINTER) for name in ("gate_up", "down", "router", "router_bias", "gate_ups", "downs")),
        *((name, _POINTER) for name in ("shared_gate_up", "shared_down")),
    ]


class _DeltaBatch(ctypes.Structure):
    _fields_ = [
        ("num_sequences", _INT),
        *((name, _POINTER) for name in ("begins", "slots", "states")),
        ("state_size", ctypes.c_size_t),
    ]


def _shape_of(spec: ModelSpec) -> _Shape:
    qkv_size = (spec.num_heads + 2 * spec.num_kv_heads) * spec.head_dim
    shape = _Shape(spec.num_layers, spec.hidden_size, qkv_size, spec.mixed_size, spec.intermediate_size)
    shape.vocab_size, shape.eps = spec.vocab_size, spec.rms_eps
    if latent := spec.latent:
        shape.query_size, shape.kv_rank = spec.num_heads * spec.head_dim, latent.kv_rank
        shape.q_rank, shape.latent_eps = latent.q_rank or 0, latent.norm_eps
        shape.qkv_size = shape.query_size + latent.width
    if experts := spec.experts:
        numbers = [getattr(experts, name) for name in _EXPERT_NUMBERS]
        limits = experts.scale, experts.gate_limit or 0, experts.gate_slope
        shape.experts = _ExpertsShape(*numbers, experts.shared_size, experts.has_shared_gate, *limits)
    if linear := spec.linear:
        shape.delta = _DeltaShape(*(getattr(linear, name) for name in _DELTA_NUMBERS), spec.rms_eps)
    return shape


class Decoder:
    """A model's weights in the order of products, and steps with them."""

    def __init__(
        self, native: Native, model: Model, holding: Holding, places: dict[int, tuple[Attention, int]]
    ) -> None:
        self._native, self._library, self._holding, self._spec = native, native.library, holding, model.spec
        self._weights, self._places = model.weights, places
        self._kept: list[object] = []  # what C++ reads where it is
        self._handle = self._library.decoder_create(native.handle, ctypes.byref(_shape_of(model.spec)))
        try:
            self._load()
        except BaseException:
            self.close()
            raise
        del self._weights, self._places  # what they keep open is not needed any more

    def step(self, batch: Batch, states: Array) -> NDArray[np.float32]:
        """Logits [logits, vocabulary], once attention knows of the batch."""
        assert (np.diff(batch.logit_rows) > 0).all()
        logits = np.empty((len(batch.logit_rows), self._spec.vocab_size), np.float32)
        ids, logit_rows = (np.ascontiguousarray(each, np.int64) for each in (batch.token_ids, batch.logit_rows))
        slots = None if batch.states is None else np.ascontiguousarray(batch.states, np.int32)
        begins, addresses = np.ascontiguousarray(batch.query_starts, np.int32), (address_of(slots), states.ctypes.data)
        own = _DeltaBatch(len(batch.past_lens), address_of(begins), *addresses, states.shape[1])
        rows = len(ids), address_of(ids), len(logit_rows), address_of(logit_rows)
        if self._library.decoder_step(self._handle, *rows, ctypes.byref(own), address_of(logits)):
            raise BackendError(f"not enough memory for a step of {len(ids)} tokens")
        return logits

    def close(self) -> None:
        self._library.decoder_destroy(self._handle)
        self._kept.clear()

    def _load(self) -> None:
        spec = self._spec
        table = coded(self._weights, "embed")
        self._kept.append(table)
        head = self._pack("embed" if spec.has_tied_head else "head", can_be_narrow=False)
        part = Part.of(table)
        self._library.decoder_set_ends(self._handle, ctypes.byref(part), self._floats("final_norm"), head)
        offset = 0
        for layer in range(spec.num_layers):
            name, own = f"layers.{layer}.", _Layer()
            own.attention_norm, own.mlp_norm = self._floats(name + "attn_norm"), self._floats(name + "mlp_norm")
            if spec.linear and spec.is_linear(layer):
                own.offset = offset
                offset += self._set_linear(own, name, spec.linear)
            else:
                self._set_attention(own, name, *self._places[layer])
            if spec.has_experts(layer):
                self._set_experts(own, name)
            else:
                own.gate_up, own.down = self._pack_gated(name + "gate", name + "up"), self._pack(name + "down")
            self._library.decoder_set_layer(self._handle, layer, ctypes.byref(own))

    def _set_attention(self, own: _Layer, name: str, attention: Attention, index: int) -> None:
        spec = self._spec
        own.attend, own.attention = attention.entry
        own.index = index
        own.o = self._pack(name + "o", has_bias=spec.has_o_bias)
        if not spec.latent:
            own.qkv = self._pack(*(name + each for each in "qkv"), has_bias=spec.has_qkv_bias)
            own.gate = self._pack(name + "q_gate") if spec.linear else None
            return
        own.kv_a, own.kv_a_norm = self._pack(name + "kv_a"), self._floats(name + "kv_a_norm")
        own.qkv = self._pack(name + ("q_b" if spec.latent.q_rank else "q"))
        if spec.latent.q_rank:
            own.q_a, own.q_a_norm = self._pack(name + "q_a"), self._floats(name + "q_a_norm")

    def _set_linear(self, own: _Layer, name: str, linear: LinearSpec) -> int:
        """Rates are never rounded. Returns how many floats of a state the layer has."""
        read = self._weights.read
        own.qkv, own.o = self._pack(name + "linear_qkv", name + "linear_z"), self._pack(name + "linear_o")
        rates = np.concatenate([read(name + each) for each in ("linear_b", "linear_a")])
        own.rates = self._native.pack(rates, "f32").handle
        own.taps = self._keep(read(name + "linear_conv").T)
        own.fading = self._keep(-np.exp(read(name + "linear_a_log")))
        own.bias, own.linear_norm = self._floats(name + "linear_dt_bias"), self._floats(name + "linear_norm")
        return (linear.conv_width - 1) * linear.conv_size + linear.value_size * linear.key_dim

    def _set_experts(self, own: _Layer, name: str) -> None:
        experts = self._spec.experts
        assert experts
        router = self._weights.read(name + "router")
        if experts.has_shared_gate:
            router = np.concatenate([router, self._weights.read(name + "shared_router")])
        own.router = self._native.pack(router, "f32").handle
        own.router_bias = self._floats(name + "router_bias") if experts.has_router_bias else None
        each, bias = [f"{name}experts.{i}." for i in range(experts.num_experts)], experts.has_bias
        gate_ups = [self._pack_gated(one + "gate", one + "up", has_bias=bias, in_rows=True) for one in each]
        downs = [self._pack(one + "down", has_bias=bias, in_rows=True) for one in each]
        own.gate_ups, own.downs = (self._keep(np.array(handles, np.uintp)) for handles in (gate_ups, downs))
        if experts.shared_size:
            own.shared_gate_up = self._pack_gated(name + "shared_gate", name + "shared_up")
            own.shared_down = self._pack(name + "shared_down")

    def _pack_gated(self, *names: str, has_bias: bool = False, in_rows: bool = False) -> int:
        return self._pack(*names, has_bias=has_bias, in_rows=in_rows, is_gated=True)

    def _pack(
        self,
        *names: str,
        has_bias: bool = False,
        is_gated: bool = False,
        in_rows: bool = False,
        can_be_narrow: bool = True,
    ) -> int:
        """Matrices one below the other; in rows: for products of rows that are in no tiles."""
        weights, holding = self._weights, self._holding
        bias = np.concatenate([weights.read(f"{name}_bias") for name in names]) if has_bias else None
        stored = weights.stored(names[0])
        if in_rows and holding.form == "int8":
            holding = Holding("packed_ggml")
        form = holding.form_of(stored, stored.shape[1])
        in_floats = holding.in_floats or (in_rows and form == "bf16")
        own_codes = isinstance(stored, Stored) and stored.kind in STRIP_KINDS and not stored.shape[1] % GROUP
        if form == "packed_ggml" or (form == "int8" and own_codes):
            parts = parts_of(weights, names, is_narrow=holding.is_narrow and can_be_narrow)
            packed = self._native.pack_parts(parts, form, bias=bias, is_gated=is_gated, in_floats=in_floats)
        else:
            matrix = np.concatenate([weights.read(name) for name in names])
            packed = self._native.pack(matrix, form, bias=bias, is_gated=is_gated, in_floats=in_floats)
        return packed.handle

    def _floats(self, name: str) -> int | None:
        return self._keep(self._weights.read(name), np.float32)

    def _keep(self, array: NDArray[np.generic], dtype: type[np.generic] | None = None) -> int | None:
        kept = np.ascontiguousarray(array, dtype)
        self._kept.append(kept)
        return address_of(kept)
