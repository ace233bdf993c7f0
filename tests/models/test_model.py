import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.models.tiny import tiny_spec, tiny_weights, write_folder, write_gguf

from hotloop.core.errors import ModelError
from hotloop.core.message import Message
from hotloop.models.layout import tensor_places
from hotloop.models.model import load_model
from hotloop.models.rope import scaling_from_config
from hotloop.models.spec import Family

FAMILIES: tuple[Family, ...] = ("llama", "qwen2", "qwen3", "qwen3moe", "mixtral")
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LLAMA3 |= {"original_max_position_embeddings": 8192}
SENSELESS = LLAMA3 | {"low_freq_factor": 4.0}


@pytest.mark.parametrize("family", FAMILIES)
def test_both_formats_read_back_the_same_model(tmp_path: Path, family: Family) -> None:
    spec = tiny_spec(family)
    weights = tiny_weights(spec)
    from_gguf = load_model(str(write_gguf(tmp_path / "m.gguf", spec, weights)))
    from_folder = load_model(str(write_folder(tmp_path / "m", spec, weights)))
    assert from_folder.spec == spec
    assert from_gguf.spec.rms_eps == pytest.approx(spec.rms_eps)
    assert {place.name for place in tensor_places(spec)} == weights.keys()
    for name, tensor in weights.items():
        for model in (from_gguf, from_folder):
            read = model.weights.read(name)
            assert read.dtype == np.float32
            assert read.flags.c_contiguous
            np.testing.assert_array_equal(read, tensor)
            stored = model.weights.stored(name)
            assert (stored.kind, stored.shape) == ("F32", tensor.shape)
            np.testing.assert_array_equal(stored.data, tensor.view(np.uint8))


def test_a_llama_with_biases_has_them_put_in_order_too(tmp_path: Path) -> None:
    spec = tiny_spec("llama", has_qkv_bias=True)
    weights = tiny_weights(spec)
    model = load_model(str(write_gguf(tmp_path / "m.gguf", spec, weights)))
    assert model.spec.has_qkv_bias
    np.testing.assert_array_equal(model.weights.read("layers.1.q_bias"), weights["layers.1.q_bias"])
    np.testing.assert_array_equal(model.weights.read("layers.1.v_bias"), weights["layers.1.v_bias"])


def test_both_formats_give_the_same_tokenizer_and_template(tmp_path: Path) -> None:
    spec = tiny_spec("qwen2")
    weights = tiny_weights(spec)
    from_gguf = load_model(str(write_gguf(tmp_path / "m.gguf", spec, weights)))
    from_folder = load_model(str(write_folder(tmp_path / "m", spec, weights)))
    for model in (from_gguf, from_folder):
        assert model.template is not None
        text = model.template.render([Message("user", "the lazy dog")])
        assert text == "<|im_start|>user\nthe lazy dog<|im_end|>\n"
        assert model.tokenizer.decode(model.tokenizer.encode(text), keep_special=True) == text
        assert model.tokenizer.vocab_size == spec.vocab_size
    assert from_gguf.tokenizer.encode("The fox, 10!") == from_folder.tokenizer.encode("The fox, 10!")
    assert from_gguf.tokenizer.eos_ids == from_folder.tokenizer.eos_ids
    assert from_gguf.tokenizer.bos_id == from_folder.tokenizer.bos_id


def test_a_model_without_a_template_has_none(tmp_path: Path) -> None:
    spec = tiny_spec("llama")
    path = write_gguf(tmp_path / "m.gguf", spec, tiny_weights(spec), {"tokenizer.chat_template": None})
    assert load_model(str(path)).template is None


def test_a_wrong_template_is_named_with_its_file(tmp_path: Path) -> None:
    spec = tiny_spec("llama")
    path = write_gguf(tmp_path / "m.gguf", spec, tiny_weights(spec), {"tokenizer.chat_template": "{% for %}"})
    with pytest.raises(ModelError, match=r"m\.gguf: the chat template cannot be read: wrong at line 1"):
        load_model(str(path))


def test_the_fingerprint_follows_the_file(tmp_path: Path) -> None:
    spec = tiny_spec("llama")
    path = write_gguf(tmp_path / "m.gguf", spec, tiny_weights(spec))
    before = load_model(str(path)).fingerprint
    assert load_model(str(path)).fingerprint == before
    os.utime(path, ns=(1, 1))
    assert load_model(str(path)).fingerprint != before


