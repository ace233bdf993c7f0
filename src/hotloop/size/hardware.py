"""GPUs as their datasheets describe them, and what of that is reached. docs/sizing.md has the same table, and sources.

Rates come in three steps, each a stated share of the one before:

    datasheet ──> a plain copy, one large matrix product ──> the engine
               0.875 of the bytes, 0.8 of the operations   0.9 of the bytes, 0.8 of the operations
"""

from dataclasses import dataclass, replace
from math import log2

from hotloop.core.errors import ConfigError

COPY_SHARE, MATMUL_SHARE = 0.875, 0.8  # of the datasheet; 4.2 of 4.8 TB/s and 780 of 989 TFLOP/s on an H200
ENGINE_BYTES_SHARE, ENGINE_FLOP_SHARE = 0.9, 0.8  # of a copy and a large product, when a model runs
GPU_LAYER_S = 20e-6  # about ten kernels that begin and end, beside what they read and compute
GIB = 1 << 30

_NVLINK, _PCIE = 0.9, 0.75  # what is left of twice the GPUs, for each doubling; not measured


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """One GPU, several as one, or a CPU."""

    name: str
    memory_bytes: int
    bytes_s: float
    flop_s: float
    """In 16 bits, dense."""
    fp8_flop_s: float | None = None
    link_bytes_s: float = 0.0
    """Between host memory and the device."""
    host_bytes: int = 128 * GIB
    """Host memory for KV that left the device."""
    price_hour: float | None = None
    scaling: float = _PCIE
    layer_s: float = GPU_LAYER_S
    is_measured: bool = False
    """Whether the rates are those of a copy and a product on the machine itself, not a datasheet's."""
    memory_share: float = 0.9
    """As `--gpu-memory`."""
    working_bytes: int = 2 * GIB
    num_gpus: int = 1
    is_supported: bool = True
    """Whether hotloop runs there; of the others the figures are those of an engine like it."""

    def several(self, count: int) -> "Hardware":
        """Tensor parallel over that many. Host memory is the machine's, and stays."""
        gain = count * self.scaling ** log2(count)
        return replace(
            self,
            name=f"{count} x {self.name}" if count > 1 else self.name,
            memory_bytes=count * self.memory_bytes,
            bytes_s=gain * self.bytes_s,
            flop_s=gain * self.flop_s,
            fp8_flop_s=gain * self.fp8_flop_s if self.fp8_flop_s else None,
            link_bytes_s=count * self.link_bytes_s,
            price_hour=None if self.price_hour is None else count * self.price_hour,
            working_bytes=count * self.working_bytes,
            num_gpus=count,
        )

    def engine_bytes_s(self) -> float:
        return self.bytes_s * ENGINE_BYTES_SHARE * (1 if self.is_measured else COPY_SHARE)

    def engine_flop_s(self, *, is_fp8: bool = False) -> float:
        rate = self.fp8_flop_s if is_fp8 and self.fp8_flop_s else self.flop_s
        return rate * ENGINE_FLOP_SHARE * (1 if self.is_measured else MATMUL_SHARE)


_UNSUPPORTED = ("T4", "MI300X")  # older than Ampere; not CUDA


def _gpu(
    name: str, gib: float, gb_s: int, tflop_s: int, fp8: int | None, link_gb_s: int, scaling: float, price_hour: float
) -> Hardware:
    return Hardware(
        name=name,
        memory_bytes=int(gib * GIB),
        bytes_s=gb_s * 1e9,
        flop_s=tflop_s * 1e12,
        fp8_flop_s=fp8 * 1e12 if fp8 else None,
        link_bytes_s=link_gb_s * 1e9,
        scaling=scaling,
        price_hour=price_hour,
        is_supported=name not in _UNSUPPORTED,
    )


GPUS = {
    gpu.name.lower(): gpu
    for gpu in (
        # GiB as the driver shows it, GB/s, TFLOP/s in 16 bits and in fp8, GB/s to the host, scaling, $ an hour
        _gpu("T4", 15.0, 320, 65, None, 12, _PCIE, 0.4),
        _gpu("L4", 22.5, 300, 121, 242, 25, _PCIE, 0.7),
        _gpu("A10", 22.5, 600, 125, None, 25, _PCIE, 0.8),
        _gpu("RTX4090", 24.0, 1008, 165, 330, 25, _PCIE, 0.5),
        _gpu("L40S", 45.0, 864, 362, 733, 25, _PCIE, 1.2),
        _gpu("A100", 80.0, 2039, 312, None, 25, _NVLINK, 1.6),
        _gpu("H100", 80.0, 3350, 989, 1979, 50, _NVLINK, 2.8),
        _gpu("H200", 140.0, 4800, 989, 1979, 50, _NVLINK, 3.6),
        _gpu("B200", 179.0, 8000, 2250, 4500, 50, _NVLINK, 5.5),
        _gpu("MI300X", 192.0, 5300, 1307, 2615, 50, _NVLINK, 2.5),
    )
}


def find_gpu(name: str) -> Hardware:
    key = name.lower().replace(" ", "").replace("-", "")
    if key not in GPUS:
        raise ConfigError(f"there is no GPU {name!r} in the table: {', '.join(GPUS)}, or `this` for this machine")
    return GPUS[key]
