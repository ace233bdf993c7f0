"""Hybrids as their folders describe them: which layers, which tensors, and what is refused."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from tests.parity.models import HYBRIDS, write_model

from hotloop.core.errors import ConfigError, ModelError
from hotloop.models.huggingface import SafetensorsWeights, config_spec
from hotloop.models.hybrid import HybridWeights
from hotloop.models.layout import share_of
from hotloop.models.memory import kv_token_bytes, state_bytes


def write_config(folder: Path, **changes: Any) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(HYBRIDS["qwen3_5"] | changes))
    return folder


def test_every_fourth_layer_has_kv_if_nothing_else_is_said(tmp_path: Path) -> None:
    spec = config_spec(write_config(tmp_path, layer_types=None, num_hidden_layers=9))
    assert spec.kv_layers == [3, 7]
    assert config_spec(write_config(tmp_path, layer_types=None, full_attention_interval=2)).kv_layers == [1, 3]


def test_kv_and_states_are_of_their_own_layers(tmp_path: Path) -> None:
    spec = config_spec(write_config(tmp_path))
    assert kv_token_bytes(spec, 4) == 2 * 1 * 2 * 16 * 4
    assert state_bytes(spec) == 4 * 4 * (4 * 8 * 12 + 3 * (2 * 2 * 8 + 4 * 12))


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"layer_types": ["linear_attention"] * 5}, "without any attention over KV"),
        ({"layer_types": ["full_attention"]}, "layer_types should name the kinds of 5 layers"),
        ({"linear_num_key_heads": 3}, "4 value heads cannot share 3 key heads"),
        ({"linear_key_head_dim": 0}, "linear_key_head_dim should be a number above zero"),
        ({"attention_bias": True}, "attention has biases"),
    ],
)
def test_what_cannot_be_is_refused(tmp_path: Path, changes: dict[str, Any], line: str) -> None:
    with pytest.raises(ModelError, match=line):
        config_spec(write_config(tmp_path, **changes))


def test_several_gpus_refuse_hybrids(tmp_path: Path) -> None:
    spec = config_spec(write_config(tmp_path))
    assert share_of(spec, 1) == spec
    with pytest.raises(ConfigError, match="runs on one GPU only"):
        share_of(spec, 2)


def test_of_a_model_that_sees_the_text_is_read(tmp_path: Path) -> None:
    """As published: the text's numbers inside others, its tensors under another name, and some that nobody reads."""
    plain, nested = write_model("qwen3_5", tmp_path / "plain"), tmp_path / "nested"
    nested.mkdir()
    config = {"model_type": "qwen3_5", "text_config": HYBRIDS["qwen3_5"], "vision_config": {"depth": 2}}
    (nested / "config.json").write_text(json.dumps(config))
    tensors = {
        name.replace("model.", "model.language_model."): each
        for name, each in load_file(plain / "model.safetensors").items()
    }
    others = {name: np.zeros(3, np.float32) for name in ("model.visual.patch.weight", "mtp.fc.weight")}
    save_file(tensors | others, nested / "model.safetensors")
    assert config_spec(nested) == config_spec(plain)
    names = ("embed", "final_norm", "layers.3.q", "layers.3.q_gate", "layers.0.linear_qkv", "layers.4.linear_conv")
    read = [HybridWeights(SafetensorsWeights(each, config_spec(each)), config_spec(each)) for each in (plain, nested)]
    for name in names:
        np.testing.assert_array_equal(read[0].read(name), read[1].read(name))
