"""Compiles kernels for a Hopper card without one, which the interpreter does not, a family at a time."""

import sys
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.experimental.gluon import language as gl
from triton.experimental.gluon._runtime import GluonASTSource

from hotloop.backends.cuda.attention import hopper
from hotloop.backends.cuda.attention.decode import WIDE_TILE, _attend
from hotloop.backends.cuda.attention.latent import _attend_latents, _heads_product, _rotate_and_keep
from hotloop.backends.cuda.attention.latent_prefill import _prefill_made
from hotloop.backends.cuda.attention.prefill import _prefill
from hotloop.backends.cuda.layers.delta.chunks import _carry, _prepare, _read
from hotloop.backends.cuda.layers.delta.convolution import _convolve
from hotloop.backends.cuda.layers.delta.recurrence import _recur
from hotloop.backends.cuda.layers.experts import _few_gated, _grouped
from hotloop.backends.cuda.layers.routing import _route
from hotloop.backends.cuda.quant.mxfp4 import _dequantise

ATTENTION = {
    "q": "*bf16", "k_cache": "*bf16", "v_cache": "*bf16", "row_begins": "*i32", "lens": "*i32", "block_ids": "*i32",
    "block_begins": "*i32", "splits": "*i32", "out": "*bf16", "outs": "*fp32", "lses": "*fp32", "scale_log2": "fp32",
    "split_ints": 5, "num_heads": 8, "num_kv_heads": 2, "head_dim": 64, "block_size": 64, "tile_pairs": 16,
    "tile_tokens": 64, "tile_rows": 64, "dim_tile": 64, "is_overlapped": True,
}  # fmt: skip
EXPERTS = {
    "x": "*bf16", "ids": "*i32", "counts": "*i32", "order": "*i32", "out": "*bf16", "num_rows": "i32", "k": 128,
    "size": 64, "num_out": 64, "num_experts": 8, "num_chosen": 2, "expert_tile": 8, "tile_pairs": 16, "tile_outs": 16,
    "tile_in": 64, "is_gated": True, "slope": 1.702, "is_overlapped": True,
}  # fmt: skip
DELTA = {
    "x": "*bf16", "mixed": "*bf16", "gates": "*bf16", "rates": "*bf16", "taps": "*bf16", "out": "*bf16",
    "written": "*bf16", "changes": "*bf16", "fronts": "*bf16", "a_log": "*fp32", "dt_bias": "*fp32", "norm": "*fp32",
    "sums": "*fp32", "memories": "*fp32", "inputs": "*fp32", "row_begins": "*i32", "states": "*i32", "eps": "fp32",
    "gate_stride": "i32", "x_stride": "i32", "num_sequences": "i32", "num_key_heads": 16, "num_value_heads": 32,
    "key_dim": 128, "value_dim": 128, "key_tile": 128, "value_tile": 128, "dim_tile": 128, "part": 32, "chunk": 64,
    "sequences": 64, "width": 4, "tile_rows": 16, "is_whole": False, "is_overlapped": True,
}  # fmt: skip
LATENTS = {
    "latents": "*bf16", "q": "*bf16", "kept": "*bf16", "made": "*bf16", "cache": "*bf16", "positions": "*i32",
    "slots": "*i64", "cos_sin": "*fp32", "norm": "*bf16", "eps": "fp32", "row_begins": "*i32", "lens": "*i32",
    "block_ids": "*i32", "block_begins": "*i32", "splits": "*i32", "out": "*bf16", "outs": "*fp32", "lses": "*fp32",
    "scale_log2": "fp32", "q_stride": "i32", "kept_stride": "i32", "first_head": "i32", "max_keys": "i32",
    "x": "*bf16", "w": "*bf16", "num_rows": "i32", "x_row": "i32", "x_head": "i32", "out_row": "i32", "out_head": "i32",
    "w_head": 8192, "w_k": 64, "w_n": 1, "n": 64, "k": 64, "split_ints": 5, "num_heads": 8, "num_made": 8,
    "head_dim": 96, "nope_dim": 64, "rope_dim": 32, "value_dim": 64, "rank": 64, "head_tile": 4, "rank_tile": 64,
    "half_tile": 16, "rope_tile": 32, "nope_tile": 64, "value_tile": 64, "block_size": 64, "tile_pairs": 16,
    "tile_tokens": 32, "tile_rows": 64, "tile_keys": 64, "tile_n": 32, "tile_k": 64, "is_whole": False,
    "is_overlapped": True,
}  # fmt: skip
ROUTED = {
    "logits": "*bf16", "bias": "*fp32", "slots": "*i64", "ids": "*i32", "scores": "*fp32", "counts": "*i32",
    "order": "*i32", "num_rows": "i32", "num_experts": 16, "num_chosen": 2, "expert_tile": 16, "chosen_tile": 2,
    "is_sigmoid": True, "is_normed": True, "scale": 1.5, "num_groups": 4, "num_chosen_groups": 2, "is_few": False,
    "is_overlapped": True,
}  # fmt: skip
MXFP4 = {
    "values": "*u8", "scales": "*u8", "out": "*bf16", "num_groups": "i32", "tile": 256, "is_overlapped": True,
}  # fmt: skip
WHOLE_LATENTS = {"splits": None, "outs": "*bf16", "lses": "*bf16", "is_whole": True}
WIDE = {"head_dim": 256, "dim_tile": 256, "num_heads": 16, "window": None, "is_whole": False}
MAX_SHARED_BYTES = 227 << 10