def test_llama3_scaling_is_found_in_both_formats(tmp_path: Path) -> None:
    scaling = scaling_from_config(LLAMA3, theta=500_000.0, head_dim=16, max_context=512, where="here")
    assert scaling
    assert scaling.divisors[0] == 1
    assert scaling.divisors[-1] == pytest.approx(8)
    spec = tiny_spec("llama", rope_scaling=scaling, rope_theta=500_000.0)
    weights = tiny_weights(spec)
    divisors = np.array(scaling.divisors, np.float32)
    path = write_gguf(tmp_path / "m.gguf", spec, weights | {"rope_freqs.weight": divisors})
    found = load_model(str(path)).spec.rope_scaling
    assert found
    np.testing.assert_array_equal(np.array(found.divisors, np.float32), divisors)
    folder = write_folder(tmp_path / "old", spec, weights, {"rope_scaling": LLAMA3})
    assert load_model(str(folder)).spec.rope_scaling == scaling
    changes = {"rope_parameters": LLAMA3 | {"rope_theta": 500_000.0}, "rope_theta": None}
    folder = write_folder(tmp_path / "new", spec, weights, changes)
    assert load_model(str(folder)).spec == spec


@pytest.mark.parametrize("odd", [np.ones(5, np.float32), np.zeros(8, np.float32)])
def test_odd_rotary_divisors_are_refused(tmp_path: Path, odd: NDArray[np.float32]) -> None:
    spec = tiny_spec("llama")
    path = write_gguf(tmp_path / "m.gguf", spec, tiny_weights(spec) | {"rope_freqs.weight": odd})
    with pytest.raises(ModelError, match="should be 8 numbers above zero"):
        load_model(str(path))


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"split.count": 3}, "is one shard of several"),
        ({"llama.expert_count": 8}, "the metadata has no llama.expert_used_count"),
        ({"llama.rope.scaling.type": "odd", "llama.rope.scaling.factor": 4.0}, "rotary scaling of type 'odd'"),
        ({"llama.rope.dimension_count": 8}, "only a part of each head"),
        ({"llama.attention.value_length": 8}, "keys and values of different widths"),
        ({"llama.attention.head_count_kv": [2, 1]}, r"head_count_kv should be of type int, not \[2, 1\]"),
        ({"llama.block_count": None}, "the metadata has no llama.block_count"),
        ({"llama.block_count": 2**32 - 1}, "4294967295 layers are claimed, but there are only 20 tensors"),
        ({"llama.block_count": 0}, "num_layers should be above zero, not 0"),
        ({"llama.context_length": 0}, "max_context should be above zero, not 0"),
        ({"llama.context_length": 2**32 - 1}, "a context of 4294967295 tokens is claimed"),
        ({"llama.attention.head_count": 0}, "num_heads should be above zero, not 0"),
        ({"llama.attention.head_count_kv": 0}, "num_kv_heads should be above zero, not 0"),
        ({"llama.attention.head_count_kv": 3}, "4 heads cannot share 3 heads of keys and values"),
        ({"llama.attention.key_length": 15, "llama.attention.value_length": 15}, "has no rotary halves"),
        ({"llama.rope.freq_base": float("nan")}, "rope_theta should be above zero, not nan"),
        ({"llama.block_count": 3}, "the tensor blk.2.attn_norm.weight is missing"),
        ({"llama.block_count": 1}, r"the tensor blk.1.\S+ belongs to no supported model"),
        ({"llama.feed_forward_length": 100}, r"the tensor blk.0.\S+ has the shape \(96, 64\), not \(100, 64\)"),
        ({"tokenizer.ggml.tokens": None}, "has no tokenizer"),
    ],
)
def test_a_gguf_that_would_be_misread_is_refused(tmp_path: Path, changes: dict[str, Any], line: str) -> None:
    spec = tiny_spec("llama")
    assert_refused(write_gguf(tmp_path / "m.gguf", spec, tiny_weights(spec), changes), line)


def assert_refused(path: Path, line: str) -> None:
    with pytest.raises(ModelError, match=line) as caught:
        load_model(str(path))
    assert str(path) in str(caught.value)


