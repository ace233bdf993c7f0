"""Against the same in float64. Outputs are poisoned, so that nothing passes for being there already."""

import pytest
import torch

from hotloop.backends.cuda.layers import kernels

DTYPES = [torch.float32, torch.bfloat16]


def poison(*shape: int, dtype: torch.dtype, device: str) -> torch.Tensor:
    return torch.full(shape, float("nan"), dtype=dtype, device=device)


def assert_close(actual: torch.Tensor, expected: torch.Tensor) -> None:
    """Both norms: the whole is right, and so is each element."""
    tolerance = 1e-2 if actual.dtype == torch.bfloat16 else 1e-5
    error = (actual.double() - expected.double()).abs()
    assert error.norm() <= tolerance * expected.double().norm()  # false for a NaN
    assert bool((error <= 2 * tolerance * (1 + expected.double().abs())).all())


def equal(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.equal(a.float(), b.float())  # two tensors of e4m3 are not compared


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("has_x", [True, False])
@pytest.mark.parametrize(("num_rows", "hidden_size"), [(1, 64), (3, 896), (2, 2560)])
def test_add_norm(dtype: torch.dtype, has_x: bool, num_rows: int, hidden_size: int, device: str) -> None:
    x, residual = torch.randn(2, num_rows, hidden_size, device=device).to(dtype)
    weight = torch.randn(hidden_size, device=device).to(dtype)
    total = (x + residual) if has_x else residual.clone()
    out = poison(num_rows, hidden_size, dtype=dtype, device=device)
    assert kernels.add_norm(x if has_x else None, residual, weight, 1e-6, out) is out
    assert_close(residual, total)  # equal on a card; the interpreter rounds bf16 towards zero
    assert_close(out, rms_norm(residual.double(), weight.double(), 1e-6))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("num_rows", "size"), [(1, 16), (3, 1536), (2, 1000)])
def test_silu_mul(dtype: torch.dtype, num_rows: int, size: int, device: str) -> None:
    gate_up = (3 * torch.randn(num_rows, 2 * size, device=device)).to(dtype)
    gate, up = gate_up.double().chunk(2, -1)
    out = kernels.silu_mul(gate_up, poison(num_rows, size, dtype=dtype, device=device))
    assert_close(out, gate * torch.sigmoid(gate) * up)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("hidden_size", [64, 2500])
def test_embed_takes_what_was_chosen_before(dtype: torch.dtype, hidden_size: int, device: str) -> None:
    table = torch.randn(50, hidden_size, device=device).to(dtype)
    token_ids = torch.tensor([7, 0, 49, 3, 3], device=device)
    sources = torch.tensor([-1, 2, -1, 0, 1], dtype=torch.int32, device=device)
    chosen = torch.tensor([11, -1, 48], dtype=torch.int32, device=device)
    out = kernels.embed(token_ids, sources, chosen, table, poison(5, hidden_size, dtype=dtype, device=device))
    assert torch.equal(out, table[[7, 48, 49, 11, 0]])  # what chose nothing reads token 0