def compile_kernel(
    kernel: Any, arguments: dict[str, Any], source_type: type[ASTSource] = ASTSource, **options: int
) -> None:
    """Strings are types, all else is compiled in."""
    given = [arguments.get(name) for name in kernel.arg_names]
    types = [each if isinstance(each, str) else "constexpr" for each in given]
    constants = {(i,): each for i, each in enumerate(given) if not isinstance(each, str)}
    source = source_type(kernel, dict(zip(kernel.arg_names, types, strict=True)), constants)
    shared_bytes = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options).metadata.shared
    assert shared_bytes <= MAX_SHARED_BYTES, f"{kernel.__name__} takes {shared_bytes} bytes of shared memory"


def in_float32(arguments: dict[str, Any]) -> dict[str, Any]:
    return {name: "*fp32" if each == "*bf16" else each for name, each in arguments.items()}


def attention() -> None:
    for window, sinks in ((None, None), (128, "*bf16")):
        for kernel in (_attend, _prefill):
            compile_kernel(kernel, ATTENTION | {"window": window, "is_whole": window is not None, "sinks": sinks})


def wide_attention() -> None:
    wide = ATTENTION | WIDE
    compile_kernel(_attend, wide | {"tile_pairs": 128}, num_warps=8, num_stages=3)
    compile_kernel(_prefill, wide, num_stages=3)
    for kernel in (_attend, _prefill):
        compile_kernel(kernel, in_float32(wide) | {"tile_pairs": WIDE_TILE, "tile_rows": WIDE_TILE}, num_stages=1)


def hopper_attention() -> None:
    layout = gl.NVMMASharedLayout.get_default_for([64, 128], gl.bfloat16)
    blocks = f"tensordesc<bf16[64, 128],{layout!r}>"
    given = {"k": blocks, "v": blocks, "head_dim": 128, "layout": layout, "tiles": "*i32", "merges": "*i32"}
    compile_kernel(hopper._attend, ATTENTION | given, GluonASTSource, num_warps=4)
    compile_kernel(hopper._merge, ATTENTION | given)


def experts() -> None:
    for weights, scales, limit in (("*bf16", None, None), ("*fp8e4nv", "*fp32", None), ("*u8", "*u8", 7.0)):
        for kernel in (_few_gated, _grouped):
            compile_kernel(kernel, EXPERTS | {"w": weights, "scales": scales, "limit": limit})
    compile_kernel(_dequantise, MXFP4)
    compile_kernel(_route, ROUTED)


def delta() -> None:
    for kernel, num_warps in ((_convolve, 4), (_recur, 8), (_prepare, 8), (_carry, 4), (_read, 4)):
        compile_kernel(kernel, DELTA, num_warps=num_warps, num_stages=2)
    compile_kernel(_convolve, DELTA | {"tile_rows": 1, "is_whole": True}, num_warps=1)


def delta_in_float32() -> None:
    compile_kernel(_read, in_float32(DELTA))
    compile_kernel(_carry, in_float32(DELTA), num_stages=2)


def latents() -> None:
    for kernel in (_attend_latents, _heads_product, _rotate_and_keep, _prefill_made):
        compile_kernel(kernel, LATENTS)
    compile_kernel(_attend_latents, LATENTS | WHOLE_LATENTS)


def large_latents() -> None:
    large = {"rank": 512, "rank_tile": 512, "rope_dim": 64, "rope_tile": 64, "head_dim": 192, "num_heads": 16}
    compile_kernel(_attend_latents, LATENTS | large | {"tile_pairs": 64}, num_warps=8, num_stages=3)
    compile_kernel(_attend_latents, in_float32(LATENTS | large | WHOLE_LATENTS), num_stages=1)


FAMILIES = (attention, wide_attention, hopper_attention, experts, delta, delta_in_float32, latents, large_latents)

if __name__ == "__main__":
    {each.__name__: each for each in FAMILIES}[sys.argv[1]]()
