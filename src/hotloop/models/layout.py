"""Which tensors a model has: our name, the shape, and what each file format calls it.

One table for every format, so a tensor that is missing, misshapen or unheard of is noticed the same way everywhere.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from math import isfinite, prod
from pathlib import Path

from hotloop.core.errors import ConfigError, ModelError
from hotloop.models.spec import ExpertsSpec, Family, LatentSpec, LinearSpec, ModelSpec

MAX_CONTEXT = 1 << 24

# our name: (in a GGUF, in Hugging Face's folder)
_OUTER_NAMES = {
    "embed": ("token_embd.weight", "model.embed_tokens.weight"),
    "final_norm": ("output_norm.weight", "model.norm.weight"),
    "head": ("output.weight", "lm_head.weight"),
}
# our name: (in a GGUF's blk.N, in Hugging Face's model.layers.N)
_LAYER_NAMES = {
    "attn_norm": ("attn_norm.weight", "input_layernorm.weight"),
    "q": ("attn_q.weight", "self_attn.q_proj.weight"),
    "k": ("attn_k.weight", "self_attn.k_proj.weight"),
    "v": ("attn_v.weight", "self_attn.v_proj.weight"),
    "o": ("attn_output.weight", "self_attn.o_proj.weight"),
    "q_bias": ("attn_q.bias", "self_attn.q_proj.bias"),
    "k_bias": ("attn_k.bias", "self_attn.k_proj.bias"),
    "v_bias": ("attn_v.bias", "self_attn.v_proj.bias"),
    "q_norm": ("attn_q_norm.weight", "self_attn.q_norm.weight"),
    "k_norm": ("attn_k_norm.weight", "self_attn.k_norm.weight"),
    "mlp_norm": ("ffn_norm.weight", "post_attention_layernorm.weight"),
    "gate": ("ffn_gate.weight", "mlp.gate_proj.weight"),
    "up": ("ffn_up.weight", "mlp.up_proj.weight"),
    "down": ("ffn_down.weight", "mlp.down_proj.weight"),
    "o_bias": ("attn_output.bias", "self_attn.o_proj.bias"),
    "sinks": ("attn_sinks.weight", "self_attn.sinks"),
    "router": ("ffn_gate_inp.weight", "mlp.gate.weight"),
    "router_bias": ("exp_probs_b.bias", "mlp.gate.e_score_correction_bias"),
    "q_a": ("attn_q_a.weight", "self_attn.q_a_proj.weight"),
    "q_a_norm": ("attn_q_a_norm.weight", "self_attn.q_a_layernorm.weight"),
    "q_b": ("attn_q_b.weight", "self_attn.q_b_proj.weight"),
    "kv_a": ("attn_kv_a_mqa.weight", "self_attn.kv_a_proj_with_mqa.weight"),
    "kv_a_norm": ("attn_kv_a_norm.weight", "self_attn.kv_a_layernorm.weight"),
    "kv_b": ("attn_kv_b.weight", "self_attn.kv_b_proj.weight"),
    "q_and_gate": ("", "self_attn.q_proj.weight"),
    "linear_qkvz": ("", "linear_attn.in_proj_qkvz.weight"),
    "linear_ba": ("", "linear_attn.in_proj_ba.weight"),
    "linear_qkv": ("", "linear_attn.in_proj_qkv.weight"),
    "linear_z": ("", "linear_attn.in_proj_z.weight"),
    "linear_b": ("", "linear_attn.in_proj_b.weight"),
    "linear_a": ("", "linear_attn.in_proj_a.weight"),
    "linear_conv": ("", "linear_attn.conv1d.weight"),
    "linear_a_log": ("", "linear_attn.A_log"),
    "linear_dt_bias": ("", "linear_attn.dt_bias"),
    "linear_norm": ("", "linear_attn.norm.weight"),
    "linear_o": ("", "linear_attn.out_proj.weight"),
    "shared_router": ("", "mlp.shared_expert_gate.weight"),
    "shared_gate": ("ffn_gate_shexp.weight", "mlp.shared_experts.gate_proj.weight"),
    "shared_up": ("ffn_up_shexp.weight", "mlp.shared_experts.up_proj.weight"),
    "shared_down": ("ffn_down_shexp.weight", "mlp.shared_experts.down_proj.weight"),
}
# of an expert's matrix: (in a GGUF's blk.N, where one tensor has those of all, and what Hugging Face's experts.M has)
_EXPERT_NAMES = {
    "gate": ("ffn_gate_exps.weight", "gate_proj.weight"),
    "up": ("ffn_up_exps.weight", "up_proj.weight"),
    "down": ("ffn_down_exps.weight", "down_proj.weight"),
    "gate_bias": ("ffn_gate_exps.bias", "gate_proj.bias"),
    "up_bias": ("ffn_up_exps.bias", "up_proj.bias"),
    "down_bias": ("ffn_down_exps.bias", "down_proj.bias"),
}
# what some families' folders call it
_FAMILY_NAMES: dict[Family, dict[str, str]] = {
    "mixtral": {
        "mlp.gate": "block_sparse_moe.gate",
        "mlp.experts": "block_sparse_moe.experts",
        "gate_proj": "w1",
        "up_proj": "w3",
        "down_proj": "w2",
    },
    "qwen3next": {"mlp.shared_experts.": "mlp.shared_expert."},
    "qwen35moe": {"mlp.shared_experts.": "mlp.shared_expert."},
    "gptoss": {"mlp.gate.weight": "mlp.router.weight", "mlp.gate.e_score_correction_bias": "mlp.router.bias"},
}
# what some families' GGUFs call it
_FAMILY_GGUF_NAMES: dict[Family, dict[str, str]] = {
    "gptoss": {"ffn_norm": "post_attention_norm", "exp_probs_b": "ffn_gate_inp"},
    "glm4moe": {"ffn_norm": "post_attention_norm"},
}


@dataclass(frozen=True, slots=True)
class TensorPlace:
    """One tensor of a model: `name` is ours, the others are the files'."""

    name: str
    shape: tuple[int, ...]
    gguf_name: str
    hf_name: str
    expert: int | None = None
    """Whose it is; a GGUF has those of all in one tensor."""


