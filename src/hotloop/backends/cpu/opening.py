"""Which CPU backend: the native decoder where the hardware, the model and the asked precision allow it, else OpenVINO's
graphs, with our own attention where that can be, or there is no other.
"""

import logging
import platform
from dataclasses import replace
from typing import Literal

import numpy as np

from hotloop.backends.backend import Backend
from hotloop.backends.cpu.attention import AMX_HEAD_DIMS, Kernel, load_portable, numpy_kernel
from hotloop.backends.cpu.base import CpuBackend
from hotloop.backends.cpu.build import BUILD_ERRORS, cpu_features, has_amx
from hotloop.backends.cpu.decoder import NativeBackend, are_quantised, strips_bytes, why_not
from hotloop.backends.cpu.library import Format, KvType, load_kernel
from hotloop.core.config import EngineConfig, KvPrecision, Precision, WeightFormat, parse_bytes
from hotloop.core.errors import ConfigError
from hotloop.models.memory import available_bytes, check_fits_cpu, weight_bytes, without_experts
from hotloop.models.model import Model
from hotloop.models.spec import ModelSpec

log = logging.getLogger(__name__)

_RUNTIME_BYTES = 256 << 20

_DTYPES: dict[KvPrecision, type[np.floating]] = {"f32": np.float32, "f16": np.float16}
_CPP_TYPES: dict[KvPrecision, KvType] = {"f32": "float", "f16": "half", "int8": "int8_t"}
_TILE_TYPES: dict[KvPrecision, KvType] = {"auto": "bf16", "bf16": "bf16", "int8": "byte_tiles"}

Kind = Literal["native", "paged", "portable"]


def open_cpu(
    model: Model,
    config: EngineConfig,
    *,
    weight_format: WeightFormat = "auto",
    precision: Precision = "fast",
    drops_windows: bool = False,
) -> Backend:
    """The quickest backend of that precision on this machine, its KV sized from the memory budget."""
    if model.spec.family == "transformers":
        raise ConfigError(f"{model.name} is of an architecture that runs on a GPU only, by transformers")
    if weight_format == "fp8":
        raise ConfigError("weights fp8 are for a GPU: on a CPU they can be stored, int8, int4, bf16 or f32")
    kv_bytes, kv = parse_bytes(config.kv_memory), config.kv_precision
    spec, form = model.spec, _native_form(model, weight_format)
    _check_kv(spec, kv, precision)
    obstacle = why_not_native(model, config, weight_format, precision)
    if form and obstacle is None:
        _check_memory(model, config, "stored" if form == "packed_ggml" else form, precision, "native")
        return NativeBackend(model, kv_bytes, load_kernel(_kv_type(spec, config)), form=form)
    if config.cpu_backend == "native":
        raise ConfigError(f"cpu_backend native is not supported: {obstacle}")
    if weight_format == "stored":
        raise ConfigError(f"weights stored is not supported: {obstacle}")
    if weight_format == "auto":
        weight_format = "int8"
    return _open_openvino(model, kv_bytes, config, weight_format, precision, drops_windows)


def _open_openvino(
    model: Model,
    kv_bytes: int,
    config: EngineConfig,
    weight_format: WeightFormat,
    precision: Precision,
    drops_windows: bool,
) -> Backend:
    from hotloop.backends.cpu.openvino.paged import PagedBackend  # noqa: PLC0415 - half a second, and not for everyone
    from hotloop.backends.cpu.openvino.placeholder import PortableBackend  # noqa: PLC0415

    spec, kv = model.spec, config.kv_precision
    if not _has_paged_attention() or spec.windows or spec.has_sinks or spec.linear or spec.latent:
        portable = _portable_kernel(kv, precision)
        _check_memory(model, config, weight_format, precision, "portable")
        return PortableBackend(
            model, kv_bytes, portable, weight_format=weight_format, precision=precision, drops_windows=drops_windows
        )
    _check_memory(model, config, weight_format, precision, "paged")
    return PagedBackend(model, kv_bytes, weight_format=weight_format, precision=precision, kv_precision=kv)


