"""Shapes of models that many run, by name, so that no file of theirs is needed."""

from dataclasses import replace

from hotloop.core.errors import ModelError
from hotloop.models.catalogue import find, list_models
from hotloop.models.model import load_spec
from hotloop.models.spec import ExpertsSpec, Family, LatentSpec, ModelSpec


def _shape(
    family: Family,
    layers: int,
    hidden: int,
    mlp: int,
    heads: int,
    kv_heads: int,
    vocab: int,
    context: int = 131_072,
    *,
    head_dim: int = 128,
    is_tied: bool = False,
) -> ModelSpec:
    return ModelSpec(
        family, layers, hidden, mlp, heads, kv_heads, head_dim, vocab, context, 1e-5, 500_000.0, has_tied_head=is_tied
    )


SHAPES = {
    "llama-3.1-8b": _shape("llama", 32, 4096, 14336, 32, 8, 128_256),
    "llama-3.1-70b": _shape("llama", 80, 8192, 28672, 64, 8, 128_256),
    "mistral-7b": _shape("llama", 32, 4096, 14336, 32, 8, 32_768, 32_768),
    "qwen2.5-0.5b": _shape("qwen2", 24, 896, 4864, 14, 2, 151_936, 32_768, head_dim=64, is_tied=True),
    "qwen2.5-1.5b": _shape("qwen2", 28, 1536, 8960, 12, 2, 151_936, 32_768, is_tied=True),
    "qwen2.5-7b": _shape("qwen2", 28, 3584, 18944, 28, 4, 152_064),
    "qwen2.5-14b": _shape("qwen2", 48, 5120, 13824, 40, 8, 152_064),
    "qwen2.5-32b": _shape("qwen2", 64, 5120, 27648, 40, 8, 152_064),
    "qwen2.5-72b": _shape("qwen2", 80, 8192, 29568, 64, 8, 152_064),
    "qwen3-0.6b": _shape("qwen3", 28, 1024, 3072, 16, 8, 151_936, 40_960, is_tied=True),
    "qwen3-1.7b": _shape("qwen3", 28, 2048, 6144, 16, 8, 151_936, 40_960, is_tied=True),
    "qwen3-4b": _shape("qwen3", 36, 2560, 9728, 32, 8, 151_936, 262_144, is_tied=True),
    "qwen3-8b": _shape("qwen3", 36, 4096, 12288, 32, 8, 151_936),
    "qwen3-14b": _shape("qwen3", 40, 5120, 17408, 40, 8, 151_936),
    "qwen3-32b": _shape("qwen3", 64, 5120, 25600, 64, 8, 151_936),
    "deepseek-v2-lite": replace(
        _shape("deepseek2", 27, 2048, 10944, 16, 16, 102_400, 163_840, head_dim=192),
        latent=LatentSpec(None, kv_rank=512, nope_dim=128, rope_dim=64, value_dim=128, scale=192**-0.5),
        experts=ExpertsSpec(64, 6, 1408, is_normed=False, shared_size=2816, num_dense=1),
    ),
    "glm-4.7-flash": replace(
        _shape("glm4moelite", 47, 2048, 10240, 20, 20, 154_880, 202_752, head_dim=256),
        latent=LatentSpec(768, kv_rank=512, nope_dim=192, rope_dim=64, value_dim=256, scale=256**-0.5),
        experts=ExpertsSpec(
            64, 4, 1536, is_sigmoid=True, scale=1.8, has_router_bias=True, shared_size=1536, num_dense=1
        ),
    ),
}


def find_shape(name_or_path: str) -> tuple[str, ModelSpec]:
    """The shape of that name, or of the model of that name, GGUF file or folder. Models of the user come first."""
    is_own = any(entry.name == name_or_path for entry in list_models())
    if name_or_path in SHAPES and not is_own:
        return name_or_path, SHAPES[name_or_path]
    try:
        find(name_or_path)
    except ModelError as error:
        raise ModelError(f"{error}; nor one of the known shapes: {', '.join(SHAPES)}") from None
    return load_spec(name_or_path)
