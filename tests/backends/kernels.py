"""Attention in tiles on any machine."""

from hotloop.backends.build import BUILD_ERRORS, EMULATED
from hotloop.backends.native.library import load_kernel
from hotloop.backends.openvino.attention import Kernel
from hotloop.backends.openvino.native import has_amx


def load_tiles() -> Kernel | None:
    """On a CPU without AMX they are emulated; None where nothing can be compiled."""
    try:
        return load_kernel("bf16", *(() if has_amx() else (EMULATED,)))
    except BUILD_ERRORS:
        return None
