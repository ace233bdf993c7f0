"""Paged attention against the plain formula in float64, on ragged batches whose blocks lie anywhere."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import pytest
import torch

from hotloop.backends.cuda.attention.decode import Workspace, decode_attention
from hotloop.backends.cuda.attention.prefill import prefill_attention
from hotloop.backends.cuda.steps.splits import SPLIT_INTS, Splitting

BLOCK_SIZE = 16
SCALE = 0.2
# The interpreter multiplies the bits of bf16 matrices as if they were integers, up to Triton 3.9 at least.
DTYPES = [torch.float32, torch.bfloat16 if torch.cuda.is_available() else torch.float16]
E4M3 = torch.float8_e4m3fn


@dataclass
class Case:
    """Sequences (number of rows, number of keys), in a cache whose other blocks would poison the result."""

    q: torch.Tensor
    k: list[torch.Tensor]  # [kv_heads, keys, head_dim] of each sequence
    v: list[torch.Tensor]
    inputs: tuple[torch.Tensor, ...]
    sizes: list[tuple[int, int]]
    kv_scales: torch.Tensor | None = None

    def scale_kv(self, kv_scales: torch.Tensor) -> None:
        self.kv_scales = kv_scales
        key_scales, value_scales = kv_scales[:, None, None].chunk(2)
        self.k = [k.float() * key_scales for k in self.k]
        self.v = [v.float() * value_scales for v in self.v]

    def expected(self) -> torch.Tensor:
        """[rows, heads, head_dim]"""
        num_heads = self.q.shape[1]
        outs = []
        rows = self.q.double().split([num_rows for num_rows, _ in self.sizes])
        for q, k, v in zip(rows, self.k, self.v, strict=True):
            group = num_heads // len(k)
            keys, values = (x.double().repeat_interleave(group, 0) for x in (k, v))
            logits = q.transpose(0, 1) @ keys.transpose(1, 2) * SCALE  # [heads, rows, keys]
            is_seen = torch.ones(logits.shape[1:], dtype=torch.bool, device=q.device).tril(keys.shape[1] - len(q))
            logits = logits.masked_fill(~is_seen, -torch.inf)
            outs.append((logits.softmax(-1) @ values).transpose(0, 1))
        return torch.cat(outs)


def make_case(
    sizes: Sequence[tuple[int, int]],
    device: str,
    *,
    heads: tuple[int, int] = (4, 2),
    head_dim: int = 64,
    dtype: torch.dtype = torch.float32,
    num_padding: int = 0,
    has_fp8_kv: bool = False,
) -> Case:
    """With KV in e4m3, what is expected is what the numbers it holds come to, times their scales."""
    num_heads, num_kv_heads = heads
    randn = partial(torch.randn, device=device)
    q = (2 * randn(sum(num_rows for num_rows, _ in sizes), num_heads, head_dim)).to(dtype)
    kv_dtype = E4M3 if has_fp8_kv else dtype
    k = [randn(num_kv_heads, num_keys, head_dim).to(kv_dtype) for _, num_keys in sizes]
    v = [randn(num_kv_heads, num_keys, head_dim).to(kv_dtype) for _, num_keys in sizes]
    nums = [-(-num_keys // BLOCK_SIZE) for _, num_keys in sizes]
    block_ids = torch.randperm(sum(nums) + 3)[: sum(nums)]
    caches = torch.full((2, sum(nums) + 3, num_kv_heads, BLOCK_SIZE, head_dim), torch.nan, device=device)
    caches = caches.to(kv_dtype)
    for ids, keys, values in zip(block_ids.split(nums), k, v, strict=True):
        for i, block in enumerate(ids.tolist()):
            for cache, new in ((caches[0], keys), (caches[1], values)):
                part = new[:, i * BLOCK_SIZE : (i + 1) * BLOCK_SIZE]
                cache[block, :, : part.shape[1]] = part
    padded = [*sizes, *[(0, 0)] * num_padding]
    begins = [torch.tensor([0, *counts]).cumsum(0) for counts in ([n for n, _ in padded], [*nums, *[0] * num_padding])]
    lens = torch.tensor([num_keys for _, num_keys in padded])
    row_begins, lens, ids, block_begins = (x.to(device, torch.int32) for x in (begins[0], lens, block_ids, begins[1]))
    case = Case(q, k, v, (q, caches[0], caches[1], row_begins, lens, ids, block_begins), list(sizes))
    if has_fp8_kv:
        case.scale_kv(torch.linspace(0.3, 2, 2 * num_kv_heads, device=device))
    return case


def check_decode(
    case: Case, max_rows: int, num_programs: int, num_padded_rows: int = 0, usual_rows: int | None = None
) -> None:
    """On a card that so many splits fill."""
    q, *rest = case.inputs
    num_rows, num_heads, head_dim = q.shape
    q = torch.cat((q, torch.full_like(q[:1], torch.nan).expand(num_padded_rows, -1, -1)))
    out = torch.full_like(q, torch.nan)
    rows, keys = (np.array(column, np.int32) for column in zip(*case.sizes, strict=True))
    plan = Splitting(BLOCK_SIZE, num_programs, num_slots=1000).plan(keys, rows)
    splits = np.append(plan.splits.reshape(-1), np.zeros(2 * SPLIT_INTS, np.int64))
    part_begins = np.append(plan.part_begins, [plan.part_begins[-1]] * num_padded_rows)
    planned = (torch.from_numpy(each).to(q.device, torch.int32) for each in (splits, part_begins))
    workspace = Workspace.allocate(int(part_begins[-1]), num_heads, head_dim, q.device)
    workspace.outs.fill_(torch.nan)
    workspace.lses.fill_(torch.nan)
    found = decode_attention(
        q,
        *rest,
        *planned,
        out,
        workspace,
        max_rows=max_rows,
        usual_rows=usual_rows or max_rows,
        scale=SCALE,
        kv_scales=case.kv_scales,
    )
    assert found is out
    check(case, out[:num_rows])
    assert out[num_rows:].isnan().all()  # whatever pads the batch is left as it is


def check(case: Case, out: torch.Tensor) -> None:
    expected = case.expected()
    tolerance = 1e-5 if out.dtype == torch.float32 and case.kv_scales is None else 1e-2
    error = (out.double() - expected).flatten(1).norm(dim=1)
    assert bool((error <= tolerance * expected.flatten(1).norm(dim=1)).all())


LENS = [1, 16, 17, 63, 64, 65, 200]


@pytest.mark.parametrize("num_programs", [1, 2, 16])
@pytest.mark.parametrize("dtype", DTYPES)
def test_one_row_each_over_ragged_lengths(num_programs: int, dtype: torch.dtype, device: str) -> None:
    case = make_case([(1, n) for n in LENS], device, dtype=dtype, num_padding=2)
    check_decode(case, 1, num_programs, num_padded_rows=2)


@pytest.mark.parametrize("num_programs", [1, 4])
@pytest.mark.parametrize(("heads", "head_dim"), [((7, 1), 64), ((2, 2), 128), ((8, 1), 128), ((6, 2), 80)])
def test_groups_and_head_sizes(num_programs: int, heads: tuple[int, int], head_dim: int, device: str) -> None:
    check_decode(make_case([(1, 150), (1, 5)], device, heads=heads, head_dim=head_dim), 1, num_programs)


@pytest.mark.parametrize(
    ("max_rows", "heads", "num_programs"),
    [(4, (7, 1), 1), (4, (7, 1), 16), (9, (4, 2), 1), (9, (4, 2), 2), (9, (4, 2), 16), (40, (4, 1), 2)],
)
def test_drafts_see_only_what_is_before_them(
    max_rows: int, heads: tuple[int, int], num_programs: int, device: str
) -> None:
    """Also where a split begins between them, and where they are more than one tile of pairs (40 * 4)."""
    sizes = [(max_rows, max_rows), (2, 66), (1, 1), (max_rows, 130), (3, 3)]
    check_decode(make_case(sizes, device, heads=heads, num_padding=1), max_rows, num_programs, num_padded_rows=1)


def test_a_launch_can_be_repeated_with_other_lengths(device: str) -> None:
    """As a CUDA graph does: everything but the contents of the tensors is the same."""
    for lens in ((1, 300), (128, 64)):
        check_decode(make_case([(1, n) for n in lens], device), 1, 8)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("heads", "head_dim"), [((4, 2), 64), ((7, 1), 80)])
def test_chunks_with_and_without_a_past(dtype: torch.dtype, heads: tuple[int, int], head_dim: int, device: str) -> None:
    case = make_case([(70, 70), (40, 170), (1, 33), (129, 257)], device, heads=heads, head_dim=head_dim, dtype=dtype)
    out = torch.full_like(case.q, torch.nan)
    prefill_attention(*case.inputs, out, num_sequences=4, max_rows=129, scale=SCALE)
    check(case, out)


@pytest.mark.parametrize("num_programs", [1, 4])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("heads", "head_dim"), [((4, 2), 64), ((7, 1), 80)])
def test_decoding_over_keys_and_values_in_e4m3(
    num_programs: int, dtype: torch.dtype, heads: tuple[int, int], head_dim: int, device: str
) -> None:
    sizes = [(1, n) for n in LENS] + [(3, 130)]
    case = make_case(sizes, device, heads=heads, head_dim=head_dim, dtype=dtype, num_padding=2, has_fp8_kv=True)
    check_decode(case, 3, num_programs, num_padded_rows=2)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("heads", "head_dim"), [((4, 2), 64), ((7, 1), 80)])
def test_chunks_over_keys_and_values_in_e4m3(
    dtype: torch.dtype, heads: tuple[int, int], head_dim: int, device: str
) -> None:
    sizes = [(70, 70), (40, 170), (1, 33)]
    case = make_case(sizes, device, heads=heads, head_dim=head_dim, dtype=dtype, has_fp8_kv=True)
    out = torch.full_like(case.q, torch.nan)
    prefill_attention(*case.inputs, out, num_sequences=3, max_rows=70, scale=SCALE, kv_scales=case.kv_scales)
    check(case, out)