def check_spec(path: Path, spec: ModelSpec, num_tensors: int) -> None:
    """Refuse numbers that no model has, before anything is sized or counted by them."""
    for name, value in asdict(spec).items():
        if isinstance(value, int | float) and not isinstance(value, bool) and not (value > 0 and isfinite(value)):
            raise ModelError(f"{path}: {name} should be above zero, not {value}")
    if spec.num_layers > num_tensors:
        raise ModelError(f"{path}: {spec.num_layers} layers are claimed, but there are only {num_tensors} tensors")
    if spec.num_heads % spec.num_kv_heads:
        raise ModelError(f"{path}: {spec.num_heads} heads cannot share {spec.num_kv_heads} heads of keys and values")
    if spec.head_dim % 2:
        raise ModelError(f"{path}: a head of {spec.head_dim} dimensions has no rotary halves")
    if spec.experts and not 0 < spec.experts.num_chosen <= spec.experts.num_experts:
        raise ModelError(f"{path}: of {spec.experts.num_experts} experts {spec.experts.num_chosen} cannot be chosen")
    if spec.experts and not _has_whole_groups(spec.experts):
        raise ModelError(
            f"{path}: {spec.experts.num_experts} experts cannot be chosen by {spec.experts.num_groups} groups"
        )
    if spec.max_context > MAX_CONTEXT:
        raise ModelError(f"{path}: a context of {spec.max_context} tokens is claimed; at most {MAX_CONTEXT} are read")


def _has_whole_groups(experts: ExpertsSpec) -> bool:
    """Groups as large as each other, of which those that are chosen have enough experts."""
    if experts.num_experts % experts.num_groups or experts.num_chosen_groups > experts.num_groups:
        return False
    size = experts.num_experts // experts.num_groups
    return experts.num_chosen <= experts.num_chosen_groups * size and (size > 1 or experts.num_groups == 1)


def tensor_places(spec: ModelSpec) -> Iterator[TensorPlace]:
    """Every tensor a model of this spec must have."""
    for name, shape in outer_shapes(spec).items():
        yield TensorPlace(name, shape, *_OUTER_NAMES[name])
    for i in range(spec.num_layers):
        for name, shape in layer_shapes(spec, i).items():
            gguf_name, hf_name, expert = _file_names(name)
            for ours, theirs in _FAMILY_NAMES.get(spec.family, {}).items():
                hf_name = hf_name.replace(ours, theirs)
            for ours, theirs in _FAMILY_GGUF_NAMES.get(spec.family, {}).items():
                gguf_name = gguf_name.replace(ours, theirs)
            names = f"blk.{i}.{gguf_name}", f"model.layers.{i}.{hf_name}"
            yield TensorPlace(f"layers.{i}.{name}", shape, *names, expert)


