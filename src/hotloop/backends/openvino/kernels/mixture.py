"""The experts of a model by `experts.cpp`, where it can be compiled."""

import ctypes
from functools import cache

import numpy as np
from numpy.typing import NDArray

from hotloop.backends.openvino.experts import (
    ExpertLayer,
    Experts,
    Held,
    Matrices,
    NumpyExperts,
    held_format,
    load_experts,
)
from hotloop.backends.openvino.kernels import load_or_warn
from hotloop.core.config import Precision, WeightFormat
from hotloop.models.model import Model
from hotloop.models.spec import ModelSpec

_FORMATS: dict[Held, int] = {"f32": 0, "bf16": 1, "int8": 2, "int4": 3}


class _Matrix(ctypes.Structure):
    _fields_ = [(name, ctypes.c_void_p) for name in ("values", "scales", "zeros", "bias")]


class _Layer(ctypes.Structure):
    _fields_ = [
        ("router", ctypes.c_void_p),
        ("router_bias", ctypes.c_void_p),
        ("gate_up", _Matrix),
        ("down", _Matrix),
    ]


class _Experts(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_int) for name in ("hidden", "size", "num_experts", "num_chosen", "format")),
        *((name, ctypes.c_int) for name in ("is_exact", "is_sigmoid", "is_normed")),
        *((name, ctypes.c_int) for name in ("num_groups", "num_chosen_groups")),
        *((name, ctypes.c_float) for name in ("scale", "limit", "slope")),
    ]


class NativeExperts:
    """`fast` rounds what int8 and int4 weights are multiplied with to int8 as well."""

    def __init__(
        self, library: ctypes.CDLL, spec: ModelSpec, layers: dict[int, ExpertLayer], held: Held, precision: Precision
    ) -> None:
        experts = spec.experts
        assert experts
        self._library, self._kept = library, layers
        self._spec = _Experts(
            spec.hidden_size, experts.size, experts.num_experts, experts.num_chosen, _FORMATS[held],
            precision == "exact", experts.is_sigmoid, experts.is_normed,
            experts.num_groups, experts.num_chosen_groups,
            experts.scale, experts.gate_limit or 0, experts.gate_slope,
        )  # fmt: skip
        self._layers = {layer: _layer(each) for layer, each in layers.items()}

    def run(self, layer: int, x: NDArray[np.float32], output: NDArray[np.float32]) -> None:
        weights = ctypes.byref(self._layers[layer])
        self._library.experts_run(ctypes.byref(self._spec), weights, len(x), x.ctypes.data, output.ctypes.data)


def open_experts(model: Model, weight_format: WeightFormat, precision: Precision) -> Experts:
    """What computes them quickest here."""
    layers, held = load_experts(model, weight_format), held_format(model.spec, weight_format)
    library = _library()
    if library is None:
        return NumpyExperts(model.spec, layers, held)
    return NativeExperts(library, model.spec, layers, held, precision)


@cache
def _library() -> ctypes.CDLL | None:
    library = load_or_warn("experts", "experts are")
    if library is None:
        return None
    library.experts_run.restype = None
    library.experts_run.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p]
    return library


def _layer(layer: ExpertLayer) -> _Layer:
    return _Layer(_address(layer.router), _address(layer.router_bias), _matrix(layer.gate_up), _matrix(layer.down))


def _matrix(matrices: Matrices) -> _Matrix:
    return _Matrix(*map(_address, (matrices.values, matrices.scales, matrices.zeros, matrices.bias)))


def _address(array: NDArray[np.generic] | None) -> int | None:
    assert array is None or array.flags.c_contiguous
    return None if array is None else array.ctypes.data
