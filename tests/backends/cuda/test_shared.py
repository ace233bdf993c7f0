"""Attention over shared blocks, folded and merged, against the plain formula and a backend that does without."""

import random
from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.backends.batches import batch
from tests.backends.cuda.test_attention import BLOCK_SIZE, DTYPES, E4M3, SCALE, Case, check
from tests.backends.cuda.test_backend import logits_of, make_backend, tiny_model

from hotloop.backends.cuda.attention.decode import Workspace, decode_attention
from hotloop.backends.cuda.attention.shared import shared_attention, tile_rows_for
from hotloop.backends.cuda.decoder import MIN_SAVED_BYTES
from hotloop.backends.cuda.steps.groups import Sharing
from hotloop.backends.cuda.steps.splits import Splitting
from hotloop.backends.cuda.steps.step import Shape, pack, view_parts

Sizes = list[tuple[int, int, int, int]]
"""Of each sequence: rows, keys, and which head it begins with, how many blocks of it."""


class SharedCase:
    """Sequences in a cache whose other blocks would poison the result."""

    def __init__(
        self,
        sizes: Sizes,
        device: str,
        heads: tuple[int, int],
        head_dim: int,
        dtype: torch.dtype,
        *,
        has_fp8_kv: bool = False,
    ) -> None:
        num_heads, num_kv_heads = heads
        kv_dtype = E4M3 if has_fp8_kv else dtype
        num_blocks = sum(-(-keys // BLOCK_SIZE) for _, keys, _, _ in sizes) + 100
        self.caches = torch.full(
            (2, num_blocks, num_kv_heads, BLOCK_SIZE, head_dim), torch.nan, dtype=torch.float32, device=device
        )
        free = iter(torch.randperm(num_blocks).tolist())
        kinds: dict[int, list[int]] = {}
        parts, keys, values = [], [], []
        for num_rows, num_keys, kind, num_shared in sizes:
            trunk = kinds.setdefault(kind, [])
            trunk += [next(free) for _ in range(num_shared - len(trunk))]
            own = [next(free) for _ in range(-(-num_keys // BLOCK_SIZE) - num_shared)]
            table = [*trunk[:num_shared], *own]
            for block in table:
                is_new = self.caches[0, block].isnan()
                noise = torch.randn(2, *is_new.shape, device=device).to(kv_dtype).float()
                self.caches[:, block] = torch.where(is_new, noise, self.caches[:, block])
            self.caches[:, table[-1], :, (num_keys - 1) % BLOCK_SIZE + 1 :] = torch.nan
            all_k, all_v = self.caches[:, table].transpose(2, 3).flatten(1, 2)[:, :num_keys].transpose(1, 2).clone()
            keys.append(all_k)
            values.append(all_v)
            parts.append(([0] * num_rows, num_keys - num_rows, table))
        q = (2 * torch.randn(sum(rows for rows, *_ in sizes), num_heads, head_dim, device=device)).to(dtype)
        self.case = Case(q, keys, values, (), [(rows, num_keys) for rows, num_keys, *_ in sizes])
        self.caches = self.caches.to(kv_dtype)
        if has_fp8_kv:
            self.case.scale_kv(torch.linspace(0.3, 2, 2 * num_kv_heads, device=device))
        self.batch = batch(*parts)
        self.sharing = Sharing(BLOCK_SIZE, tile_rows_for(*heads), num_programs=6, min_saved=2, split_rows=4096)

    def run(self, shape: Shape, num_programs: int) -> int:
        """Padded to a shape as a graph pads it; returns how many groups there were."""
        q = self.case.q
        groups = self.sharing.find(self.batch, 32)
        splitting = Splitting(BLOCK_SIZE, num_programs, num_slots=4096)
        num_items, num_splits = self.sharing.num_items(shape.num_rows), splitting.max_splits(shape.num_short)
        shape = shape._replace(num_items=num_items, num_splits=num_splits)
        ints = pack(self.batch, splitting, shape, sharing=self.sharing, groups=groups)
        views = view_parts(torch.from_numpy(ints).to(q.device), shape)
        padded = torch.full((shape.num_rows, *q.shape[1:]), torch.nan, dtype=q.dtype, device=q.device)
        padded[: len(q)] = q
        out = torch.full_like(padded, torch.nan)
        workspace = Workspace.allocate(4096, q.shape[1], q.shape[2], q.device)
        workspace.outs.fill_(torch.nan)
        workspace.lses.fill_(torch.nan)
        if groups:
            shared_attention(
                padded, *self.caches, views.block_ids, views.folded, views.items, views.part_begins, workspace,
                scale=SCALE, kv_scales=self.case.kv_scales,
            )  # fmt: skip
        decode_attention(
            padded, *self.caches, views.row_begins, views.lens, views.block_ids, views.block_begins, views.splits,
            views.part_begins, out, workspace, max_rows=shape.max_short_rows,
            usual_rows=shape.usual_rows, scale=SCALE, kv_scales=self.case.kv_scales,
        )  # fmt: skip
        check(self.case, out[: len(q)])
        assert out[len(q) :].isnan().all()  # whatever pads the batch is left as it is
        return len(groups)


@pytest.mark.parametrize("num_programs", [1, 4])
@pytest.mark.parametrize("dtype", DTYPES)
def test_ragged_sequences_behind_one_head(num_programs: int, dtype: torch.dtype, device: str) -> None:
    """One of another head, one that has less of it than the others, one right at its end, and padding."""
    head = [(1, 16 * 9 + n, 0, 9) for n in (1, 2, 15, 16, 17, 70)]
    sizes = [*head[:3], (1, 50, 1, 0), *head[3:], (1, 16 * 2 + 5, 0, 2)]
    case = SharedCase(sizes, device, (4, 2), 64, dtype)
    assert case.run(Shape(10, 12, 1, 0), num_programs) == 1


@pytest.mark.parametrize("dtype", DTYPES)
def test_keys_and_values_in_e4m3(dtype: torch.dtype, device: str) -> None:
    sizes = [(1 + i % 2, 16 * 6 + 4 + 9 * i, 0, 6) for i in range(5)] + [(3, 40, 1, 0)]
    assert SharedCase(sizes, device, (6, 2), 80, dtype, has_fp8_kv=True).run(Shape(8, 16, 4, 0), 2) == 1


@pytest.mark.parametrize(("heads", "head_dim"), [((7, 1), 64), ((2, 2), 128), ((6, 2), 80)])
def test_groups_of_heads_and_awkward_sizes(heads: tuple[int, int], head_dim: int, device: str) -> None:
    sizes = [(1, 16 * 5 + 1 + i, 0, 5) for i in range(11)]
    assert SharedCase(sizes, device, heads, head_dim, torch.float32).run(Shape(11, 11, 1, 0), 2) == 1


@pytest.mark.parametrize("num_programs", [1, 4])
def test_drafts_are_folded_too(num_programs: int, device: str) -> None:
    """Rows see all of what is shared, and of their own keys those before them; 27 rows are several tiles."""
    sizes = [(1 + i % 4, 16 * 6 + 4 + 9 * i, 0, 6) for i in range(9)] + [(3, 40, 1, 0)]
    case = SharedCase(sizes, device, (8, 1), 64, torch.float32)
    assert case.run(Shape(12, 40, 8, 0), num_programs) == 1


def test_several_heads_of_several_lengths(device: str) -> None:
    sizes = [(1, 16 * (3 + 4 * (i % 3)) + 3 + i, i % 3, 3 + 4 * (i % 3)) for i in range(10)]
    assert SharedCase(sizes, device, (4, 1), 64, torch.float32).run(Shape(12, 12, 1, 0), 1) == 3


def test_nothing_in_common(device: str) -> None:
    sizes = [(1, 40 + i, i, 0) for i in range(3)]
    assert SharedCase(sizes, device, (4, 2), 64, torch.float32).run(Shape(4, 4, 1, 0), 2) == 0


def test_a_backend_says_the_same_with_and_without(device: str) -> None:
    """Steps in which a group begins, goes on with drafts beside a chunk, loses a member, and ends."""
    model = tiny_model("llama", max_context=256)
    rng = random.Random(2)
    head = [rng.randrange(250) for _ in range(128)]
    own = [[rng.randrange(250) for _ in range(90)] for _ in range(4)]
    tables = [[0, 1, 2 + 2 * i, 3 + 2 * i] for i in range(4)]
    steps = [
        batch((head, 0, [0, 1]), wanted=[127]),
        batch(*((own[i][:20], 128, tables[i]) for i in range(3)), wanted=[0, 19, 39, 59]),
        batch(*((own[i][20:21], 148, tables[i]) for i in range(3))),
        batch(
            (own[0][21:24], 149, tables[0]),
            (own[3][:70], 128, tables[3]),
            (own[1][21:22], 149, tables[1]),
            (own[2][21:26], 149, tables[2]),
            wanted=[0, 1, 2, 72, 73, *range(74, 79)],
        ),
        batch((own[3][70:71], 198, tables[3]), (own[0][24:25], 152, tables[0])),
        batch((own[0][25:26], 153, tables[0])),
    ]
    settings = {"max_step_tokens": 256, "min_saved_bytes": 1}
    sharing, plain = (make_backend(model, device, shared_attention=on, **settings) for on in (True, False))
    shared = []
    for step in steps:
        assert sharing._sharing is not None
        groups = sharing._sharing.find(step, 32)
        shared.append([len(group.members) for group in groups])
        np.testing.assert_allclose(logits_of(sharing, step), logits_of(plain, step), rtol=1e-3, atol=1e-3)
    assert shared == [[], [3], [3], [3], [2], []]
    assert plain._sharing is None


def test_sharing_pays_from_so_many_bytes(device: str) -> None:
    backend = make_backend(tiny_model("llama"), device)
    sharing = backend._decoder.sharing
    block_bytes = backend.block_bytes // backend.spec.num_layers
    assert sharing.min_saved * block_bytes >= MIN_SAVED_BYTES > (sharing.min_saved - 1) * block_bytes
    assert replace(sharing, min_saved=1).tile_rows == 64 // (backend.spec.num_heads // backend.spec.num_kv_heads)
