"""What a model takes is known before it is read; what does not fit is refused in a line with the whole sum in it."""

import json
import os
from dataclasses import replace
from math import prod
from pathlib import Path

import pytest
from tests.models.tiny import spec_config, tiny_spec, tiny_tokenizer, write_json

from hotloop.core.config import WeightFormat
from hotloop.core.errors import ConfigError, ModelError
from hotloop.models.layout import tensor_places
from hotloop.models.memory import (
    INT8_SCALE_BYTES,
    available_bytes,
    check_fits,
    check_fits_cpu,
    fit_kv_gpu,
    gpu_weight_bytes,
    kv_token_bytes,
    weight_bytes,
)
from hotloop.models.model import load_model
from hotloop.models.spec import ExpertsSpec, Int4Spec, LatentSpec, ModelSpec

GIB = 1 << 30
SHAPE_70B = ModelSpec("llama", 80, 8192, 28672, 64, 8, 128, 128_256, 131_072, 1e-5, 500_000.0)


def write_huge(folder: Path, spec: ModelSpec) -> Path:
    """A folder whose weights are all there, as far as headers and sizes go, and take no room on the disk."""
    folder.mkdir()
    header, size = {}, 0
    for place in tensor_places(spec):
        end = size + 2 * prod(place.shape)
        header[place.hf_name] = {"dtype": "BF16", "shape": place.shape, "data_offsets": [size, end]}
        size = end
    encoded = json.dumps(header).encode()
    path = folder / "model.safetensors"
    path.write_bytes(len(encoded).to_bytes(8, "little") + encoded)
    os.truncate(path, 8 + len(encoded) + size)
    write_json(folder / "config.json", spec_config(spec))
    tiny_tokenizer().save(str(folder / "tokenizer.json"))
    return folder


def test_a_huge_folder_is_refused_before_it_is_read(tmp_path: Path) -> None:
    model = load_model(str(write_huge(tmp_path / "huge", SHAPE_70B)))
    assert model.size_bytes > 141 * 10**9

    def held_bytes(weight_format: WeightFormat) -> int:
        return 2 * weight_bytes(model.spec, weight_format)

    limits = {"kv_bytes": 2 * GIB, "working_bytes": GIB, "free_bytes": 24 * GIB}
    with pytest.raises(ModelError) as caught:
        check_fits_cpu("huge", held_bytes, "int8", ["int8", "int4"], **limits)
    assert str(caught.value) == (
        "huge does not fit: weights 131.4 GiB + KV 2.0 GiB + working memory 1.0 GiB = 134.4 GiB, "
        "but this machine has only 24.0 GiB free; no setting changes that, only a smaller model or more memory"
    )


@pytest.mark.parametrize(
    ("free_gib", "advice"),
    [
        (12, None),
        (11, "; --kv-memory 1024MiB or --weights int4 would fit"),
        (10, "; --weights int4 would fit"),
    ],
)
def test_the_setting_that_helps_is_named(free_gib: int, advice: str | None) -> None:
    held: dict[WeightFormat, int] = {"bf16": 18 * GIB, "int8": 9 * GIB, "int4": 5 * GIB}
    limits = {"kv_bytes": 2 * GIB, "working_bytes": GIB, "free_bytes": free_gib * GIB}

    def check() -> None:
        check_fits_cpu("m", held.__getitem__, "int8", [*held], **limits)

    if advice is None:
        check()
        return
    with pytest.raises(ConfigError, match=advice):
        check()


def test_what_just_fits_is_not_refused() -> None:
    check_fits("m", {"weights": 4, "KV": 2}, 6, have="")
    with pytest.raises(ModelError):
        check_fits("m", {"weights": 4, "KV": 2}, 5, have="")


