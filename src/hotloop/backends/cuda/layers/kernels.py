"""What a transformer layer does between its matrix products, a launch each.

Rows are tokens, whichever sequence they belong to. Inputs are contiguous unless a function says otherwise; arithmetic
is float32 whatever is stored. Shapes of the model are compiled in, so a model compiles each kernel once; sizes that
change from step to step are plain arguments.

One layer's KV cache is two tensors [num_blocks, num_kv_heads, block_size, head_dim]. It may be larger than 2**31
elements, so everything that addresses it does so in 64 bits.
"""

import torch
import triton
import triton.language as tl

from hotloop.backends.cuda.overlap import let_next_begin, overlap, wait_for_previous

_COPY_TILE = 4096
_HEAD_TILE = 16  # heads of a program: with 4 it takes twice as long


def add_norm(
    x: torch.Tensor | None, residual: torch.Tensor, weight: torch.Tensor, eps: float, out: torch.Tensor
) -> torch.Tensor:
    """residual += x, if there is one; out = rmsnorm(residual) * weight. All [rows, hidden] but the weight."""
    num_rows, hidden_size = residual.shape
    tile = triton.next_power_of_2(hidden_size)
    num_warps = 8 if tile >= 2048 else 4
    _add_norm[(num_rows,)](
        x, residual, weight, out, eps, hidden_size, tile, num_warps=num_warps, **overlap(residual.device)
    )
    return out


@triton.jit
def _add_norm(
    x, residual, weight, out, eps, hidden_size: tl.constexpr, tile: tl.constexpr, is_overlapped: tl.constexpr
):
    let_next_begin(is_overlapped)
    wait_for_previous(is_overlapped)
    begin = tl.program_id(0).to(tl.int64) * hidden_size
    i = tl.arange(0, tile)
    is_in = i < hidden_size
    total = tl.load(residual + begin + i, mask=is_in, other=0.0)
    if x is not None:
        stored = total.dtype
        total = total.to(tl.float32) + tl.load(x + begin + i, mask=is_in, other=0.0).to(tl.float32)
        total = total.to(stored)  # what is normalised is what the next layer will find
        tl.store(residual + begin + i, total, mask=is_in)
    value = total.to(tl.float32)
    scale = tl.rsqrt(tl.sum(value * value, 0) / hidden_size + eps)
    normed = value * scale * tl.load(weight + i, mask=is_in, other=0.0).to(tl.float32)
    tl.store(out + begin + i, normed.to(out.dtype.element_ty), mask=is_in)


