"""FlashAttention for chunks, where a build of it is installed. Never needed: our own kernel (prefill.py) does the same.

Builds of FlashAttention 3 differ in who packs them, not in what they do: a library with one operator, which is loaded
without importing the package around it. FlashAttention 4 compiles itself, once for a shape of heads. Neither waits for
the device, and neither plans or compiles anew for another length, which is what rules cuDNN out.

    our cache   [blocks, kv heads, block size, head_dim]
    their view  [blocks, block size, kv heads, head_dim]      strides, no copy

A build is used only after it has computed a small batch as our kernel does.
"""

import importlib
import importlib.util
import logging
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

from hotloop.backends.cuda.prefill import prefill_attention

log = logging.getLogger(__name__)

# (package, its library, the namespace of the operator)
_LIBRARIES = (
    ("flash_attn_3", "_C*.so", "flash_attn_3"),
    ("vllm", "vllm_flash_attn/_vllm_fa3_C*.so", "_vllm_fa3_C"),
    ("sgl_kernel", "flash_ops*.so", "sgl_kernel"),
)
# What some builds give no default for
_USUAL = {"window_size_left": -1, "window_size_right": -1, "cp_world_size": 1}
_NOTHING = {"IntType": 0, "FloatType": 0.0, "BoolType": False}
_CHECKED = ((70, 70), (40, 170), (1, 33), (129, 257))  # rows and keys of the sequences that a build is tried with
_TOLERANCE = 0.02


class Flash(NamedTuple):
    """A build that can be called."""

    name: str
    call: Callable[..., object]

    def attend(
        self,
        q: torch.Tensor,  # [rows, num_heads, head_dim]
        k_cache: torch.Tensor,  # [num_blocks, num_kv_heads, block_size, head_dim]
        v_cache: torch.Tensor,
        row_begins: torch.Tensor,  # [num_sequences + 1]
        lens: torch.Tensor,  # [num_sequences], the new rows included
        table: torch.Tensor,  # [num_sequences, blocks of the longest]
        out: torch.Tensor,  # [rows, num_heads, head_dim]
        *,
        max_rows: int,
        scale: float,
    ) -> torch.Tensor:
        """As prefill_attention does it, the blocks of a sequence in a row of `table`."""
        self.call(
            q=q, k=k_cache.transpose(1, 2), v=v_cache.transpose(1, 2), out=out, cu_seqlens_q=row_begins, seqused_k=lens,
            page_table=table, max_seqlen_q=max_rows, max_seqlen_k=table.shape[1] * k_cache.shape[2],
            softmax_scale=scale,
        )  # fmt: skip
        return out


def find_flash(num_heads: int, kv: torch.Tensor) -> Flash | None:
    """The first build that does what our kernel does with a cache [2, blocks, kv heads, block size, head_dim]."""
    if kv.device.type != "cuda" or kv.dtype == torch.float32:
        return None
    for name, load in _builds(torch.cuda.get_device_capability(kv.device)[0]):
        try:
            flash = Flash(name, load())
            error = difference(flash, num_heads, kv)
        except Exception as reason:  # foreign code, made for other versions of what is installed
            log.warning("%s is installed, but not used: %s", name, next(iter(str(reason).splitlines()), repr(reason)))
            continue
        if error <= _TOLERANCE:
            return flash
        log.warning("%s is installed, but not used: its results differ from ours by %.3f", name, error)
    return None


def difference(flash: Flash, num_heads: int, kv: torch.Tensor) -> float:
    """How far a build is from our kernel on a small batch, as a share of the values' size."""
    _, _, num_kv_heads, block_size, head_dim = kv.shape
    randn = partial(torch.randn, dtype=kv.dtype, device=kv.device)
    num_rows, lens = (torch.tensor(column, dtype=torch.int32) for column in zip(*_CHECKED, strict=True))
    skipped = 3  # rows of others come first
    row_begins = skipped + torch.cat([torch.zeros(1), num_rows.cumsum(0)]).to(torch.int32)
    width = -(-int(lens.max()) // block_size)
    table = torch.randperm(len(lens) * width, dtype=torch.int32).view(len(lens), width)
    block_begins = torch.arange(len(lens) + 1, dtype=torch.int32) * width
    row_begins, lens, table, block_begins = (x.to(kv.device) for x in (row_begins, lens, table, block_begins))
    keys, values = (randn(table.numel(), num_kv_heads, block_size, head_dim) for _ in range(2))
    q = randn(skipped + int(num_rows.sum()), num_heads, head_dim)
    max_rows, scale = int(num_rows.max()), head_dim**-0.5
    ours, theirs = torch.zeros_like(q), torch.zeros_like(q)
    prefill_attention(
        q, keys, values, row_begins, lens, table.flatten(), block_begins, ours,
        num_sequences=len(lens), max_rows=max_rows, scale=scale,
    )  # fmt: skip
    flash.attend(q, keys, values, row_begins, lens, table, theirs, max_rows=max_rows, scale=scale)
    return float((ours - theirs).float().norm() / ours.float().norm())


def _builds(capability: int) -> Iterator[tuple[str, Callable[[], Callable[..., object]]]]:
    """What is installed for such a card, by name, with what loads it."""
    if capability == 9:
        for package, pattern, namespace in _LIBRARIES:
            for path in _find(package, pattern):
                yield f"FlashAttention 3 of {package}", partial(_load_library, path, namespace)
    if capability in (9, 10) and _find("flash_attn", "cute/interface.py"):
        yield "FlashAttention 4", _load_cute


def _find(package: str, pattern: str) -> list[Path]:
    """Files of a package that is not imported for it."""
    spec = importlib.util.find_spec(package)
    folders = (spec and spec.submodule_search_locations) or []
    return [path for folder in folders for path in sorted(Path(folder).glob(pattern))]


def _load_library(path: Path, namespace: str) -> Callable[..., object]:
    torch.ops.load_library(str(path))
    return partial(_call_operator, getattr(torch.ops, namespace).fwd.default)


def _call_operator(operator: Any, **given: object) -> object:
    """Builds add arguments of their own, which are left as they would be without them."""
    given = {"is_causal": True, "num_splits": 1} | given
    for argument in operator._schema.arguments:
        if argument.name not in given and not argument.has_default_value():
            given[argument.name] = _USUAL.get(argument.name, _NOTHING.get(argument.type.kind()))
    return operator(**given)


def _load_cute() -> Callable[..., object]:
    """The function that has a place for the output; the public one makes its own."""
    return partial(importlib.import_module("flash_attn.cute.interface")._flash_attn_fwd, causal=True)