def test_an_unknown_architecture_is_named_with_what_is_supported(tmp_path: Path) -> None:
    spec = tiny_spec("llama")
    path = write_gguf(tmp_path / "m.gguf", spec, tiny_weights(spec), arch="gemma3")
    with pytest.raises(
        ModelError,
        match=r"the architecture 'gemma3' is not supported \(only llama, qwen2, qwen3, qwen3moe, gpt-oss, glm4moe, dee",
    ):
        load_model(str(path))


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"model_type": "gemma3"}, r"the architecture 'gemma3' is not supported \(only llama, mistral, mixtral"),
        ({"model_type": "qwen3_moe"}, "num_experts should be a number above zero, not None"),
        (
            {"model_type": "mixtral", "num_local_experts": 2, "num_experts_per_tok": 3},
            "of 2 experts 3 cannot be chosen",
        ),
        ({"model_type": None}, "the architecture None is not supported"),
        ({"quantization_config": {"bits": 4}}, "weights quantised by None are not supported"),
        ({"hidden_act": "gelu"}, "the activation 'gelu' is not supported"),
        ({"partial_rotary_factor": 2}, "partial_rotary_factor 2 leaves no rotary halves of 16 dimensions"),
        ({"model_type": "mistral", "sliding_window": "x"}, "sliding_window should be a number above zero, not 'x'"),
        ({"model_type": "mistral", "sliding_window": 8, "layer_types": []}, "the kinds of 2 layers"),
        ({"rope_scaling": {"type": "odd", "factor": 2.0}}, "rotary scaling of type 'odd' is not supported"),
        ({"rope_scaling": {"type": "linear"}}, "linear rotary scaling is incomplete: 'factor'"),
        ({"rope_scaling": {"rope_type": "llama3"}}, "llama3 rotary scaling is incomplete: 'low_freq_factor'"),
        ({"rope_scaling": SENSELESS}, "its llama3 rotary scaling is invalid: {"),
        ({"rope_scaling": "yes"}, "the rotary scaling should be an object, not 'yes'"),
        ({"hidden_size": "64"}, "hidden_size should be a number above zero, not '64'"),
        ({"num_hidden_layers": None}, "num_hidden_layers should be a number above zero, not None"),
        ({"hidden_size": float("inf")}, "hidden_size should be a number above zero, not inf"),
        ({"vocab_size": float("nan")}, "vocab_size should be a number above zero, not nan"),
        ({"rope_theta": 10**400}, "rope_theta should be a number above zero"),
        ({"model_type": ["llama"]}, "the architecture .* is not supported"),
        (
            {"model_type": "qwen2", "sliding_window": 8, "use_sliding_window": True, "max_window_layers": "x"},
            "max_window_layers should be a number",
        ),
        ({"num_attention_heads": 0}, "num_attention_heads should be a number above zero, not 0"),
        ({"num_hidden_layers": 2**32}, "4294967296 layers are claimed, but there are only 20 tensors"),
        ({"max_position_embeddings": 2**60}, "a context of 1152921504606846976 tokens is claimed"),
        ({"num_key_value_heads": 3}, "4 heads cannot share 3 heads of keys and values"),
        ({"intermediate_size": 100}, "has the shape"),
        ({"attention_bias": True}, r"the tensor model.layers.0.self_attn.q_proj.bias is missing"),
    ],
)
def test_a_folder_that_would_be_misread_is_refused(tmp_path: Path, changes: dict[str, Any], line: str) -> None:
    spec = tiny_spec("llama")
    assert_refused(write_folder(tmp_path / "m", spec, tiny_weights(spec), changes), line)


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors"])
def test_a_folder_with_a_file_missing_says_which(tmp_path: Path, name: str) -> None:
    spec = tiny_spec("llama")
    folder = write_folder(tmp_path / "m", spec, tiny_weights(spec))
    (folder / name).unlink()
    with pytest.raises(ModelError, match=rf"{name}.* is missing"):
        load_model(str(folder))


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "tokenizer_config.json"])
def test_a_folder_with_a_damaged_file_says_which(tmp_path: Path, name: str) -> None:
    spec = tiny_spec("llama")
    folder = write_folder(tmp_path / "m", spec, tiny_weights(spec))
    (folder / name).write_text("{")
    with pytest.raises(ModelError, match=name) as caught:
        load_model(str(folder))
    assert "\n" not in str(caught.value)


def test_mistral_is_a_llama_with_a_window_in_every_layer(tmp_path: Path) -> None:
    spec = tiny_spec("llama")
    changes = {"model_type": "mistral", "sliding_window": 128}
    model = load_model(str(write_folder(tmp_path / "m", spec, tiny_weights(spec), changes)))
    assert model.spec.family == "llama"
    assert model.spec.max_context == 512
    assert model.spec.windows == (128, 128)


@pytest.mark.parametrize("changes", [{"sliding_window": 128, "use_sliding_window": False}, {"sliding_window": 512}])
def test_a_window_that_is_not_in_use_changes_nothing(tmp_path: Path, changes: dict[str, Any]) -> None:
    spec = tiny_spec("qwen2")
    model = load_model(str(write_folder(tmp_path / "m", spec, tiny_weights(spec), changes)))
    assert model.spec == spec
    assert model.notes == ()


@pytest.mark.model
def test_the_default_model(default_model_path: Path) -> None:
    model = load_model("smollm2-135m")
    assert model.name == "smollm2-135m"
    assert model.path == default_model_path
    assert (model.spec.num_layers, model.spec.hidden_size, model.spec.vocab_size) == (30, 576, 49152)
    assert model.weights.read("layers.29.k").shape == (192, 576)
    assert model.template is not None
    assert model.template.render([Message("user", "hi")]).endswith("<|im_start|>assistant\n")
    assert [model.tokenizer.token_text(i) for i in model.tokenizer.eos_ids] == ["<|im_end|>"]