def rotated(x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    """[rows, heads, head_dim] by [rows, head_dim / 2], the halves apart."""
    first, second = x.chunk(2, -1)
    cos, sin = angles.cos()[:, None], angles.sin()[:, None]
    return torch.cat((first * cos - second * sin, second * cos + first * sin), -1)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("has_norms", [True, False])
@pytest.mark.parametrize(("num_heads", "num_kv_heads", "head_dim"), [(4, 1, 64), (14, 2, 64), (3, 3, 128), (4, 2, 80)])
def test_rotate_and_store(
    dtype: torch.dtype, has_norms: bool, num_heads: int, num_kv_heads: int, head_dim: int, device: str
) -> None:
    block_size, num_blocks = 4, 5
    positions = torch.tensor([0, 7, 63, 20], device=device)
    slots = torch.tensor([2 * 4, 4 * 4 + 3, -1, 0 * 4 + 1], device=device)  # the third row pads
    qkv = torch.randn(4, num_heads + 2 * num_kv_heads, head_dim, device=device).to(dtype)
    norms = torch.randn(2, head_dim, device=device).to(dtype) if has_norms else (None, None)
    angles = torch.arange(64, device=device).double()[:, None] * 0.9 ** torch.arange(head_dim // 2, device=device)
    cos_sin = torch.cat((angles.cos(), angles.sin()), -1).float()
    q_out = poison(4, num_heads, head_dim, dtype=dtype, device=device)
    k_cache, v_cache = poison(2, num_blocks, num_kv_heads, block_size, head_dim, dtype=dtype, device=device)
    kernels.rotate_and_store(
        qkv.flatten(1), q_out, k_cache, v_cache, positions, slots, cos_sin, norms[0], norms[1], 1e-6
    )

    q, k, v = qkv.double().split((num_heads, num_kv_heads, num_kv_heads), 1)
    if has_norms:
        q, k = rms_norm(q, norms[0].double(), 1e-6), rms_norm(k, norms[1].double(), 1e-6)
    assert_close(q_out, rotated(q, angles[positions]))
    k = rotated(k, angles[positions])
    for row, (block, offset) in {0: (2, 0), 1: (4, 3), 3: (0, 1)}.items():
        assert_close(k_cache[block, :, offset], k[row])
        assert torch.equal(v_cache[block, :, offset].double(), v[row])
    num_written = 3 * num_kv_heads * head_dim
    assert k_cache.isfinite().sum() == num_written
    assert v_cache.isfinite().sum() == num_written


@pytest.mark.parametrize(("num_heads", "num_kv_heads", "head_dim"), [(14, 2, 64), (3, 3, 80)])
def test_keys_and_values_become_e4m3(num_heads: int, num_kv_heads: int, head_dim: int, device: str) -> None:
    """By their head's scale, to half a step of a sixteenth; what is not stored stays as it is."""
    qkv = torch.randn(2, num_heads + 2 * num_kv_heads, head_dim, device=device).bfloat16()
    angles = torch.arange(8, device=device).double()[:, None] * 0.9 ** torch.arange(head_dim // 2, device=device)
    cos_sin = torch.cat((angles.cos(), angles.sin()), -1).float()
    positions, slots = torch.tensor([3, 7], device=device), torch.tensor([1 * 4 + 2, -1], device=device)
    scales = torch.logspace(-2, 1, 2 * num_kv_heads, device=device)
    caches = torch.full((2, 2, num_kv_heads, 4, head_dim), 2.0, device=device).to(torch.float8_e4m3fn)
    q_out = poison(2, num_heads, head_dim, dtype=torch.bfloat16, device=device)
    kernels.rotate_and_store(qkv.flatten(1), q_out, *caches, positions, slots, cos_sin, None, None, 1e-6, scales)

    q, k, v = qkv.double().split((num_heads, num_kv_heads, num_kv_heads), 1)
    assert_close(q_out, rotated(q, angles[positions]))
    for cache, want, scale in zip(caches, (rotated(k, angles[positions]), v), scales.double().chunk(2), strict=True):
        error = (cache[1, :, 2].double() * scale[:, None] - want[0]).abs()
        assert bool((error <= 1.01 * want[0].abs() / 16 + scale[:, None] / 512).all())
        assert int((cache.float() != 2).sum()) <= num_kv_heads * head_dim


@pytest.mark.parametrize("dtype", [*DTYPES, torch.float8_e4m3fn])
def test_blocks_are_copied_out_and_back_elsewhere(dtype: torch.dtype, device: str) -> None:
    shape = (3, 16, 96)  # more than one tile, the last not full
    caches = torch.randn(3, 2, 7, *shape, device=device).to(dtype)
    staging = poison(2, 3, 2, *shape, dtype=dtype, device=device)
    kernels.copy_blocks(caches, torch.tensor([5, 2], dtype=torch.int32, device=device), staging, is_out=True)
    assert equal(staging, caches[:, :, [5, 2]].permute(2, 0, 1, 3, 4, 5))
    other = torch.randn(3, 2, 9, *shape, device=device).to(dtype)
    expected = other.clone()
    expected[:, :, [0, 8]] = caches[:, :, [5, 2]]
    kernels.copy_blocks(other, torch.tensor([0, 8], dtype=torch.int32, device=device), staging, is_out=False)
    assert equal(other, expected)
    kernels.copy_blocks(other, torch.tensor([], dtype=torch.int32, device=device), staging[:0], is_out=False)
    assert equal(other, expected)
