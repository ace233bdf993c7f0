"""Products for few rows against the same in float64, each format of weights, at sizes that fill no tile."""

import pytest
import torch
from tests.cuda.test_kernels import assert_close, poison

from hotloop.backends.cuda import gemv, skinny

WORKSPACE_ITEMS = 1 << 20


def random_x(num_rows: int, k: int, device: str) -> torch.Tensor:
    """bf16's numbers; held in float32 where the interpreter computes, which cannot multiply bf16 matrices."""
    x = torch.randn(num_rows, k, device=device).bfloat16()
    return x if device == "cuda" else x.float()


def random_weights(n: int, k: int, device: str, *, is_fp8: bool) -> tuple[torch.Tensor, torch.Tensor | None]:
    w = torch.randn(n, k, device=device).bfloat16()
    return (w.to(torch.float8_e4m3fn), torch.rand(n, device=device) + 0.5) if is_fp8 else (w, None)


def product(x: torch.Tensor, w: torch.Tensor, scales: torch.Tensor | None, *, is_gated: bool) -> torch.Tensor:
    out = x.double() @ w.double().t()
    out = out if scales is None else out * scales.double()
    if not is_gated:
        return out
    gate, up = out.chunk(2, -1)
    return gate * torch.sigmoid(gate) * up


def out_for(x: torch.Tensor, n: int, *, is_gated: bool) -> torch.Tensor:
    return poison(len(x), n // 2 if is_gated else n, dtype=x.dtype, device=str(x.device))


@pytest.mark.parametrize("is_gated", [False, True])
@pytest.mark.parametrize("is_fp8", [False, True])
@pytest.mark.parametrize(("num_rows", "n", "k"), [(1, 64, 128), (3, 42, 200), (4, 6, 16)])
def test_gemv(num_rows: int, n: int, k: int, is_fp8: bool, is_gated: bool, device: str) -> None:
    x = random_x(num_rows, k, device)
    w, scales = random_weights(n, k, device, is_fp8=is_fp8)
    out = out_for(x, n, is_gated=is_gated)
    gemv.gemv(x, w, out, gemv.Tiling(8, 64, 1), scales=scales, is_gated=is_gated)
    assert_close(out, product(x, w, scales, is_gated=is_gated))


@pytest.mark.parametrize("is_gated", [False, True])
@pytest.mark.parametrize("is_fp8", [False, True])
@pytest.mark.parametrize(
    ("num_rows", "n", "k", "num_splits"), [(1, 64, 128, 1), (16, 42, 208, 3), (63, 38, 72, 1), (64, 130, 160, 2)]
)
def test_skinny(num_rows: int, n: int, k: int, num_splits: int, is_fp8: bool, is_gated: bool, device: str) -> None:
    workspace = skinny.Workspace.allocate(WORKSPACE_ITEMS, device)
    x = random_x(num_rows, k, device)
    w, scales = random_weights(n, k, device, is_fp8=is_fp8)
    tiling = skinny.Tiling(64, 32, 4, 3, num_splits)
    want = product(x, w, scales, is_gated=is_gated)
    for _ in range(2):  # the second finds the counters as the first did
        out = out_for(x, n, is_gated=is_gated)
        assert_close(skinny.skinny(x, w, out, tiling, workspace, scales=scales, is_gated=is_gated), want)


def test_bias_comes_after_the_scales(device: str) -> None:
    x = random_x(2, 64, device)
    w, scales = random_weights(48, 64, device, is_fp8=True)
    bias = torch.randn(48, device=device).bfloat16()
    want = product(x, w, scales, is_gated=False) + bias.double()
    out = out_for(x, 48, is_gated=False)
    assert_close(gemv.gemv(x, w, out, gemv.Tiling(8, 64, 1), scales=scales, bias=bias), want)
    workspace = skinny.Workspace.allocate(WORKSPACE_ITEMS, device)
    for num_splits in (1, 2):
        out = out_for(x, 48, is_gated=False)
        skinny.skinny(x, w, out, skinny.Tiling(64, 32, 4, 3, num_splits), workspace, scales=scales, bias=bias)
        assert_close(out, want)


def test_more_splits_than_steps(device: str) -> None:
    x = random_x(5, 96, device)
    w, _ = random_weights(16, 96, device, is_fp8=False)
    workspace = skinny.Workspace.allocate(WORKSPACE_ITEMS, device)
    out = out_for(x, 16, is_gated=False)
    skinny.skinny(x, w, out, skinny.Tiling(64, 64, 4, 3, 8), workspace)
    assert_close(out, product(x, w, None, is_gated=False))


@pytest.mark.parametrize("is_gated", [False, True])
@pytest.mark.parametrize(("num_rows", "n", "k", "num_splits"), [(1, 64, 128, 1), (17, 42, 384, 2), (63, 70, 256, 1)])
def test_int4(num_rows: int, n: int, k: int, num_splits: int, is_gated: bool, device: str) -> None:
    groups = k // skinny.INT4_GROUP
    q = torch.randint(0, 16, (groups, n, 2, 64), dtype=torch.uint8, device=device)
    zeros = torch.randint(0, 17, (groups, n), device=device)
    scales = (torch.rand(groups, n, device=device) / 10).bfloat16()
    w = (q.flatten(2).double() - zeros[..., None]) * scales.double()[..., None]
    x = random_x(num_rows, k, device)
    out = out_for(x, n, is_gated=is_gated)
    skinny.skinny(
        x, q[:, :, 0] | q[:, :, 1] << 4, out, skinny.Tiling(64, 128, 4, 3, num_splits),
        skinny.Workspace.allocate(WORKSPACE_ITEMS, device),
        scales=scales, offsets=(zeros + 128).bfloat16(), is_gated=is_gated,
    )  # fmt: skip
    w = w.permute(1, 0, 2).flatten(1)
    assert_close(out.bfloat16(), product(x, w, None, is_gated=is_gated))  # the offsets cost float32 some bits
