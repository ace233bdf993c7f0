"""Models of architectures that are not ours, as transformers has them: what is known of one before it is read.

transformers builds the model without memory (on its device `meta`) and runs two tokens through it, which shows what
comes to its `AttentionInterface`: a layer after the other, with how many heads, of what size, and with what window.
A GPU computes such a model by transformers' modules, with our attention in that place; whatever would be computed
wrongly so is refused here. No code that comes with a model is run.
"""

from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hotloop.core.errors import ModelError
from hotloop.models.spec import AnyStored, FileTensor, ModelSpec

# Compared with plain transformers in tests/backends/cuda/test_modeling.py.
TESTED = (
    "apertus", "arcee", "cohere", "cohere2", "ernie4_5", "exaone4", "gemma", "gemma3_text", "glm", "glm4", "gpt2",
    "gpt_neox", "granite", "granitemoe", "helium", "hunyuan_v1_dense", "nemotron", "olmo2", "olmo3", "olmoe", "phi",
    "phi3", "qwen2_moe", "seed_oss", "smollm3", "starcoder2",
)  # fmt: skip
_PROBE = "hotloop_probe"
_CHANGING_ROPES = ("dynamic", "longrope")  # which depend on what else is in a step


class _Attended(NamedTuple):
    """What one layer asks of attention."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    value_dim: int
    window: int | None
    has_sinks: bool
    has_cap: bool
    is_causal: bool


def can_probe() -> bool:
    """Whether the packages are there."""
    return all(find_spec(name) is not None for name in ("torch", "transformers"))


def read_config(folder: Path) -> Any:
    """transformers' own, without padding: there is none here, and it is looked for in every step otherwise."""
    import transformers  # noqa: PLC0415 - seconds, and not for everyone

    config = transformers.AutoConfig.from_pretrained(folder, trust_remote_code=False)
    for each in (config, config.get_text_config()):
        each.pad_token_id = None
    return config


def probe_spec(folder: Path) -> ModelSpec:
    """Raises ModelError if there is no such architecture, or it cannot be computed over a paged KV cache."""
    import transformers  # noqa: PLC0415 - seconds, and not for everyone

    path = folder / "config.json"
    try:
        config = read_config(folder)
        architecture = transformers.MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    except Exception as error:  # whatever hundreds of architectures raise
        raise ModelError(f"{path}: neither hotloop nor transformers can read it: {_line(error)}") from None
    where = f"{path}: the architecture {config.model_type!r}, which transformers would compute,"
    text = config.get_text_config()
    if getattr(config, "quantization_config", None) or getattr(text, "quantization_config", None):
        raise ModelError(f"{where} is supported if its weights are not quantised")
    if not getattr(architecture, "_supports_attention_backend", False):
        raise ModelError(f"{where} does not take transformers' AttentionInterface")
    if ropes := {each for each in _rope_types(text.to_dict()) if each in _CHANGING_ROPES}:
        raise ModelError(f"{where} has a rotary scaling ({ropes.pop()}) that changes with what else is in a step")
    module, layers, num_tokens = _probe(config, where)
    first = layers[0]
    return ModelSpec(
        family="transformers",
        num_layers=len(layers),
        hidden_size=text.hidden_size,
        intermediate_size=getattr(text, "intermediate_size", None) or 4 * text.hidden_size,
        num_heads=first.num_heads,
        num_kv_heads=first.num_kv_heads,
        head_dim=first.head_dim,
        vocab_size=num_tokens,
        max_context=getattr(text, "max_position_embeddings", None) or 2048,
        rms_eps=1e-6,
        rope_theta=10_000.0,
        has_sinks=first.has_sinks,
        windows=tuple(each.window for each in layers) if any(each.window for each in layers) else (),
        num_weights=sum(weight.numel() for weight in module.parameters()),
    )


def _probe(config: Any, where: str) -> tuple[Any, list[_Attended], int]:
    """The model without memory, what each layer asks of attention, and the size of the vocabulary."""
    import torch  # noqa: PLC0415
    import transformers  # noqa: PLC0415
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS  # noqa: PLC0415

    found: dict[int, _Attended] = {}

    def attend(module: Any, query: Any, key: Any, value: Any, attention_mask: Any, **others: Any) -> tuple[Any, None]:
        found[module.layer_idx] = _Attended(
            query.shape[1],
            key.shape[1],
            key.shape[3],
            value.shape[3],
            others.get("sliding_window"),
            others.get("s_aux") is not None,
            others.get("softcap") is not None,
            getattr(module, "is_causal", True),
        )
        return query.new_empty(*query.shape[:1], query.shape[2], query.shape[1], value.shape[3]), None

    ALL_ATTENTION_FUNCTIONS.register(_PROBE, attend)
    auto = transformers.AutoModelForCausalLM
    try:
        with torch.device("meta"), torch.no_grad():
            module = auto.from_config(config, attn_implementation=_PROBE, dtype=torch.bfloat16).eval()
            ids, wanted = torch.zeros(1, 2, dtype=torch.int64), torch.zeros(1, dtype=torch.int64)
            out = module(input_ids=ids, position_ids=ids, use_cache=False, logits_to_keep=wanted)
    except Exception as error:
        raise ModelError(f"{where} cannot be tried out without memory: {_line(error)}") from None
    num_layers = config.get_text_config().num_hidden_layers
    if sorted(found) != list(range(num_layers)):
        raise ModelError(f"{where} has layers of another kind: of {num_layers}, {len(found)} attend to keys and values")
    layers = [found[i] for i in range(num_layers)]
    if len({layer._replace(window=None) for layer in layers}) > 1:
        raise ModelError(f"{where} has layers whose heads are not alike")
    first = layers[0]
    if first.head_dim != first.value_dim or first.has_cap or not first.is_causal:
        raise ModelError(f"{where} has attention of a kind that our kernels have not")
    return module, layers, out.logits.shape[-1]


def _rope_types(config: object) -> Iterator[object]:
    if isinstance(config, Mapping):
        yield config.get("rope_type")
        for value in config.values():
            yield from _rope_types(value)


def _line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


class PublishedTensors:
    """The tensors of a folder whose names only transformers knows: it reads them itself."""

    def __init__(self, located: Mapping[str, FileTensor]) -> None:
        self.located = located

    def read(self, name: str) -> NDArray[np.float32]:
        raise ModelError(f"{name} of a model that transformers computes is not read here")

    def stored(self, name: str) -> AnyStored:
        raise ModelError(f"{name} of a model that transformers computes is not read here")
