"""Batches on a CPU, a step at a time in C++: our own matmuls around our own attention.

Weights are packed once and held once: the embedding is read out of the packed head, where a model ties the two, or
out of its file, where weights are codes.
"""

import ctypes
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from math import prod

import numpy as np
from numpy.typing import NDArray

from hotloop.backends.backend import Batch, prompt_batch
from hotloop.backends.cpu.attention import BLOCK_SIZE, Kernel, NativeAttention
from hotloop.backends.cpu.base import KernelBackend, describe_kv
from hotloop.backends.cpu.cores import num_cores
from hotloop.backends.cpu.library import (
    GROUP,
    STRIP,
    STRIP_KINDS,
    Array,
    Format,
    Native,
    Part,
    Weights,
    address_of,
)
from hotloop.core.errors import BackendError
from hotloop.models.gguf import quantise
from hotloop.models.layout import tensor_places
from hotloop.models.model import Model
from hotloop.models.spec import ModelSpec, Stored
from hotloop.models.spec import Weights as ModelWeights


def why_not(spec: ModelSpec) -> str | None:
    """What of a model is left to OpenVINO; None if nothing is."""
    missing = {"experts": spec.experts, "linear attention": spec.linear, "latents": spec.latent}
    return next((what for what, is_there in missing.items() if is_there), None)


class NativeBackend(KernelBackend):
    def __init__(
        self, model: Model, kv_bytes: int, kernel: Kernel, *, form: Format, num_workers: int | None = None
    ) -> None:
        assert why_not(model.spec) is None
        layout = describe_kv(model, "native", form, kernel.name)
        super().__init__(model, kv_bytes, kernel, kv_layout=layout)
        assert isinstance(self._attention, NativeAttention)
        self._library = self._attention.library
        with ExitStack() as opened:  # what one that cannot be opened has taken is given back
            opened.callback(super().close)
            native = Native(num_workers or num_cores(), self._library)
            opened.callback(native.close)
            self._decoder = Decoder(native, model.spec, form, self._attention)
            opened.callback(self._decoder.close)
            self._decoder.load(model)
            self.run(prompt_batch(1, BLOCK_SIZE))
            self._opened = opened.pop_all()

    def run(self, batch: Batch) -> NDArray[np.float32]:
        self.plan(batch)
        return self._decoder.step(batch)

    def close(self) -> None:
        self._opened.close()


def are_quantised(model: Model) -> bool:
    """Whether a file's own codes can be computed with: those of the largest matrices, and rows are whole groups."""
    spec = model.spec
    if why_not(spec) or any(size % GROUP for size in (spec.hidden_size, spec.mixed_size, spec.intermediate_size)):
        return False
    stored = model.weights.stored("layers.0.gate")
    return isinstance(stored, Stored) and stored.kind in STRIP_KINDS


def strips_bytes(model: Model) -> int:
    """What all matrices take as strips; an embedding that is not the head as well is left in the file."""
    num_bits = 0.0
    for place in tensor_places(model.spec):
        if len(place.shape) == 2 and (place.name != "embed" or model.spec.has_tied_head):
            kind = model.weights.stored(place.name).kind
            num_bits += prod(place.shape) * STRIP_KINDS.get(kind, STRIP_KINDS["Q8_0"])[1]
    return int(num_bits / 8)


def coded(weights: ModelWeights, name: str) -> Stored:
    """A matrix in codes that strips can be made of: its own, else bytes in groups of 32."""
    stored = weights.stored(name)
    if isinstance(stored, Stored) and stored.kind in STRIP_KINDS:
        return replace(stored, data=np.ascontiguousarray(stored.data))
    return quantise(weights.read(name))


def parts_of(weights: ModelWeights, names: Sequence[str]) -> list[Stored]:
    """Matrices one below the other, all in the same codes if a strip would have columns of two."""
    parts = [coded(weights, name) for name in names]
    if len({part.kind for part in parts}) > 1 and any(len(part.data) % STRIP for part in parts):
        return [quantise(weights.read(name)) for name in names]
    return parts


