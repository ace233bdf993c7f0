"""Small random models in Hugging Face folders, written by transformers itself, and what transformers says of them.

Plain random weights make a *flat* model: its two likeliest tokens are often so close that rounding decides. A *peaked*
one has a head that knows which token follows which, as a trained model does, and leaves less to rounding. Weights are
large enough that attention picks out keys and every layer matters.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
import transformers  # type: ignore[import-not-found, unused-ignore]

from benchmarks.gpu.vocabularies import write_byte_tokenizer

Kind = Literal["flat", "peaked"]
transformers.utils.logging.disable_progress_bar()
FAMILIES = ("llama", "mistral", "qwen2", "qwen3")
_PEAK = 10.0


@dataclass(frozen=True, slots=True)
class Shape:
    """Of every family's model."""

    num_layers: int = 4
    hidden_size: int = 512
    intermediate_size: int = 1408
    num_heads: int = 8
    num_kv_heads: int = 2
    head_dim: int = 64
    vocab_size: int = 2000
    max_context: int = 1024


def write_model(folder: Path, family: str, kind: Kind, shape: Shape, seed: int = 0) -> Path:
    """The folder of that model, with a tokenizer."""
    config = transformers.AutoConfig.for_model(
        family,
        num_hidden_layers=shape.num_layers,
        hidden_size=shape.hidden_size,
        intermediate_size=shape.intermediate_size,
        num_attention_heads=shape.num_heads,
        num_key_value_heads=shape.num_kv_heads,
        head_dim=shape.head_dim,
        vocab_size=shape.vocab_size,
        max_position_embeddings=shape.max_context,
        tie_word_embeddings=False,
        sliding_window=None,
        bos_token_id=None,
        eos_token_id=shape.vocab_size - 1,
        pad_token_id=None,
    )
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        _fill(model, kind, torch.Generator().manual_seed(seed))
    path = folder / f"{family}-{kind}"
    model.save_pretrained(path)
    write_byte_tokenizer(path, shape.vocab_size)
    return path


def _fill(model: Any, kind: Kind, generator: torch.Generator) -> None:
    tensors = dict(model.named_parameters())
    for name, tensor in tensors.items():
        noise = torch.randn(tensor.shape, generator=generator)
        if name.endswith("bias"):
            tensor.copy_(0.5 * noise)
        elif tensor.ndim == 1:
            tensor.copy_(1 + 0.1 * noise)
        else:
            tensor.copy_(noise if "embed" in name else noise * tensor.shape[1] ** -0.5)
    if kind == "peaked":
        embed, head = tensors["model.embed_tokens.weight"], tensors["lm_head.weight"]
        follower = torch.randperm(len(embed), generator=generator)
        head[follower] += _PEAK * embed / embed.shape[1]


def reference_logits(
    folder: Path, prompts: Sequence[Sequence[int]], dtype: torch.dtype, device: str
) -> list[torch.Tensor]:
    """What transformers computes with its plainest attention: [tokens, vocabulary] a prompt, as float32."""
    loaded = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="eager")
    model = loaded.to(device).eval()
    with torch.no_grad():
        return [model(torch.tensor([prompt], device=device)).logits[0].float() for prompt in prompts]