def _file_names(name: str) -> tuple[str, str, int | None]:
    """What a layer's tensor is called in a GGUF and in Hugging Face's folder, and whose it is."""
    if not name.startswith("experts."):
        return *_LAYER_NAMES[name], None
    _, expert, part = name.split(".")
    gguf_name, hf_name = _EXPERT_NAMES[part]
    return gguf_name, f"mlp.experts.{expert}.{hf_name}", int(expert)


def outer_shapes(spec: ModelSpec) -> dict[str, tuple[int, ...]]:
    table = (spec.vocab_size, spec.hidden_size)
    head = {} if spec.has_tied_head else {"head": table}
    return {"embed": table, "final_norm": (spec.hidden_size,), **head}


def layer_shapes(spec: ModelSpec, layer: int) -> dict[str, tuple[int, ...]]:
    hidden = spec.hidden_size
    shapes: dict[str, tuple[int, ...]] = {"attn_norm": (hidden,), "mlp_norm": (hidden,)}
    if spec.linear and spec.is_linear(layer):
        shapes |= _linear_shapes(spec.linear, hidden, is_fused=spec.family == "qwen3next")
    elif spec.latent:
        shapes |= _latent_shapes(spec, spec.latent)
    else:
        shapes |= _attention_shapes(spec)
    if spec.experts and spec.has_experts(layer):
        shapes |= _expert_shapes(spec.experts, hidden)
    else:
        shapes |= _mlp_shapes("", hidden, spec.intermediate_size)
    return shapes


def _attention_shapes(spec: ModelSpec) -> dict[str, tuple[int, ...]]:
    hidden = spec.hidden_size
    q, kv = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
    shapes: dict[str, tuple[int, ...]] = {"q_and_gate": (2 * q, hidden)} if spec.linear else {"q": (q, hidden)}
    shapes |= {"k": (kv, hidden), "v": (kv, hidden), "o": (hidden, q)}
    if spec.has_qkv_bias:
        shapes |= {"q_bias": (q,), "k_bias": (kv,), "v_bias": (kv,)}
    if spec.has_qk_norm:
        shapes |= {"q_norm": (spec.head_dim,), "k_norm": (spec.head_dim,)}
    if spec.has_o_bias:
        shapes["o_bias"] = (hidden,)
    if spec.has_sinks:
        shapes["sinks"] = (spec.num_heads,)
    return shapes


def _latent_shapes(spec: ModelSpec, latent: LatentSpec) -> dict[str, tuple[int, ...]]:
    hidden, num_heads = spec.hidden_size, spec.num_heads
    shapes: dict[str, tuple[int, ...]] = {"q": (num_heads * spec.head_dim, hidden)}
    if latent.q_rank:
        shapes = {"q_a": (latent.q_rank, hidden), "q_a_norm": (latent.q_rank,)}
        shapes["q_b"] = (num_heads * spec.head_dim, latent.q_rank)
    shapes |= {"kv_a": (latent.width, hidden), "kv_a_norm": (latent.kv_rank,)}
    shapes["kv_b"] = (num_heads * (latent.nope_dim + latent.value_dim), latent.kv_rank)
    return shapes | {"o": (hidden, spec.mixed_size)}


def each_shape(spec: ModelSpec) -> Iterator[tuple[str, tuple[int, ...], int]]:
    """Of all layers, each with how many of them have it, without going through them: files may claim billions."""
    num_dense = min(spec.num_layers, spec.experts.num_dense) if spec.experts else spec.num_layers
    for begin, end in ((0, num_dense), (num_dense, spec.num_layers)):
        linear = sorted(layer for layer in (spec.linear.layers if spec.linear else ()) if begin <= layer < end)
        others = (layer for layer in range(begin, end) if not spec.is_linear(layer))
        for layer, count in ((next(iter(linear), None), len(linear)), (next(others, None), end - begin - len(linear))):
            if layer is not None:
                yield from ((name, shape, count) for name, shape in layer_shapes(spec, layer).items())


