"""Tiny models of every family, made on the spot: a config.json as published ones are, and weights under their names.

What transformers says of them is in expected.npz (make.py).
"""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

from hotloop.models.huggingface import SafetensorsWeights, config_spec
from hotloop.models.layout import tensor_places
from hotloop.models.model import Model
from hotloop.models.spec import ModelSpec
from hotloop.models.tokenizer import Tokenizer

EXPECTED = Path(__file__).parent / "expected.npz"
VOCAB = 128
NUM_TOKENS = 70
KEPT = (0, 1, 20, 31, 32, 50, 63, 64, 69)
"""Positions whose logits are kept; of all others the top token is."""

_PLAIN: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": VOCAB,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10_000.0,
    "tie_word_embeddings": False,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
_LLAMA = _PLAIN | {"model_type": "llama"}
_LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
_YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
_LONG = {"long_factor": [1.0, 1.2, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0], "short_factor": [1.0] * 8}

CONFIGS: dict[str, dict[str, Any]] = {
    "llama": _LLAMA | {"attention_bias": True},
    "llama, linear": _LLAMA | {"rope_scaling": {"rope_type": "linear", "factor": 4.0}},
    "llama, dynamic": _LLAMA | {"rope_scaling": {"rope_type": "dynamic", "factor": 4.0}},
    "llama, llama3": _LLAMA | {"rope_scaling": _LLAMA3 | {"original_max_position_embeddings": 32}},
    "llama, yarn": _LLAMA | {"rope_scaling": _YARN},
    "llama, longrope": _LLAMA
    | {"rope_scaling": {"rope_type": "longrope", "original_max_position_embeddings": 32, **_LONG}},
    "mistral": _PLAIN | {"model_type": "mistral", "sliding_window": 20},
    "qwen2": _PLAIN | {"model_type": "qwen2", "sliding_window": 40, "use_sliding_window": True, "max_window_layers": 1},
    "qwen3": _PLAIN | {"model_type": "qwen3", "rope_scaling": _YARN | {"original_max_position_embeddings": 64}},
    "qwen3_moe": _PLAIN
    | {
        "model_type": "qwen3_moe",
        "moe_intermediate_size": 40,
        "num_experts": 8,
        "num_experts_per_tok": 3,
        "norm_topk_prob": True,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
    },
    "mixtral": _PLAIN | {"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2},
    "gpt_oss": _PLAIN
    | {
        "model_type": "gpt_oss",
        "num_local_experts": 6,
        "num_experts_per_tok": 2,
        "sliding_window": 20,
        "attention_bias": True,
        "swiglu_limit": 7.0,
        "rope_scaling": _YARN | {"factor": 32.0, "truncate": False},
    },
    "glm4_moe": _PLAIN
    | {
        "model_type": "glm4_moe",
        "moe_intermediate_size": 40,
        "n_routed_experts": 8,
        "num_experts_per_tok": 3,
        "n_shared_experts": 1,
        "first_k_dense_replace": 1,
        "routed_scaling_factor": 1.5,
        "norm_topk_prob": True,
        "n_group": 1,
        "topk_group": 1,
        "use_qk_norm": True,
        "attention_bias": True,
        "partial_rotary_factor": 0.5,
    },
}

_LATENT = _PLAIN | {
    "num_key_value_heads": 4,
    "head_dim": 8,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 12,
    "moe_intermediate_size": 40,
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "n_shared_experts": 2,
    "first_k_dense_replace": 1,
    "routed_scaling_factor": 1.5,
    "norm_topk_prob": True,
    "attention_bias": False,
}
_MSCALE = {"beta_fast": 32, "beta_slow": 1, "mscale": 0.707, "mscale_all_dim": 1.0}
CONFIGS |= {
    "deepseek_v2": _LATENT
    | {
        "model_type": "deepseek_v2",
        "q_lora_rank": None,
        "topk_method": "greedy",
        "norm_topk_prob": False,
        "rope_scaling": _YARN | _MSCALE,
    },
    "deepseek_v2, groups": _LATENT
    | {
        "model_type": "deepseek_v2",
        "q_lora_rank": 24,
        "topk_method": "group_limited_greedy",
        "n_group": 4,
        "topk_group": 2,
        "norm_topk_prob": False,
    },
    "deepseek_v3": _LATENT
    | {
        "model_type": "deepseek_v3",
        "q_lora_rank": 24,
        "topk_method": "noaux_tc",
        "scoring_func": "sigmoid",
        "n_group": 4,
        "topk_group": 2,
        "rope_scaling": _YARN | _MSCALE | {"mscale": 1.0},
    },
    "deepseek_v3, halves": _LATENT
    | {"model_type": "deepseek_v3", "q_lora_rank": None, "n_group": 1, "topk_group": 1, "rope_interleave": False},
    "glm4_moe_lite": _LATENT
    | {"model_type": "glm4_moe_lite", "q_lora_rank": 24, "n_group": 1, "topk_group": 1, "v_head_dim": 20},
}

_LINEAR = _PLAIN | {
    "num_hidden_layers": 5,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 12,
    "linear_conv_kernel_dim": 4,
    "partial_rotary_factor": 0.25,
    "layer_types": ["full_attention" if i == 3 else "linear_attention" for i in range(5)],
}
HYBRIDS: dict[str, dict[str, Any]] = {
    "qwen3_next": _LINEAR
    | {
        "model_type": "qwen3_next",
        "moe_intermediate_size": 40,
        "shared_expert_intermediate_size": 48,
        "num_experts": 8,
        "num_experts_per_tok": 3,
        "norm_topk_prob": True,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
    },
    "qwen3_5": _LINEAR | {"model_type": "qwen3_5_text", "tie_word_embeddings": True},
    "qwen3_5_moe": {key: value for key, value in _LINEAR.items() if key != "intermediate_size"}
    | {
        "model_type": "qwen3_5_moe_text",
        "moe_intermediate_size": 40,
        "shared_expert_intermediate_size": 48,
        "num_experts": 8,
        "num_experts_per_tok": 3,
    },
}


def token_ids(seed: int = 0, count: int = NUM_TOKENS) -> list[int]:
    return [int(token) for token in np.random.default_rng(seed).integers(0, VOCAB, count)]


def write_model(name: str, folder: Path, **changes: Any) -> Path:
    """A folder with the model of that name, or one that differs from it in some numbers."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({**CONFIGS, **HYBRIDS}[name] | changes))
    shapes = published_shapes(config_spec(folder))
    save_file({each: tensor(each, shape) for each, shape in shapes.items()}, folder / "model.safetensors")
    return folder


def published_shapes(spec: ModelSpec) -> dict[str, tuple[int, ...]]:
    """By the names that published files have, which transformers checks when it reads them."""
    shapes = {place.hf_name: place.shape for place in tensor_places(spec)}
    if spec.family not in ("gptoss", "qwen35moe") or not spec.experts:
        return shapes
    shapes = {name: shape for name, shape in shapes.items() if ".mlp.experts." not in name}
    count, size, hidden = spec.experts.num_experts, spec.experts.size, spec.hidden_size
    for layer in range(spec.num_layers):
        prefix = f"model.layers.{layer}.mlp.experts."
        if spec.family == "qwen35moe":
            shapes |= {f"{prefix}gate_up_proj": (count, 2 * size, hidden), f"{prefix}down_proj": (count, hidden, size)}
            continue
        shapes |= {f"{prefix}gate_up_proj": (count, hidden, 2 * size), f"{prefix}gate_up_proj_bias": (count, 2 * size)}
        shapes |= {f"{prefix}down_proj": (count, size, hidden), f"{prefix}down_proj_bias": (count, hidden)}
    return shapes


def tensor(name: str, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """Random, from the name: so large that attention picks out keys and routers are sure of their choice."""
    noise = np.random.default_rng(crc32(name.encode())).standard_normal(shape, np.float32)
    if name.endswith(("bias", "sinks")):
        return noise * np.float32(0.5)
    if len(shape) == 1:
        return 1 + noise * np.float32(0.1)
    if "embed" in name:
        return noise
    is_router = name.endswith(("mlp.gate.weight", "moe.gate.weight", "router.weight"))
    fan_in = shape[1]
    return noise * np.float32((3.0 if is_router else 1.5) * fan_in**-0.5)


def read_model(name: str, folder: Path, tokenizer: Tokenizer) -> Model:
    """As hotloop reads it."""
    spec = config_spec(folder)
    weights = SafetensorsWeights(folder, spec)
    fingerprint = f"parity-{crc32(name.encode()):x}"
    return Model(name, folder, fingerprint, replace(spec, max_context=256), tokenizer, None, weights, 0)
