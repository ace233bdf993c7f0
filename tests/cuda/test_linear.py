"""Products against the same in float64, at sizes that fill no tile and by either kernel."""

import pytest
import torch
from tests.cuda.test_kernels import assert_close

from hotloop.backends.cuda.linear import gated, linear, logits

DTYPES = [torch.float32, torch.bfloat16]
NUM_ROWS = [1, 2, 3, 5]  # gemv, then the library
SIZES = [(64, 128), (42, 200), (6, 16), (70, 2100)]


def random(*shape: int, dtype: torch.dtype, device: str) -> torch.Tensor:
    return torch.randn(shape, device=device).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("num_rows", NUM_ROWS)
@pytest.mark.parametrize(("n", "k"), SIZES)
def test_linear(n: int, k: int, num_rows: int, dtype: torch.dtype, device: str) -> None:
    x, w = random(num_rows, k, dtype=dtype, device=device), random(n, k, dtype=dtype, device=device) / k**0.5
    bias = random(n, dtype=dtype, device=device)
    want = x.double() @ w.double().t()
    assert_close(linear(x, w), want)
    assert_close(linear(x, w, bias), want + bias.double())
    out = logits(x, w)
    assert out.dtype == torch.float32
    assert_close(out if num_rows < 3 or device == "cuda" else out.to(dtype), want)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("num_rows", NUM_ROWS)
@pytest.mark.parametrize(("n", "k"), SIZES)
def test_gated(n: int, k: int, num_rows: int, dtype: torch.dtype, device: str) -> None:
    x, w = random(num_rows, k, dtype=dtype, device=device), random(n, k, dtype=dtype, device=device) / k**0.5
    gate, up = (x.double() @ w.double().t()).chunk(2, -1)
    assert_close(gated(x, w), gate * torch.sigmoid(gate) * up)


def test_no_rows(device: str) -> None:
    x, w = torch.empty(0, 16, device=device), torch.randn(6, 16, device=device)
    assert linear(x, w).shape == (0, 6)
    assert logits(x, w).shape == (0, 6)


def test_overlapped_products_see_what_came_before(device: str) -> None:
    """A chain, captured and replayed: each product reads what the one in front of it wrote."""
    if device == "cpu":
        pytest.skip("the interpreter overlaps nothing")
    weights = [torch.randn(1024, 1024, device=device).bfloat16() / 32 for _ in range(16)]
    first = torch.randn(1, 1024, device=device).bfloat16()

    def chain() -> torch.Tensor:
        x = first
        for weight in weights:
            x = linear(x, weight)
        return x

    want = first.double()
    for weight in weights:
        want = (want @ weight.double().t()).bfloat16().double()
    chain()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = chain()
    for _ in range(20):
        out.fill_(float("nan"))
        graph.replay()
        assert (out.double() - want).norm() < 0.02 * want.norm()
