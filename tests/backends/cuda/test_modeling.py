"""Architectures that are not ours, computed by transformers over our paged attention: beside transformers alone.

Needs transformers, which is no part of any extra; without it nothing here can run.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.backends.batches import batch
from tests.backends.cuda.test_backend import logits_of, make_backend
from tests.models.tiny import tiny_tokenizer, write_json

from hotloop.backends.cpu.opening import open_cpu
from hotloop.backends.cuda.runner import open_cuda
from hotloop.core.config import EngineConfig
from hotloop.core.errors import ConfigError, ModelError
from hotloop.models.memory import gpu_weight_bytes
from hotloop.models.model import load_model, load_spec
from hotloop.models.modeling import TESTED

transformers = pytest.importorskip("transformers")

SIZES = {
    "vocab_size": 128, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 256, "pad_token_id": 0, "bos_token_id": 1,
    "eos_token_id": 2, "sliding_window": 24,
}  # fmt: skip
EXPERTS = {"num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
OTHERS: dict[str, dict[str, Any]] = {
    "cohere2": {"layer_types": ["sliding_attention", "full_attention"]},
    "exaone4": {"layer_types": ["sliding_attention", "full_attention"]},
    "gemma3_text": {"layer_types": ["sliding_attention", "full_attention"]},
    "olmo3": {"layer_types": ["sliding_attention", "full_attention"]},
    "granite": {"attention_multiplier": 0.3, "logits_scaling": 2.0, "residual_multiplier": 0.5},
    "granitemoe": EXPERTS | {"attention_multiplier": 0.3},
    "olmoe": EXPERTS | {"sliding_window": None},
    "qwen2_moe": EXPERTS | {"shared_expert_intermediate_size": 48},
}


def write_model(folder: Path, model_type: str, **changes: Any) -> Any:
    """A folder as `save_pretrained` leaves it; gives the model that is in it."""
    torch.manual_seed(0)
    settings = SIZES | OTHERS.get(model_type, {}) | changes
    config = transformers.AutoConfig.for_model(model_type, **settings)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.normal_(0, 0.3 if weight.ndim > 1 else 1.0)
    model.save_pretrained(folder)
    tiny_tokenizer().save(str(folder / "tokenizer.json"))
    return model


@pytest.mark.parametrize("model_type", TESTED)
def test_logits_are_those_of_transformers(tmp_path: Path, model_type: str, device: str) -> None:
    """In two chunks, of which one is long; over cached blocks and beside another; as a draft, and alone."""
    plain = write_model(tmp_path / "m", model_type)
    model = load_model(str(tmp_path / "m"))
    assert model.spec.family == "transformers"
    assert "transformers computes it" in model.notes[0]
    rng = np.random.default_rng(1)
    prompt, other = rng.integers(3, 128, 90).tolist(), rng.integers(3, 128, 7).tolist()
    with torch.no_grad():
        want, want_other = (plain(torch.tensor([ids])).logits[0].numpy() for ids in (prompt, other))
    backend = make_backend(model, device, max_step_tokens=128)
    got = [logits_of(backend, batch((prompt[:40], 0, [0]))), logits_of(backend, batch((prompt[40:70], 40, [0, 1])))]
    both = logits_of(backend, batch((prompt[64:82], 64, [0, 2]), (other, 0, [3])))
    alone = logits_of(backend, batch((prompt[82:83], 82, [0, 2])))
    rest = logits_of(backend, batch((prompt[83:], 83, [0, 2])))
    scale = float(np.abs(want).max())
    for found, expected in (
        (np.concatenate(got), want[:70]),
        (both, np.concatenate([want[64:82], want_other])),
        (np.concatenate([alone, rest]), want[82:]),
    ):
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-4 * scale)
    backend.close()


def test_the_tested_are_named_in_the_docs() -> None:
    text = (Path(__file__).parents[3] / "docs" / "models.md").read_text()
    assert all(f"`{name}`" in text for name in TESTED)


def test_what_is_known_before_the_weights_are_read(tmp_path: Path) -> None:
    plain = write_model(tmp_path / "m", "gemma3_text", layer_types=["sliding_attention", "full_attention"])
    (tmp_path / "m" / "model.safetensors").unlink()
    _, spec = load_spec(str(tmp_path / "m"))
    assert (spec.num_layers, spec.num_heads, spec.num_kv_heads, spec.head_dim) == (2, 4, 2, 16)
    assert spec.windows == (24, None)
    assert (spec.vocab_size, spec.max_context) == (128, 256)
    num_weights = sum(weight.numel() for weight in plain.parameters())
    assert gpu_weight_bytes(spec, "bf16", 1) == 2 * num_weights


@pytest.mark.parametrize(
    ("model_type", "changes", "line"),
    [
        ("lfm2", {"layer_types": ["conv", "full_attention"]}, "has layers of another kind: of 2, 1 attend"),
        ("gemma2", {}, "has attention of a kind that our kernels have not"),
        ("minicpm3", {}, "has attention of a kind that our kernels have not"),
        ("bloom", {}, "does not take transformers' AttentionInterface"),
        ("phi3", {"quantization_config": {"quant_method": "awq"}}, "is supported if its weights are not quantised"),
        ("arcee", {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}}, "that changes with"),
        ("made_up", {"auto_map": {"AutoConfig": "a.B", "AutoModelForCausalLM": "a.C"}}, "contains custom code"),
        ("made_up", {}, "neither hotloop nor transformers can read it"),
    ],
)
def test_what_would_be_computed_wrongly_is_refused_by_its_config(
    tmp_path: Path, model_type: str, changes: dict[str, Any], line: str
) -> None:
    (tmp_path / "m").mkdir()
    write_json(tmp_path / "m" / "config.json", SIZES | {"model_type": model_type} | changes)
    with pytest.raises(ModelError, match=line):
        load_spec(str(tmp_path / "m"))


def test_a_cpu_is_refused(tmp_path: Path) -> None:
    write_model(tmp_path / "m", "arcee")
    with pytest.raises(ConfigError, match="runs on a GPU only, by transformers"):
        open_cpu(load_model(str(tmp_path / "m")), EngineConfig())


def test_fp8_and_several_gpus_are_refused(tmp_path: Path) -> None:
    write_model(tmp_path / "m", "arcee")
    model = load_model(str(tmp_path / "m"))
    for config, weights in (
        (EngineConfig(), "fp8"),
        (EngineConfig(kv_precision="fp8"), "bf16"),
        (EngineConfig(gpus=2), "bf16"),
    ):
        with pytest.raises(ConfigError, match="computed by transformers: not in fp8, and on one GPU only"):
            open_cuda(model, config, weight_format=weights, precision="fast")


def test_dummy_weights_are_made_up(tmp_path: Path, device: str) -> None:
    write_model(tmp_path / "m", "arcee")
    (tmp_path / "m" / "model.safetensors").unlink()
    backend = make_backend(load_model(str(tmp_path / "m"), "dummy"), device)
    assert np.isfinite(logits_of(backend, batch(([5, 6], 0, [0])))).all()
    backend.close()
