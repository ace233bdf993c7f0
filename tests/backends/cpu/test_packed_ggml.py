"""Products with quantised rows as GGUF files hold them, against what the gguf package says these stand for."""

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from tests.backends.batches import batch
from tests.backends.cpu.models import make_prompt, quantised_model, tiny_model
from tests.backends.cpu.test_decoder import KV_BYTES, assert_rows_alike
from tests.backends.cpu.test_matmul import assert_rows_close, draw, from_bf16, rounded, silu, to_bytes
from tests.backends.reference import reference_logits
from tests.models.tiny import DictWeights, as_bf16

from hotloop.backends.cpu.build import LIBRARIES, compiler, usable_cpus
from hotloop.backends.cpu.decoder import Holding, NativeBackend, is_quantised, parts_of
from hotloop.backends.cpu.library import STRIP_KINDS, Array, Format, Native, load_kernel, load_library
from hotloop.models.gguf import dequantise
from hotloop.models.spec import Family, Stored

pytestmark = pytest.mark.skipif(compiler() is None, reason="needs a C++ compiler")

SCALES = {  # where a block has its halves
    "Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0],
    "MXFP4": [], "Q2_K": [80, 82], "Q3_K": [108], "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208],
}  # fmt: skip
CODES = {  # and its codes
    "Q4_0": (2, 18), "Q4_1": (4, 20), "Q5_0": (2, 22), "Q5_1": (4, 24), "Q8_0": (2, 34),
    "MXFP4": (1, 17), "Q2_K": (16, 80), "Q3_K": (0, 96), "Q4_K": (16, 144), "Q5_K": (16, 176), "Q6_K": (0, 192),
}  # fmt: skip
SCALE_ERROR = 2**-11  # a group's scale is held as a half


def open_native(max_grouped_rows: int) -> Iterator[Native]:
    small_jobs = "-DMAX_JOB_BLOCKS=2", "-DMAX_JOB_PANELS=2"
    native = Native(2, load_library(*small_jobs, f"-DMAX_GROUPED_ROWS={max_grouped_rows}", "-O1"))  # compiles sooner
    yield native
    native.close()


@pytest.fixture(scope="module")
def native() -> Iterator[Native]:
    """As without AMX: strips are multiplied as they are."""
    yield from open_native(1 << 30)


@pytest.fixture(scope="module")
def tiled() -> Iterator[Native]:
    """As with AMX and many rows: strips become int8 in tiles."""
    yield from open_native(0)


