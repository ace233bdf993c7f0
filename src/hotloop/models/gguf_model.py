"""The model in a GGUF file: what its metadata says, in the words of config.json where those are parsed already, and its
tensors by our names.

Refuses what would be computed wrongly: other architectures, shards, rotary scaling it does not know.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hotloop.core.errors import ModelError
from hotloop.models.architecture import GPT_OSS_LIMIT, GPT_OSS_SLOPE, parse_experts
from hotloop.models.gguf import GgufFile, dequantise, read_beginning
from hotloop.models.heads import head_orders, pairs_apart, rows_in_order
from hotloop.models.latent import parse_latent
from hotloop.models.layout import TensorPlace, check_spec, check_tensors, tensor_places
from hotloop.models.rope import scaling_from_config, scaling_from_divisors
from hotloop.models.spec import ExpertsSpec, Family, LatentSpec, ModelSpec, RopeScaling, Stored

_FAMILIES: dict[str, Family] = {
    "llama": "llama", "qwen2": "qwen2", "qwen3": "qwen3", "qwen3moe": "qwen3moe", "gpt-oss": "gptoss",
    "glm4moe": "glm4moe", "deepseek2": "deepseek2",
}  # fmt: skip
_WITH_EXPERTS = ("llama", "qwen3moe", "gpt-oss", "glm4moe", "deepseek2")
_LIKE_DEEPSEEK = ("glm4moe", "deepseek2")  # experts beside a shared one, and layers that predict tokens further on
_SCORES = {1: "softmax", 2: "sigmoid"}
_ROUTER_BIAS = "exp_probs_b.bias"
_ROPE_DIVISORS = "rope_freqs.weight"
_ROPE_KEYS = {  # what Hugging Face calls it: what it is called after rope.scaling
    "rope_type": "type",
    "factor": "factor",
    "original_max_position_embeddings": "original_context_length",
    "beta_fast": "yarn_beta_fast",
    "beta_slow": "yarn_beta_slow",
}


class GgufWeights:
    """The tensors of one file, read one at a time."""

    def __init__(self, file: GgufFile, spec: ModelSpec) -> None:
        check_spec(file.path, spec, len(file.tensors))
        self._file = file
        self._places = {place.name: place for place in tensor_places(spec)}
        self._halves: dict[str, list[str]] = {}  # of what makes keys and values, where the file has these apart
        wanted: dict[str, tuple[int, ...]] = {}
        all_experts = (spec.experts.num_experts,) if spec.experts else ()
        for place in self._places.values():
            if spec.latent and place.name.endswith(".kv_b") and place.gguf_name not in file.tensors:
                halves = _halves(place, spec.num_heads, spec.latent)
                self._halves[place.name] = [*halves]
                wanted |= halves
            else:
                wanted[place.gguf_name] = place.shape if place.expert is None else (*all_experts, *place.shape)
        beyond = {f"blk.{spec.num_layers + i}" for i in range(min(_num_beyond(file), len(file.tensors)))}
        found = {
            name: tensor.shape for name, tensor in file.tensors.items() if ".".join(name.split(".")[:2]) not in beyond
        }
        check_tensors(file.path, wanted, found, [_ROPE_DIVISORS])
        self._orders = _orders(spec)

    def read(self, name: str) -> NDArray[np.float32]:
        return dequantise(self.stored(name))

    def stored(self, name: str) -> Stored:
        place = self._places[name]
        if name in self._halves:
            return self._joined(place)
        found = self._file.tensors[place.gguf_name].stored()
        if place.expert is not None:
            return Stored(found.data[place.expert], found.kind, place.shape)
        order = self._orders.get(name.rpartition(".")[2])
        return found if order is None else found.rows(rows_in_order(found.shape[0], order))

    def _joined(self, place: TensorPlace) -> Stored:
        """Of each head the rows that make its key, which the file has as columns, then those that make its value."""
        keys, values = (dequantise(self._file.tensors[name].stored()) for name in self._halves[place.name])
        rows = np.concatenate([keys.swapaxes(1, 2), values], axis=1).reshape(place.shape)
        return Stored(rows.view(np.uint8), "F32", place.shape)


def _halves(place: TensorPlace, num_heads: int, latent: LatentSpec) -> dict[str, tuple[int, ...]]:
    prefix = place.gguf_name.removesuffix("kv_b.weight")
    return {
        f"{prefix}k_b.weight": (num_heads, latent.kv_rank, latent.nope_dim),
        f"{prefix}v_b.weight": (num_heads, latent.value_dim, latent.kv_rank),
    }


def _orders(spec: ModelSpec) -> dict[str, NDArray[np.intp]]:
    """As in Hugging Face's files, but the llama architecture is stored with the rotary halves of a head interleaved."""
    if spec.family in ("llama", "mixtral"):
        return dict.fromkeys(("q", "k", "q_bias", "k_bias"), pairs_apart(spec.head_dim))
    return head_orders(spec)


