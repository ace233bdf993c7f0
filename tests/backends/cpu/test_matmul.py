"""The native matmuls against numpy, row by row. Without AMX tiles are emulated, so that all else is tested."""

from collections.abc import Iterator
from itertools import product

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.backends.cpu.kernels import SMALL_JOBS

from hotloop.backends.cpu.build import compiler
from hotloop.backends.cpu.library import Array, Format, Native, load_library

pytestmark = pytest.mark.skipif(compiler() is None, reason="needs a C++ compiler")

SHAPES = [  # rows, inputs, columns
    (1, 64, 32),  # a tile of one row
    (4, 1300, 96),  # a few rows, and a panel read from end to end
    (8, 200, 40),  # the most of which both bytes are in one tile
    (9, 200, 40),
    (16, 70, 33),  # inputs and columns that fill no tile
    (17, 128, 48),  # a second half with one row
    (33, 700, 40),  # a second block, and K in more than one chunk
    (80, 1300, 96),
    (300, 70, 100),  # more blocks than a worker has in one job
]


@pytest.fixture(scope="module", params=[1, 3], ids=["one-worker", "three-workers"])
def native(request: pytest.FixtureRequest) -> Iterator[Native]:
    native = Native(request.param, load_library(*SMALL_JOBS))
    yield native
    native.close()


def draw(*shape: int) -> Array:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def to_bf16(x: Array) -> NDArray[np.uint16]:
    """To the nearest, ties to even."""
    bits = x.view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def from_bf16(x: NDArray[np.uint16]) -> Array:
    return (x.astype(np.uint32) << 16).view(np.float32)


def to_int8(x: Array) -> Array:
    """What is left of each row after rounding to one of 255 numbers, the largest of them its own largest."""
    scale = np.abs(x).max(-1, keepdims=True) / np.float32(127)
    return np.rint(x * (1 / np.where(scale, scale, 1))) * scale


def to_int16(x: Array) -> Array:
    """What is left of a few rows that int8 weights are multiplied with: 127 * 256 is the largest of each."""
    scale = np.abs(x).max(-1, keepdims=True) / np.float32(127 * 256)
    return np.rint(x * (1 / np.where(scale, scale, 1))) * scale