def test_weights_are_counted_as_they_are_held() -> None:
    """The sums are the sizes of the graphs that the CPU backend keeps of the default model, but for some constants."""
    spec = ModelSpec("llama", 30, 576, 1536, 9, 3, 64, 49_152, 8192, 1e-5, 1e5, has_tied_head=True)
    sizes = {name: weight_bytes(spec, name) for name in ("int8", "bf16", "f32")}  # type: ignore[arg-type]
    assert sizes == {"int8": 135_029_828 - 68, "bf16": 269_100_356 - 68, "f32": 538_060_100 - 68}
    embedding, num_rows = 2 * 49_152 * 576, 30 * (2 * 576 + 2 * 192 + 2 * 1536 + 576) + 49_152
    vectors = 4 * (61 * 576)
    narrow = (sizes["bf16"] - vectors) // 2 + 4 * num_rows  # the head with them, though it is the embedding as well
    assert weight_bytes(spec, "fp8") == embedding + narrow + vectors
    assert sizes["int8"] / 2 < weight_bytes(spec, "int4") < sizes["int8"]
    assert kv_token_bytes(spec) == 2 * 2 * 30 * 3 * 64
    assert kv_token_bytes(spec, 1, INT8_SCALE_BYTES) == 2 * 30 * 3 * (64 + 4)


def test_only_latents_are_counted_where_keys_and_values_are_made_from_them() -> None:
    """DeepSeek-V2-Lite: 15.7 billion weights, 576 numbers a token and layer."""
    latent = LatentSpec(None, kv_rank=512, nope_dim=128, rope_dim=64, value_dim=128, scale=0.1)
    experts = ExpertsSpec(64, 6, 1408, shared_size=2816, num_dense=1)
    spec = ModelSpec("deepseek2", 27, 2048, 10944, 16, 16, 192, 102_400, 163_840, 1e-6, 1e4, experts=experts)
    spec = replace(spec, latent=latent)
    assert kv_token_bytes(spec) == 27 * 576 * 2
    assert weight_bytes(spec, "bf16") / 2 == pytest.approx(15.7e9, rel=0.002)


def test_a_matrix_that_has_no_whole_groups_is_not_held_in_int4() -> None:
    spec = tiny_spec("llama", hidden_size=50, intermediate_size=30, num_heads=1, num_kv_heads=1, head_dim=50)
    assert weight_bytes(spec, "int4") == weight_bytes(spec, "int8")


def fit_70b(
    total_gib: int,
    free_gib: int,
    share: float,
    min_tokens: int = 8192,
    draft_spec: ModelSpec | None = None,
    num_gpus: int = 1,
) -> int:
    return fit_kv_gpu(
        "m",
        SHAPE_70B,
        total_bytes=total_gib * GIB,
        free_bytes=free_gib * GIB,
        share=share,
        working_bytes=2 * GIB,
        min_tokens=min_tokens,
        draft_spec=draft_spec,
        num_gpus=num_gpus,
    )


def test_kv_gets_what_a_gpu_has_left() -> None:
    weights = weight_bytes(SHAPE_70B, "bf16")
    assert fit_70b(180, 179, 0.9) == int(0.9 * 180 * GIB) - weights - 2 * GIB
    assert fit_70b(180, 150, 0.9) == 150 * GIB - weights - 2 * GIB


def test_a_draft_model_gets_room_for_its_weights_and_as_many_tokens() -> None:
    draft = tiny_spec("llama")
    left = fit_70b(180, 179, 0.9) - weight_bytes(draft, "bf16")
    own, others = kv_token_bytes(SHAPE_70B), kv_token_bytes(draft)
    found = fit_70b(180, 179, 0.9, draft_spec=draft)
    assert found == left * own // (own + others)
    assert left - found >= found // own * others


def test_each_of_several_gpus_has_its_share() -> None:
    table = 2 * SHAPE_70B.vocab_size * SHAPE_70B.hidden_size
    layers = weight_bytes(SHAPE_70B, "bf16") - 2 * table
    share = gpu_weight_bytes(SHAPE_70B, "bf16", 4)
    assert share == pytest.approx(layers / 4 + table + table / 4, rel=1e-3)
    assert gpu_weight_bytes(SHAPE_70B, "bf16", 1) == weight_bytes(SHAPE_70B, "bf16")
    assert fit_70b(80, 79, 0.9, num_gpus=4) == int(0.9 * 80 * GIB) - share - 2 * GIB
    with pytest.raises(ConfigError, match="8 heads of keys and values cannot be split over 3 GPUs"):
        fit_70b(80, 79, 0.9, num_gpus=3)


