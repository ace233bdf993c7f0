"""Libraries that tests compile for themselves: attention in tiles on any machine, and products in small jobs."""

from hotloop.backends.cpu.attention import Kernel
from hotloop.backends.cpu.build import EMULATED, compiler, has_amx
from hotloop.backends.cpu.library import KvType, load_kernel

SMALL_JOBS = (
    *("-DCHUNK_STEPS=8", "-DMAX_JOB_BLOCKS=2", "-DMIN_JOB_BLOCKS=1", "-DMAX_JOB_PANELS=2", "-O1"),
    *(() if has_amx() else (EMULATED,)),
)
"""Small chunks and jobs, so that there are several of them in each direction; optimised less, they compile sooner."""


def load_tiles(kv_type: KvType = "bf16") -> Kernel | None:
    """On a CPU without AMX they are emulated; None where there is no compiler."""
    flags = () if has_amx() else SMALL_JOBS  # so that the products beside it are compiled once for both
    return load_kernel(kv_type, *flags) if compiler() else None
