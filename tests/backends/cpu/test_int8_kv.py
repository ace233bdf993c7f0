"""Keys and values in int8, with a scale for each token and head: attention against numpy, then whole backends."""

from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.backends.batches import batch
from tests.backends.cpu.kernels import load_tiles
from tests.backends.cpu.models import make_prompt, quantised_model, tiny_model
from tests.backends.cpu.test_attention import BLOCK, NUM_BLOCKS, Array, Rig, Sequence, make_spec, make_tables, open_rig
from tests.backends.cpu.test_decoder import assert_rows_alike
from tests.backends.reference import reference_logits
from tests.engine.tiny import greedy

from hotloop.backends.cpu.attention import Kernel
from hotloop.backends.cpu.build import compiler, has_amx
from hotloop.backends.cpu.decoder import Holding, NativeBackend
from hotloop.backends.cpu.library import KvType, load_kernel
from hotloop.backends.cpu.opening import open_cpu
from hotloop.core.config import EngineConfig
from hotloop.core.errors import ConfigError
from hotloop.engine.engine import Engine
from hotloop.models.model import Model
from hotloop.models.spec import LatentSpec, ModelSpec

pytestmark = pytest.mark.skipif(compiler() is None, reason="needs a C++ compiler")

Bytes = NDArray[np.int8]

every_shape = pytest.mark.parametrize(
    "spec",
    [make_spec(), make_spec(16, 3, 3), make_spec(48, 4, 2, has_qk_norm=True), make_spec(128, 8, 2)],
    ids=["64", "16", "48-norm", "128"],
)


class Int8Rig(Rig):
    """Reads keys and values from the kernel's memory, and sees that they are as near as bytes can be."""

    def kept(self, sequence: Sequence, k: Array, v: Array) -> tuple[Array, Array]:
        heads, dim = self.spec.num_kv_heads, self.spec.head_dim
        blocks = self.attention.kv[0, np.array(sequence.table)].reshape(-1, heads, 2 * (dim + 4) * BLOCK)
        keys, values, scales = np.split(blocks, [dim * BLOCK, 2 * dim * BLOCK], axis=2)
        scale = np.ascontiguousarray(scales).view(np.float32).reshape(-1, heads, 2, BLOCK, 1)
        found = self.unpacked(keys.view(np.int8), values.view(np.int8), scale)
        k_found, v_found = (x.transpose(0, 2, 1, 3).reshape(-1, heads, dim)[: sequence.length] for x in found)
        for got, want in ((k_found, k), (v_found, v)):
            step = np.abs(want).max(-1, keepdims=True) / 127
            assert (np.abs(got - want) <= 0.501 * step).all()
        return k_found, v_found

    def unpacked(self, keys: Bytes, values: Bytes, scales: Array) -> tuple[Array, Array]:
        """Of [blocks, heads, bytes]: [blocks, heads, slots, dimensions]"""
        shape = (*keys.shape[:2], BLOCK, self.spec.head_dim)
        k, v = keys.reshape(*shape[:2], -1, BLOCK).swapaxes(2, 3), values.reshape(shape)
        return k * scales[:, :, 0], v * scales[:, :, 1]


make_rig = partial(open_rig, Int8Rig)


@pytest.fixture
def kernel() -> Kernel:
    kernel = load_kernel("int8_t")
    assert kernel
    return kernel


