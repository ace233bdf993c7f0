"""This machine as hardware: how fast it copies and multiplies, tried for a few seconds.

The best of many short tries counts, so that somebody else's work beside it disturbs little.
"""

import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from hotloop.backends.open import choose_device
from hotloop.models.memory import available_bytes
from hotloop.size.hardware import GIB, Hardware

CPU_LAYER_S = 200e-6  # a layer's graph is left and entered again for attention
_COPY_BYTES = 256 << 20
_ROWS, _WIDTH = 512, 1024
_GPU_WIDTH = 8192


def measure_machine(try_s: float = 1.5) -> Hardware:
    """The GPU where hotloop would use it, else the CPU; each rate is tried for that long."""
    return _measure_gpu(try_s) if choose_device("auto").device == "cuda" else _measure_cpu(try_s)


def _measure_cpu(try_s: float) -> Hardware:
    return Hardware(
        name="this CPU",
        memory_bytes=available_bytes(),
        bytes_s=_cpu_copy_bytes_s(try_s),
        flop_s=_cpu_matmul_flop_s(try_s),
        host_bytes=0,
        layer_s=CPU_LAYER_S,
        is_measured=True,
        working_bytes=GIB // 2,
    )


def _cpu_copy_bytes_s(try_s: float) -> float:
    """Every core copies its part; read and written bytes both count."""
    num_threads = os.cpu_count() or 1
    part = _COPY_BYTES // num_threads
    pairs = [(np.ones(part, np.uint8), np.zeros(part, np.uint8)) for _ in range(num_threads)]
    with ThreadPoolExecutor(num_threads) as pool:
        best_s = _best_s(lambda: list(pool.map(lambda pair: np.copyto(pair[1], pair[0]), pairs)), try_s)
    return 2 * part * num_threads / best_s


def _cpu_matmul_flop_s(try_s: float) -> float:
    """By the native decoder's own product, of bytes; by numpy where that cannot be compiled."""
    from hotloop.backends.cpu.library import open_product  # noqa: PLC0415 - a GPU needs none of it

    rows = np.ones((_ROWS, _WIDTH), np.float32)
    with open_product(np.full((_WIDTH, _WIDTH), 0.01, np.float32)) as product:
        return 2 * _ROWS * _WIDTH**2 / _best_s(lambda: product(rows), try_s)


def _measure_gpu(try_s: float) -> Hardware:
    import torch  # noqa: PLC0415 - an extra, and seconds

    source = torch.ones(1 << 30, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    pinned = torch.empty(_COPY_BYTES, dtype=torch.uint8, pin_memory=True)
    square = torch.ones((_GPU_WIDTH, _GPU_WIDTH), dtype=torch.bfloat16, device="cuda")

    def rate(amount: float, act: Callable[[], object]) -> float:
        return amount / _best_s(lambda: (act(), torch.cuda.synchronize()), try_s)

    flop_s = rate(2 * _GPU_WIDTH**3, lambda: square @ square)
    return Hardware(
        name=torch.cuda.get_device_name(),
        memory_bytes=torch.cuda.mem_get_info()[1],
        bytes_s=rate(2 * source.numel(), lambda: target.copy_(source)),
        flop_s=flop_s,
        fp8_flop_s=2 * flop_s if torch.cuda.get_device_capability() >= (8, 9) else None,
        link_bytes_s=rate(_COPY_BYTES, lambda: target[:_COPY_BYTES].copy_(pinned, non_blocking=True)),
        host_bytes=available_bytes() // 2,
        is_measured=True,
    )


def _best_s(act: Callable[[], object], try_s: float) -> float:
    act()
    end_s, times = time.perf_counter() + try_s, list[float]()
    while not times or time.perf_counter() < end_s:
        began_s = time.perf_counter()
        act()
        times.append(time.perf_counter() - began_s)
    return min(times)
