"""What a config.json says beyond a plain dense model, each family in its words: experts, windows, rotary dimension."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from hotloop.core.errors import ModelError
from hotloop.models.mxfp4 import is_mxfp4
from hotloop.models.spec import ExpertsSpec, Family, LinearSpec

T = TypeVar("T", int, float)
Config = Mapping[str, Any]

FAMILIES: dict[str, Family] = {
    "llama": "llama",
    "mistral": "llama",
    "mixtral": "mixtral",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "qwen3_moe": "qwen3moe",
    "gpt_oss": "gptoss",
    "glm4_moe": "glm4moe",
    "glm4_moe_lite": "glm4moelite",
    "deepseek_v2": "deepseek2",
    "deepseek_v3": "deepseek3",
    "kimi_k2": "deepseek3",
    "qwen3_next": "qwen3next",
    "qwen3_5_text": "qwen35",
    "qwen3_5_moe_text": "qwen35moe",
}
_HYBRIDS = ("qwen3next", "qwen35", "qwen35moe")
_NORM_FAMILIES = ("qwen3", "qwen3moe", *_HYBRIDS)
_ROTARY_SHARES = {"glm4moe": 0.5, **dict.fromkeys(_HYBRIDS, 0.25)}
GPT_OSS_LIMIT, GPT_OSS_SLOPE = 7.0, 1.702  # unless a file says otherwise
_BIASED_OUTPUTS = ("llama", "qwen3", "qwen3moe", "gptoss")  # whose attention_bias means all four
_MAX_LAYERS = 4096
_MAX_NUMBER = 1 << 63
_WHOLE_WINDOWS = ("mistral", "mixtral")  # whose window is every layer's


def is_known(config: Config) -> bool:
    """Whether the architecture is supported; of a vision model, that of its text layers."""
    text = config.get("text_config")
    model_type = (text if isinstance(text, dict) else config).get("model_type")
    return not isinstance(model_type, str) or model_type in FAMILIES


def parse_family(config: Config, path: Path) -> Family:
    model_type = config.get("model_type")
    if not isinstance(model_type, str) or model_type not in FAMILIES:
        raise ModelError(
            f"{path}: the architecture {model_type!r:.60} is not supported (only {', '.join(FAMILIES)} are, and "
            "on a GPU, with transformers installed, others that it has)"
        )
    if config.get("hidden_act", "silu") != "silu":
        raise ModelError(f"{path}: the activation {config['hidden_act']!r} is not supported (only silu is)")
    return FAMILIES[model_type]


def parse_biases(config: Config, family: Family) -> tuple[bool, bool]:
    """Whether q, k and v have them, and whether o does."""
    is_said = bool(config.get("attention_bias", family == "gptoss"))
    return family == "qwen2" or is_said, is_said and family in _BIASED_OUTPUTS


def has_qk_norm(config: Config, family: Family) -> bool:
    return family in _NORM_FAMILIES or (family == "glm4moe" and bool(config.get("use_qk_norm", False)))


def parse_rotary_dim(config: Config, family: Family, head_dim: int, path: Path) -> int | None:
    rope = config.get("rope_parameters") or {}
    share = rope.get("partial_rotary_factor", config.get("partial_rotary_factor"))
    share = share if share is not None else _ROTARY_SHARES.get(family, 1.0)
    if share == 1:
        return None
    if not isinstance(share, int | float) or not 0 < share < 1 or int(head_dim * share) % 2:
        raise ModelError(
            f"{path}: partial_rotary_factor {share!r:.60} leaves no rotary halves of {head_dim} dimensions"
        )
    return int(head_dim * share)


def parse_windows(config: Config, num_layers: int, max_context: int, path: Path) -> tuple[int | None, ...]:
    """For each layer how many tokens it sees; empty if all see all."""
    window, model_type = config.get("sliding_window"), config.get("model_type")
    if not window or not config.get("use_sliding_window", model_type not in ("qwen2", "qwen3", "qwen3_moe")):
        return ()
    if isinstance(window, bool) or not isinstance(window, int) or window < 0:
        raise ModelError(f"{path}: sliding_window should be a number above zero, not {window!r:.60}")
    kinds = config.get("layer_types")
    if num_layers > _MAX_LAYERS:
        raise ModelError(f"{path}: {num_layers} layers are more than the {_MAX_LAYERS} that are supported")
    if kinds is None:
        first = config.get("max_window_layers", 0)
        if not isinstance(first, int | float):
            raise ModelError(f"{path}: max_window_layers should be a number, not {first!r:.60}")
        kinds = ["sliding_attention" if _slides(str(model_type), i, first) else "" for i in range(num_layers)]
    if not isinstance(kinds, list) or len(kinds) != num_layers:
        raise ModelError(f"{path}: layer_types should name the kinds of {num_layers} layers")
    windows = tuple(window if kind == "sliding_attention" and window < max_context else None for kind in kinds)
    return windows if any(windows) else ()


def _slides(model_type: str, layer: int, first: float) -> bool:
    if model_type == "gpt_oss":
        return layer % 2 == 0
    return model_type in _WHOLE_WINDOWS or (model_type.startswith("qwen") and layer >= first)


def parse_experts(config: Config, family: Family, path: Path) -> ExpertsSpec | None:
    def number(key: str) -> int:
        return parse_number(config, key, int, path)

    match family:
        case "mixtral":
            return ExpertsSpec(number("num_local_experts"), number("num_experts_per_tok"), number("intermediate_size"))
        case "gptoss":
            return ExpertsSpec(
                number("num_local_experts"),
                number("num_experts_per_tok"),
                number("intermediate_size"),
                has_bias=True,
                has_router_bias=True,
                gate_limit=parse_number(config, "swiglu_limit", float, path, GPT_OSS_LIMIT),
                gate_slope=parse_number(config, "swiglu_alpha", float, path, GPT_OSS_SLOPE),
                is_mxfp4=is_mxfp4(config),
            )
        case "qwen3moe" | "qwen3next" | "qwen35moe":
            if config.get("mlp_only_layers") or config.get("decoder_sparse_step", 1) != 1:
                raise ModelError(f"{path}: experts in only some of the layers are not supported")
            is_normed = bool(config.get("norm_topk_prob", family != "qwen3moe"))
            experts = number("num_experts"), number("num_experts_per_tok"), number("moe_intermediate_size")
            if family == "qwen3moe":
                return ExpertsSpec(*experts, is_normed=is_normed)
            shared_size = number("shared_expert_intermediate_size")
            return ExpertsSpec(*experts, is_normed=is_normed, shared_size=shared_size, has_shared_gate=True)
        case "glm4moe" | "glm4moelite" | "deepseek2" | "deepseek3":
            return _deepseek_experts(config, family, path)
    return None


def _deepseek_experts(config: Config, family: Family, path: Path) -> ExpertsSpec:
    """DeepSeek's, GLM's and Kimi's. DeepSeek-V2's scores are a softmax, and are not made to sum up to one."""
    is_sigmoid = family != "deepseek2"
    said = "sigmoid" if is_sigmoid else "softmax"
    if config.get("scoring_func", said) != said or config.get("moe_layer_freq", 1) != 1:
        raise ModelError(
            f"{path}: experts in only some of the layers, or with scores other than {said}, are not supported"
        )
    has_groups = is_sigmoid or config.get("topk_method") == "group_limited_greedy"
    size = parse_number(config, "moe_intermediate_size", int, path)
    return ExpertsSpec(
        num_experts=parse_number(config, "n_routed_experts", int, path),
        num_chosen=parse_number(config, "num_experts_per_tok", int, path),
        size=size,
        is_sigmoid=is_sigmoid,
        is_normed=is_sigmoid and bool(config.get("norm_topk_prob", True)),
        scale=parse_number(config, "routed_scaling_factor", float, path, 1.0),
        has_router_bias=is_sigmoid,
        shared_size=size * parse_number(config, "n_shared_experts", int, path, 1),
        num_dense=_num_dense(config, path),
        num_groups=parse_number(config, "n_group", int, path, 1) if has_groups else 1,
        num_chosen_groups=parse_number(config, "topk_group", int, path, 1) if has_groups else 1,
    )


def _num_dense(config: Config, path: Path) -> int:
    """Layers before the first with experts."""
    kinds = config.get("mlp_layer_types")
    num_dense = config.get("first_k_dense_replace", 1)
    if isinstance(kinds, list):
        num_dense = kinds.count("dense")
        if kinds != ["dense"] * num_dense + ["sparse"] * (len(kinds) - num_dense):
            raise ModelError(f"{path}: experts in only some of the layers are not supported")
    if isinstance(num_dense, bool) or not isinstance(num_dense, int) or num_dense < 0:
        raise ModelError(f"{path}: first_k_dense_replace should be a number of layers, not {num_dense!r:.60}")
    return num_dense


def parse_linear(config: Config, family: Family, num_layers: int, path: Path) -> LinearSpec | None:
    if family not in _HYBRIDS:
        return None
    if config.get("attention_bias"):
        raise ModelError(f"{path}: a hybrid whose attention has biases is not supported")
    kinds = config.get("layer_types")
    if kinds is None:
        every = parse_number(config, "full_attention_interval", int, path, 4)
        kinds = ["full_attention" if (i + 1) % every == 0 else "linear_attention" for i in range(num_layers)]
    if not isinstance(kinds, list) or len(kinds) != num_layers:
        raise ModelError(f"{path}: layer_types should name the kinds of {num_layers} layers")
    keys = ("num_key_heads", "num_value_heads", "key_head_dim", "value_head_dim", "conv_kernel_dim")
    numbers = [parse_number(config, f"linear_{key}", int, path) for key in keys]
    linear = LinearSpec(tuple(i for i, kind in enumerate(kinds) if kind == "linear_attention"), *numbers)
    if len(linear.layers) == num_layers:
        raise ModelError(f"{path}: a model without any attention over KV is not supported")
    if linear.num_value_heads % linear.num_key_heads:
        raise ModelError(f"{path}: {linear.num_value_heads} value heads cannot share {linear.num_key_heads} key heads")
    return linear


def parse_number(config: Config, key: str, kind: type[T], path: Path, default: T | None = None) -> T:
    value = config.get(key)
    value = default if value is None else value
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or not 0 < value < _MAX_NUMBER
        or kind(value) != value
    ):
        raise ModelError(f"{path}: {key} should be a number above zero, not {value!r:.60}")
    return kind(value)
