"""Tiny models made on the spot: the same random weights as a GGUF file and as a Hugging Face folder."""

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from hotloop.models.gguf import dequantise
from hotloop.models.layout import tensor_places
from hotloop.models.spec import ExpertsSpec, Family, LatentSpec, ModelSpec, Stored, Weights

TEMPLATE = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
VERBATIM = ("<tool_call>",)
CORPUS = [
    "The quick brown fox jumps over the lazy dog. It's 12345 o'clock, isn't it?\n\n  def f(x): return x + 10\n"
] * 4

EXPERTS: dict[Family, ExpertsSpec] = {
    "qwen3moe": ExpertsSpec(num_experts=6, num_chosen=2, size=40),
    "mixtral": ExpertsSpec(num_experts=6, num_chosen=2, size=40),
    "gptoss": ExpertsSpec(
        num_experts=6, num_chosen=2, size=96, has_bias=True, has_router_bias=True, gate_limit=7.0, gate_slope=1.702
    ),
    "glm4moe": ExpertsSpec(
        num_experts=6, num_chosen=2, size=40, is_sigmoid=True, scale=1.5, has_router_bias=True, shared_size=40,
        num_dense=1,
    ),
    "deepseek3": ExpertsSpec(
        num_experts=6, num_chosen=2, size=40, is_sigmoid=True, scale=1.5, has_router_bias=True, shared_size=40,
        num_dense=1, num_groups=3, num_chosen_groups=2,
    ),
}  # fmt: skip
LATENTS: dict[Family, LatentSpec] = {
    "deepseek3": LatentSpec(q_rank=24, kv_rank=32, nope_dim=12, rope_dim=4, value_dim=20, scale=0.25)
}

_ARCHS = {"mixtral": "llama", "gptoss": "gpt-oss", "deepseek3": "deepseek2", "glm4moelite": "deepseek2"}

Tensors = dict[str, NDArray[np.float32]]


class DictWeights:
    """Weights that are already in memory."""

    def __init__(self, tensors: Mapping[str, NDArray[np.float32]]) -> None:
        self._tensors = tensors

    def read(self, name: str) -> NDArray[np.float32]:
        return self._tensors[name]

    def stored(self, name: str) -> Stored:
        tensor = np.ascontiguousarray(self._tensors[name], "<f4")
        return Stored(tensor.view(np.uint8), "F32", tensor.shape)


class QuantisedWeights(DictWeights):
    """Matrices in Q4_0, as a GGUF file may have them; `read` gives what those codes stand for."""

    def __init__(self, spec: ModelSpec, weights: Weights) -> None:
        kind = gguf.GGMLQuantizationType.Q4_0
        tensors = {place.name: weights.read(place.name) for place in tensor_places(spec)}
        matrices = {name: tensor for name, tensor in tensors.items() if tensor.ndim == 2}
        self._rows = {name: Stored(gguf.quantize(each, kind), "Q4_0", each.shape) for name, each in matrices.items()}
        super().__init__(tensors | {name: dequantise(rows) for name, rows in self._rows.items()})

    def stored(self, name: str) -> Stored:
        return self._rows.get(name) or super().stored(name)


def tiny_spec(family: Family, **changes: Any) -> ModelSpec:
    spec = ModelSpec(
        family=family,
        num_layers=2,
        hidden_size=64,
        num_heads=4,
        num_kv_heads=4 if family in LATENTS else 2,
        intermediate_size=40 if family == "mixtral" else 96,
        head_dim=32 if family in ("qwen3", "qwen3moe") else 16,
        vocab_size=tiny_tokenizer().get_vocab_size(),
        max_context=512,
        rms_eps=1e-5,
        rope_theta=10_000.0,
        has_tied_head=family == "llama",
        has_qkv_bias=family in ("qwen2", "gptoss"),
        has_o_bias=family == "gptoss",
        has_qk_norm=family in ("qwen3", "qwen3moe", "glm4moe"),
        has_sinks=family == "gptoss",
        windows=(24, None) if family == "gptoss" else (),
        rotary_dim=8 if family == "glm4moe" else None,
        experts=EXPERTS.get(family),
        latent=LATENTS.get(family),
    )
    return replace(spec, **changes)


def tiny_weights(spec: ModelSpec, seed: int = 0) -> Tensors:
    """Random weights, all of them exact in bfloat16."""
    random = np.random.default_rng(seed)
    return {place.name: as_bf16(random.standard_normal(place.shape, np.float32)) for place in tensor_places(spec)}


def as_bf16(tensor: NDArray[np.float32]) -> NDArray[np.float32]:
    return (tensor.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)


