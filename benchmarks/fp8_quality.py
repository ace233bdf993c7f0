"""What fp8 costs a real model: perplexity over text, and how often the likeliest token is another one.

`python -m benchmarks.fp8_quality [--model smollm2-135m] [FILE ...]`, without a card if need be: the model's own
weights, loaded as the CUDA backend loads them, in plain PyTorch that rounds wherever the backend rounds. A position has
all those before it in its window to go by. The text is this repository's documentation if no file is named.
"""

import argparse
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from hotloop.backends.cuda.fp8 import E4M3, ScaledMatrix, quantise
from hotloop.backends.cuda.int4 import Int4Matrix
from hotloop.backends.cuda.layer_weights import DeviceWeights, LayerWeights
from hotloop.backends.cuda.linear import Matrix
from hotloop.backends.cuda.weights import load_weights
from hotloop.core.config import DEFAULT_MODEL
from hotloop.models.model import Model, load_model
from hotloop.models.rope import rotary_table
from hotloop.models.spec import ModelSpec

_DOCS = Path(__file__).parents[1] / "docs"


@dataclass(frozen=True, slots=True)
class Variant:
    """What is held in eight bits."""

    name: str
    has_weights: bool = False
    has_inputs: bool = False
    """Of the products with those, as where there are more than two rows."""
    head_type: torch.dtype | None = None
    has_kv: bool = False
    kv_scale: float | None = None
    """One for all, instead of what follows from the weights."""


VARIANTS = (
    Variant("bf16"),
    Variant("fp8 KV", has_kv=True),
    Variant("fp8 KV, all scales 1", has_kv=True, kv_scale=1.0),
    Variant("fp8 layers, up to two rows", has_weights=True),
    Variant("+ head in e4m3", has_weights=True, head_type=E4M3),
    Variant("+ head", has_weights=True, head_type=torch.int8),
    Variant("+ KV", has_weights=True, head_type=torch.int8, has_kv=True),
    Variant("fp8 layers, more rows", has_weights=True, has_inputs=True),
    Variant("+ head, more rows", has_weights=True, has_inputs=True, head_type=torch.int8),
    Variant("+ KV, more rows", has_weights=True, has_inputs=True, head_type=torch.int8, has_kv=True),
)


def bf16(x: Tensor) -> Tensor:
    return x.bfloat16().float()


