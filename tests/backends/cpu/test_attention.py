"""Our own attention against plain numpy, row by row: long contexts, forks, drafts, every head size; and bit by bit."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from typing import TypeVar

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.backends.cpu.kernels import load_tiles

from hotloop.backends.backend import Batch
from hotloop.backends.cpu.attention import Attention, Kernel
from hotloop.backends.cpu.library import load_kernel
from hotloop.models.rope import rotary_frequencies, rotary_table
from hotloop.models.spec import ModelSpec

Array = NDArray[np.float32]

BLOCK = 32
NUM_BLOCKS = 400


# What computes, and how far it may be off with values around 1, rounded to what they are stored in.
TILES = pytest.param(load_tiles, 0.02, id="tiles")
BYTE_TILES = pytest.param(partial(load_tiles, "byte_tiles"), 0.05, id="byte-tiles")
INT8 = pytest.param(partial(load_kernel, "int8_t"), 0.05, id="int8")
EXACT = (
    pytest.param(partial(load_kernel, "half"), 0.004, id="f16"),
    pytest.param(partial(load_kernel, "float"), 1e-5, id="f32"),
)

with_kernels = partial(pytest.mark.parametrize, ("kernel", "max_error"), indirect=["kernel"])
every_kernel = with_kernels([TILES, BYTE_TILES, INT8, *EXACT])
every_portable_kernel = with_kernels([INT8, *EXACT])
every_exact_kernel = with_kernels(EXACT)


def make_spec(head_dim: int = 64, num_heads: int = 9, num_kv_heads: int = 3, has_qk_norm: bool = False) -> ModelSpec:
    spec = ModelSpec("llama", 1, 64, 64, num_heads, num_kv_heads, head_dim, 100, 8192, 1e-5, 10_000.0)
    return replace(spec, has_qk_norm=has_qk_norm)


@dataclass
class Sequence:
    """What one sequence has said so far, and the blocks it is kept in."""

    table: list[int]
    rows: list[Array] = field(default_factory=list)

    @property
    def length(self) -> int:
        return len(self.rows)

    def fork(self, num_blocks: int, table: list[int]) -> "Sequence":
        return Sequence(self.table[:num_blocks] + table, self.rows[: num_blocks * BLOCK])


class Rig:
    """The kernel and a slow copy of what it should do."""

    def __init__(self, spec: ModelSpec, attention: Attention) -> None:
        self.spec, self.attention = spec, attention
        self.rng = np.random.default_rng(0)
        self.norms = self.rng.uniform(0.5, 1.5, (2, spec.head_dim)).astype(np.float32)
        if spec.has_qk_norm:
            attention.set_norms(0, *self.norms)

    @property
    def width(self) -> int:
        return (self.spec.num_heads + 2 * self.spec.num_kv_heads) * self.spec.head_dim

    def step(self, *parts: tuple[Sequence, int]) -> float:
        """Each sequence says so many more tokens; returns the largest error of any row."""
        pasts = [sequence.length for sequence, _ in parts]
        for sequence, count in parts:
            sequence.rows.extend(self.rng.standard_normal((count, self.width)).astype(np.float32))
        output = self.run(*((sequence, past) for (sequence, _), past in zip(parts, pasts, strict=True)))
        expected = [self.expected(sequence, past) for (sequence, _), past in zip(parts, pasts, strict=True)]
        return float(np.abs(output - np.concatenate(expected)).max())

    def run(self, *parts: tuple[Sequence, int]) -> Array:
        """What comes of each sequence's rows from there on."""
        qkv = np.concatenate([sequence.rows[past:] for sequence, past in parts])
        tables = [sequence.table[: math.ceil(sequence.length / BLOCK)] for sequence, _ in parts]
        batch = Batch(
            token_ids=np.zeros(len(qkv), np.int64),
            positions=np.zeros(len(qkv), np.int64),
            past_lens=np.array([past for _, past in parts], np.int32),
            query_starts=np.cumsum([0, *(sequence.length - past for sequence, past in parts)]).astype(np.int32),
            block_ids=np.concatenate(tables).astype(np.int32),
            block_begins=np.cumsum([0, *map(len, tables)]).astype(np.int32),
            logit_rows=np.zeros(0, np.int64),
        )
        output = np.full((len(qkv), self.spec.mixed_size), np.nan, np.float32)
        self.attention.plan(batch)
        self.attention.run(0, qkv, output)
        return output

    def expected(self, sequence: Sequence, past: int) -> Array:
        spec = self.spec
        x = np.stack(sequence.rows).reshape(sequence.length, -1, spec.head_dim)
        q, k, v = np.split(x, [spec.num_heads, spec.num_heads + spec.num_kv_heads], axis=1)
        q, (k, v) = self.turned(q, self.norms[0])[past:], self.kept(sequence, self.turned(k, self.norms[1]), v)
        group = spec.num_heads // spec.num_kv_heads
        q, k, v = (part.transpose(1, 0, 2) for part in (q, k.repeat(group, axis=1), v.repeat(group, axis=1)))
        scores = q @ k.transpose(0, 2, 1) / math.sqrt(spec.head_dim)
        is_hidden = np.arange(sequence.length) > np.arange(past, sequence.length)[:, None]
        scores = np.where(is_hidden, -np.inf, scores)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        mixed = weights @ v / weights.sum(-1, keepdims=True)
        return mixed.transpose(1, 0, 2).reshape(sequence.length - past, -1).astype(np.float32)

    def kept(self, sequence: Sequence, k: Array, v: Array) -> tuple[Array, Array]:
        """Keys and values, [tokens, KV heads, head_dim], as far as they are there again when they are read."""
        return k, v

    def turned(self, x: Array, norm: Array) -> Array:
        if self.spec.has_qk_norm:
            x = x / np.sqrt((x**2).mean(-1, keepdims=True) + self.spec.rms_eps) * norm
        return self.rotated(x)

    def rotated(self, x: Array) -> Array:
        angles = np.outer(np.arange(len(x)), rotary_frequencies(self.spec))[:, None]
        first, second = np.split(x, 2, axis=-1)
        cos, sin = np.cos(angles), np.sin(angles)
        return np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)


