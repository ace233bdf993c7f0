"""Attention in tiles on any machine."""

from hotloop.backends.cpu.attention import Kernel
from hotloop.backends.cpu.build import EMULATED, compiler, has_amx
from hotloop.backends.cpu.library import KvType, load_kernel


def load_tiles(kv_type: KvType = "bf16") -> Kernel | None:
    """On a CPU without AMX they are emulated; None where there is no compiler."""
    flags = () if has_amx() else (EMULATED, "-O1")  # which compiles sooner
    return load_kernel(kv_type, *flags) if compiler() else None