@cache
def tiny_tokenizer() -> Tokenizer:
    """A byte-level tokenizer that knows a few words; Qwen's way of ending a turn."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=320, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.add_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    tokenizer.add_tokens([AddedToken(token, special=False, normalized=False) for token in VERBATIM])
    return tokenizer


def tokenizer_metadata(tokenizer: Tokenizer, pre: str = "gpt-2") -> dict[str, Any]:
    """What a GGUF says of a byte-level tokenizer."""
    vocabulary = sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])
    types = [3 if token in SPECIAL else 4 if token in VERBATIM else 1 for token, _ in vocabulary]
    merges = json.loads(tokenizer.to_str())["model"]["merges"]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": [token for token, _ in vocabulary],
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.merges": [" ".join(pair) for pair in merges],
        "tokenizer.ggml.bos_token_id": tokenizer.token_to_id("<|endoftext|>"),
        "tokenizer.ggml.eos_token_id": tokenizer.token_to_id("<|im_end|>"),
        "tokenizer.chat_template": TEMPLATE,
    }


def write_gguf(
    path: Path,
    spec: ModelSpec,
    tensors: Mapping[str, NDArray[Any]],
    changes: Mapping[str, Any] = {},
    arch: str = "",
    kind: gguf.GGMLQuantizationType | None = None,
) -> Path:
    """Write a model as llama.cpp's converter would; a changed key that is None is left out.

    A tensor given under a GGUF name goes in beside the rest, as it is; rows of bytes are blocks of that kind.
    """
    arch = arch or _ARCHS.get(spec.family, spec.family)
    names = {place.name: place.gguf_name for place in tensor_places(spec) if place.expert is None}
    tensors = _with_stacked_experts(spec, tensors)
    writer = gguf.GGUFWriter(path, arch)
    metadata = spec_metadata(spec, arch) | tokenizer_metadata(tiny_tokenizer()) | dict(changes)
    if spec.latent and metadata[f"{arch}.attention.key_length_mla"] is not None:  # or it is an older file
        tensors = _with_halves_of_latents(spec, spec.latent, tensors)
    for key, value in metadata.items():
        add_value(writer, key, value)
    for name, tensor in tensors.items():
        raw = kind if tensor.dtype == np.uint8 else None
        writer.add_tensor(names.get(name, name), interleave(tensor, spec, name), raw_dtype=raw)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _with_stacked_experts(spec: ModelSpec, tensors: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Those of all experts in one tensor."""
    stacked: dict[str, list[NDArray[Any]]] = {}
    of_experts = {place.name: place.gguf_name for place in tensor_places(spec) if place.expert is not None}
    for name, gguf_name in of_experts.items():
        if name in tensors:
            stacked.setdefault(gguf_name, []).append(tensors[name])
    others = {name: tensor for name, tensor in tensors.items() if name not in of_experts}
    return others | {name: np.stack(each) for name, each in stacked.items()}


def _with_halves_of_latents(
    spec: ModelSpec, latent: LatentSpec, tensors: Mapping[str, NDArray[Any]]
) -> dict[str, NDArray[Any]]:
    """What makes keys of latents by itself, with its rows as columns, and what makes values."""
    apart: dict[str, NDArray[Any]] = {}
    for name, tensor in tensors.items():
        if not name.endswith(".kv_b"):
            apart[name] = tensor
            continue
        prefix = f"blk.{name.split('.')[1]}.attn_"
        heads = tensor.reshape(spec.num_heads, -1, latent.kv_rank)
        apart[f"{prefix}k_b.weight"] = np.ascontiguousarray(heads[:, : latent.nope_dim].transpose(0, 2, 1))
        apart[f"{prefix}v_b.weight"] = np.ascontiguousarray(heads[:, latent.nope_dim :])
    return apart


def spec_metadata(spec: ModelSpec, arch: str) -> dict[str, Any]:
    return {
        f"{arch}.block_count": spec.num_layers,
        f"{arch}.context_length": spec.max_context,
        f"{arch}.embedding_length": spec.hidden_size,
        f"{arch}.feed_forward_length": spec.intermediate_size,
        f"{arch}.attention.head_count": spec.num_heads,
        f"{arch}.attention.head_count_kv": spec.num_kv_heads,
        f"{arch}.attention.key_length": spec.head_dim,
        f"{arch}.attention.value_length": spec.head_dim,
        f"{arch}.attention.layer_norm_rms_epsilon": spec.rms_eps,
        f"{arch}.rope.freq_base": spec.rope_theta,
        **({f"{arch}.rope.dimension_count": spec.rotary_dim} if spec.rotary_dim else {}),
        **(_latent_metadata(spec, spec.latent, arch) if spec.latent else {}),
        **(_expert_metadata(spec.experts, arch) if spec.experts else {}),
    }


