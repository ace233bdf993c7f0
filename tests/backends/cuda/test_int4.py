"""Matrices in four bits: held to the last bit, and products with them against the same in float64."""

import pytest
import torch
from tests.backends.cuda.test_kernels import assert_close, poison

from hotloop.backends.cuda.layers.linear import gated, linear
from hotloop.backends.cuda.quant import int4_product
from hotloop.backends.cuda.quant.int4 import Int4Matrix, dequantise
from hotloop.backends.cuda.quant.int4_product import Tile, is_tiled, multiply, tile_product

SIZES = [(64, 128, 128), (48, 96, 32), (40, 272, 16), (72, 320, 64), (24, 512, 256), (32, 200, None)]
TILE_SIZES = [size for size in SIZES if size[2] != 16] + [(20, 1408, 128)]
DTYPES = [torch.float32, torch.bfloat16]
# The interpreter multiplies the bits of bf16 matrices as if they were integers.
TILE_DTYPES = [torch.float32, torch.bfloat16 if torch.cuda.is_available() else torch.float16]


def random_matrix(n: int, k: int, group_size: int | None, device: str) -> tuple[Int4Matrix, torch.Tensor]:
    """And the weights it stands for, in float64."""
    num_groups = k // (group_size or k)
    numbers = torch.randint(0, 16, (n, k), dtype=torch.uint8, device=device)
    zeros = torch.randint(0, 16, (n, num_groups), dtype=torch.uint8, device=device)
    scales = (torch.rand(n, num_groups, device=device) / 8 / k**0.5).half()
    matrix = Int4Matrix.empty(n, k, group_size, device=torch.device(device))
    matrix.fill(numbers, zeros, scales)
    groups = torch.arange(k, device=device) // (group_size or k)
    return matrix, (numbers.double() - zeros[:, groups].double()) * scales[:, groups].double()


def assert_nearly(actual: torch.Tensor, expected: torch.Tensor) -> None:
    assert_close(actual.bfloat16(), expected)


@pytest.mark.parametrize(("n", "k", "group_size"), SIZES)
def test_weights_are_held_to_the_last_bit(n: int, k: int, group_size: int | None, device: str) -> None:
    matrix, exact = random_matrix(n, k, group_size, device)
    assert matrix.shape == (n, k)
    assert torch.equal(matrix.dequantised(), exact.float())
    assert torch.equal(matrix[8:16].dequantised(), exact[8:16].float())
    assert torch.equal(torch.cat([part.dequantised() for part in matrix.split([8, n - 8])]), exact.float())
    out = poison(n, k, dtype=torch.float32, device=device)
    assert torch.equal(dequantise(matrix, out), exact.float())
    num_pieces, num_groups = -(-k // 256), k // (group_size or k)
    assert matrix.nbytes == n * (128 * num_pieces + 4 * num_groups)


@pytest.mark.parametrize("dtype", TILE_DTYPES)
@pytest.mark.parametrize("num_rows", [1, 3, 40])
@pytest.mark.parametrize(("n", "k", "group_size"), TILE_SIZES)
def test_some_rows(n: int, k: int, group_size: int | None, num_rows: int, dtype: torch.dtype, device: str) -> None:
    matrix, exact = random_matrix(n, k, group_size, device)
    x, bias = torch.randn(num_rows, k, device=device).to(dtype), torch.randn(n, device=device).to(dtype)
    want = x.double() @ exact.t()
    close = assert_close if dtype == torch.float32 else assert_nearly
    out = poison(num_rows, n, dtype=dtype, device=device)
    close(tile_product(x, matrix, out, tile=Tile(64, 16, 32, 2, 2, 1), num_splits=1), want)
    out = poison(num_rows, n, dtype=dtype, device=device)
    tile = Tile(64, 32, 64, 4, 2, 1)
    close(tile_product(x, matrix, out, bias=bias, tile=tile, num_splits=3), want + bias.double())
    close(linear(x, matrix, bias), want + bias.double())
    gate, up = want.chunk(2, -1)
    close(gated(x, matrix), gate * torch.sigmoid(gate) * up)


def test_groups_that_are_too_small_are_dequantised(device: str) -> None:
    matrix, exact = random_matrix(40, 272, 16, device)
    x = torch.randn(3, 272, device=device)
    assert not is_tiled(3, matrix)
    want = x.double() @ exact.t()
    assert_close(linear(x, matrix), want)
    gate, up = want.chunk(2, -1)
    assert_close(gated(x, matrix), gate * torch.sigmoid(gate) * up)


@pytest.mark.parametrize("dtype", DTYPES if torch.cuda.is_available() else DTYPES[:1])
def test_many_rows(dtype: torch.dtype, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The weights are dequantised some rows at a time, the last time fewer."""
    monkeypatch.setattr(int4_product, "DEQUANTISED_WEIGHTS", 256 * 200)
    matrix, exact = random_matrix(600, 200, None, device)
    x, bias = torch.randn(300, 200, device=device).to(dtype), torch.randn(600, device=device).to(dtype)
    want = x.double() @ exact.to(dtype).double().t()
    assert_close(multiply(x, matrix), want)
    assert_close(linear(x, matrix, bias), want + bias.double())


@pytest.mark.parametrize("num_rows", [1, 5, 300])
def test_columns_in_another_order(num_rows: int, device: str) -> None:
    matrix, exact = random_matrix(40, 256, 64, device)
    order = torch.randperm(256, device=device)
    matrix = Int4Matrix(matrix.words, matrix.scales, matrix.zeros, 256, 64, order)
    own = torch.empty_like(exact)
    own[:, order] = exact
    assert torch.equal(matrix.dequantised(), own.float())
    x = torch.randn(num_rows, 256, device=device)
    assert_close(linear(x, matrix[:24]), x.double() @ own[:24].t())


def test_no_rows(device: str) -> None:
    matrix, _ = random_matrix(8, 128, 128, device)
    assert linear(torch.empty(0, 128, device=device), matrix).shape == (0, 8)
    assert gated(torch.empty(0, 128, device=device), matrix).shape == (0, 4)
