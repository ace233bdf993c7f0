"""Which hardware: the GPU where there is one and PyTorch can use it, else the CPU; and the backend for it."""

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from hotloop.backends.backend import Backend
from hotloop.core.config import Device, EngineConfig, Precision, WeightFormat
from hotloop.core.errors import ConfigError
from hotloop.models.model import Model
from hotloop.models.spec import ModelSpec

_INSTALL = "pip install 'hotloop[cuda]'"


@dataclass(frozen=True, slots=True)
class DeviceChoice:
    device: Literal["cpu", "cuda"]
    note: str
    """What was chosen and why, in a line."""


def choose_device(wanted: Device, num_gpus: int = 1) -> DeviceChoice:
    """Raises ConfigError if a GPU, or several, were asked for and are not available."""
    if wanted == "cpu":
        if num_gpus > 1:
            raise ConfigError(f"gpus {num_gpus} and device cpu contradict each other")
        return DeviceChoice("cpu", "on the CPU, as asked for")
    name, obstacle = _find_gpus(num_gpus)
    if obstacle is None:
        return DeviceChoice("cuda", f"on the GPU: {name}" if num_gpus == 1 else f"on {num_gpus} GPUs: {name}")
    if wanted == "cuda" or num_gpus > 1:
        raise ConfigError(f"device cuda cannot be used: {obstacle}")
    return DeviceChoice("cpu", f"on the CPU: {obstacle}")


def _find_gpus(num_gpus: int) -> tuple[str, str | None]:
    """The name of the first, or what keeps us from using so many."""
    missing = [name for name in ("torch", "triton") if importlib.util.find_spec(name) is None]
    if missing:
        return "", f"{' and '.join(missing)} not installed ({_INSTALL} to use a GPU)"
    import torch  # noqa: PLC0415 - an extra, and seconds

    if not torch.cuda.is_available():
        return "", "PyTorch finds no CUDA device"
    major, minor = torch.cuda.get_device_capability()
    if major < 8:
        return "", f"{torch.cuda.get_device_name()} has compute capability {major}.{minor}; 8.0 or newer is needed"
    if torch.cuda.device_count() < num_gpus:
        return "", f"gpus is {num_gpus}, and PyTorch finds {torch.cuda.device_count()}"
    return torch.cuda.get_device_name(), None


def describe_backend(choice: DeviceChoice, model: Model, weight_format: WeightFormat, precision: Precision) -> str:
    """Where a model runs and, on a CPU, who computes, each with the reason."""
    if choice.device == "cuda":
        return choice.note
    from hotloop.backends.cpu.opening import describe_cpu  # noqa: PLC0415 - half a second, and not for everyone

    return f"{choice.note}; {describe_cpu(model, weight_format, precision)}"


def can_drop_windows(config: EngineConfig, draft_spec: ModelSpec | None, kv_tokens: int | None) -> bool:
    """Whether KV that no layer sees any more may be given up: not where whole blocks go to disk or elsewhere, nor
    beside a draft model or of one, whose blocks are as many as its target's.
    """
    return draft_spec is None and kv_tokens is None and not (config.kv_dir or config.kv_peers) and config.prefix_cache


def open_backend(
    model: Model,
    config: EngineConfig,
    *,
    device: Device = "cpu",
    weight_format: WeightFormat = "auto",
    precision: Precision = "fast",
    draft_spec: ModelSpec | None = None,
    kv_tokens: int | None = None,
    meanwhile: Callable[[], object] = lambda: None,
) -> Backend:
    """The quickest backend of that precision on this device. `meanwhile` is called while weights are made ready.

    On a GPU a draft_spec, a draft model, is left room for, and is then opened with KV for as many tokens; on a CPU the
    configuration says how much each has.
    """
    drops_windows = can_drop_windows(config, draft_spec, kv_tokens)
    if choose_device(device, config.gpus).device == "cuda":
        from hotloop.backends.cuda.runner import open_cuda  # noqa: PLC0415 - an extra, and seconds

        meanwhile()
        return open_cuda(
            model, config, weight_format=weight_format, precision=precision, draft_spec=draft_spec, kv_tokens=kv_tokens,
            drops_windows=drops_windows,
        )  # fmt: skip
    from hotloop.backends.cpu.opening import open_cpu  # noqa: PLC0415 - half a second, and not for everyone

    return open_cpu(
        model,
        config,
        weight_format=weight_format,
        precision=precision,
        drops_windows=drops_windows,
        meanwhile=meanwhile,
    )
