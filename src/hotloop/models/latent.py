"""Latent attention (MLA) as config.json describes it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hotloop.core.errors import ModelError
from hotloop.models.architecture import Config, parse_number
from hotloop.models.rope import yarn_length
from hotloop.models.spec import Family, LatentSpec

_FAMILIES = ("deepseek2", "deepseek3", "glm4moelite")


def parse_latent(config: Config, rope: Mapping[str, Any], family: Family, path: Path) -> LatentSpec | None:
    if family not in _FAMILIES:
        return None
    share = rope.get("partial_rotary_factor", config.get("partial_rotary_factor", 1))
    if config.get("attention_bias") or share != 1:
        raise ModelError(f"{path}: latent attention with biases, or of which only a part turns, is not supported")
    if config.get("num_key_value_heads") not in (None, config["num_attention_heads"]):
        raise ModelError(
            f"{path}: latent attention with fewer heads of keys and values than of queries is not supported"
        )
    nope_dim, rope_dim = (parse_number(config, f"qk_{part}_head_dim", int, path) for part in ("nope", "rope"))
    if rope_dim % 2:
        raise ModelError(f"{path}: a rotary key of {rope_dim} dimensions has no halves")
    return LatentSpec(
        q_rank=parse_number(config, "q_lora_rank", int, path) if config.get("q_lora_rank") else None,
        kv_rank=parse_number(config, "kv_lora_rank", int, path),
        nope_dim=nope_dim,
        rope_dim=rope_dim,
        value_dim=parse_number(config, "v_head_dim", int, path),
        scale=_scale(nope_dim + rope_dim, rope, path),
        is_interleaved=family == "deepseek2" or bool(config.get("rope_interleave", True)),
    )


def _scale(head_dim: int, rope: Mapping[str, Any], path: Path) -> float:
    """YaRN may sharpen the logits of all dimensions, where others lengthen what turns."""
    weight = rope.get("mscale_all_dim")
    if not weight or rope.get("rope_type", rope.get("type", "default")) == "default":
        return float(head_dim**-0.5)
    factor = parse_number(rope, "factor", float, path)
    return float(head_dim**-0.5 * yarn_length(factor, parse_number(rope, "mscale_all_dim", float, path)) ** 2)