def silu_mul(gate_up: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    """out [rows, size] = silu(gate) * up, of gate_up [rows, gate | up]."""
    num_rows, size = out.shape
    tile = min(1024, triton.next_power_of_2(size))
    _silu_mul[(num_rows, triton.cdiv(size, tile))](gate_up, out, size, tile, **overlap(out.device))
    return out


@triton.jit
def _silu_mul(gate_up, out, size: tl.constexpr, tile: tl.constexpr, is_overlapped: tl.constexpr):
    let_next_begin(is_overlapped)
    wait_for_previous(is_overlapped)
    row = tl.program_id(0).to(tl.int64)
    i = tl.program_id(1) * tile + tl.arange(0, tile)
    is_in = i < size
    gate = tl.load(gate_up + row * 2 * size + i, mask=is_in, other=0.0).to(tl.float32)
    up = tl.load(gate_up + row * 2 * size + size + i, mask=is_in, other=0.0).to(tl.float32)
    tl.store(out + row * size + i, (gate * tl.sigmoid(gate) * up).to(out.dtype.element_ty), mask=is_in)


def gate_heads(out: torch.Tensor, gates: torch.Tensor) -> torch.Tensor:
    """out [rows, size] *= sigmoid(gates), whose rows are further apart."""
    num_rows, size = out.shape
    tile = min(1024, triton.next_power_of_2(size))
    grid = (num_rows, triton.cdiv(size, tile))
    _gate_heads[grid](out, gates, gates.stride(0), size, tile, **overlap(out.device))
    return out


@triton.jit
def _gate_heads(out, gates, stride: tl.constexpr, size: tl.constexpr, tile: tl.constexpr, is_overlapped: tl.constexpr):
    let_next_begin(is_overlapped)
    wait_for_previous(is_overlapped)
    row = tl.program_id(0).to(tl.int64)
    i = tl.program_id(1) * tile + tl.arange(0, tile)
    gate = tl.load(gates + row * stride + i, mask=i < size, other=0.0).to(tl.float32)
    value = tl.load(out + row * size + i, mask=i < size, other=0.0).to(tl.float32) * tl.sigmoid(gate)
    tl.store(out + row * size + i, value.to(out.dtype.element_ty), mask=i < size)


def add_gated(out: torch.Tensor, added: torch.Tensor, x: torch.Tensor, router: torch.Tensor) -> torch.Tensor:
    """out += sigmoid(x . router) * added. All [rows, hidden] but the router [1, hidden]."""
    num_rows, size = out.shape
    _add_gated[(num_rows,)](out, added, x, router, size, triton.next_power_of_2(size), **overlap(out.device))
    return out


@triton.jit
def _add_gated(out, added, x, router, size: tl.constexpr, tile: tl.constexpr, is_overlapped: tl.constexpr):
    let_next_begin(is_overlapped)
    wait_for_previous(is_overlapped)
    i = tl.arange(0, tile)
    at, is_in = tl.program_id(0).to(tl.int64) * size + i, i < size
    weight = tl.load(router + i, mask=is_in, other=0.0).to(tl.float32)
    logit = tl.sum(tl.load(x + at, mask=is_in, other=0.0).to(tl.float32) * weight, 0)
    value = tl.load(added + at, mask=is_in, other=0.0).to(tl.float32) * tl.sigmoid(logit)
    value += tl.load(out + at, mask=is_in, other=0.0).to(tl.float32)
    tl.store(out + at, value.to(out.dtype.element_ty), mask=is_in)


def embed(
    token_ids: torch.Tensor, sources: torch.Tensor, chosen: torch.Tensor, table: torch.Tensor, out: torch.Tensor
) -> torch.Tensor:
    """out [rows, hidden] = table[token]. The token of a row is chosen[source], or token_ids[row] if source is -1.

    So the host can launch a step before it has seen what the step before chose. A row that chose nothing (-1) reads
    token 0: its sequence has failed, and nobody will look at what comes of it.
    """
    num_rows, hidden_size = out.shape
    tile = min(2048, triton.next_power_of_2(hidden_size))
    grid = (num_rows, triton.cdiv(hidden_size, tile))
    _embed[grid](token_ids, sources, chosen, table, out, hidden_size, tile)
    return out


@triton.jit(do_not_specialize_on_alignment=["token_ids", "sources"])
def _embed(token_ids, sources, chosen, table, out, hidden_size: tl.constexpr, tile: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    source = tl.load(sources + row)
    known = tl.load(token_ids + row).to(tl.int64)
    token = tl.load(chosen + source, mask=source >= 0, other=0).to(tl.int64)
    token = tl.maximum(tl.where(source >= 0, token, known), 0)
    i = tl.program_id(1) * tile + tl.arange(0, tile)
    is_in = i < hidden_size
    value = tl.load(table + token * hidden_size + i, mask=is_in, other=0.0)
    tl.store(out + row * hidden_size + i, value.to(out.dtype.element_ty), mask=is_in)


def rotate_and_store(
    qkv: torch.Tensor,  # [rows, (num_heads + 2 * num_kv_heads) * head_dim], rows maybe further apart
    q_out: torch.Tensor,  # [rows, num_heads, head_dim]
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    positions: torch.Tensor,  # [rows]
    slots: torch.Tensor,  # [rows] int64: block_id * block_size + offset; -1: not stored
    cos_sin: torch.Tensor,  # [max_positions, head_dim] float32: the cosines of the pairs, then their sines
    q_norm: torch.Tensor | None,  # [head_dim]
    k_norm: torch.Tensor | None,
    eps: float,
    kv_scales: torch.Tensor | None = None,  # [2 * num_kv_heads] of keys, then values, where the cache is in e4m3
) -> None:
    """Normalise each head of q and k (if there are weights for that), rotate them, and put k and v into their block.

    A pair is (i, i + head_dim / 2), as Hugging Face keeps them.
    """
    num_rows, num_heads, head_dim = q_out.shape
    _, num_kv_heads, block_size, _ = k_cache.shape
    assert (q_norm is None) == (k_norm is None)
    if kv_scales is not None and not qkv.is_cuda and k_cache.dtype != torch.float32:
        wide = k_cache.float(), v_cache.float()  # the interpreter forgets a carry when it rounds to e4m3
        rotate_and_store(qkv, q_out, *wide, positions, slots, cos_sin, q_norm, k_norm, eps, kv_scales)
        k_cache.copy_(wide[0])
        v_cache.copy_(wide[1])
        return
    all_heads = num_heads + 2 * num_kv_heads
    head_tile = _HEAD_TILE if qkv.is_cuda else triton.next_power_of_2(all_heads)  # the interpreter counts programs
    grid = (num_rows, triton.cdiv(all_heads, head_tile))
    _rotate_and_store[grid](
        qkv, q_out, k_cache, v_cache, positions, slots, cos_sin, q_norm, k_norm, kv_scales, eps, qkv.stride(0),
        num_heads, num_kv_heads, head_dim, block_size, head_tile, triton.next_power_of_2(head_dim // 2), num_warps=4,
        **overlap(qkv.device),
    )  # fmt: skip


@triton.jit(do_not_specialize_on_alignment=["positions", "slots", "kv_scales"])
def _rotate_and_store(
    qkv, q_out, k_cache, v_cache, positions, slots, cos_sin, q_norm, k_norm, kv_scales, eps,
    stride: tl.constexpr, num_heads: tl.constexpr, num_kv_heads: tl.constexpr, head_dim: tl.constexpr,
    block_size: tl.constexpr, head_tile: tl.constexpr, half_tile: tl.constexpr, is_overlapped: tl.constexpr,
):  # fmt: skip
    let_next_begin(is_overlapped)
    wait_for_previous(is_overlapped)
    # A row of qkv, head by head, each as two halves of pairs:
    #   [ q0 q0' | q1 q1' | ... | k0 k0' | ... | v0 v0' | ... ]
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * head_tile + tl.arange(0, head_tile)
    half: tl.constexpr = head_dim // 2
    first_k: tl.constexpr = num_heads
    first_v: tl.constexpr = num_heads + num_kv_heads
    end: tl.constexpr = num_heads + 2 * num_kv_heads
    i = tl.arange(0, half_tile)
    is_in = (head < end)[:, None] & (i < half)[None, :]
    is_q = (head < first_k)[:, None]
    is_k = ((head >= first_k) & (head < first_v))[:, None]
    is_v = (head >= first_v)[:, None]

    source = qkv + row * stride + head[:, None] * head_dim + i[None, :]
    first = tl.load(source, mask=is_in, other=0.0).to(tl.float32)
    second = tl.load(source + half, mask=is_in, other=0.0).to(tl.float32)
    x, y = first, second
    if q_norm is not None:
        scale = tl.rsqrt((tl.sum(x * x, 1) + tl.sum(y * y, 1)) / head_dim + eps)[:, None]
        x *= scale * tl.where(is_q, _load_half(q_norm, i, half), _load_half(k_norm, i, half))
        y *= scale * tl.where(is_q, _load_half(q_norm + half, i, half), _load_half(k_norm + half, i, half))
    angles = cos_sin + tl.load(positions + row).to(tl.int64) * head_dim
    cos, sin = _load_half(angles, i, half), _load_half(angles + half, i, half)
    first = tl.where(is_v, first, x * cos - y * sin)
    second = tl.where(is_v, second, y * cos + x * sin)

    q_at = (row * num_heads + head)[:, None] * head_dim + i[None, :]
    _store_halves(q_out + q_at, first, second, half, is_in & is_q)
    slot = tl.load(slots + row)
    if slot < 0:
        return
    kv_head = (head - first_k) % num_kv_heads
    if kv_scales is not None:
        scale = tl.load(kv_scales + head - first_k, mask=(head >= first_k) & (head < end), other=1.0)[:, None]
        first, second = first / scale, second / scale
    kv_at = ((slot // block_size * num_kv_heads + kv_head) * block_size + slot % block_size)[:, None] * head_dim
    _store_halves(k_cache + kv_at + i[None, :], first, second, half, is_in & is_k)
    _store_halves(v_cache + kv_at + i[None, :], first, second, half, is_in & is_v)


@triton.jit
def _load_half(source, i, half: tl.constexpr):
    return tl.load(source + i, mask=i < half, other=0.0).to(tl.float32)[None, :]


@triton.jit
def _store_halves(target, first, second, half: tl.constexpr, mask):
    tl.store(target, first.to(target.dtype.element_ty), mask=mask)
    tl.store(target + half, second.to(target.dtype.element_ty), mask=mask)


def copy_blocks(caches: torch.Tensor, block_ids: torch.Tensor, staging: torch.Tensor, *, is_out: bool) -> None:
    """Blocks of all layers out of the caches, one block after the other, or back into them.

    caches  [num_layers, 2, num_blocks, num_kv_heads, block_size, head_dim]; of latents 1 in place of 2
    staging [len(block_ids), num_layers, 2, num_kv_heads, block_size, head_dim]
    """
    num_layers, num_kinds, num_blocks, *block_shape = caches.shape
    num_parts = num_kinds * num_layers
    size = block_shape[0] * block_shape[1] * block_shape[2]
    assert staging.numel() == len(block_ids) * num_parts * size
    assert staging.dtype == caches.dtype
    if len(block_ids):
        grid = (len(block_ids), num_parts, triton.cdiv(size, _COPY_TILE))
        _copy_blocks[grid](caches, block_ids, staging, num_blocks, num_parts, size, _COPY_TILE, is_out)


@triton.jit(do_not_specialize=["num_blocks"], do_not_specialize_on_alignment=["block_ids"])
def _copy_blocks(
    caches, block_ids, staging, num_blocks,
    num_parts: tl.constexpr, size: tl.constexpr, tile: tl.constexpr, is_out: tl.constexpr,
):  # fmt: skip
    index, part = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    block = tl.load(block_ids + index).to(tl.int64)
    i = tl.program_id(2) * tile + tl.arange(0, tile)
    in_cache = caches + (part * num_blocks + block) * size + i
    in_staging = staging + (index * num_parts + part) * size + i
    if is_out:
        tl.store(in_staging, tl.load(in_cache, mask=i < size), mask=i < size)
    else:
        tl.store(in_cache, tl.load(in_staging, mask=i < size), mask=i < size)