def check_beginning(path: Path, data: bytes) -> None:
    """Refuse a file of that name that cannot be run, as far as its first bytes tell."""
    file = read_beginning(path, data)
    if "general.architecture" in file.metadata:
        _refuse_unsupported(file)


def gguf_spec(file: GgufFile) -> ModelSpec:
    _refuse_unsupported(file)
    arch, family = file.get("general.architecture", str), _family(file)
    rope = _rope(file, arch, family)
    latent = parse_latent(_latent_words(file, arch), rope, family, file.path) if arch == "deepseek2" else None
    experts = _experts(file, arch, family)
    if experts and family == "llama":
        family = "mixtral"
    embed = file.tensors.get("token_embd.weight")
    if embed is None:
        raise ModelError(f"{file.path}: the tensor token_embd.weight is missing")
    num_heads = file.get(f"{arch}.attention.head_count", int)
    hidden_size = file.get(f"{arch}.embedding_length", int)
    if latent:
        head_dim, rotary_dim = latent.nope_dim + latent.rope_dim, None
    else:
        head_dim = file.get(f"{arch}.attention.key_length", int, hidden_size // max(num_heads, 1))
        rotary_dim = _rotary_dim(file, arch, head_dim)
    rope_theta = file.get(f"{arch}.rope.freq_base", float, 10_000.0)
    max_context = file.get(f"{arch}.context_length", int)
    window, num_layers = file.get(f"{arch}.attention.sliding_window", int, 0), file.get(f"{arch}.block_count", int)
    num_layers -= _num_beyond(file)
    turning = latent.rope_dim if latent else rotary_dim or head_dim
    scaling: RopeScaling | None
    if _ROPE_DIVISORS in file.tensors:
        divisors = dequantise(file.tensors[_ROPE_DIVISORS].stored())
        scaling = scaling_from_divisors(divisors, turning, str(file.path))
    else:
        scaling = scaling_from_config(
            rope, theta=rope_theta, head_dim=turning, max_context=max_context, where=str(file.path)
        )
    return ModelSpec(
        family=family,
        num_layers=num_layers,
        hidden_size=hidden_size,
        intermediate_size=file.get(f"{arch}.feed_forward_length", int),
        num_heads=num_heads,
        num_kv_heads=num_heads if latent else file.get(f"{arch}.attention.head_count_kv", int, num_heads),
        head_dim=head_dim,
        vocab_size=embed.shape[0],
        max_context=max_context,
        rms_eps=file.get(f"{arch}.attention.layer_norm_rms_epsilon", float),
        rope_theta=rope_theta,
        rope_scaling=scaling,
        has_tied_head="output.weight" not in file.tensors,
        has_qkv_bias=family == "qwen2" or "blk.0.attn_q.bias" in file.tensors,
        has_o_bias=family == "gptoss",
        has_qk_norm=family in ("qwen3", "qwen3moe") or "blk.0.attn_q_norm.weight" in file.tensors,
        has_sinks=family == "gptoss",
        experts=experts,
        windows=_windows(window, min(num_layers, len(file.tensors)), family) if 0 < window < max_context else (),
        rotary_dim=rotary_dim,
        latent=latent,
    )


def _num_beyond(file: GgufFile) -> int:
    arch = file.get("general.architecture", str)
    return file.get(f"{arch}.nextn_predict_layers", int, 0) if arch in _LIKE_DEEPSEEK else 0


def _rotary_dim(file: GgufFile, arch: str, head_dim: int) -> int | None:
    """How many dimensions of a head turn, if not all."""
    if file.get(f"{arch}.attention.value_length", int, head_dim) != head_dim:
        raise ModelError(f"{file.path}: keys and values of different widths are not supported")
    turning = file.get(f"{arch}.rope.dimension_count", int, head_dim)
    if turning == head_dim:
        return None
    if arch != "glm4moe":
        raise ModelError(f"{file.path}: rotary positions over only a part of each head are not supported")
    if not 0 < turning < head_dim or turning % 2:
        raise ModelError(f"{file.path}: {turning} of the {head_dim} dimensions of a head have no rotary halves")
    return turning


def _rope(file: GgufFile, arch: str, family: Family) -> Mapping[str, Any]:
    """The rotary scaling, in the words of config.json."""
    rope = {name: file.metadata.get(f"{arch}.rope.scaling.{theirs}") for name, theirs in _ROPE_KEYS.items()}
    rope = {name: value for name, value in rope.items() if value is not None and value != "none"}
    rope["truncate"] = family != "gptoss"  # which no file says, and its config.json does
    sharpness = file.get(f"{arch}.rope.scaling.yarn_log_multiplier", float, 0.0)
    if arch == "deepseek2" and sharpness:  # a tenth of both, which published models have the same
        rope |= dict.fromkeys(("mscale", "mscale_all_dim"), sharpness / 0.1)
    return rope


def _latent_words(file: GgufFile, arch: str) -> dict[str, Any]:
    """Latent attention in the words of config.json. Older files have the lengths of a head, newer those of what is
    kept, and the head's own beside them.
    """
    prefix = f"{arch}.attention."
    suffix = "_mla" if f"{prefix}key_length_mla" in file.metadata else ""
    rope_dim = file.get(f"{arch}.rope.dimension_count", int)
    return {
        "num_attention_heads": file.get(f"{prefix}head_count", int),
        "q_lora_rank": file.get(f"{prefix}q_lora_rank", int, 0),
        "kv_lora_rank": file.get(f"{prefix}kv_lora_rank", int),
        "qk_rope_head_dim": rope_dim,
        "qk_nope_head_dim": file.get(f"{prefix}key_length{suffix}", int) - rope_dim,
        "v_head_dim": file.get(f"{prefix}value_length{suffix}", int),
    }


def _windows(window: int, num_layers: int, family: Family) -> tuple[int | None, ...]:
    """Of gpt-oss every second layer has one, the first among them."""
    return tuple(window if family != "gptoss" or i % 2 == 0 else None for i in range(num_layers))


def _experts(file: GgufFile, arch: str, family: Family) -> ExpertsSpec | None:
    if arch in _LIKE_DEEPSEEK:
        return parse_experts(_expert_words(file, arch), family, file.path)
    if arch not in _WITH_EXPERTS or not file.get(f"{arch}.expert_count", int, 0):
        return None
    experts = ExpertsSpec(
        num_experts=file.get(f"{arch}.expert_count", int),
        num_chosen=file.get(f"{arch}.expert_used_count", int),
        size=file.get(f"{arch}.{'' if arch == 'llama' else 'expert_'}feed_forward_length", int),
    )
    if arch != "gpt-oss":
        return experts
    kinds = {tensor.kind for name, tensor in file.tensors.items() if name.endswith("_exps.weight")}
    limits = replace(experts, gate_limit=GPT_OSS_LIMIT, gate_slope=GPT_OSS_SLOPE)
    return replace(limits, has_bias=True, has_router_bias=True, is_mxfp4=kinds == {"MXFP4"})


def _expert_words(file: GgufFile, arch: str) -> dict[str, Any]:
    """DeepSeek's and GLM's experts in the words of config.json."""
    scores, is_normed = _scores(file, arch), file.get(f"{arch}.expert_weights_norm", bool, False)
    if scores == "softmax" and is_normed:
        raise ModelError(f"{file.path}: scores by softmax that are made to sum up to one are not supported")
    return {
        "n_routed_experts": file.get(f"{arch}.expert_count", int),
        "num_experts_per_tok": file.get(f"{arch}.expert_used_count", int),
        "moe_intermediate_size": file.get(f"{arch}.expert_feed_forward_length", int),
        "n_shared_experts": file.get(f"{arch}.expert_shared_count", int),
        "first_k_dense_replace": file.get(f"{arch}.leading_dense_block_count", int, 0),
        "routed_scaling_factor": file.get(f"{arch}.expert_weights_scale", float, 0.0) or 1.0,
        "n_group": file.get(f"{arch}.expert_group_count", int, 0) or 1,
        "topk_group": file.get(f"{arch}.expert_group_used_count", int, 0) or 1,
        "topk_method": "group_limited_greedy",
        "norm_topk_prob": is_normed,
        "scoring_func": scores,
    }


def _scores(file: GgufFile, arch: str) -> str:
    """How routers score experts. Where a file does not say, their biases do: only sigmoids have these."""
    usual = 2 if any(name.endswith(_ROUTER_BIAS) for name in file.tensors) else 1
    number = file.get(f"{arch}.expert_gating_func", int, 0) or usual
    return _SCORES.get(number, f"number {number}")


def _family(file: GgufFile) -> Family:
    """What llama.cpp calls deepseek2 is all of DeepSeek's, and GLM-4.7-Flash: they differ in how experts are scored."""
    architecture = file.get("general.architecture", str)
    if architecture not in _FAMILIES:
        only = ", ".join(_FAMILIES)
        raise ModelError(f"{file.path}: the architecture {architecture!r} is not supported (only {only} are)")
    if architecture == "deepseek2" and _scores(file, architecture) == "sigmoid":
        return "deepseek3"
    return _FAMILIES[architecture]


def _refuse_unsupported(file: GgufFile) -> None:
    family, arch = _family(file), file.get("general.architecture", str)
    if file.get("split.count", int, 1) > 1:
        raise ModelError(f"{file.path} is one shard of several: join them into one file first")
    if arch not in _WITH_EXPERTS and file.get(f"{arch}.expert_count", int, 0) > 0:
        raise ModelError(f"{file.path}: {family} with mixture-of-experts layers is not supported: dense models are")
    if file.get(f"{arch}.rope.scale_linear", float, 1.0) != 1.0:
        raise ModelError(f"{file.path}: rope.scale_linear is not supported: rope.scaling.type is")
    if file.get(f"{arch}.attention.temperature_scale", float, 0.0):
        raise ModelError(f"{file.path}: attention with a temperature is not supported")