def _check_kv(spec: ModelSpec, kv_precision: KvPrecision, precision: Precision) -> None:
    if kv_precision == "fp8":
        raise ConfigError("kv_precision fp8 is for a GPU: on a CPU it can be bf16, f16, f32 or int8")
    if kv_precision == "int8" and precision == "exact":
        raise ConfigError("kv_precision=int8 cannot be combined with precision=exact")
    if kv_precision == "int8" and spec.latent:
        raise ConfigError("kv_precision int8 is not to be had with latent attention (MLA), whose KV is small")


def _native_form(model: Model, weight_format: WeightFormat) -> Format | None:
    """How the native decoder would hold the weights; None if it cannot."""
    match weight_format:
        case "auto":  # tiles want bytes, and making these of codes in each step takes longer than reading them
            return "packed_ggml" if are_quantised(model) and not has_amx() else "int8"
        case "stored":
            return "packed_ggml" if are_quantised(model) else None
        case "int8" | "bf16":
            return weight_format
        case _:
            return None


def why_not_native(model: Model, config: EngineConfig, weight_format: WeightFormat, precision: Precision) -> str | None:
    """What keeps the native decoder from being used, which was measured to be the quicker one; None if nothing does."""
    spec, form = model.spec, _native_form(model, weight_format)
    if not has_amx() and form != "packed_ggml":
        return "this CPU has no AMX, without which the native decoder wants weights as a quantised GGUF file has them"
    if not has_amx() and not has_dot_products():
        return "this CPU has no int8 dot-product instructions (AVX2, or ARM's dot products)"
    obstacles = {
        "cpu_backend is openvino": config.cpu_backend == "openvino",
        f"precision is {precision}": precision != "fast",
        f"weights are {weight_format}": form is None and weight_format != "stored",
        "the model's matrices are not quantised, or not in a kind that it knows": form is None,
        f"kv_precision is {config.kv_precision}": config.kv_precision not in ("auto", "bf16", *_CPP_TYPES),
        "kv_precision bf16 needs AMX and heads of 64, 96 or 128 dimensions": config.kv_precision == "bf16"
        and not _has_amx_attention(spec),
        f"the model has {why_not(spec)}": why_not(spec),
        "the model has sliding windows": spec.windows,
        "the model has attention sinks": spec.has_sinks,
    }
    found = next((what for what, is_there in obstacles.items() if is_there), None)
    if found is None:
        try:
            load_kernel(_kv_type(spec, config))
        except BUILD_ERRORS as error:
            found = f"it could not be built: {error}"
    return found


def has_dot_products() -> bool:
    """Of bytes, as quick as strips need them to be: AVX2's do, and AVX-512 and VNNI are better still."""
    needs = {"aarch64": {"asimddp"}, "x86_64": {"avx2", "f16c", "fma"}}.get(platform.machine())
    return needs is not None and needs <= cpu_features()


def _has_amx_attention(spec: ModelSpec) -> bool:
    return has_amx() and spec.head_dim in AMX_HEAD_DIMS


def _kv_type(spec: ModelSpec, config: EngineConfig) -> KvType:
    """What the native decoder holds keys and values in: as tiles where it can be, else for the portable attention."""
    if _has_amx_attention(spec) and config.kv_precision in _TILE_TYPES:
        return _TILE_TYPES[config.kv_precision]
    return _CPP_TYPES.get(config.kv_precision, "half")


def describe_cpu(model: Model, config: EngineConfig, weight_format: WeightFormat, precision: Precision) -> str:
    """Who computes, and why."""
    obstacle = why_not_native(model, config, weight_format, precision)
    if obstacle:
        return f"by OpenVINO: {obstacle}"
    form = _native_form(model, weight_format)
    weights = "weights as the file has them" if form == "packed_ggml" else f"weights in {form}"
    return f"by the native decoder, {'with' if has_amx() else 'without'} AMX, with {weights}"


