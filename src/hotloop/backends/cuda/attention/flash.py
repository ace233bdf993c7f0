"""FlashAttention 3 for chunks, where a build of it is installed. Never needed: our own kernels do the same.

Builds differ in who packs them, not in what they do: a library with one operator, which is loaded without importing the
package around it. It neither waits for the device nor plans anew for another length, which is what rules cuDNN out.

    our cache   [blocks, kv heads, block size, head_dim]
    their view  [blocks, block size, kv heads, head_dim]      strides, no copy

A build is used only after it has computed a small batch as our kernel does.
"""

import importlib.util
import logging
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch

from hotloop.backends.cuda.attention.decode import num_multiprocessors
from hotloop.backends.cuda.attention.prefill import prefill_attention
from hotloop.models.spec import ModelSpec

log = logging.getLogger(__name__)

# (package, its library, the namespace of the operator)
_LIBRARIES = (
    ("vllm", "vllm_flash_attn/_vllm_fa3_C*.so", "_vllm_fa3_C"),
    ("sgl_kernel", "flash_ops*.so", "sgl_kernel"),
    ("flash_attn_3", "_C*.so", "flash_attn_3"),
)
_TILE_PAIRS = 128  # of a row and one of a kv head's query heads
_MAX_SPLITS = 16
# What is always wanted, and what some builds give no default for
_USUAL = {"is_causal": True, "window_size_left": -1, "window_size_right": -1, "cp_world_size": 1}
_NOTHING = {"IntType": 0, "FloatType": 0.0, "BoolType": False}
_CHECKED = ((70, 70), (40, 170), (1, 33), (129, 257))  # rows and keys of the sequences that a build is tried with
_TOLERANCE = 0.02
_FOREIGN_ERRORS = (AttributeError, ImportError, LookupError, OSError, RuntimeError, TypeError, ValueError)

Build = tuple[str, Callable[[], Any]]
"""A name, and what loads the operator."""


class Flash:
    """A build that can be called. What its operator wants beside our arguments is looked up once: called by position it
    costs the host a fraction of what it would by name.
    """

    def __init__(self, name: str, operator: Any) -> None:
        self.name = name
        self._operator = operator
        arguments = operator._schema.arguments
        self._usual = [_usual(argument) for argument in arguments]
        places = {argument.name: i for i, argument in enumerate(arguments)}
        given = ("q", "k", "v", "out", "cu_seqlens_q", "seqused_k", "page_table")
        others = ("max_seqlen_q", "max_seqlen_k", "softmax_scale", "num_splits")
        self._places = [places[name] for name in (*given, *others)]

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
        """As prefill_attention does it, the blocks of a sequence in a row of `table`.

        Few rows would leave most of the card idle over a long past, so their keys are split, by as many as are worth
        it and no more than it is told here.
        """
        given = (q, k_cache.transpose(1, 2), v_cache.transpose(1, 2), out, row_begins, lens, table)
        max_keys = table.shape[1] * k_cache.shape[2]
        num_programs = -(-len(q) * q.shape[1] // k_cache.shape[1] // _TILE_PAIRS) * k_cache.shape[1]
        num_sms = num_multiprocessors(q.device)
        num_splits = min(_MAX_SPLITS, 2 * num_sms // num_programs) if num_programs <= num_sms else 1
        arguments = self._usual.copy()
        for place, value in zip(self._places, (*given, max_rows, max_keys, scale, num_splits), strict=True):
            arguments[place] = value
        self._operator(*arguments)
        return out


def _usual(argument: Any) -> object:
    """Builds add arguments of their own, which are left as they would be without them."""
    if argument.name in _USUAL:
        return _USUAL[argument.name]
    return argument.default_value if argument.has_default_value() else _NOTHING.get(argument.type.kind())


def find_flash(spec: ModelSpec, block_size: int, dtype: torch.dtype) -> Flash | None:
    """What is installed for this card, in bf16."""
    if not torch.cuda.is_available() or dtype != torch.bfloat16 or torch.cuda.get_device_capability()[0] != 9:
        return None
    return first_right(_installed(), spec, block_size, dtype, "cuda")


def first_right(
    builds: Iterable[Build], spec: ModelSpec, block_size: int, dtype: torch.dtype, device: str
) -> Flash | None:
    """The first build that can be loaded and does what our kernel does. One that is not used is said why of."""
    for name, load in builds:
        try:
            flash = Flash(name, load())
            error = _difference(flash, spec, block_size, dtype, device)
        except _FOREIGN_ERRORS as reason:  # made for other versions of what is installed
            log.warning("%s is installed, but not used: %s", name, next(iter(str(reason).splitlines()), repr(reason)))
            continue
        if error <= _TOLERANCE:
            log.info("prefill attention backend: %s", name)
            return flash
        log.warning("%s is installed, but not used: its results differ from ours by %.3f", name, error)
    return None


def _difference(flash: Flash, spec: ModelSpec, block_size: int, dtype: torch.dtype, device: str) -> float:
    """How far a build is from our kernel on a small batch, as a share of the values' size."""
    num_rows, lens = (torch.tensor(column) for column in zip(*_CHECKED, strict=True))
    count, width = len(lens), -(-int(lens.max()) // block_size)
    num_others = 3  # rows of other sequences, which come first
    row_begins = num_others + torch.cat([torch.zeros(1), num_rows.cumsum(0)])
    block_begins = torch.arange(count + 1) * width
    # as in a step: cut from one buffer, aligned to nothing
    parts = [torch.zeros(1), row_begins, lens, block_begins, torch.randperm(count * width)]
    buffer = torch.cat(parts).to(device, torch.int32)
    _, row_begins, lens, block_begins, block_ids = buffer.split([len(part) for part in parts])

    randn = partial(torch.randn, dtype=dtype, device=device)
    cache = randn(2, count * width, spec.num_kv_heads, block_size, spec.head_dim)
    q = randn(num_others + int(num_rows.sum()), spec.num_heads, spec.head_dim)
    max_rows, scale = int(num_rows.max()), spec.head_dim**-0.5
    ours, theirs = torch.zeros_like(q), torch.zeros_like(q)
    prefill_attention(
        q, cache[0], cache[1], row_begins, lens, block_ids, block_begins, ours,
        num_sequences=count, max_rows=max_rows, scale=scale,
    )  # fmt: skip
    table = block_ids.view(count, width)
    flash.attend(q, cache[0], cache[1], row_begins, lens, table, theirs, max_rows=max_rows, scale=scale)
    return float((ours - theirs).float().norm() / ours.float().norm())


def _installed() -> Iterator[Build]:
    for package, pattern, namespace in _LIBRARIES:
        for path in _find(package, pattern):
            yield f"FlashAttention 3 of {package}", partial(_load, path, namespace)


def _find(package: str, pattern: str) -> list[Path]:
    """Files of a package that is not imported for it."""
    spec = importlib.util.find_spec(package)
    folders = (spec and spec.submodule_search_locations) or []
    return [path for folder in folders for path in sorted(Path(folder).glob(pattern))]


def _load(path: Path, namespace: str) -> Any:
    torch.ops.load_library(str(path))
    return getattr(torch.ops, namespace).fwd.default
