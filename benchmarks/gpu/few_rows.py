"""`python -m benchmarks.gpu.few_rows`: which kernel is quickest for the products of a layer with 2 to 16 rows?

A step of a few agents is nothing but reading weights. For one row a kernel of our own does that at the speed of the
memory, since it has its first weights on the way before the kernel in front has ended; from two rows on cuBLAS does
the products, a fifth slower. Here that kernel's two ideas, overlap and parts of a sum for all processors, are tried on
the tensor cores, with all sizes of tiles, beside cuBLAS:

    out.T [n, rows] = weights [n, k] @ x.T [k, rows]

Every product is taken from a graph that goes round weights of more bytes than the L2 cache has.
"""

import itertools
import json
import statistics
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial

import torch
import triton
import triton.language as tl

from benchmarks.command import main
from hotloop.backends.cuda.layers.gemv import gemv
from hotloop.backends.cuda.layers.kernels import silu_mul
from hotloop.backends.cuda.overlap import let_next_begin, overlap, wait_for_previous
from hotloop.backends.cuda.quant.int4_product import _counters, _finish_last, _num_processors, _prefetch, _tile_columns

PRODUCTS = {"qkv": (6144, 4096), "out": (4096, 4096), "gate and up": (28672, 4096), "down": (4096, 14336)}
"""[n, k] of Llama-3.1-8B."""
_AROUND_BYTES = 1 << 30
_NUM_REPEATS = 7


@dataclass(frozen=True, slots=True)
class Tiling:
    """What a program makes: so many rows of the weights, in turns of so many columns."""

    tile_n: int
    tile_k: int
    num_warps: int
    num_stages: int
    programs: int  # a processor, reached by splitting the columns
    num_ahead: int  # turns that are on their way to the L2 cache before the kernel in front has ended


def tilings() -> Iterator[Tiling]:
    for tile_n, tile_k, num_warps, num_stages, programs in itertools.product(
        (32, 64, 128), (64, 128, 256), (2, 4, 8), (3, 5), (1, 2, 4)
    ):
        held_bytes = num_stages * tile_k * 2 * (tile_n + 16)
        if held_bytes * programs <= 224 << 10 and 16 <= tile_n * tile_k // (32 * num_warps) <= 128:
            yield Tiling(tile_n, tile_k, num_warps, num_stages, programs, num_ahead=1)