AnyRig = TypeVar("AnyRig", bound=Rig)


@contextmanager
def open_rig(kind: type[AnyRig], spec: ModelSpec, kernel: Kernel) -> Iterator[AnyRig]:
    attention = kernel.create(spec, NUM_BLOCKS, rotary_table(spec, 8192))
    try:
        yield kind(spec, attention)
    finally:
        attention.close()


make_rig = partial(open_rig, Rig)


def make_tables(count: int) -> list[list[int]]:
    """Blocks in no order, none in two tables."""
    shuffled = np.random.default_rng(1).permutation(NUM_BLOCKS).tolist()
    size = NUM_BLOCKS // count
    return [shuffled[i * size : (i + 1) * size] for i in range(count)]


@pytest.mark.sampled(4)
@every_kernel
@pytest.mark.parametrize(
    "spec",
    [
        pytest.param(make_spec(), id="64"),
        pytest.param(make_spec(96, 4, 4), id="96", marks=pytest.mark.long),
        pytest.param(make_spec(128, 8, 2, has_qk_norm=True), id="128-norm"),
        pytest.param(make_spec(64, 7, 1, has_qk_norm=True), id="64-norm", marks=pytest.mark.long),
    ],
)
def test_long_prompts_in_chunks_then_tokens_and_drafts(spec: ModelSpec, kernel: Kernel, max_error: float) -> None:
    with make_rig(spec, kernel) as rig:
        long, short = (Sequence(table) for table in make_tables(2))
        assert rig.step((long, 700)) < max_error
        assert rig.step((long, 33), (short, 1)) < max_error
        assert rig.step((short, 30), (long, 1)) < max_error
        assert rig.step((long, 500), (short, 3)) < max_error
        for count in (1, 4, 1):
            assert rig.step((long, count), (short, 1)) < max_error


@every_kernel
@pytest.mark.sampled(5)
def test_sequences_that_share_blocks_and_part_anywhere(kernel: Kernel, max_error: float) -> None:
    with make_rig(make_spec(), kernel) as rig:
        tables = make_tables(16)
        trunk = Sequence([*chain(*tables[:4])])
        assert rig.step((trunk, 40 * BLOCK)) < max_error
        forks = [trunk.fork(at, tables[4 + i]) for i, at in enumerate((40, 40, 40, 40, 36, 36, 33, 2, 1, 0, 40))]
        assert rig.step(*((fork, 1 + i % 3) for i, fork in enumerate(forks))) < max_error
        assert rig.step(*((fork, 40 if i == 2 else 1) for i, fork in enumerate(forks))) < max_error


@every_kernel
@pytest.mark.parametrize("num_tokens", [3, 35])  # of a block that is filled, too
def test_what_a_block_held_before_does_not_matter(kernel: Kernel, max_error: float, num_tokens: int) -> None:
    with make_rig(make_spec(), kernel) as rig:
        [table] = make_tables(1)
        broken = Sequence(table)
        rig.step((broken, 40))
        poison = np.full((40, 15 * 64), np.nan, np.float32)
        rig.attention.run(0, poison, np.empty((40, 9 * 64), np.float32))
        assert rig.step((Sequence(table), num_tokens)) < max_error


@every_kernel
@pytest.mark.parametrize("past", [63, 64, 65, 511, 512, 513])
@pytest.mark.sampled(5)
def test_rows_on_either_side_of_what_is_read_at_once(kernel: Kernel, max_error: float, past: int) -> None:
    with make_rig(make_spec(), kernel) as rig:
        sequence = Sequence(make_tables(1)[0])
        for count in (past, 1, 12):
            assert rig.step((sequence, count)) < max_error


