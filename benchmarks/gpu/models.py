"""Models of known shapes with random weights, for figures that depend on shapes alone."""

import json
import tempfile
from pathlib import Path
from typing import Any

from hotloop.models.model import Model, load_model


def llama(
    hidden: int,
    mlp: int,
    layers: int,
    heads: int,
    kv_heads: int,
    head_dim: int,
    *,
    vocab: int = 128_256,
    is_tied: bool = False,
) -> dict[str, Any]:
    """A config.json."""
    sizes = {"hidden_size": hidden, "intermediate_size": mlp, "num_hidden_layers": layers, "vocab_size": vocab}
    attention = {"num_attention_heads": heads, "num_key_value_heads": kv_heads, "head_dim": head_dim}
    rope = {"max_position_embeddings": 131_072, "rope_theta": 500_000.0, "rms_norm_eps": 1e-5, "hidden_act": "silu"}
    kind = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "torch_dtype": "bfloat16"}
    return {**kind, **sizes, **attention, **rope, "tie_word_embeddings": is_tied}


SHAPES: dict[str, dict[str, Any]] = {
    "llama-8b": llama(4096, 14336, 32, 32, 8, 128),
    "llama-1b": llama(2048, 8192, 16, 32, 8, 64, is_tied=True),
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
