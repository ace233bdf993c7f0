"""Attention over paged latents against keys and values that are made from them, in float64."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from tests.backends.batches import batch
from tests.backends.cuda.test_attention import DTYPES
from tests.backends.cuda.test_backend import logits_of, make_backend, tiny_model

from hotloop.backends.cuda.attention.decode import Workspace
from hotloop.backends.cuda.attention.latent import heads_product, latent_attention, norm_rows, rotate_and_keep
from hotloop.backends.cuda.attention.latent_prefill import made_attention
from hotloop.backends.cuda.steps.splits import Splitting
from hotloop.models.spec import LatentSpec

BLOCK_SIZE = 64
LATENT = LatentSpec(None, kv_rank=48, nope_dim=24, rope_dim=8, value_dim=40, scale=0.2)
SIZES = [(1, 1), (3, 70), (1, 300), (40, 130)]


@dataclass
class Case:
    """Sequences (number of rows, number of keys), in a cache whose other places would poison the result."""

    q: torch.Tensor  # [rows, heads, nope_dim + rope_dim]
    up: torch.Tensor  # [heads, nope_dim + value_dim, kv_rank]
    cache: torch.Tensor
    kept: list[torch.Tensor]  # [keys, kv_rank + rope_dim] of each sequence
    tables: list[torch.Tensor]
    sizes: Sequence[tuple[int, int]]

    def expected(self) -> torch.Tensor:
        """[rows, heads, value_dim]"""
        outs = []
        for q, kept in zip(self.q.double().split([rows for rows, _ in self.sizes]), self.kept, strict=True):
            latents, rotary = kept.double().split([LATENT.kv_rank, LATENT.rope_dim], 1)
            keys, values = torch.einsum("kl,hdl->hkd", latents, self.up.double()).split(
                [LATENT.nope_dim, LATENT.value_dim], 2
            )
            keys = torch.cat([keys, rotary.expand(len(keys), -1, -1)], 2)
            logits = q.transpose(0, 1) @ keys.transpose(1, 2) * LATENT.scale
            is_seen = torch.ones(logits.shape[1:], dtype=torch.bool, device=q.device).tril(len(kept) - len(q))
            outs.append((logits.masked_fill(~is_seen, -torch.inf).softmax(-1) @ values).transpose(0, 1))
        return torch.cat(outs)

    def ints(self, *values: int) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int32, device=self.q.device)

    @property
    def row_begins(self) -> torch.Tensor:
        return self.ints(0, *np.cumsum([rows for rows, _ in self.sizes]).tolist())

    @property
    def lens(self) -> torch.Tensor:
        return self.ints(*(keys for _, keys in self.sizes))

    def by_latents(self, *, num_programs: int | None) -> torch.Tensor:
        """With so many programs to split keys over, or each sequence by itself."""
        num_heads = self.q.shape[1]
        up_keys, up_values = self.up.split([LATENT.nope_dim, LATENT.value_dim], 1)
        found = self.q.new_zeros(len(self.q), num_heads, LATENT.kv_rank)
        latents = heads_product(self.q[:, :, : LATENT.nope_dim], up_keys, torch.empty_like(found))
        block_ids = torch.cat(self.tables).to(found.device, torch.int32)
        block_begins = self.ints(0, *np.cumsum([len(table) for table in self.tables]).tolist())
        common = (latents, self.q, self.cache, self.row_begins, self.lens, block_ids, block_begins, found)
        rows, lens = (np.array(column, np.int32) for column in zip(*self.sizes, strict=True))
        sizes = {"max_rows": int(rows.max()), "usual_rows": 1, "scale": LATENT.scale}
        if num_programs is None:
            latent_attention(*common, **sizes)
        else:
            plan = Splitting(BLOCK_SIZE, num_programs, 512).plan(lens, rows)
            parts = [self.ints(*each.reshape(-1).tolist()) for each in plan]
            workspace = Workspace.allocate(512, num_heads, LATENT.kv_rank, found.device)
            latent_attention(*common, **sizes, splits=parts[0], part_begins=parts[1], workspace=workspace)
        return heads_product(found, up_values.transpose(1, 2), found.new_empty(*found.shape[:2], LATENT.value_dim))

    def by_made(self) -> torch.Tensor:
        width = max(map(len, self.tables))
        table = torch.stack([torch.nn.functional.pad(each, (0, width - len(each))) for each in self.tables])
        out = self.q.new_zeros(*self.q.shape[:2], LATENT.value_dim)
        return made_attention(
            self.q, self.cache, self.up.flatten(0, 1), self.row_begins, self.lens,
            table.to(out.device, torch.int32), out, LATENT, max_rows=max(rows for rows, _ in self.sizes),
        )  # fmt: skip


def make_case(sizes: Sequence[tuple[int, int]], device: str, dtype: torch.dtype, num_heads: int = 3) -> Case:
    def randn(*shape: int) -> torch.Tensor:
        return torch.randn(shape, device=device).to(dtype)

    wide = randn(sum(rows for rows, _ in sizes), num_heads * 32 + 10)  # of which queries are some columns
    kept = [randn(keys, LATENT.width) for _, keys in sizes]
    nums = [-(-keys // BLOCK_SIZE) for _, keys in sizes]
    order = torch.randperm(sum(nums) + 2)
    cache = torch.full((len(order), 1, BLOCK_SIZE, LATENT.width), torch.nan, device=device, dtype=dtype)
    tables = list(order[: sum(nums)].split(nums))
    for table, own in zip(tables, kept, strict=True):
        for block, part in zip(table.tolist(), own.split(BLOCK_SIZE), strict=True):
            cache[block, 0, : len(part)] = part
    up = randn(num_heads, LATENT.nope_dim + LATENT.value_dim, LATENT.kv_rank) / 4
    return Case(wide[:, : num_heads * 32].unflatten(1, (num_heads, 32)), up, cache, kept, tables, sizes)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("num_programs", [1, 6, None])
def test_rows_find_what_keys_and_values_would_give(num_programs: int | None, dtype: torch.dtype, device: str) -> None:
    case = make_case(SIZES, device, dtype)
    found = case.by_latents(num_programs=num_programs)
    torch.testing.assert_close(found.double(), case.expected(), rtol=0, atol=1e-4 if dtype == torch.float32 else 0.05)


@pytest.mark.parametrize("dtype", DTYPES)
def test_chunks_find_it_among_keys_and_values_that_are_made(dtype: torch.dtype, device: str) -> None:
    case = make_case([(150, 150), (70, 200), (1, 5)], device, dtype)
    torch.testing.assert_close(
        case.by_made().double(), case.expected(), rtol=0, atol=1e-4 if dtype == torch.float32 else 0.05
    )


def test_latents_are_normalised_and_keys_and_queries_rotated(device: str) -> None:
    fused, norm = torch.randn(3, 2 * 32 + LATENT.width, device=device), torch.rand(LATENT.kv_rank, device=device)
    cache = torch.zeros(2, 1, BLOCK_SIZE, LATENT.width, device=device)
    angles = torch.rand(9, 4, device=device) * 6
    cos_sin, positions = torch.cat([angles.cos(), angles.sin()], 1), torch.tensor([4, 8, 0], device=device)
    slots = torch.tensor([BLOCK_SIZE + 5, 7, -1], device=device)
    before = fused.clone()
    q, kept = fused[:, :64].unflatten(1, (2, 32)), fused[:, 64:]
    rotate_and_keep(q, kept, cache, positions.int(), slots, cos_sin, norm, LATENT)

    def rotated(x: torch.Tensor) -> torch.Tensor:
        turns = torch.polar(torch.ones(3, 4, device=device), angles[positions])
        turned = torch.complex(*x.chunk(2, -1)) * (turns[:, None] if x.ndim == 3 else turns)
        return torch.cat([turned.real, turned.imag], -1)

    was = before[:, :64].unflatten(1, (2, 32))
    torch.testing.assert_close(q, torch.cat([was[..., :24], rotated(was[..., 24:])], -1))
    latents, rotary = before[:, 64:].split([LATENT.kv_rank, LATENT.rope_dim], 1)
    want = torch.cat([torch.nn.functional.rms_norm(latents, (48,), norm, LATENT.norm_eps), rotated(rotary)], 1)
    torch.testing.assert_close(cache.view(-1, LATENT.width)[slots[:2]], want[:2])
    assert (cache != 0).any(-1).sum() == 2
    torch.testing.assert_close(
        norm_rows(before[:, 64:112], norm, 1e-6), torch.nn.functional.rms_norm(latents, (48,), norm, 1e-6)
    )


def test_blocks_of_latents_go_out_and_come_back(device: str) -> None:
    backend = make_backend(tiny_model("deepseek3"), device, has_graphs=False)
    prompt = [(7 * i) % 100 for i in range(40)]
    logits_of(backend, batch((prompt[:-1], 0, [2])))
    assert backend.block_bytes == 2 * 64 * (32 + 4) * 4
    data = bytes(backend.read_blocks([2]).wait())
    assert len(data) == backend.block_bytes
    backend.write_blocks([1], memoryview(data))
    after = [logits_of(backend, batch((prompt[-1:], 39, [block]))) for block in (1, 2)]
    np.testing.assert_array_equal(*after)
    backend.close()


def test_steps_that_are_padded_for_a_graph_are_the_same(device: str) -> None:
    model = tiny_model("deepseek3", num_layers=1, num_heads=2, num_kv_heads=2, experts=None)
    plain, padded = (make_backend(model, device, max_running=2, has_graphs=has) for has in (False, True))
    prompt = [(7 * i) % 100 for i in range(53)]
    for step in (
        batch((prompt[:50], 0, [3])),
        batch((prompt[50:51], 50, [3]), (prompt[:2], 0, [4])),
        batch((prompt[:40], 0, [5]), (prompt[51:], 51, [3])),
    ):
        np.testing.assert_allclose(logits_of(padded, step), logits_of(plain, step), atol=1e-4)


def test_a_long_chunk_is_as_many_short_ones(device: str) -> None:
    """Of keys and values that are made, or of latents."""
    model = tiny_model("deepseek3", num_layers=1, num_heads=2, num_kv_heads=2, experts=None)
    backend = make_backend(model, device, max_step_tokens=512, has_graphs=False)
    prompt = [(7 * i) % 100 for i in range(260)]
    whole = logits_of(backend, batch((prompt, 0, [0, 1, 2, 3, 4]), (prompt[:3], 0, [5])))
    parts = [logits_of(backend, batch((prompt[i : i + 130], i, [6, 7, 8, 9, 10]))) for i in (0, 130)]
    np.testing.assert_allclose(whole[:260], np.concatenate(parts), atol=2e-3)
    backend.close()