@every_kernel
@pytest.mark.parametrize("spec", [make_spec(), make_spec(128, 4, 2)], ids=["64", "128"])
@pytest.mark.sampled(5)
def test_scores_that_outgrow_all_before_them(spec: ModelSpec, kernel: Kernel, max_error: float) -> None:
    with make_rig(spec, kernel) as rig:
        rows = rig.rng.standard_normal((700, rig.width)).astype(np.float32)
        rows[:, : -spec.num_kv_heads * spec.head_dim] *= np.linspace(0.1, 3, len(rows), dtype=np.float32)[:, None]
        sequence = Sequence(make_tables(1)[0], [*rows])
        errors = np.abs(rig.run((sequence, 0)) - rig.expected(sequence, 0))
        assert errors.max() < 4 * max_error  # a score of 50 is off by more than one of 1
        assert errors.mean() < max_error / 8


@every_kernel
@pytest.mark.parametrize("spec", [make_spec(), make_spec(128, 4, 2)], ids=["64", "128"])
@pytest.mark.parametrize("scale", [10, 150])  # some far above all others and some below
@pytest.mark.sampled(5)
def test_a_first_score_far_from_all_others(spec: ModelSpec, kernel: Kernel, max_error: float, scale: float) -> None:
    with make_rig(spec, kernel) as rig:
        rows = rig.rng.standard_normal((300, rig.width)).astype(np.float32)
        rows[0, spec.num_heads * spec.head_dim : -spec.num_kv_heads * spec.head_dim] *= scale  # its keys
        sequence = Sequence(make_tables(1)[0], [*rows])
        for past in (0, 280, 299):
            assert_mostly_near(rig.run((sequence, past)), rig.expected(sequence, past), max_error)


@every_kernel
def test_a_key_that_only_later_rows_see_has_no_part_in_earlier_ones(kernel: Kernel, max_error: float) -> None:
    with make_rig(make_spec(64, 1, 1), kernel) as rig:
        rows = rig.rng.standard_normal((300, 3, 64)).astype(np.float32)
        rows[:, 0, 31], rows[256, 1, 31] = 30, 300  # a dimension that hardly turns; the first key of a part of the work
        sequence = Sequence(make_tables(1)[0], [*rows.reshape(300, -1)])
        rig.run((sequence, 0))
        assert_mostly_near(rig.run((sequence, 240)), rig.expected(sequence, 240), max_error)


def assert_mostly_near(output: Array, expected: Array, max_error: float) -> None:
    """But where two large scores are nearly equal, so that either may win."""
    assert np.isfinite(output).all()
    assert np.mean(np.abs(output - expected) < max_error) > 0.95


@pytest.mark.sampled(3)
@every_portable_kernel
def test_a_row_is_the_same_to_the_bit_whoever_shares_its_blocks(kernel: Kernel, max_error: float) -> None:
    with make_rig(make_spec(), kernel) as rig:
        tables = make_tables(8)
        trunk = Sequence([*chain(*tables[:2])])
        assert rig.step((trunk, 20 * BLOCK)) < max_error
        forks = [trunk.fork(at, tables[2 + i]) for i, at in enumerate((20, 20, 16, 9, 20))]
        assert rig.step(*((fork, 1 + i % 3) for i, fork in enumerate(forks))) < max_error
        pasts = [fork.length - 1 - i % 3 for i, fork in enumerate(forks)]
        together = rig.run(*zip(forks, pasts, strict=True))
        alone = [rig.run((fork, past)) for fork, past in zip(forks, pasts, strict=True)]
        assert (together == np.concatenate(alone)).all()


@every_portable_kernel
@pytest.mark.parametrize("spec", [make_spec(), make_spec(48, 4, 2, has_qk_norm=True), make_spec(16, 3, 3)], ids=str)
@pytest.mark.sampled(3)
def test_a_row_is_the_same_to_the_bit_however_it_is_computed(kernel: Kernel, max_error: float, spec: ModelSpec) -> None:
    with make_rig(spec, kernel) as rig:
        tables = make_tables(4)
        whole, other = Sequence(tables[0]), Sequence(tables[1])
        assert rig.step((whole, 600), (other, 3)) < max_error
        want = rig.run((whole, 0))
        for cut in (1, 31, 32, 33, 100, 255, 256, 257, 599):
            chunks = Sequence(tables[2], whole.rows[:cut])
            assert (rig.run((chunks, 0)) == want[:cut]).all()
            chunks.rows.extend(whole.rows[cut:])
            assert (rig.run((other, 1), (chunks, cut))[2:] == want[cut:]).all(), f"cut at {cut}, in company"
            assert (rig.run((whole, cut)) == want[cut:]).all(), f"from {cut} on, the rest as it was"
