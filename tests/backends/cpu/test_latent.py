"""Attention over latents against keys and values that are made from them, row by row; and bit by bit."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from tests.backends.cpu.test_attention import (
    NUM_BLOCKS,
    Array,
    Rig,
    Sequence,
    every_exact_kernel,
    make_spec,
    make_tables,
    open_rig,
)

from hotloop.backends.cpu.attention import Attention, Kernel
from hotloop.models.memory import kv_token_bytes
from hotloop.models.spec import LatentSpec, ModelSpec

LATENT = LatentSpec(None, kv_rank=64, nope_dim=24, rope_dim=8, value_dim=40, scale=0.2)
SPEC = replace(make_spec(LATENT.nope_dim + LATENT.rope_dim, 5, 5), latent=LATENT)
UNEVEN = replace(SPEC, num_heads=3, num_kv_heads=3, latent=replace(LATENT, kv_rank=33, value_dim=7))


class LatentRig(Rig):
    def __init__(self, spec: ModelSpec, attention: Attention) -> None:
        super().__init__(spec, attention)
        assert spec.latent
        self.latent = spec.latent
        shapes = (self.latent.nope_dim, self.latent.kv_rank), (self.latent.kv_rank, self.latent.value_dim)
        self.ups = [self.rng.standard_normal((spec.num_heads, *shape)).astype(np.float32) / 8 for shape in shapes]
        attention.set_latent(0, *self.ups)

    @property
    def width(self) -> int:
        return self.spec.num_heads * self.spec.head_dim + self.latent.width

    def expected(self, sequence: Sequence, past: int) -> Array:
        latent, num_heads = self.latent, self.spec.num_heads
        x = np.stack(sequence.rows)
        q, kept, rotary = np.split(x, np.cumsum([num_heads * self.spec.head_dim, latent.kv_rank]), axis=1)
        still, turning = np.split(q.reshape(len(q), num_heads, -1), [latent.nope_dim], axis=2)
        q = np.concatenate([still, self.rotated(turning)], axis=2)[past:]
        up_keys, up_values = self.ups
        made = np.einsum("tl,hnl->thn", kept, up_keys), np.repeat(self.rotated(rotary[:, None]), num_heads, axis=1)
        keys, values = np.concatenate(made, axis=2), np.einsum("tl,hlv->htv", kept, up_values)
        scores = np.einsum("qhd,khd->hqk", q, keys) * latent.scale
        is_hidden = np.arange(sequence.length) > np.arange(past, sequence.length)[:, None]
        weights = np.exp(np.where(is_hidden, -np.inf, scores - scores.max(-1, keepdims=True)))
        mixed = weights @ values / weights.sum(-1, keepdims=True)
        return mixed.transpose(1, 0, 2).reshape(len(q), -1).astype(np.float32)


make_rig = partial(open_rig, LatentRig)


@every_exact_kernel
@pytest.mark.parametrize("spec", [SPEC, UNEVEN], ids=["even", "uneven"])
def test_chunks_then_tokens_and_drafts(spec: ModelSpec, kernel: Kernel, max_error: float) -> None:
    with make_rig(spec, kernel) as rig:
        long, short = (Sequence(table) for table in make_tables(2))
        assert rig.step((long, 300)) < 2 * max_error
        for parts in (((long, 33), (short, 1)), ((short, 30), (long, 1)), ((long, 4), (short, 3))):
            assert rig.step(*parts) < 2 * max_error


@every_exact_kernel
def test_a_row_is_the_same_to_the_bit_however_it_is_computed(kernel: Kernel, max_error: float) -> None:
    with make_rig(SPEC, kernel) as rig:
        tables = make_tables(3)
        whole, other = Sequence(tables[0]), Sequence(tables[1])
        rig.step((whole, 100), (other, 3))
        want = rig.run((whole, 0))
        for cut in (1, 32, 33, 99):
            chunks = Sequence(tables[2], whole.rows[:cut])
            assert (rig.run((chunks, 0)) == want[:cut]).all()
            chunks.rows.extend(whole.rows[cut:])
            assert (rig.run((other, 1), (chunks, cut))[2:] == want[cut:]).all(), f"cut at {cut}, in company"


@every_exact_kernel
def test_only_latents_are_kept(kernel: Kernel, max_error: float) -> None:
    with make_rig(SPEC, kernel) as rig:
        assert rig.attention.kv.nbytes == NUM_BLOCKS * 32 * kv_token_bytes(SPEC, kernel.item_bytes)
        assert kv_token_bytes(SPEC, kernel.item_bytes) == (64 + 8) * kernel.item_bytes