def to_bytes(x: Array, chunk_steps: int = 8) -> Array:
    """What is left of many rows, a chunk of K at a time: a channel has one to 65 places, which hold 127 at the most."""
    num_steps = -(-x.shape[1] // 64)
    chunk = 64 * -(-num_steps // -(-num_steps // chunk_steps))
    return np.concatenate([_chunk_to_bytes(x[:, at : at + chunk]) for at in range(0, x.shape[1], chunk)], axis=1)


def _chunk_to_bytes(x: Array) -> Array:
    largest = np.abs(x).max(0)
    low, bound = np.float32(0), 2 * largest.max()
    for _ in range(12):
        middle = (low + bound) / 2
        low, bound = (low, middle) if (largest / middle).astype(int).sum() <= 64 else (middle, bound)
    places = 1 + (largest / bound).astype(int)
    scale = (np.abs(x) / places).max(-1, keepdims=True) / np.float32(127)
    return np.rint(x * (1 / np.where(scale, scale, 1))) * scale


def rounded(x: Array, form: Format) -> Array:
    return to_int8(x) if form == "int8" else from_bf16(to_bf16(x))


def rounded_rows(x: Array, form: Format) -> Array:
    if form == "bf16":
        return from_bf16(to_bf16(x))
    return to_int16(x) if len(x) <= 16 else to_bytes(x)


def silu(x: Array) -> Array:
    return x / (1 + np.exp(-x))


def assert_rows_close(actual: Array, expected: Array, limit: float) -> None:
    """Each row by itself, by the size of its own numbers."""
    error = np.abs(actual - expected).max(-1) / np.abs(expected).max(-1).clip(1e-6)
    assert error.max() < limit, f"row {error.argmax()} is off by {error.max()}"


@pytest.mark.parametrize(("form", "shape"), [*product(("int8", "bf16"), SHAPES)])
@pytest.mark.sampled(5)
def test_products_are_those_of_the_rounded_matrices(native: Native, form: Format, shape: tuple[int, int, int]):
    num_rows, num_in, num_out = shape
    x, matrix, bias = draw(num_rows, num_in), draw(num_out, num_in), draw(num_out)
    weights = native.pack(matrix, form, bias=bias)
    out = np.full((num_rows, num_out), np.nan, np.float32)
    native.pack_rows(x)
    native.matmul(weights, out)
    assert_rows_close(out, rounded_rows(x, form) @ rounded(matrix, form).T + bias, 1e-5)


@pytest.mark.parametrize("form", ["int8", "bf16"])
def test_rounding_costs_little(native: Native, form: Format):
    x, matrix = draw(40, 512), draw(64, 512)
    out = np.empty((40, 64), np.float32)
    native.pack_rows(x)
    native.matmul(native.pack(matrix, form), out)
    assert_rows_close(out, x @ matrix.T, 0.02 if form == "int8" else 0.01)


def test_large_channels_leave_the_others_their_bits(native: Native):
    """As models have them: a few, in all rows or in one, many times as large as what is next to them."""
    x, matrix = draw(40, 512), rounded(draw(64, 512), "int8")
    x[:, [3, 77, 300]] *= np.array([20, 9, 6], np.float32)
    x[7, 78] = 70
    out = np.empty((40, 64), np.float32)
    native.pack_rows(x)
    native.matmul(native.pack(matrix, "int8"), out)
    error = np.sqrt(((out - x @ matrix.T) ** 2).mean(-1))
    by_one_scale = np.sqrt((((to_int8(x) - x) @ matrix.T) ** 2).mean(-1))
    assert error.mean() < 0.3 * by_one_scale.mean()
    assert error[7] < 0.2 * by_one_scale[7]


@pytest.mark.parametrize("form", ["int8", "bf16"])
def test_rows_are_normalised_before_they_are_rounded(native: Native, form: Format):
    x, norm, matrix = draw(20, 83) * 7, draw(83), draw(32, 83)
    normed = x / np.sqrt((x * x).mean(-1, keepdims=True) + np.float32(1e-5)) * norm
    out = np.empty((20, 32), np.float32)
    native.pack_rows(x, norm, 1e-5)
    native.matmul(native.pack(matrix, form), out)
    # A number that lies between two that it could be rounded to may fall either way.
    assert_rows_close(out, rounded_rows(normed, form) @ rounded(matrix, form).T, 5e-3)


@pytest.mark.parametrize("form", ["int8", "bf16"])
def test_products_are_added_to_what_is_there(native: Native, form: Format):
    x, matrix, before = draw(35, 96), draw(50, 96), draw(35, 50)
    out = before.copy()
    native.pack_rows(x)
    native.matmul(native.pack(matrix, form), out, "add")
    assert_rows_close(out, before + rounded_rows(x, form) @ rounded(matrix, form).T, 1e-5)


@pytest.mark.parametrize(("form", "size"), [*product(("int8", "bf16"), (16, 40, 100))])
def test_a_gate_meets_its_up(native: Native, form: Format, size: int):
    x, gate, up = draw(34, 720), draw(size, 720) / 8, draw(size + 1, 720)[1:]
    weights = native.pack(np.concatenate([gate, up]), form, is_gated=True)
    out = np.zeros((34, size), np.uint16)
    native.pack_rows(x)
    native.matmul(weights, out, "gate")
    rows = rounded_rows(x, form)
    expected = silu(rows @ rounded(gate, form).T) * (rows @ rounded(up, form).T)
    assert_rows_close(from_bf16(out), expected, 0.005)


def test_gates_far_from_zero_are_open_or_shut(native: Native):
    x = np.ones((1, 64), np.float32)
    steps = np.array([-300, -90, -20, 0, 20, 90, 300], np.float32).repeat(16)
    gate, up = np.repeat(steps[:, None] / 64, 64, 1), np.full((len(steps), 64), 1 / 64, np.float32)
    out = np.zeros((1, len(steps)), np.uint16)
    native.pack_rows(x)
    native.matmul(native.pack(np.concatenate([gate, up]), "bf16", is_gated=True), out, "gate")
    expected = steps / (1 + np.exp(-steps.astype(np.float64)))
    np.testing.assert_allclose(from_bf16(out)[0], expected, rtol=0.01, atol=1e-6)


@pytest.mark.parametrize(("form", "num_rows"), [("int8", 16), ("bf16", 70)])
def test_a_row_is_the_same_whatever_else_is_in_the_batch(native: Native, form: Format, num_rows: int):
    x, weights = draw(num_rows, 1500), native.pack(draw(64, 1500), form)
    together, alone = np.empty((num_rows, 64), np.float32), np.empty((1, 64), np.float32)
    native.pack_rows(x)
    native.matmul(weights, together)
    for row in {0, num_rows // 2, num_rows - 1}:
        native.pack_rows(x[row : row + 1])
        native.matmul(weights, alone)
        np.testing.assert_array_equal(alone[0], together[row])


@pytest.mark.parametrize("num_rows", [3, 20])
def test_rows_of_zeros_stay_zeros(native: Native, num_rows: int):
    out = np.full((num_rows, 32), np.nan, np.float32)
    native.pack_rows(np.zeros((num_rows, 64), np.float32))
    native.matmul(native.pack(draw(32, 64), "int8"), out)
    assert not out.any()


@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan, 3e38])
def test_what_is_no_number_harms_no_other_row(native: Native, bad: float):
    x, matrix = draw(40, 512), draw(64, 512)
    x[7, 78] = bad
    out = np.empty((40, 64), np.float32)
    native.pack_rows(x)
    native.matmul(native.pack(matrix, "int8"), out)
    others = np.arange(40) != 7
    assert_rows_close(out[others], x[others] @ matrix.T, 0.04)
