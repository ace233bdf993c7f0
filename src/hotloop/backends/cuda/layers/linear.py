"""Matrix products of the forward pass: which kernel does which.

A row goes through `gemv`, which reads weights at the speed of the memory and whose launches overlap: the products of
one layer of Llama-3.1-8B and what is between them, attention left out, take 101 us on an H200 for one row in bf16,
where cuBLAS makes it 121. From two rows on cuBLAS is no slower than any kernel of ours was.
Weights in e4m3 are half as much to read, by `gemv` for two rows as well: 103 us, where both sides in e4m3 on the tensor
cores take 110 to 135, whatever the number of rows up to 128.
"""

from typing import TypeAlias

import torch

from hotloop.backends.cuda.layers.gemv import gemv
from hotloop.backends.cuda.layers.kernels import silu_mul
from hotloop.backends.cuda.quant.fp8 import ScaledMatrix, int8_logits, multiply
from hotloop.backends.cuda.quant.int4 import Int4Matrix
from hotloop.backends.cuda.quant.int4_product import is_tiled
from hotloop.backends.cuda.quant.int4_product import multiply as multiply_int4

Matrix: TypeAlias = torch.Tensor | ScaledMatrix | Int4Matrix
_MAX_GEMV_ROWS = {torch.bfloat16: 1, torch.float32: 1, torch.float8_e4m3fn: 2, torch.int8: 2}


def linear(x: torch.Tensor, weight: Matrix, bias: torch.Tensor | None = None) -> torch.Tensor:
    """[rows, out] of x [rows, in] and a weight [out, in]."""
    if isinstance(weight, Int4Matrix):
        return multiply_int4(x, weight, bias)
    if _is_few(x, weight):
        return gemv(x, weight, x.new_empty(len(x), len(weight)), bias=bias)
    if isinstance(weight, ScaledMatrix):
        out = multiply(x, weight)
        return out if bias is None else out.add_(bias)
    return x @ weight.t() if bias is None else torch.addmm(bias, x, weight.t())


def gated(x: torch.Tensor, gate_up: Matrix) -> torch.Tensor:
    """[rows, size]: silu(gate) * up, of x [rows, in] and a weight [gate | up, in]."""
    if isinstance(gate_up, Int4Matrix) and len(x) and is_tiled(len(x), gate_up):
        return multiply_int4(x, gate_up, is_gated=True)
    out = x.new_empty(len(x), len(gate_up) // 2)
    if not isinstance(gate_up, Int4Matrix) and _is_few(x, gate_up):
        return gemv(x, gate_up, out, is_gated=True)
    return silu_mul(linear(x, gate_up), out)


def logits(x: torch.Tensor, head: torch.Tensor | ScaledMatrix) -> torch.Tensor:
    """[rows, vocabulary] in float32: rounded to bf16 many tokens would be equally likely."""
    if _is_few(x, head):
        return gemv(x, head, x.new_empty(len(x), len(head), dtype=torch.float32))
    if isinstance(head, ScaledMatrix):
        return int8_logits(x, head)
    if x.dtype == torch.float32 or not x.is_cuda:
        return (x @ head.t()).float()
    return torch.mm(x, head.t(), out_dtype=torch.float32)


def _is_few(x: torch.Tensor, weight: torch.Tensor | ScaledMatrix) -> bool:
    """Whether reading the weights is all there is to it. A step that wants no token has no row at all."""
    values = weight.values if isinstance(weight, ScaledMatrix) else weight
    return 0 < len(x) <= _MAX_GEMV_ROWS[values.dtype]
