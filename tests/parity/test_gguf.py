"""GGUF files as llama.cpp's converter writes them: the logits of transformers, and experts in MXFP4."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load_file
from tests.engine.tiny import TOKENIZER
from tests.models.tiny import write_gguf
from tests.parity.manners import differences
from tests.parity.models import read_model, write_model

from hotloop.backends.cpu.opening import open_cpu
from hotloop.core.config import EngineConfig
from hotloop.models.gguf import read_gguf_file
from hotloop.models.gguf_model import GgufWeights, gguf_spec
from hotloop.models.layout import tensor_places
from hotloop.models.model import Model

MXFP4 = gguf.GGMLQuantizationType.MXFP4
METADATA = {
    "gpt-oss.attention.sliding_window": 20,
    "gpt-oss.context_length": 512,
    "gpt-oss.rope.dimension_count": 16,
    "gpt-oss.rope.scaling.type": "yarn",
    "gpt-oss.rope.scaling.factor": 32.0,
    "gpt-oss.rope.scaling.original_context_length": 32,
    "tokenizer.ggml.pre": "gpt-4o",
}
YARN = {"type": "yarn", "factor": 4.0, "original_context_length": 32, "yarn_log_multiplier": 0.1}


@pytest.fixture
def published(tmp_path: Path) -> Model:
    return read_model("gpt_oss", write_model("gpt_oss", tmp_path / "m"), TOKENIZER)


def open_file(path: Path, published: Model) -> Model:
    file = read_gguf_file(path)
    spec = gguf_spec(file)
    return Model("gguf", path, "gguf", spec, published.tokenizer, None, GgufWeights(file, spec), 0)


def tensors_of(model: Model) -> dict[str, NDArray[Any]]:
    return {place.name: model.weights.read(place.name) for place in tensor_places(model.spec)}


def published_as(name: str, folder: Path) -> tuple[Model, dict[str, NDArray[np.float32]]]:
    """A model, and its tensors by our names but as its folder has them: in rows of the same order as a GGUF's."""
    model = read_model(name, write_model(name, folder), TOKENIZER)
    raw = load_file(folder / "model.safetensors")
    return model, {place.name: raw[place.hf_name] for place in tensor_places(model.spec)}


def check_logits(name: str, model: Model) -> None:
    backend = open_cpu(model, EngineConfig(kv_memory="8MiB"), weight_format="f32", precision="exact")
    run = lambda step: backend.run(step).copy()  # type: ignore[attr-defined]  # noqa: E731
    for manner, off, same in differences(name, run, backend.block_size):
        assert (off < 1e-3, same) == (True, 1), manner
    backend.close()


def test_a_file_has_what_the_folder_has(published: Model, tmp_path: Path, empty_home: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", published.spec, tensors_of(published), METADATA)
    own = {"post_attention_norm.weight", "attn_sinks.weight", "ffn_gate_inp.bias", "ffn_up_exps.bias"}
    assert {f"blk.1.{name}" for name in own | {"attn_output.bias"}} < names_in(path)
    model = open_file(path, published)
    assert model.spec.windows == published.spec.windows
    assert model.spec.experts == published.spec.experts
    check_logits("gpt_oss", model)


def names_in(path: Path) -> set[str]:
    return {tensor.name for tensor in gguf.GGUFReader(path).tensors}


def test_glm_has_a_shared_expert_and_turns_half_of_each_head(tmp_path: Path, empty_home: Path) -> None:
    published, tensors = published_as("glm4_moe", tmp_path / "m")
    path = write_gguf(tmp_path / "m.gguf", published.spec, tensors)
    own = {"post_attention_norm.weight", "exp_probs_b.bias", "ffn_up_shexp.weight", "attn_q_norm.weight", "attn_q.bias"}
    assert {f"blk.1.{name}" for name in own} < names_in(path)
    model = open_file(path, published)
    assert model.spec.experts == published.spec.experts
    assert model.spec.rotary_dim == 8
    check_logits("glm4_moe", model)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("is_old", [False, True])
@pytest.mark.parametrize("name", ["deepseek_v2, groups", "deepseek_v3", "glm4_moe_lite"])
def test_keys_and_values_are_made_of_latents(name: str, is_old: bool, tmp_path: Path, empty_home: Path) -> None:
    """By two matrices, or in older files by one."""
    published, tensors = published_as(name, tmp_path / "m")
    latent, changes = published.spec.latent, dict[str, Any]()
    assert latent
    if name == "deepseek_v3":
        changes |= {f"deepseek2.rope.scaling.{key}": value for key, value in YARN.items()}
    if is_old:
        lengths = {"key_length": published.spec.head_dim, "value_length": latent.value_dim}
        lengths |= {"key_length_mla": None, "value_length_mla": None, "head_count_kv": published.spec.num_heads}
        changes |= {f"deepseek2.attention.{key}": value for key, value in lengths.items()}
    path = write_gguf(tmp_path / "m.gguf", published.spec, tensors, changes, arch="deepseek2")
    own = {"attn_kv_b.weight"} if is_old else {"attn_k_b.weight", "attn_v_b.weight"}
    assert {f"blk.1.{each}" for each in own | {"attn_q_a_norm.weight", "attn_kv_a_mqa.weight"}} < names_in(path)
    model = open_file(path, published)
    assert model.spec.family == ("deepseek2" if name.startswith("deepseek_v2") else "deepseek3")
    assert model.spec.experts == published.spec.experts
    assert model.spec.latent
    assert replace(model.spec.latent, scale=latent.scale) == latent
    assert model.spec.latent.scale == pytest.approx(latent.scale)
    for place in tensor_places(model.spec):
        np.testing.assert_array_equal(model.weights.read(place.name), published.weights.read(place.name))
        assert model.weights.stored(place.name).shape == place.shape
    check_logits(name, model)


def test_experts_stay_in_mxfp4(published: Model, tmp_path: Path) -> None:
    """The same bytes as in the file, an expert at a time, and what they stand for."""
    tensors = tensors_of(published)
    packed = {
        name: gguf.quants.quantize(each, MXFP4)
        for name, each in tensors.items()
        if ".experts." in name and not name.endswith("_bias")
    }
    path = write_gguf(tmp_path / "m.gguf", published.spec, tensors | packed, METADATA, kind=MXFP4)
    model = open_file(path, published)
    assert model.spec.experts
    assert model.spec.experts.is_mxfp4
    for name, rows in packed.items():
        stored = model.weights.stored(name)
        assert (stored.kind, stored.shape) == ("MXFP4", tensors[name].shape)
        np.testing.assert_array_equal(stored.data, rows)
        np.testing.assert_array_equal(model.weights.read(name), gguf.quants.dequantize(rows, MXFP4))
    bias = "layers.1.experts.3.gate_bias"
    np.testing.assert_array_equal(model.weights.read(bias), tensors[bias])