def random_rows(kind: str, num_rows: int, num_in: int, seed: int = 0) -> Stored:
    """Any bytes are rows, as long as their scales are numbers of a usual size."""
    block_items, block_bytes = GGML_QUANT_SIZES[GGMLQuantizationType[kind]]
    rng = np.random.default_rng(seed)
    blocks = rng.integers(0, 256, (num_rows, num_in // block_items, block_bytes), np.uint8)
    for offset in SCALES[kind]:
        scales = rng.uniform(0.001, 0.01, (*blocks.shape[:2], 1)).astype(np.float16)
        blocks[..., offset : offset + 2] = scales.view(np.uint8)
    if kind == "MXFP4":  # powers of two
        blocks[..., 0] = rng.integers(118, 122, blocks.shape[:2])
    return Stored(blocks.reshape(num_rows, -1), kind, (num_rows, num_in))


def in_bytes(rows: Stored) -> Array:
    """Each row rounded to one of 255 numbers, the largest of them what its largest code could stand for."""
    block_bytes, (begin, end) = GGML_QUANT_SIZES[GGMLQuantizationType[rows.kind]][1], CODES[rows.kind]
    extremes = []
    for codes in {"Q8_0": (0x80, 0x7F), "MXFP4": (0x77, 0xFF)}.get(rows.kind, (0, 0xFF)):
        blocks = rows.data.reshape(len(rows.data), -1, block_bytes).copy()
        blocks[..., begin:end] = codes
        extremes.append(np.abs(dequantise(replace(rows, data=blocks.reshape(rows.data.shape)))).max(-1, keepdims=True))
    step = np.maximum(*extremes) / np.float32(127)
    return np.rint(dequantise(rows) / step) * step


def grouped(x: Array) -> Array:
    """Each 32 neighbours rounded to one of 255 numbers, the largest of them their own largest."""
    groups = x.reshape(*x.shape[:-1], -1, 32)
    return rounded(groups, "int8").reshape(x.shape)


def multiply(native: Native, x: Array, *parts: Stored, bias: Array | None = None) -> Array:
    out = np.full((len(x), sum(len(part.data) for part in parts)), np.nan, np.float32)
    native.pack_rows(x)
    native.matmul(native.pack_parts(parts, "packed_ggml", bias=bias), out)
    return out


@pytest.mark.parametrize("kind", STRIP_KINDS)
@pytest.mark.sampled(3)
def test_every_row_is_what_the_package_reads(native: Native, kind: str):
    rows = random_rows(kind, 48, 512)
    out = multiply(native, np.eye(512, dtype=np.float32), rows).T
    expected = dequantise(rows)
    assert_rows_close(out, expected, 2 * SCALE_ERROR)
    if kind[1:].endswith(("_0", "_1")):  # whose scales are halves in the file
        np.testing.assert_allclose(out, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("num_rows", [1, 2, 3, 5, 12, 40])
@pytest.mark.parametrize("kind", STRIP_KINDS)
def test_products_are_those_of_rounded_rows(native: Native, kind: str, num_rows: int):
    rows, x = random_rows(kind, 72, 768), draw(num_rows, 768)
    assert_rows_close(multiply(native, x, rows), grouped(x) @ dequantise(rows).T, 2 * SCALE_ERROR)


def other_cpus() -> list[str]:
    """What libraries in a wheel are compiled for that this CPU can run, but the best of it, which it computes with."""
    return list(usable_cpus(LIBRARIES["float"]))[1:]


@pytest.mark.parametrize("march", other_cpus())
def test_every_kind_of_cpu_computes_the_same(native: Native, march: str):
    other = Native(2, load_library(f"-march={march}", "-O1"))
    for kind in STRIP_KINDS:
        rows, x = random_rows(kind, 72, 768), draw(40, 768)
        for num_rows in (1, 2, 3, 12, 40):
            np.testing.assert_array_equal(multiply(other, x[:num_rows], rows), multiply(native, x[:num_rows], rows))
    other.close()


def test_what_it_does_to_the_smallest_numbers_stays_with_it(native: Native):
    """Products are computed without denormals; the caller has them as before."""
    multiply(native, draw(40, 768), random_rows("Q4_0", 72, 768))
    smallest = np.full(64, np.finfo(np.float32).smallest_subnormal)
    assert (smallest * np.float32(1) > 0).all()


@pytest.mark.parametrize("num_in", [256, 768])
@pytest.mark.parametrize("kind", STRIP_KINDS)
@pytest.mark.sampled(5)
def test_tiles_are_the_same_in_int8(tiled: Native, kind: str, num_in: int):
    rows, x = random_rows(kind, 72, num_in), draw(40, num_in)
    expected = to_bytes(x, chunk_steps=24) @ in_bytes(rows).T
    # A number between two that it could be rounded to may fall either way.
    assert_rows_close(multiply(tiled, x, rows), expected, 0.01)


@pytest.mark.parametrize("kind", ["Q4_0", "Q5_1", "Q8_0"])
def test_tiles_have_every_group(tiled: Native, kind: str):
    """Whatever number of them, and in whichever half of a tile."""
    rows = random_rows(kind, 48, 96)
    out = multiply(tiled, np.eye(96, dtype=np.float32), rows).T
    assert_rows_close(out, in_bytes(rows), 0.01)


@pytest.mark.parametrize("kind", ["Q4_K", "Q6_K", "Q5_0", "Q8_0"])
def test_a_row_is_the_same_whatever_else_is_in_the_batch(native: Native, kind: str):
    rows, x = random_rows(kind, 64, 1536), draw(70, 1536)
    together = multiply(native, x, rows)
    for row in (0, 31, 40, 69):
        np.testing.assert_array_equal(multiply(native, x[row : row + 1], rows)[0], together[row])


@pytest.mark.parametrize("num_rows", [1, 37])
def test_a_matrix_may_have_parts_of_several_kinds(native: Native, tiled: Native, num_rows: int):
    parts = [random_rows(kind, count, 256, seed=count) for kind, count in (("Q4_K", 96), ("Q4_K", 16), ("Q6_K", 32))]
    x, bias = draw(num_rows, 256), draw(144)
    matrix = np.concatenate([dequantise(part) for part in parts])
    assert_rows_close(multiply(native, x, *parts, bias=bias), grouped(x) @ matrix.T + bias, 2 * SCALE_ERROR)
    assert_rows_close(multiply(tiled, x, *parts, bias=bias), x @ matrix.T + bias, 0.03)


@pytest.mark.parametrize(("kind", "num_in"), [*((kind, 256) for kind in STRIP_KINDS), ("Q4_0", 96)])
def test_codes_may_be_int8_once_for_all(tiled: Native, kind: str, num_in: int):
    last = random_rows("Q6_K" if num_in == 256 else "Q8_0", 9, num_in)
    parts, x, bias = [random_rows(kind, 32, num_in), last], draw(37, num_in), draw(41)
    out = np.empty((37, 41), np.float32)
    tiled.pack_rows(x)
    tiled.matmul(tiled.pack_parts(parts, "int8", bias=bias), out)
    np.testing.assert_array_equal(out, multiply(tiled, x, *parts, bias=bias))
    tiled.pack_rows(x[:3])  # few are not rounded to bytes
    tiled.matmul(tiled.pack_parts(parts, "int8", bias=bias), out[:3])
    expected = x[:3] @ np.concatenate([in_bytes(part) for part in parts]).T + bias
    assert_rows_close(out[:3], expected, 0.01)


@pytest.mark.parametrize("size", [16, 40, 100])
def test_a_gate_meets_an_up_of_another_kind(native: Native, size: int):
    gate, up, x = random_rows("Q4_K", size, 256), random_rows("Q6_K", size, 256, seed=1), draw(34, 256) / 32
    out = np.zeros((34, size), np.uint16)
    native.pack_rows(x)
    native.matmul(native.pack_parts([gate, up], "packed_ggml", is_gated=True), out, "gate")
    rows = grouped(x)
    assert_rows_close(from_bf16(out), silu(rows @ dequantise(gate).T) * (rows @ dequantise(up).T), 0.01)


def test_what_waits_to_be_packed_is_dropped_with_its_owner() -> None:
    num_threads = len(os.listdir("/proc/self/task"))
    native = Native(4, load_library("-DMAX_JOB_BLOCKS=2", "-DMAX_JOB_PANELS=2", f"-DMAX_GROUPED_ROWS={1 << 30}", "-O1"))
    for seed in range(20):
        native.pack_parts([random_rows("Q4_K", 512, 768, seed)], "packed_ggml")
    native.close()
    assert len(os.listdir("/proc/self/task")) == num_threads


def test_what_was_packed_before_stays_when_more_is(native: Native) -> None:
    """Packing begins and ends again, in whatever order matrices are made and multiplied with."""
    many, x = [random_rows("Q4_K", 80, 768, seed) for seed in range(6)], draw(3, 768)
    packed = [native.pack_parts([rows], "packed_ggml") for rows in many[:3]]
    alone = [multiply(native, x, rows) for rows in many]
    packed += [native.pack_parts([rows], "packed_ggml") for rows in many[3:]]
    for weights, expected in zip(packed, alone, strict=True):
        out = np.full_like(expected, np.nan)
        native.pack_rows(x)
        native.matmul(weights, out)
        np.testing.assert_array_equal(out, expected)


def test_rows_of_zeros_stay_zeros(native: Native):
    assert not multiply(native, np.zeros((3, 256), np.float32), random_rows("Q4_K", 32, 256)).any()


@pytest.mark.parametrize(("kind", "levels"), [("F32", 255), ("F16", 255), ("BF16", 255), ("narrow", 16)])
def test_floats_become_codes(native: Native, kind: str, levels: int):
    matrix = as_bf16(draw(40, 64)).astype(np.float16 if kind == "F16" else np.float32)
    data = np.ascontiguousarray(matrix).view(np.uint8)
    if kind == "BF16":
        data = np.ascontiguousarray(matrix.view(np.uint16)[:, 1::2]).view(np.uint8)
    out = multiply(native, np.eye(64, dtype=np.float32), Stored(data, kind, matrix.shape)).T
    groups, got = matrix.astype(np.float32).reshape(40, 2, 32), out.reshape(40, 2, 32)
    low, high = np.minimum(groups.min(-1), 0), np.maximum(groups.max(-1), 0)
    step = (high - low) / 15 if levels == 16 else np.maximum(high, -low) / 127
    assert (np.abs(got - groups) < 0.51 * step[..., None] + 0.002 * np.abs(groups).max()).all()


def test_what_is_not_quantised_stays_floats_until_it_is_packed():
    weights = DictWeights({"a": draw(40, 64)})
    assert [part.kind for part in parts_of(weights, ["a"])] == ["F32"]
    assert [part.kind for part in parts_of(weights, ["a"], is_narrow=True)] == ["narrow"]


def test_parts_whose_strips_would_mix_kinds_become_alike():
    class TwoKinds(DictWeights):
        def stored(self, name: str) -> Stored:
            return random_rows("Q4_0", 24, 64) if name == "a" else super().stored(name)

    parts = parts_of(TwoKinds({"a": draw(24, 64), "b": draw(40, 64)}), ["a", "b"])
    assert [part.kind for part in parts] == ["F32", "F32"]


@pytest.mark.parametrize("form", ["packed_ggml", "int8"])
@pytest.mark.parametrize("is_tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_a_model_computes_with_the_rows_of_its_file(family: Family, is_tied: bool, form: Format, empty_home: Path):
    model = quantised_model(tiny_model(family, head_dim=64, has_tied_head=is_tied))
    assert is_quantised(model)
    backend = NativeBackend(model, KV_BYTES, load_kernel(), holding=Holding(form), num_workers=2)
    prompt = make_prompt(model, 50)
    want = reference_logits(model.spec, model.weights, prompt)
    assert_rows_alike(backend.run(batch((prompt[:40], 0, [1, 2]))), want[:40], 0.1)
    assert_rows_alike(backend.run(batch((prompt[40:], 40, [1, 2, 3]))), want[40:], 0.1)
    backend.close()
