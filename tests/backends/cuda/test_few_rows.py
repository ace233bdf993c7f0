"""The product of few rows that is tried on a card, against the same in float64."""

import pytest
import torch
from benchmarks.gpu.few_rows import Tiling, multiply
from tests.backends.cuda.test_kernels import assert_close

# The interpreter multiplies the bits of bf16 matrices as if they were integers.
DTYPE = torch.bfloat16 if torch.cuda.is_available() else torch.float16


@pytest.mark.parametrize(
    "tiling", [Tiling(32, 64, 4, 3, 1, 1), Tiling(64, 128, 4, 3, 60, 2)], ids=["whole", "in parts"]
)
@pytest.mark.parametrize("num_rows", [2, 11, 16])
@pytest.mark.parametrize(("n", "k"), [(64, 128), (70, 520), (6, 16)])
def test_few_rows(n: int, k: int, num_rows: int, tiling: Tiling, device: str) -> None:
    x, w = (torch.randn(rows, k, device=device).to(DTYPE) for rows in (num_rows, n))
    w /= k**0.5
    want = x.double() @ w.double().t()
    assert_close(multiply(x, w, x.new_empty(num_rows, n), tiling, is_gated=False).bfloat16(), want)
    gate, up = want.chunk(2, -1)
    assert_close(
        multiply(x, w, x.new_empty(num_rows, n // 2), tiling, is_gated=True).bfloat16(), gate * torch.sigmoid(gate) * up
    )
