"""What GGUF files say of models like DeepSeek's and GLM's; what no backend computes is refused."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from tests.models.tiny import tiny_spec, tiny_weights, write_gguf

from hotloop.core.errors import ModelError
from hotloop.models.gguf_model import check_beginning
from hotloop.models.model import Model, load_model
from hotloop.models.spec import Family

DEEPSEEK = tiny_spec("deepseek3")
Q8_0 = gguf.GGMLQuantizationType.Q8_0


def write(
    folder: Path, changes: dict[str, Any], family: Family = "deepseek3", more: dict[str, Any] | None = None
) -> Path:
    spec = tiny_spec(family)
    return write_gguf(folder / "m.gguf", spec, tiny_weights(spec) | (more or {}), changes)


def read(folder: Path, changes: dict[str, Any], family: Family = "deepseek3", **more: Any) -> Model:
    return load_model(str(write(folder, changes, family, more)))


@pytest.mark.parametrize("number", [None, 0, 2])
def test_routers_with_biases_score_by_sigmoids_where_a_file_does_not_say(tmp_path: Path, number: int | None) -> None:
    spec = read(tmp_path, {"deepseek2.expert_gating_func": number}).spec
    assert spec.family == "deepseek3"
    assert spec.experts == DEEPSEEK.experts


def test_of_the_experts_much_need_not_be_said(tmp_path: Path) -> None:
    keys = ("expert_weights_scale", "expert_weights_norm", "expert_group_count", "expert_group_used_count")
    experts = read(tmp_path, {f"deepseek2.{key}": None for key in keys}).spec.experts
    assert DEEPSEEK.experts
    assert experts == replace(DEEPSEEK.experts, scale=1.0, is_normed=False, num_groups=1, num_chosen_groups=1)


@pytest.mark.parametrize(("family", "arch"), [("glm4moe", "glm4moe"), ("deepseek3", "deepseek2")])
def test_layers_that_predict_further_on_are_left_out(tmp_path: Path, family: Family, arch: str) -> None:
    beyond = {f"blk.2.{name}.weight": np.zeros((4, 4), np.float32) for name in ("nextn.eh_proj", "attn_q")}
    changes = {f"{arch}.block_count": 3, f"{arch}.nextn_predict_layers": 1}
    assert read(tmp_path, changes, family, **beyond).spec.num_layers == 2
    with pytest.raises(ModelError, match=r"the tensor blk\.2\.\S+ is missing"):
        read(tmp_path, changes | {f"{arch}.nextn_predict_layers": 0}, family, **beyond)


def test_what_makes_keys_of_latents_may_be_quantised_along_its_columns(tmp_path: Path) -> None:
    """Rows of which are what the file has as columns: they cannot stay as they are stored."""
    latent = replace(DEEPSEEK.latent, nope_dim=32, rope_dim=4) if DEEPSEEK.latent else None
    spec = replace(DEEPSEEK, latent=latent, head_dim=36)
    weights = tiny_weights(spec)
    heads = [weights[f"layers.{i}.kv_b"].reshape(4, -1, 32) for i in range(2)]
    apart = {f"blk.{i}.attn_k_b.weight": each[:, :32].transpose(0, 2, 1) for i, each in enumerate(heads)}
    apart |= {f"blk.{i}.attn_v_b.weight": each[:, 32:] for i, each in enumerate(heads)}
    packed = {name: gguf.quants.quantize(np.ascontiguousarray(each), Q8_0) for name, each in apart.items()}
    others = {name: each for name, each in weights.items() if not name.endswith("kv_b")}
    model = load_model(str(write_gguf(tmp_path / "m.gguf", spec, others | packed, kind=Q8_0)))
    for i, each in enumerate(heads):
        name = f"layers.{i}.kv_b"
        assert model.weights.stored(name).kind == "F32"
        keys, values = np.split(model.weights.read(name).reshape(4, -1, 32), [32], axis=1)
        for got, part in ((keys.transpose(0, 2, 1), f"blk.{i}.attn_k_b.weight"), (values, f"blk.{i}.attn_v_b.weight")):
            np.testing.assert_array_equal(got, gguf.quants.dequantize(packed[part], Q8_0))
        np.testing.assert_allclose(keys, each[:, :32], atol=0.05)


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"attention.kv_lora_rank": None}, r"the metadata has no deepseek2\.attention\.kv_lora_rank"),
        ({"attention.kv_lora_rank": 0}, "kv_lora_rank should be a number above zero, not 0"),
        ({"attention.kv_lora_rank": 31}, r"the tensor blk\.0\.attn_kv_a_mqa\.weight has the shape"),
        ({"attention.key_length_mla": 4}, "qk_nope_head_dim should be a number above zero, not 0"),
        ({"attention.value_length_mla": 24}, r"attn_v_b\.weight has the shape \(4, 20, 32\), not \(4, 24, 32\)"),
        ({"attention.q_lora_rank": None}, r"the tensor blk\.0\.attn_q\.weight is missing"),
        ({"attention.temperature_scale": 0.1}, "attention with a temperature is not supported"),
        ({"rope.dimension_count": 5}, "a rotary key of 5 dimensions has no halves"),
        (
            {"rope.scaling.type": "yarn", "rope.scaling.yarn_log_multiplier": 0.1},
            "factor should be a number above zero",
        ),
        ({"expert_count": None}, r"the metadata has no deepseek2\.expert_count"),
        ({"expert_used_count": 7}, "of 6 experts 7 cannot be chosen"),
        ({"expert_group_count": 4}, "6 experts cannot be chosen by 4 groups"),
        ({"expert_shared_count": 0}, "n_shared_experts should be a number above zero, not 0"),
        ({"expert_gating_func": 1}, "scores by softmax that are made to sum up to one are not supported"),
        (
            {"expert_gating_func": 1, "expert_weights_norm": False},
            r"the tensor blk\.1\.exp_probs_b\.bias belongs to no supported model",
        ),
        ({"expert_gating_func": 4}, "with scores other than softmax, are not supported"),
        ({"leading_dense_block_count": 2**32 - 1}, r"the tensor blk\.1\.ffn_gate\.weight is missing"),
        ({"nextn_predict_layers": 2}, "num_layers should be above zero, not 0"),
        ({"nextn_predict_layers": 2**32 - 1}, "num_layers should be above zero, not -4294967293"),
    ],
)
def test_what_would_be_misread_is_refused(tmp_path: Path, changes: dict[str, Any], line: str) -> None:
    path = write(tmp_path, {f"deepseek2.{key}": value for key, value in changes.items()})
    with pytest.raises(ModelError, match=line) as caught:
        load_model(str(path))
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"rope.dimension_count": 0}, "0 of the 16 dimensions of a head have no rotary halves"),
        ({"rope.dimension_count": 7}, "7 of the 16 dimensions of a head have no rotary halves"),
        ({"rope.dimension_count": 32}, "32 of the 16 dimensions of a head have no rotary halves"),
        ({"expert_gating_func": 1, "expert_weights_norm": False}, "with scores other than sigmoid, are not supported"),
    ],
)
def test_of_glm_too(tmp_path: Path, changes: dict[str, Any], line: str) -> None:
    with pytest.raises(ModelError, match=line):
        read(tmp_path, {f"glm4moe.{key}": value for key, value in changes.items()}, "glm4moe")


def test_a_file_is_refused_by_its_first_bytes_where_they_tell(tmp_path: Path) -> None:
    whole = write(tmp_path, {}).read_bytes()
    for num_bytes in (100, 1000, len(whole)):
        check_beginning(Path("org/name:m.gguf"), whole[:num_bytes])
    odd = write(tmp_path, {"deepseek2.attention.temperature_scale": 0.1, "tokenizer.ggml.tokens": None}).read_bytes()
    with pytest.raises(ModelError, match=r"^org/name:m\.gguf: attention with a temperature"):
        check_beginning(Path("org/name:m.gguf"), odd[:20_000])
