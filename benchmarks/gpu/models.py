"""Models of known shapes with random weights, for figures that depend on shapes alone."""

import json
import tempfile
from pathlib import Path
from typing import Any

from hotloop.models.model import Model, load_model

SHAPES: dict[str, dict[str, Any]] = {
    "llama-8b": {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": 128256,
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "max_position_embeddings": 131072,
        "rope_theta": 500000.0,
        "rms_norm_eps": 1e-5,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
    },
    "qwen3-30b-a3b": {
        "model_type": "qwen3_moe",
        "vocab_size": 151936,
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "moe_intermediate_size": 768,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "norm_topk_prob": True,
        "num_hidden_layers": 48,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
        "head_dim": 128,
        "max_position_embeddings": 40960,
        "rope_theta": 1000000.0,
        "rms_norm_eps": 1e-6,
    },
}


def dummy_model(name: str, **changes: Any) -> Model:
    """Of a folder that holds nothing but the shape."""
    folder = Path(tempfile.mkdtemp(prefix="hotloop-")) / name
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({**SHAPES[name], **changes}))
    return load_model(str(folder), load_format="dummy")
