"""How a model is held and computed on this CPU, and whether there is memory for it."""

import logging
import platform
from collections.abc import Callable
from dataclasses import replace

from hotloop.backends.backend import Backend
from hotloop.backends.cpu.attention import AMX_HEAD_DIMS
from hotloop.backends.cpu.base import CpuBackend
from hotloop.backends.cpu.build import BUILD_ERRORS, cpu_features, has_amx
from hotloop.backends.cpu.decoder import NativeBackend, choose_holding, held_bytes, is_quantised
from hotloop.backends.cpu.library import KvType, load_kernel
from hotloop.core.config import EngineConfig, KvPrecision, Precision, WeightFormat, parse_bytes
from hotloop.core.errors import ConfigError
from hotloop.models.memory import available_bytes, check_fits, check_fits_cpu, gib, weight_bytes
from hotloop.models.model import Model
from hotloop.models.spec import ModelSpec

log = logging.getLogger(__name__)

_RUNTIME_BYTES = 64 << 20
_KV_TYPES: dict[KvPrecision, KvType] = {"f32": "float", "f16": "half", "int8": "int8_t"}
_TILE_TYPES: dict[KvPrecision, KvType] = {"auto": "bf16", "bf16": "bf16", "int8": "byte_tiles"}


def open_cpu(
    model: Model,
    config: EngineConfig,
    *,
    weight_format: WeightFormat = "auto",
    precision: Precision = "fast",
    drops_windows: bool = False,
    meanwhile: Callable[[], object] = lambda: None,
) -> Backend:
    """The native decoder, its KV sized from the memory budget. `meanwhile` is called while weights are packed."""
    if model.spec.family == "transformers":
        raise ConfigError(f"{model.name} is of an architecture that runs on a GPU only, by transformers")
    if weight_format == "fp8":
        raise ConfigError("weights fp8 are for a GPU: on a CPU they can be stored, int8, int4, bf16 or f32")
    kv_type = _kv_type(model.spec, config.kv_precision, precision)
    holding = choose_holding(weight_format, precision)
    _check_memory(model, config, weight_format, precision)
    if weight_format == "stored" and not is_quantised(model):
        raise ConfigError("weights stored is not supported: the matrices are not quantised, or not in a known kind")
    try:
        kernel = load_kernel(kv_type)
    except BUILD_ERRORS as error:
        reason = f"the CPU backend cannot be compiled here, and was not shipped: {error}"
        raise ConfigError(f"{reason}; install a C++ compiler, or a wheel of hotloop for this platform") from None
    kv_bytes = parse_bytes(config.kv_memory)
    return NativeBackend(model, kv_bytes, kernel, holding=holding, drops_windows=drops_windows, meanwhile=meanwhile)


def _kv_type(spec: ModelSpec, kv_precision: KvPrecision, precision: Precision) -> KvType:
    """What keys and values are held in: as tiles where that is possible, else for attention on any CPU."""
    if kv_precision == "fp8":
        raise ConfigError("kv_precision fp8 is for a GPU: on a CPU it can be bf16, f16, f32 or int8")
    if kv_precision == "int8" and precision == "exact":
        raise ConfigError("kv_precision=int8 cannot be combined with precision=exact")
    if kv_precision == "int8" and spec.latent:
        raise ConfigError("kv_precision int8 is not supported with latent attention (MLA), whose KV is small")
    if precision == "fast" and kv_precision in _TILE_TYPES and _has_tile_attention(spec):
        return _TILE_TYPES[kv_precision]
    if kv_precision == "bf16":
        reason = "it needs AMX, precision fast, and heads of 64, 96 or 128 dimensions without windows or sinks"
        raise ConfigError(f"kv_precision bf16 is not supported: {reason}")
    return _KV_TYPES.get(kv_precision, "float" if precision == "exact" else "half")


def _has_tile_attention(spec: ModelSpec) -> bool:
    has_more = spec.windows or spec.has_sinks or spec.latent
    return has_amx() and spec.head_dim in AMX_HEAD_DIMS and not has_more


def describe_cpu(model: Model, weight_format: WeightFormat, precision: Precision) -> str:
    """How it is computed."""
    form = choose_holding(weight_format, precision).form
    if form is None or (form == "packed_ggml" and is_quantised(model)):
        weights = "weights as the file has them"
    else:
        weights = f"weights in {'int4' if weight_format == 'int4' else 'int8' if form == 'packed_ggml' else form}"
    what = f"with {weights}{', in float32' if precision == 'exact' else ''}"
    return f"by the native decoder, {'with' if has_amx() else 'without'} AMX, {what}{_slow_note()}"


def _slow_note() -> str:
    """Where the CPU has no int8 dot products (AVX2, or ARM's), or nobody knows."""
    needs = {"aarch64": {"asimddp"}, "x86_64": {"avx2", "f16c", "fma"}}.get(platform.machine(), set())
    is_slow = platform.system() == "Linux" and not needs <= cpu_features()
    return " (slowly: this CPU has no int8 dot products)" if is_slow else ""


def _check_memory(model: Model, config: EngineConfig, weight_format: WeightFormat, precision: Precision) -> None:
    """Refuse now what would be killed later, and say what it takes: nothing of the weights has been read yet, and of a
    model that fits in no format nothing is looked at, not even of what kind it is.
    """
    least, free_bytes = weight_bytes(replace(model.spec, has_tied_head=True), "int4") * 9 // 10, available_bytes()
    check_fits(model.name, {"weights": least}, free_bytes, have=f"this machine has only {gib(free_bytes)} free")
    formats: list[WeightFormat] = ["f32", "bf16", "int8", "int4"]
    formats += ["stored"] if is_quantised(model) else []
    takes = check_fits_cpu(
        model.name,
        lambda weight_format: held_bytes(model, choose_holding(weight_format, precision)),
        weight_format,
        formats,
        kv_bytes=parse_bytes(config.kv_memory),
        working_bytes=_working_bytes(model.spec, config),
        free_bytes=free_bytes,
    )
    log.info("%s takes %s", model.name, takes)


def _working_bytes(spec: ModelSpec, config: EngineConfig) -> int:
    """The widest activations of a step, and the logits of every request."""
    num_tokens = config.max_step_tokens or CpuBackend.step_tokens
    width = 2 * spec.intermediate_size + 4 * spec.hidden_size
    if spec.experts:
        width += spec.experts.num_chosen * 2 * (spec.experts.size + spec.hidden_size)
    if spec.latent:  # queries as latents, and what they find
        width += spec.num_heads * (spec.latent.width + spec.latent.kv_rank)
    activations = num_tokens * width
    num_logits = (config.max_running or CpuBackend.max_running) * spec.vocab_size
    return _RUNTIME_BYTES + 4 * (activations + num_logits)