def _has_paged_attention() -> bool:
    """OpenVINO for ARM compiles no graph with paged attention in it."""
    return platform.machine() not in ("aarch64", "arm64")


def _portable_kernel(kv_precision: KvPrecision, precision: Precision) -> Kernel:
    """Attention over keys and values of that precision: compiled, or in numpy where there is no compiler."""
    if kv_precision == "auto":
        kv_precision = "f32" if precision == "exact" else "f16"
    if kv_precision not in _CPP_TYPES:
        raise ConfigError(f"kv_precision {kv_precision} is not for this CPU: it can be f16, f32 or int8")
    kernel = load_portable(_CPP_TYPES[kv_precision])
    if kernel is None and kv_precision not in _DTYPES:
        raise ConfigError(f"kv_precision {kv_precision} needs our own attention, which cannot be compiled here")
    return kernel or numpy_kernel(_DTYPES[kv_precision])


def _check_memory(
    model: Model, config: EngineConfig, weight_format: WeightFormat, precision: Precision, kind: Kind
) -> None:
    """Refuse now what would be killed later, and say what it takes: nothing of the weights has been read yet."""
    formats: tuple[WeightFormat, ...] = ("f32", "bf16", "int8", "int4")
    if kind == "native":  # without AMX there is but one
        formats = ("bf16", "int8") if has_amx() else ()
        formats += ("stored",) if are_quantised(model) else ()
    takes = check_fits_cpu(
        model.name,
        {each: _held_bytes(model, each, precision, kind) for each in formats},
        weight_format,
        kv_bytes=parse_bytes(config.kv_memory),
        working_bytes=_working_bytes(model.spec, config),
        free_bytes=available_bytes(),
    )
    log.info("%s takes %s", model.name, takes)


def _held_bytes(model: Model, weight_format: WeightFormat, precision: Precision, kind: Kind) -> int:
    """What is held of the weights: natively once; by OpenVINO a copy packed for the compiled graph, and beside it the
    graph's own, which are mapped from a file, and so cost nothing, once an earlier start has kept them.
    """
    if kind == "native" and weight_format == "stored":
        return strips_bytes(model)
    if kind == "native":
        is_in_file = weight_format == "int8" and are_quantised(model)  # the embedding, unless it is the head
        return weight_bytes(replace(model.spec, has_tied_head=model.spec.has_tied_head or is_in_file), weight_format)
    from hotloop.backends.cpu.openvino.store import has_graph  # noqa: PLC0415 - half a second, and not for everyone

    packed = [weight_format]
    if kind == "portable" and (weight_format == "bf16" or (precision == "exact" and weight_format != "f32")):
        packed = ["f32", "f32"]  # the copy it computes with, and what it unpacked to make that
    style = "paged" if kind == "paged" else "native"
    made = [] if has_graph(model, f"{style}-{weight_format}") else [weight_format]
    dense = without_experts(model.spec)
    experts_bytes = weight_bytes(model.spec, weight_format) - weight_bytes(dense, weight_format)
    return experts_bytes + sum(weight_bytes(dense, each) for each in packed + made)


def _working_bytes(spec: ModelSpec, config: EngineConfig) -> int:
    """OpenVINO itself, the widest activations of a step, and the logits of every request."""
    num_tokens = config.max_step_tokens or CpuBackend.step_tokens
    width = 2 * spec.intermediate_size + 4 * spec.hidden_size
    if spec.experts:
        width += spec.experts.num_chosen * (spec.experts.size + spec.hidden_size)
    if spec.latent:  # queries as latents, and what they find
        width += spec.num_heads * (spec.latent.width + spec.latent.kv_rank)
    activations = num_tokens * width
    return _RUNTIME_BYTES + 4 * (activations + config.max_running * spec.vocab_size)