def _latent_metadata(spec: ModelSpec, latent: LatentSpec, arch: str) -> dict[str, Any]:
    return {
        f"{arch}.attention.head_count_kv": 1,
        f"{arch}.attention.q_lora_rank": latent.q_rank,
        f"{arch}.attention.kv_lora_rank": latent.kv_rank,
        f"{arch}.attention.key_length": latent.width,
        f"{arch}.attention.value_length": latent.kv_rank,
        f"{arch}.attention.key_length_mla": spec.head_dim,
        f"{arch}.attention.value_length_mla": latent.value_dim,
        f"{arch}.rope.dimension_count": latent.rope_dim,
    }


def _expert_metadata(experts: ExpertsSpec, arch: str) -> dict[str, Any]:
    return {
        f"{arch}.expert_count": experts.num_experts,
        f"{arch}.expert_used_count": experts.num_chosen,
        f"{arch}.{'' if arch == 'llama' else 'expert_'}feed_forward_length": experts.size,
        **(_shared_metadata(experts, arch) if experts.shared_size else {}),
    }


def _shared_metadata(experts: ExpertsSpec, arch: str) -> dict[str, Any]:
    return {
        f"{arch}.expert_shared_count": experts.shared_size // experts.size,
        f"{arch}.leading_dense_block_count": experts.num_dense,
        f"{arch}.expert_weights_scale": experts.scale,
        f"{arch}.expert_weights_norm": experts.is_normed or None,
        f"{arch}.expert_gating_func": 2 if experts.is_sigmoid else 1,
        f"{arch}.expert_group_count": experts.num_groups,
        f"{arch}.expert_group_used_count": experts.num_chosen_groups,
    }


def add_value(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    match value:
        case None:
            pass
        case bool():
            writer.add_bool(key, value)
        case int():
            writer.add_uint32(key, value)
        case float():
            writer.add_float32(key, value)
        case str():
            writer.add_string(key, value)
        case _:
            writer.add_array(key, value)


def interleave(tensor: NDArray[Any], spec: ModelSpec, name: str) -> NDArray[Any]:
    """The llama architecture is stored with each head's rotary halves as pairs: a0 b0 a1 b1 …"""
    num_heads = {"q": spec.num_heads, "k": spec.num_kv_heads}.get(name.rpartition(".")[2].removesuffix("_bias"))
    if spec.family not in ("llama", "mixtral") or num_heads is None:
        return tensor
    rows = np.arange(len(tensor)).reshape(num_heads, 2, -1).transpose(0, 2, 1).ravel()
    return np.ascontiguousarray(tensor[rows])


def write_folder(folder: Path, spec: ModelSpec, tensors: Tensors, changes: Mapping[str, Any] = {}) -> Path:
    """Write a model as `save_pretrained` would; a changed setting that is None is left out."""
    folder.mkdir()
    names = {place.name: place.hf_name for place in tensor_places(spec)}
    save_file({names.get(name, name): tensor for name, tensor in tensors.items()}, folder / "model.safetensors")
    config = spec_config(spec) | dict(changes)
    write_json(folder / "config.json", {key: value for key, value in config.items() if value is not None})
    tiny_tokenizer().save(str(folder / "tokenizer.json"))
    tokens = {"bos_token": "<|endoftext|>", "eos_token": {"content": "<|im_end|>"}}
    write_json(folder / "tokenizer_config.json", tokens | {"chat_template": TEMPLATE})
    return folder


def write_smallest(folder: Path) -> Path:
    """A model of one layer and one head, for tests of what is around it: prefills thousands of tokens a second."""
    sizes = {"num_layers": 1, "num_heads": 1, "num_kv_heads": 1, "hidden_size": 32, "intermediate_size": 32}
    spec = tiny_spec("llama", max_context=1 << 20, **sizes)
    return write_folder(folder, spec, tiny_weights(spec))


def spec_config(spec: ModelSpec) -> dict[str, Any]:
    experts = spec.experts
    mixture = experts and {
        "num_experts_per_tok": experts.num_chosen,
        **(
            {"num_local_experts": experts.num_experts, "intermediate_size": experts.size}
            if spec.family == "mixtral"
            else {"num_experts": experts.num_experts, "moe_intermediate_size": experts.size}
        ),
        "norm_topk_prob": experts.is_normed,
    }
    return {
        "model_type": {"qwen3moe": "qwen3_moe"}.get(spec.family, spec.family),
        "num_hidden_layers": spec.num_layers,
        "hidden_size": spec.hidden_size,
        "intermediate_size": spec.intermediate_size,
        "num_attention_heads": spec.num_heads,
        "num_key_value_heads": spec.num_kv_heads,
        "head_dim": spec.head_dim,
        "vocab_size": spec.vocab_size,
        "max_position_embeddings": spec.max_context,
        "rms_norm_eps": spec.rms_eps,
        "rope_theta": spec.rope_theta,
        "tie_word_embeddings": spec.has_tied_head,
        **(mixture or {}),
    }


def write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value), "utf-8")
