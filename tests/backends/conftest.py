"""Kernels are compiled when a test first needs one, not while tests are collected: each worker collects all of them."""

import pytest
from tests.backends.kernels import load_tiles

from hotloop.backends.build import compiler
from hotloop.backends.native.library import TILES, KvType, load_kernel
from hotloop.backends.openvino.attention import Kernel


@pytest.fixture(scope="session")
def kernels() -> None:
    """Compiled before a test has a home of its own, where they would be compiled again."""
    if compiler():
        load_kernel("float"), load_kernel("half"), load_kernel("int8_t")


@pytest.fixture(scope="session")
def tiles() -> dict[KvType, Kernel | None]:
    """Compiled as early."""
    return {kv_type: load_tiles(kv_type) for kv_type in TILES}


@pytest.fixture
def kernel(request: pytest.FixtureRequest) -> Kernel:
    """What the parameter loads. That there is none is for want of a compiler, not for an error in our C++."""
    kernel = request.param()
    if kernel is None:
        assert compiler() is None
        pytest.skip("needs a C++ compiler")
    return kernel
