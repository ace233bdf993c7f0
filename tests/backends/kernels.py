"""Attention in tiles on any machine."""

from hotloop.backends.build import EMULATED, compiler
from hotloop.backends.native.library import load_kernel
from hotloop.backends.openvino.attention import Kernel
from hotloop.backends.openvino.native import has_amx


def load_tiles() -> Kernel | None:
    """On a CPU without AMX they are emulated; None where there is no compiler."""
    return load_kernel("bf16", *(() if has_amx() else (EMULATED,))) if compiler() else None