def _linear_shapes(linear: LinearSpec, hidden: int, *, is_fused: bool) -> dict[str, tuple[int, ...]]:
    heads, values = linear.num_value_heads, linear.value_size
    shapes: dict[str, tuple[int, ...]] = {"linear_qkv": (linear.conv_size, hidden), "linear_z": (values, hidden)}
    shapes |= {"linear_b": (heads, hidden), "linear_a": (heads, hidden)}
    if is_fused:
        shapes = {"linear_qkvz": (linear.conv_size + values, hidden), "linear_ba": (2 * heads, hidden)}
    shapes |= {"linear_conv": (linear.conv_size, 1, linear.conv_width), "linear_o": (hidden, values)}
    return shapes | {"linear_a_log": (heads,), "linear_dt_bias": (heads,), "linear_norm": (linear.value_dim,)}


def _expert_shapes(experts: ExpertsSpec, hidden: int) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {"router": (experts.num_experts, hidden)}
    if experts.has_router_bias:
        shapes["router_bias"] = (experts.num_experts,)
    if experts.shared_size:
        shapes |= _mlp_shapes("shared_", hidden, experts.shared_size)
    if experts.has_shared_gate:
        shapes["shared_router"] = (1, hidden)
    for i in range(experts.num_experts):
        prefix = f"experts.{i}."
        shapes |= _mlp_shapes(prefix, hidden, experts.size)
        if experts.has_bias:
            shapes |= {f"{prefix}gate_bias": (experts.size,), f"{prefix}up_bias": (experts.size,)}
            shapes[f"{prefix}down_bias"] = (hidden,)
    return shapes


def num_active_weights(spec: ModelSpec) -> int:
    """Of the layers' matrices, those that a token is multiplied with: of experts the chosen ones."""
    if spec.experts:
        spec = replace(spec, experts=replace(spec.experts, num_experts=spec.experts.num_chosen))
    return sum(count * prod(shape) for _, shape, count in each_shape(spec) if len(shape) > 1)


def _mlp_shapes(prefix: str, hidden: int, size: int) -> dict[str, tuple[int, ...]]:
    return {f"{prefix}gate": (size, hidden), f"{prefix}up": (size, hidden), f"{prefix}down": (hidden, size)}


def share_of(spec: ModelSpec, num_gpus: int) -> ModelSpec:
    """What each of several GPUs computes: its heads, and its part of the MLP. All else is whole."""
    if num_gpus == 1:
        return spec
    if spec.linear:
        raise ConfigError("a hybrid runs on one GPU only so far: start it with --gpus 1")
    if spec.latent:
        raise ConfigError("a model with latent attention (MLA) runs on one GPU only so far: start it with --gpus 1")
    experts = spec.experts
    parts = [(spec.num_kv_heads, "heads of keys and values")]
    if not experts or experts.num_dense:
        parts.append((spec.intermediate_size, "rows of the MLP"))
    if experts:
        parts += [(experts.size, "rows of each expert"), (experts.shared_size, "rows of the shared expert")]
    for count, what in parts:
        if count % num_gpus:
            raise ConfigError(f"{count} {what} cannot be split over {num_gpus} GPUs")
    return replace(
        spec,
        num_heads=spec.num_heads // num_gpus,
        num_kv_heads=spec.num_kv_heads // num_gpus,
        intermediate_size=spec.intermediate_size // num_gpus,
        experts=experts
        and replace(experts, size=experts.size // num_gpus, shared_size=experts.shared_size // num_gpus),
    )


def share_begin(total: int, size: int, rank: int) -> int:
    """Where the share of this rank begins, if each has `size` of a total: shares that do not come out even overlap."""
    return min(rank * size, total - size)


def check_tensors(
    path: Path, wanted: Mapping[str, tuple[int, ...]], found: Mapping[str, tuple[int, ...]], ignored: Iterable[str]
) -> None:
    """Refuse a file whose tensors are not exactly the wanted ones: one that nobody reads means a model misread."""
    for name, shape in wanted.items():
        if name not in found:
            raise ModelError(f"{path}: the tensor {name} is missing")
        if found[name] != shape:
            raise ModelError(f"{path}: the tensor {name} has the shape {found[name]}, not {shape}")
    for name in found:
        if name not in wanted and not name.endswith(tuple(ignored)):
            raise ModelError(f"{path}: the tensor {name} belongs to no supported model")
