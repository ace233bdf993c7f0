"""The forward pass of an architecture that is not ours: transformers' modules and weights, our paged attention.

What its modules hand to the `AttentionInterface` comes here, a layer at a time: keys and values go into their blocks,
and rows attend as those of our own models do. Nothing is fused and nothing captured in a CUDA graph, so a step that
decodes takes as long as launching its kernels one by one.
"""

from functools import partial
from typing import Any
from weakref import ref

import torch
import transformers
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from hotloop.backends.cuda.attention.flash import Flash
from hotloop.backends.cuda.attention.paged import PagedAttention
from hotloop.backends.cuda.decoder import plans_for, workspace_for
from hotloop.backends.cuda.layers.linear import logits
from hotloop.backends.cuda.steps.step import Shape, Views
from hotloop.models.dummy import DummyWeights
from hotloop.models.model import Model
from hotloop.models.modeling import read_config


class ModelingDecoder:
    """A model that transformers built, and the KV cache."""

    def __init__(
        self,
        model: Model,
        dtype: torch.dtype,
        kv: torch.Tensor,
        flash: Flash | None,
        min_saved_bytes: int,
        window_kv: torch.Tensor | None = None,
    ) -> None:
        spec = self._spec = model.spec
        self.kv, self.flash = kv, flash
        self.splitting, self.sharing, self.tiling = plans_for(spec, kv, min_saved_bytes, flash)
        windows = [spec.window(layer) for layer in range(spec.num_layers)]
        self._paged = PagedAttention(kv, windows, workspace_for(spec, kv.device), flash, window_kv, self.tiling)
        name, own = f"hotloop_{id(self)}", ref(self)  # what is registered there stays, and holds nothing
        ALL_ATTENTION_FUNCTIONS.register(name, lambda *inputs, **named: own()._attend(*inputs, **named))  # type: ignore[union-attr]
        self._module = _load(model, kv.device, dtype, name).eval().requires_grad_(False)
        head = self._module.get_output_embeddings()
        head.forward = partial(_float_logits, head.weight, head.bias)
        self._step: tuple[Views, Shape] | None = None

    def forward(self, step: Views, chosen: torch.Tensor, shape: Shape) -> torch.Tensor:
        """[logits, vocabulary], after the KV of every row went into its block."""
        self._step = step, shape
        known = torch.where(step.sources < 0, step.token_ids, chosen[step.sources.clamp(min=0)])
        out = self._module(
            input_ids=known.long()[None],
            position_ids=step.positions.long()[None],
            use_cache=False,
            logits_to_keep=step.logit_rows.long(),
        )
        self._step = None
        found: torch.Tensor = out.logits[0].float()
        return found

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """They are there already."""
        return hidden

    def _attend(
        self,
        module: torch.nn.Module,
        query: torch.Tensor,  # [1, heads, rows, head_dim]
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None,
        scaling: float | None = None,
        s_aux: torch.Tensor | None = None,
        **others: Any,
    ) -> tuple[torch.Tensor, None]:
        assert self._step is not None
        step, shape = self._step
        layer: int = module.layer_idx
        kv, slots = self._paged.place(step, layer)
        block_size = self.splitting.block_size
        for cache, new in zip(kv, (key, value), strict=True):
            cache[slots // block_size, :, slots % block_size] = new[0].transpose(0, 1)
        q = query[0].transpose(0, 1).contiguous()
        out = torch.zeros_like(q)
        scale = self._spec.head_dim**-0.5 if scaling is None else float(scaling)
        self._paged.attend(step, shape, layer, q, out, scale=scale, sinks=s_aux)
        return out[None], None


def _load(model: Model, device: torch.device, dtype: torch.dtype, attention: str) -> Any:
    """transformers reads the files, or makes up weights. Experts in float32 have no kernel but the plain one."""
    transformers.utils.logging.disable_progress_bar()
    auto, config = transformers.AutoModelForCausalLM, read_config(model.path)
    how = {"dtype": dtype, "attn_implementation": attention}
    with torch.device(device):
        if isinstance(model.weights, DummyWeights):
            module = auto.from_config(config, **how)
        else:
            module = auto.from_pretrained(model.path, config=config, **how)
    if dtype == torch.float32 and hasattr(module, "set_experts_implementation"):
        module.set_experts_implementation("eager")
    return module


def _float_logits(weight: torch.Tensor, bias: torch.Tensor | None, x: torch.Tensor) -> torch.Tensor:
    """In float32: rounded to bf16 many tokens would be equally likely."""
    found = logits(x.reshape(-1, x.shape[-1]), weight)
    return (found if bias is None else found + bias.float()).view(*x.shape[:-1], -1)