class Emulation:
    """The forward pass of one sequence."""

    def __init__(self, spec: ModelSpec, weights: DeviceWeights, head: Tensor, variant: Variant) -> None:
        self._spec, self._weights, self._variant = spec, weights, variant
        self._head: Tensor | ScaledMatrix = head
        if variant.head_type:
            self._head = quantise(head, ScaledMatrix.empty(len(head), head.shape[1], head.device, variant.head_type))

    def logits(self, token_ids: Tensor) -> Tensor:
        """[positions, vocabulary]"""
        spec = self._spec
        angles = torch.from_numpy(rotary_table(spec, len(token_ids))).to(token_ids.device)
        x = self._weights.embed[token_ids].float()
        for layer in self._weights.layers:
            mixed = self._attend(layer, self._norm(x, layer.attn_norm), angles)
            x = bf16(x + bf16(self._product(mixed, layer.o)))
            gate, up = self._product(self._norm(x, layer.mlp_norm), layer.gate_up).chunk(2, -1)
            x = bf16(x + bf16(self._product(bf16(functional.silu(gate) * up), layer.down)))
        return self._product(self._norm(x, self._weights.final_norm), self._head)

    def _attend(self, layer: LayerWeights, x: Tensor, angles: Tensor) -> Tensor:
        spec, variant = self._spec, self._variant
        qkv = self._product(x, layer.qkv)
        if layer.qkv_bias is not None:
            qkv = qkv + layer.qkv_bias.float()
        heads = bf16(qkv).view(len(x), -1, spec.head_dim).transpose(0, 1)
        q, k, v = heads.split((spec.num_heads, spec.num_kv_heads, spec.num_kv_heads))
        if layer.q_norm is not None and layer.k_norm is not None:
            q, k = self._norm(q, layer.q_norm), self._norm(k, layer.k_norm)
        q, k = bf16(_rotated(q, angles)), _rotated(k, angles)
        if variant.has_kv and layer.kv_scales is not None:
            scales = layer.kv_scales if variant.kv_scale is None else torch.full_like(layer.kv_scales, variant.kv_scale)
            k, v = (_through_e4m3(*each) for each in zip((k, v), scales.chunk(2), strict=True))
        q, k, v = (each.repeat_interleave(spec.num_heads // len(each), 0) for each in (q, bf16(k), bf16(v)))
        mixed = functional.scaled_dot_product_attention(q[None], k[None], v[None], is_causal=True)[0]
        return bf16(mixed.transpose(0, 1).reshape(len(x), -1))

    def _norm(self, x: Tensor, weight: Tensor) -> Tensor:
        return bf16(functional.rms_norm(x, weight.shape, weight.float(), self._spec.rms_eps))

    def _product(self, x: Tensor, weight: Matrix) -> Tensor:
        assert not isinstance(weight, Int4Matrix)
        if isinstance(weight, ScaledMatrix):
            is_rounded = self._variant.has_inputs and weight.values.dtype == E4M3
            return (quantise(x).widened() if is_rounded else x) @ weight.widened().t()
        return x @ weight.float().t()


def _rotated(x: Tensor, angles: Tensor) -> Tensor:
    """[heads, positions, head_dim]"""
    (a, b), (cos, sin) = x.chunk(2, -1), angles.chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


def _through_e4m3(x: Tensor, scales: Tensor) -> Tensor:
    """[heads, positions, head_dim], a scale for each head. What is too large becomes the largest, as on a card."""
    scale = scales[:, None, None]
    return (x / scale).clamp(-448, 448).to(E4M3).float() * scale


def windows(model: Model, paths: Sequence[Path], size: int, count: int) -> Iterator[Tensor]:
    """Of the text's tokens, one after another."""
    token_ids = model.tokenizer.encode("\n\n".join(path.read_text() for path in paths))
    for begin in range(0, min(count, len(token_ids) // size) * size, size):
        yield torch.tensor(token_ids[begin : begin + size])


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fp8_quality")
    parser.add_argument("files", nargs="*", type=Path, default=sorted(_DOCS.glob("*.md")))
    parser.add_argument("--model", default=DEFAULT_MODEL)
    parser.add_argument("--window", type=int, default=1024, help="tokens that are read together")
    parser.add_argument("--windows", type=int, default=6)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    asked = parser.parse_args()
    model = load_model(asked.model)
    loaded = {
        is_fp8: load_weights(model, asked.device, torch.bfloat16, is_fp8=is_fp8, has_fp8_kv=True)
        for is_fp8 in (False, True)
    }
    texts = [text.to(asked.device) for text in windows(model, asked.files, asked.window, asked.windows)]
    bf16_head = loaded[False].head
    assert isinstance(bf16_head, Tensor)
    wanted: list[Tensor] = []
    print(f"{model.name}, {len(texts)} x {asked.window} tokens\n{'':28}perplexity  other top token  KL, nats")
    for variant in VARIANTS:
        emulation = Emulation(model.spec, loaded[variant.has_weights], bf16_head, variant)
        lost, num_other, divergence = 0.0, 0, 0.0
        for i, text in enumerate(texts):
            with torch.inference_mode():
                found = emulation.logits(text).log_softmax(-1)[:-1]
            if variant == VARIANTS[0]:
                wanted.append(found)
            lost -= float(found.gather(1, text[1:, None]).sum())
            num_other += int((found.argmax(-1) != wanted[i].argmax(-1)).sum())
            divergence += float(functional.kl_div(found, wanted[i], reduction="sum", log_target=True))
        count = sum(len(text) - 1 for text in texts)
        perplexity, other = math.exp(lost / count), num_other / count
        print(f"{variant.name:28}{perplexity:10.3f}{other:17.2%}{divergence / count:10.4f}", flush=True)


if __name__ == "__main__":
    main()
