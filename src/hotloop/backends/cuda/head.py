"""Logits of a few rows by a head in int8, which is widened on the way to the tensor cores: rows stay what they are.

The head is the larger side, so it is the first factor, which the tensor cores take from registers:

    out.T [vocabulary, rows] = head [vocabulary, hidden] @ x.T [hidden, rows]
"""

import torch
import triton
import triton.language as tl

from hotloop.backends.cuda.fp8 import ScaledMatrix

_TILE_TOKENS = 128
_TILE_K = 128
TILE_ROWS = (16, 64, 128)


def int8_logits(x: torch.Tensor, head: ScaledMatrix) -> torch.Tensor:
    """[rows, vocabulary] float32 of x [rows, hidden]."""
    num_rows, k = x.shape
    out = torch.empty(num_rows, len(head), dtype=torch.float32, device=x.device)
    if not num_rows:
        return out
    if not x.is_cuda:
        x = x.float()  # the interpreter multiplies the bits of bf16
    tile_rows = next((size for size in TILE_ROWS if num_rows <= size), TILE_ROWS[-1])
    grid = (triton.cdiv(num_rows, tile_rows), triton.cdiv(len(head), _TILE_TOKENS))
    _int8_logits[grid](
        x, head.values, head.scales, out, num_rows, len(head), k, tile_rows, _TILE_TOKENS, _TILE_K,
        num_warps=8 if tile_rows > 64 else 4, num_stages=1 if x.dtype == torch.float32 else 4,
    )  # fmt: skip
    return out


@triton.jit(do_not_specialize=["num_rows"])
def _int8_logits(
    x, head, scales, out, num_rows, num_tokens, k: tl.constexpr, tile_rows: tl.constexpr,
    tile_tokens: tl.constexpr, tile_k: tl.constexpr,
):  # fmt: skip
    """Program (tile of rows, tile of tokens): neighbours read the same weights."""
    row = tl.program_id(0) * tile_rows + tl.arange(0, tile_rows)
    token = tl.program_id(1) * tile_tokens + tl.arange(0, tile_tokens)
    is_row, is_token = row < num_rows, token < num_tokens
    i = tl.arange(0, tile_k)
    at_x = x + row.to(tl.int64)[:, None] * k + i[None, :]
    at_head = head + token.to(tl.int64)[:, None] * k + i[None, :]
    total = tl.zeros([tile_tokens, tile_rows], tl.float32)
    for begin in range(0, k, tile_k):
        is_in = (begin + i < k)[None, :]
        rows = tl.load(at_x + begin, mask=is_row[:, None] & is_in, other=0.0)
        weights = tl.load(at_head + begin, mask=is_token[:, None] & is_in, other=0)
        total = tl.dot(weights.to(rows.dtype), tl.trans(rows), total, input_precision="tf32x3")
    total *= tl.load(scales + token, mask=is_token, other=0.0)[:, None]
    at_out = out + row.to(tl.int64)[None, :] * num_tokens + token[:, None]
    tl.store(at_out, total, mask=is_token[:, None] & is_row[None, :])
