"""Kernels are compiled when a test first needs one, not while tests are collected: each worker collects all of them."""

import pytest
from tests.backends.cpu.kernels import load_tiles

from hotloop.backends.cpu.attention import Kernel
from hotloop.backends.cpu.build import compiler
from hotloop.backends.cpu.library import TILES, KvType


@pytest.fixture(scope="session")
def tiles() -> dict[KvType, Kernel | None]:
    """Loaded before a test says that this CPU has AMX."""
    return {kv_type: load_tiles(kv_type) for kv_type in TILES}


@pytest.fixture
def kernel(request: pytest.FixtureRequest) -> Kernel:
    """What the parameter loads. That there is none is for want of a compiler, not for an error in our C++."""
    kernel = request.param()
    if kernel is None:
        assert compiler() is None
        pytest.skip("needs a C++ compiler")
    return kernel
