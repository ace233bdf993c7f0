"""Products against the same in float64, at sizes that fill no tile and by either kernel."""

import pytest
import torch
from tests.backends.cuda.test_kernels import assert_close

from hotloop.backends.cuda.layers.linear import gated, linear, logits
from hotloop.backends.cuda.quant.fp8 import ScaledMatrix, quantise

DTYPES = [torch.float32, torch.bfloat16]
NUM_ROWS = [1, 2, 3, 5]  # gemv, for e4m3 of two rows as well, then the library
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
    assert_close(out if num_rows == 1 or device == "cuda" else out.to(dtype), want)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("num_rows", NUM_ROWS)
@pytest.mark.parametrize(("n", "k"), SIZES)
def test_gated(n: int, k: int, num_rows: int, dtype: torch.dtype, device: str) -> None:
    x, w = random(num_rows, k, dtype=dtype, device=device), random(n, k, dtype=dtype, device=device) / k**0.5
    gate, up = (x.double() @ w.double().t()).chunk(2, -1)
    assert_close(gated(x, w), gate * torch.sigmoid(gate) * up)


@pytest.mark.parametrize("num_rows", NUM_ROWS)
@pytest.mark.parametrize(("n", "k"), [(64, 128), (48, 208), (80, 4112)])
def test_weights_in_e4m3(n: int, k: int, num_rows: int, device: str) -> None:
    """Few rows meet the weights as they are; more are rounded to e4m3 themselves, to half a step of a sixteenth."""
    x, w = (random(rows, k, dtype=torch.bfloat16, device=device) for rows in (num_rows, n))
    bias = random(n, dtype=torch.bfloat16, device=device)
    weight = quantise(w / k**0.5)
    rounded = x if num_rows < 3 else quantise(x).dequantised()
    want = rounded.double() @ weight.dequantised().double().t()
    assert_close(linear(x, weight), want)
    assert_close(linear(x, weight, bias), want + bias.double())
    gate, up = want.chunk(2, -1)
    assert_close(gated(x.float(), weight).bfloat16(), gate * torch.sigmoid(gate) * up)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("num_rows", "size"), [(1, 64), (5, 200), (3, 14336)])
def test_rows_become_e4m3(num_rows: int, size: int, dtype: torch.dtype, device: str) -> None:
    x = random(num_rows, size, dtype=dtype, device=device) * torch.logspace(-3, 3, num_rows, device=device)[:, None]
    x[0, : size // 2] = 0
    found = quantise(x)
    assert torch.equal(found.values.float().abs().amax(1), torch.full((num_rows,), 448.0, device=device))
    error = (found.dequantised().double() - x.double()).abs()
    assert bool((error <= x.double().abs() / 16 + found.scales[:, None].double() / 512).all())
    zero = quantise(torch.zeros(1, size, dtype=dtype, device=device)).dequantised()
    assert not zero.any()


def int8(w: torch.Tensor) -> ScaledMatrix:
    return quantise(w, ScaledMatrix.empty(*w.shape, w.device, torch.int8))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("num_rows", [1, 2, 3, 5, 17, 130])
@pytest.mark.parametrize(("n", "k"), [(150, 64), (301, 200)])
def test_a_head_in_int8(n: int, k: int, num_rows: int, dtype: torch.dtype, device: str) -> None:
    """However many rows there are, they are not rounded, and no logit is."""
    x, w = (random(rows, k, dtype=dtype, device=device) for rows in (num_rows, n))
    head = int8(w * torch.logspace(-2, 2, n, device=device, dtype=dtype)[:, None])
    out = logits(x, head)
    assert (out.dtype, out.shape) == (torch.float32, (num_rows, n))
    wide = head.dequantised().double()
    error = (out - x.double() @ wide.t()).norm(dim=0)
    assert bool((error <= 1e-6 * x.double().norm() * wide.norm(dim=1)).all())  # of each token: their scales differ


@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_become_int8(dtype: torch.dtype, device: str) -> None:
    x = random(5, 200, dtype=dtype, device=device) * torch.logspace(-3, 3, 5, device=device)[:, None]
    found = int8(x)
    assert bool((found.values.int().abs().amax(1) == 127).all())
    assert bool(((found.dequantised() - x.float()).abs() <= 0.5001 * found.scales[:, None]).all())


def test_no_rows(device: str) -> None:
    x, w = torch.empty(0, 16, device=device), torch.randn(6, 16, device=device)
    assert linear(x, w).shape == (0, 6)
    assert logits(x, w).shape == (0, 6)
    assert logits(x, int8(w)).shape == (0, 6)


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