def multiply(x: torch.Tensor, w: torch.Tensor, out: torch.Tensor, tiling: Tiling, *, is_gated: bool) -> torch.Tensor:
    """out [rows, n] of x [rows, k] and w [n, k]; [rows, n / 2] if gated."""
    (num_rows, k), n = x.shape, len(w)
    tile_m = max(16, triton.next_power_of_2(num_rows))
    num_turns, num_tiles = triton.cdiv(k, tiling.tile_k), triton.cdiv(n, tiling.tile_n)
    num_splits = max(1, min(tiling.programs * _num_processors(x.device) // num_tiles, num_turns))
    split_turns = triton.cdiv(num_turns, num_splits)
    num_splits = triton.cdiv(num_turns, split_turns)
    parts = x.new_empty(num_splits, num_rows, n, dtype=torch.float32) if num_splits > 1 or is_gated else None
    _few_rows[(num_tiles, 1, num_splits)](
        x, w, out, parts, _counters(x.device), num_rows, n, k, num_turns, split_turns, tile_m, tiling.tile_n,
        tiling.tile_k, tiling.num_ahead if x.is_cuda else 0, is_gated,
        num_warps=tiling.num_warps, num_stages=tiling.num_stages, **overlap(x.device),
    )  # fmt: skip
    return out


@triton.jit(do_not_specialize=["num_rows", "num_turns", "split_turns"])
def _few_rows(
    x, w, out, parts, counters, num_rows, n, k, num_turns, split_turns, tile_m: tl.constexpr, tile_n: tl.constexpr,
    tile_k: tl.constexpr, num_ahead: tl.constexpr, is_gated: tl.constexpr, is_overlapped: tl.constexpr,
):  # fmt: skip
    let_next_begin(is_overlapped)
    column = _tile_columns(tl.program_id(0), tile_n, n, is_gated)
    weight_row = tl.minimum(column, n - 1).to(tl.int64)
    row = tl.arange(0, tile_m).to(tl.int64)
    is_row = row < num_rows
    begin = tl.program_id(2) * split_turns
    end = tl.minimum(begin + split_turns, num_turns)
    i = tl.arange(0, tile_k)
    at = w + weight_row[:, None] * k + i[None, :]
    at_x = x + row[None, :] * k + i[:, None]
    line = tl.arange(0, tile_k // 64)  # a line of the cache has 64 weights
    for ahead in tl.static_range(num_ahead):
        first = tl.minimum(begin + ahead, num_turns - 1) * tile_k
        _prefetch(w + weight_row[:, None] * k + first + 64 * line[None, :])
    wait_for_previous(is_overlapped)
    total = tl.zeros([tile_n, tile_m], tl.float32)
    for turn in range(begin, end):
        is_in = turn * tile_k + i < k
        weights = tl.load(at + turn * tile_k, mask=is_in[None, :], other=0.0, eviction_policy="evict_first")
        values = tl.load(at_x + turn * tile_k, mask=is_in[:, None] & is_row[None, :], other=0.0)
        total = tl.dot(weights, values, total, input_precision="tf32x3")
    is_in = (column < n)[:, None] & is_row[None, :]
    if parts is None:
        tl.store(out + row[None, :] * n + column[:, None], total.to(out.dtype.element_ty), mask=is_in)
    else:
        tl.store(parts + (tl.program_id(2) * num_rows + row)[None, :] * n + column[:, None], total, mask=is_in)
        _finish_last(parts, None, out, counters, row, is_row, num_rows, n, tile_n, is_gated)


Product = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], object]
"""Of x and the weights, into out."""


def library(x: torch.Tensor, w: torch.Tensor, out: torch.Tensor) -> object:
    if out.shape[1] < len(w):
        return silu_mul(x @ w.t(), out)
    return torch.mm(x, w.t(), out=out)


@dataclass(slots=True)
class Course:
    """One product, again and again, of weights that no cache holds."""

    n: int
    k: int
    is_gated: bool
    _weights: torch.Tensor = field(init=False)

    def __post_init__(self) -> None:
        num_weights = max(2, _AROUND_BYTES // (2 * self.n * self.k))
        self._weights = torch.randn(num_weights, self.n, self.k, device="cuda", dtype=torch.bfloat16)

    def take_us(self, product: Product, num_rows: int) -> float:
        """How long one takes, in a graph of many, each after the other."""
        x = torch.randn(num_rows, self.k, device="cuda", dtype=torch.bfloat16)
        out = x.new_empty(num_rows, self.n // 2 if self.is_gated else self.n)
        product(x, self._weights[0], out)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for w in self._weights:
                product(x, w, out)
        times_ms = [_replay_ms(graph) for _ in range(_NUM_REPEATS)]
        return 1000 * statistics.median(times_ms) / len(self._weights)

    def take_tilings(self, num_rows: int, candidates: Iterable[Tiling]) -> dict[Tiling, float]:
        taken_us = {}
        for tiling in candidates:
            with suppress(triton.runtime.errors.OutOfResources):
                product = partial(multiply, tiling=tiling, is_gated=self.is_gated)
                taken_us[tiling] = self.take_us(product, num_rows)
        return taken_us


def _replay_ms(graph: torch.cuda.CUDAGraph) -> float:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    graph.replay()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end)


def few_rows(*, rows: tuple[int, ...] = (2, 4, 11, 16), best: int = 3) -> None:
    """Take all tilings for each product and print the quickest, as lines of JSON.

    Parameters
    ----------
    rows
        Numbers of rows.
    best
        How many tilings to print for each.
    """
    for name, (n, k) in PRODUCTS.items():
        course = Course(n, k, is_gated=name == "gate and up")
        one_us = course.take_us(partial(gemv, is_gated=course.is_gated), 1)
        for num_rows in rows:
            cublas_us = course.take_us(library, num_rows)
            taken_us = course.take_tilings(num_rows, tilings())
            first = sorted(taken_us, key=taken_us.__getitem__)[:best]
            taken_us |= course.take_tilings(num_rows, [replace(each, num_ahead=i) for each in first for i in (0, 2)])
            for tiling in sorted(taken_us, key=taken_us.__getitem__)[:best]:
                row = {"product": name, "rows": num_rows, "us": taken_us[tiling], "cublas_us": cublas_us}
                print(json.dumps(row | {"one_row_us": one_us} | asdict(tiling)), flush=True)


if __name__ == "__main__":
    main(few_rows, "benchmarks.gpu")