class _Shape(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_int) for name in ("num_layers", "hidden_size", "qkv_size", "mixed_size")),
        ("intermediate_size", ctypes.c_int),
        ("vocab_size", ctypes.c_int),
        ("eps", ctypes.c_float),
    ]


class Decoder:
    """A model's weights in the order of tiles, and steps with them."""

    def __init__(self, native: Native, spec: ModelSpec, form: Format, attention: NativeAttention) -> None:
        self._native, self._library, self._form, self._spec = native, native.library, form, spec
        self._norms: list[Array] = []  # read where they are
        self._table: Stored | None = None
        qkv_size = (spec.num_heads + 2 * spec.num_kv_heads) * spec.head_dim
        sizes = (spec.num_layers, spec.hidden_size, qkv_size, spec.mixed_size, spec.intermediate_size)
        shape = _Shape(*sizes, spec.vocab_size, spec.rms_eps)
        self._handle = self._library.decoder_create(native.handle, ctypes.byref(shape), *attention.entry)

    def load(self, model: Model) -> None:
        spec, norm = self._spec, self._norm(model, "final_norm")
        # Of codes the embedding stays where it is, and as it is.
        if self._form == "packed_ggml" or (self._form == "int8" and are_quantised(model)):
            self._table = coded(model.weights, "embed")
            self._library.decoder_set_table(self._handle, ctypes.byref(Part.of(self._table)))
            embed = head = self._pack(model, "embed" if spec.has_tied_head else "head")
        else:
            embed = self._pack(model, "embed")
            head = embed if spec.has_tied_head else self._pack(model, "head")
        self._library.decoder_set_ends(self._handle, embed.handle, norm, head.handle)
        for layer in range(spec.num_layers):
            self._set_layer(model, layer)

    def step(self, batch: Batch) -> NDArray[np.float32]:
        """Logits [logits, vocabulary], once attention knows of the batch."""
        assert (np.diff(batch.logit_rows) > 0).all()
        logits = np.empty((len(batch.logit_rows), self._spec.vocab_size), np.float32)
        ids, logit_rows = (np.ascontiguousarray(each, np.int64) for each in (batch.token_ids, batch.logit_rows))
        has_failed = self._library.decoder_step(
            self._handle, len(ids), address_of(ids), len(logit_rows), address_of(logit_rows), address_of(logits)
        )
        if has_failed:
            raise BackendError(f"not enough memory for a step of {len(ids)} tokens")
        return logits

    def close(self) -> None:
        self._library.decoder_destroy(self._handle)
        self._norms.clear()
        self._table = None

    def _set_layer(self, model: Model, layer: int) -> None:
        spec, name = self._spec, f"layers.{layer}."
        qkv = self._pack(model, *(name + each for each in "qkv"), has_bias=spec.has_qkv_bias)
        o = self._pack(model, name + "o", has_bias=spec.has_o_bias)
        gate_up = self._pack(model, name + "gate", name + "up", is_gated=True)
        down = self._pack(model, name + "down")
        norms = [self._norm(model, name + each) for each in ("attn_norm", "mlp_norm")]
        parts = (norms[0], qkv.handle, o.handle, norms[1], gate_up.handle, down.handle)
        self._library.decoder_set_layer(self._handle, layer, *parts)

    def _pack(self, model: Model, *names: str, has_bias: bool = False, is_gated: bool = False) -> Weights:
        bias = np.concatenate([model.weights.read(f"{name}_bias") for name in names]) if has_bias else None
        if self._table:  # of codes, as all matrices then are
            return self._native.pack_parts(parts_of(model.weights, names), self._form, bias=bias, is_gated=is_gated)
        matrix = np.concatenate([model.weights.read(name) for name in names])
        return self._native.pack(matrix, self._form, bias=bias, is_gated=is_gated)

    def _norm(self, model: Model, name: str) -> int | None:
        self._norms.append(np.ascontiguousarray(model.weights.read(name), np.float32))
        return address_of(self._norms[-1])