class ByteTilesRig(Int8Rig):
    def unpacked(self, keys: Bytes, values: Bytes, scales: Array) -> tuple[Array, Array]:
        """Rows of tiles have the first numbers of 16 pairs, then the second ones."""
        dim = self.spec.head_dim
        slots = [key // 4 % 2 * 16 + key // 8 * 4 + key % 4 for key in range(BLOCK)]
        by_tile = keys.reshape(*keys.shape[:2], 2, dim // 2, 2, 16).transpose(0, 1, 2, 5, 3, 4)
        k = by_tile.reshape(*keys.shape[:2], BLOCK, dim) * scales[:, :, 0]
        v = values.reshape(*keys.shape[:2], dim // 16, 16, 2, 16).transpose(0, 1, 3, 4, 2, 5)
        return k[:, :, slots], v.reshape(*keys.shape[:2], BLOCK, dim) * scales[:, :, 1]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("spec", [make_spec(), make_spec(96, 4, 4), make_spec(128, 8, 2)], ids=["64", "96", "128"])
def test_in_tiles_too_every_row_is_what_numpy_makes_of_the_same_bytes(spec: ModelSpec) -> None:
    kernel = load_tiles("byte_tiles")
    assert kernel
    with open_rig(ByteTilesRig, spec, kernel) as rig:
        assert rig.attention.kv.nbytes == NUM_BLOCKS * BLOCK * kernel.token_bytes(spec)
        rig.attention.kv[:] = 0xFF  # as floats these are not numbers
        long, short = (Sequence(table) for table in make_tables(2))
        for parts in ([(long, 300)], [(long, 33), (short, 1)], [(short, 40), (long, 1)], [(long, 1), (short, 4)]):
            assert rig.step(*parts) < 0.02


@every_shape
def test_every_row_is_what_numpy_makes_of_the_same_bytes(spec: ModelSpec, kernel: Kernel) -> None:
    with make_rig(spec, kernel) as rig:
        long, short = (Sequence(table) for table in make_tables(2))
        for parts in ([(long, 300)], [(long, 33), (short, 1)], [(short, 40), (long, 1)], [(long, 1), (short, 4)]):
            assert rig.step(*parts) < 2e-5


@every_shape
def test_blocks_have_the_bytes_that_are_reckoned_with(spec: ModelSpec, kernel: Kernel) -> None:
    with make_rig(spec, kernel) as rig:
        assert rig.attention.kv.nbytes == NUM_BLOCKS * BLOCK * kernel.token_bytes(spec)
        assert kernel.token_bytes(spec) == 2 * spec.num_kv_heads * (spec.head_dim + 4)


def test_tokens_of_all_sizes_stand_side_by_side_in_a_block(kernel: Kernel) -> None:
    """Each has its own scale: a large one does not make the others coarser, and a zero is one."""
    with make_rig(make_spec(), kernel) as rig:
        sequence = Sequence(make_tables(1)[0])
        rows = rig.rng.standard_normal((40, rig.width)).astype(np.float32)
        rows[:, 9 * 64 :] *= np.float32(10) ** (np.arange(40, dtype=np.float32)[:, None] % 5 - 3)
        rows[20] = 0
        sequence.rows.extend(rows)
        output = rig.run((sequence, 0))
        np.testing.assert_allclose(output, rig.expected(sequence, 0), rtol=1e-4, atol=1e-4)


def test_scales_that_a_block_held_before_do_not_matter(kernel: Kernel) -> None:
    with make_rig(make_spec(), kernel) as rig:
        rig.attention.kv[:] = 0xFF  # as floats these are not numbers
        assert rig.step((Sequence(make_tables(1)[0]), 3)) < 2e-5


def open_one(model: Model, kv_type: KvType) -> NativeBackend:
    return NativeBackend(model, 4 << 20, load_kernel(kv_type), holding=Holding("packed_ggml"), num_workers=2)


with_rows_alone = pytest.mark.skipif(has_amx(), reason="with AMX a row depends on what else is in the step")


@pytest.fixture
def model(empty_home: Path) -> Model:
    return quantised_model(tiny_model("llama", head_dim=64, max_context=1024))


@with_rows_alone
def test_whole_and_in_chunks_a_model_computes_the_reference(model: Model) -> None:
    backend, prompt = open_one(model, "int8_t"), make_prompt(model, 70)
    want = reference_logits(model.spec, model.weights, prompt)
    whole = backend.run(batch((prompt, 0, [2, 0, 1]))).copy()
    assert_rows_alike(whole, want, 0.1)
    parts = [backend.run(batch((prompt[:50], 0, [5, 4]))).copy(), backend.run(batch((prompt[50:], 50, [5, 4, 6])))]
    assert_rows_alike(np.vstack(parts), whole, 1e-3)
    assert (np.vstack(parts).argmax(-1) == whole.argmax(-1)).all()
    backend.close()


@with_rows_alone
def test_the_same_memory_holds_nearly_twice_the_tokens(model: Model) -> None:
    num_tokens = {}
    for kv_type in ("float", "half", "int8_t"):
        backend = open_one(model, kv_type)
        with Engine(model.tokenizer, backend, EngineConfig()) as engine:
            num_tokens[kv_type] = engine.num_kv_tokens
        assert backend.num_blocks * backend.block_bytes <= 4 << 20
    assert num_tokens["int8_t"] >= 1.85 * num_tokens["half"] >= 3.7 * num_tokens["float"]


@with_rows_alone
def test_what_is_cached_says_what_is_computed(model: Model) -> None:
    prompt = make_prompt(model, 300)
    with Engine(model.tokenizer, open_one(model, "int8_t"), EngineConfig(drafts=False)) as engine:
        cold, cached = (engine.generate(prompt, greedy(12)) for _ in range(2))
    assert (cold.usage.num_cached, cached.usage.num_cached) == (0, 288)
    assert cached.token_ids == cold.token_ids


@with_rows_alone
def test_blocks_on_disk_are_found_again_and_never_read_in_another_precision(model: Model, tmp_path: Path) -> None:
    prompt, answers = make_prompt(model, 700), []
    config = EngineConfig(kv_dir=str(tmp_path / "kv"), drafts=False)
    for kv_type in ("int8_t", "half", "int8_t"):
        with Engine(model.tokenizer, open_one(model, kv_type), config) as engine:
            answers.append(engine.generate(prompt, greedy(12)))
    assert [answer.usage.num_restored for answer in answers] == [0, 0, 512]
    assert answers[2].token_ids == answers[0].token_ids


@with_rows_alone
def test_blocks_go_to_the_host_and_back(model: Model) -> None:
    backend, prompt = open_one(model, "int8_t"), make_prompt(model, 70)
    backend.run(batch((prompt, 0, [2, 0, 1])))
    want = backend.run(batch((prompt[64:], 64, [2, 0, 1]))).copy()
    kept = backend.read_blocks([2, 0]).wait()
    assert kept.nbytes == 2 * backend.block_bytes
    backend.write_blocks([5, 3], kept)
    np.testing.assert_array_equal(backend.run(batch((prompt[64:], 64, [5, 3, 4]))), want)
    backend.close()


INT8 = EngineConfig(kv_memory="8MiB", kv_precision="int8")


def test_it_is_what_is_asked_for(model: Model) -> None:
    backend = open_cpu(model, INT8, weight_format="int8")
    assert backend.block_bytes == BLOCK * 2 * 2 * 2 * (64 + 4)
    backend.close()


def test_it_is_refused_where_it_cannot_be_had(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="kv_precision=int8 cannot be combined with precision=exact"):
        open_cpu(model, INT8, precision="exact")
    latent = LatentSpec(None, kv_rank=32, nope_dim=16, rope_dim=8, value_dim=16, scale=0.1)
    with pytest.raises(ConfigError, match=r"kv_precision int8 is not supported with latent attention \(MLA\)"):
        open_cpu(replace(model, spec=replace(model.spec, latent=latent)), INT8)