def test_a_gpu_holds_four_bits_as_they_are() -> None:
    """Half a byte a weight and four bytes a group of layers' matrices; the rest is bf16, and fp8 is made of all."""
    int4 = replace(SHAPE_70B, int4=Int4Spec("awq", 128))
    num_weights = 80 * (8192 * (2 * 8192 + 2 * 1024) + 3 * 8192 * 28672)
    saved = 2 * num_weights - num_weights // 2 - num_weights // 128 * 4
    for weight_format, item_bytes in (("bf16", 2), ("f32", 4)):
        plain = gpu_weight_bytes(SHAPE_70B, weight_format, 1)  # type: ignore[arg-type]
        held = gpu_weight_bytes(int4, weight_format, 1)  # type: ignore[arg-type]
        assert plain - held == saved + (item_bytes - 2) * num_weights
    assert gpu_weight_bytes(int4, "fp8", 1) == gpu_weight_bytes(SHAPE_70B, "fp8", 1)
    whole = replace(SHAPE_70B, int4=Int4Spec("gptq", None))
    num_rows = 80 * (2 * 8192 + 2 * 1024 + 8192 + 2 * 28672)
    assert gpu_weight_bytes(SHAPE_70B, "bf16", 1) - gpu_weight_bytes(whole, "bf16", 1) == (
        2 * num_weights - num_weights // 2 - 4 * num_rows
    )
    draft = tiny_spec("llama", hidden_size=128, intermediate_size=256, int4=Int4Spec("awq", 32))
    left = fit_70b(180, 179, 0.9) - gpu_weight_bytes(draft, "bf16", 1)
    own, others = kv_token_bytes(SHAPE_70B), kv_token_bytes(draft)
    assert fit_70b(180, 179, 0.9, draft_spec=draft) == left * own // (own + others)


def test_a_gpu_that_is_too_small_names_what_helps() -> None:
    with pytest.raises(ConfigError, match=r"= 135\.9 GiB, but .* is 126\.0 GiB; --gpu-memory 0\.98 would fit"):
        fit_70b(140, 139, 0.9)
    with pytest.raises(ConfigError, match=r"KV 40\.0 GiB .*; --max-context \d+ would fit"):
        fit_70b(140, 139, 1.0, min_tokens=131_072)
    with pytest.raises(ModelError, match=r"of a GPU of 80\.0 GiB, 79\.0 GiB free, is 72\.0 GiB; no setting"):
        fit_70b(80, 79, 0.9)


def write_files(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


MEMINFO = {"proc/meminfo": "MemTotal:       16000 kB\nMemFree:         100 kB\nMemAvailable:    8000 kB\n"}
GROUP_2 = {"sys/fs/cgroup/memory.max": "5000000\n", "sys/fs/cgroup/memory.current": "3000000\n"}
GROUP_1 = {"limit_in_bytes": "5000000\n", "usage_in_bytes": "1000000\n", "stat": "cache 5\ntotal_inactive_file 7\n"}


@pytest.mark.parametrize(
    ("files", "num_bytes"),
    [
        (MEMINFO, 8_192_000),
        (MEMINFO | GROUP_2, 2_000_000),
        (MEMINFO | GROUP_2 | {"sys/fs/cgroup/memory.stat": "anon 1\ninactive_file 500000\n"}, 2_500_000),
        (MEMINFO | GROUP_2 | {"sys/fs/cgroup/memory.max": "max\n"}, 8_192_000),
        (MEMINFO | {f"sys/fs/cgroup/memory/memory.{name}": text for name, text in GROUP_1.items()}, 4_000_007),
        ({}, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")),
    ],
)
def test_the_memory_there_is_is_the_machines_or_the_containers(
    tmp_path: Path, files: dict[str, str], num_bytes: int
) -> None:
    assert available_bytes(write_files(tmp_path, files)) == num_bytes


def test_this_machine_has_memory() -> None:
    assert 0 < available_bytes() <= os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
