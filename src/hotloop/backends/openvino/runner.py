"""Which CPU backend: our own attention where the hardware and the asked precision allow it, else OpenVINO's."""

import os

import openvino as ov

from hotloop.backends.backend import Backend
from hotloop.backends.openvino.amx import AmxBackend
from hotloop.backends.openvino.native import HEAD_DIMS, load_native
from hotloop.backends.openvino.paged import PagedBackend
from hotloop.core.config import EngineConfig, Precision, WeightFormat
from hotloop.core.errors import ConfigError
from hotloop.models.model import Model


def open_backend(
    model: Model,
    config: EngineConfig,
    *,
    weight_format: WeightFormat = "int8",
    precision: Precision = "fast",
) -> Backend:
    """The quickest backend of that precision on this machine, its KV sized from the memory budget."""
    kv_bytes, kv = config.kv_memory_bytes, config.kv_precision
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if kv_bytes > memory_bytes:
        raise ConfigError(
            f"kv_memory {config.kv_memory} is more than this machine's {memory_bytes >> 20} MiB of memory"
        )
    if precision == "exact":
        kv_precision = "f32" if kv == "auto" else kv
        return PagedBackend(model, kv_bytes, weight_format=weight_format, inference="f32", kv_precision=kv_precision)
    if kv in ("auto", "bf16") and model.spec.head_dim in HEAD_DIMS and (library := load_native()):
        return AmxBackend(model, kv_bytes, library, weight_format=weight_format)
    has_bf16 = "BF16" in ov.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
    inference = "bf16" if has_bf16 else "f32"
    kv_precision = ("bf16" if has_bf16 else "f16") if kv == "auto" else kv
    if kv_precision == "f32" and inference == "bf16":
        raise ConfigError("kv_precision f32 goes with precision exact: computing in bf16 gains nothing from it")
    return PagedBackend(model, kv_bytes, weight_format=weight_format, inference=inference, kv_precision=kv_precision)
