"""The forward pass: a decoder over one ragged batch, written for one reader and one card.

The matrix products are in `linear`, with q, k and v and gate and up each in one; what a layer does across rows is in
`mixing`. Nothing here waits for the device, or depends on what a tensor holds, so a call can be captured in a CUDA
graph.
"""

import numpy as np
import torch

from hotloop.backends.cuda.attention.decode import Workspace, programs_to_fill
from hotloop.backends.cuda.attention.flash import Flash
from hotloop.backends.cuda.attention.hopper import can_attend, tiling_for
from hotloop.backends.cuda.attention.paged import PagedAttention
from hotloop.backends.cuda.attention.shared import tile_rows_for
from hotloop.backends.cuda.layers.experts import mix
from hotloop.backends.cuda.layers.kernels import add_norm, embed
from hotloop.backends.cuda.layers.layer_weights import DeviceWeights, LayerWeights
from hotloop.backends.cuda.layers.linear import gated, linear, logits
from hotloop.backends.cuda.layers.mixing.attention import Attention
from hotloop.backends.cuda.layers.mixing.deltas import DeltaNet
from hotloop.backends.cuda.layers.mixing.latents import LatentAttention
from hotloop.backends.cuda.layers.mixing.mixing import TokenMixer
from hotloop.backends.cuda.parallel.ranks import Group
from hotloop.backends.cuda.steps.groups import Sharing
from hotloop.backends.cuda.steps.splits import Splitting
from hotloop.backends.cuda.steps.step import Shape, Views
from hotloop.backends.cuda.steps.tiles import Tiling
from hotloop.models.rope import rotary_table
from hotloop.models.spec import ModelSpec

_NUM_PARTS = 4096  # of rows of a step that there is room for
_NUM_LATENT_PARTS = 2048  # the same, of parts that are several times as wide
MIN_SAVED_BYTES = 160 << 20  # of a layer's KV that sharing must save in a step, to be worth its launches: measured


def plans_for(
    spec: ModelSpec, kv: torch.Tensor, min_saved_bytes: int, flash: Flash | None
) -> tuple[Splitting, Sharing, Tiling | None]:
    num_parts = _NUM_LATENT_PARTS if spec.latent else _NUM_PARTS
    num_heads, per_sm = (1, 1) if spec.latent else (spec.num_kv_heads, 2)  # a tile of latents fills an SM
    num_programs = programs_to_fill(kv.device, num_heads, per_sm)
    sharing = Sharing(
        block_size=kv.shape[4],
        tile_rows=tile_rows_for(spec.num_heads, spec.num_kv_heads),
        num_programs=num_programs,
        min_saved=-(-min_saved_bytes // (kv.shape[1] * kv[0, 0, 0].nbytes)),
        split_rows=num_parts,
    )
    is_tiled = flash is None and not spec.latent and can_attend(kv)
    tiling = tiling_for(spec.num_heads, spec.num_kv_heads, kv.device) if is_tiled else None
    return Splitting(kv.shape[4], num_programs, num_parts), sharing, tiling


def workspace_for(spec: ModelSpec, device: torch.device) -> Workspace:
    num_parts = _NUM_LATENT_PARTS if spec.latent else _NUM_PARTS
    found_dim = spec.latent.kv_rank if spec.latent else spec.head_dim
    return Workspace.allocate(num_parts, spec.num_heads, found_dim, device)


class Decoder:
    """The weights, the KV cache [layers that have any, keys and values, blocks, kv heads, block size, head dim], the
    recurrent states of a hybrid, and a workspace. Of latents the cache is [layers, 1, blocks, 1, block size, latent and
    rotary key].

    Of several ranks each has its share of them, and adds what it finds to what the others find.
    """

    def __init__(
        self,
        spec: ModelSpec,
        weights: DeviceWeights,
        kv: torch.Tensor,
        group: Group,
        flash: Flash | None = None,
        min_saved_bytes: int = MIN_SAVED_BYTES,
        num_states: int = 0,
        window_kv: torch.Tensor | None = None,
    ) -> None:
        self.spec = spec
        self._group = group
        self.kv = kv
        self.flash = flash
        self._weights = weights
        self._dtype = weights.embed.dtype
        self._device = weights.embed.device
        self.splitting, self.sharing, self.tiling = plans_for(spec, kv, min_saved_bytes, flash)
        self.deltas: DeltaNet | None = None
        if spec.linear:
            self.deltas = DeltaNet(spec.linear, spec.rms_eps, num_states, self._dtype, self._device)
        attention = self._make_attention(window_kv)
        kinds: list[TokenMixer] = [
            self.deltas if self.deltas and layer.linear else attention for layer in weights.layers
        ]
        self._mixings = [(kind, kinds[:i].count(kind)) for i, kind in enumerate(kinds)]  # and which of them a layer is

    def _make_attention(self, window_kv: torch.Tensor | None) -> TokenMixer:
        spec, kv = self.spec, self.kv
        num_positions = min(spec.max_context, kv.shape[2] * kv.shape[4])
        cos_sin = torch.from_numpy(rotary_table(spec, num_positions).astype(np.float32)).to(self._device)
        workspace = workspace_for(spec, self._device)
        if spec.latent:
            return LatentAttention(spec.latent, spec.num_heads, kv, cos_sin, workspace, self._dtype)
        windows = [spec.window(layer) for layer in spec.kv_layers]
        paged = PagedAttention(kv, windows, workspace, self.flash, window_kv, self.tiling)
        return Attention(spec, paged, cos_sin, self._dtype)

    def forward(self, step: Views, chosen: torch.Tensor, shape: Shape) -> torch.Tensor:
        """What the rows with logits come to [logits, hidden], after the KV of every row went into its block."""
        residual = self._empty(len(step.slots), self.spec.hidden_size)
        normed = torch.empty_like(residual)
        embed(step.token_ids, step.sources, chosen, self._weights.embed, residual)
        added = None
        buffers = {mixing: mixing.buffers(shape) for mixing in dict.fromkeys(kind for kind, _ in self._mixings)}
        counts = self._no_counts()
        for layer, (mixing, index), count in zip(self._weights.layers, self._mixings, counts, strict=True):
            add_norm(added, residual, layer.attn_norm, self.spec.rms_eps, normed)
            mixed = self._group.all_reduce(mixing.mix(index, layer, normed, step, shape, buffers[mixing]))
            add_norm(mixed, residual, layer.mlp_norm, self.spec.rms_eps, normed)
            added = self._group.all_reduce(self._mlp(layer, normed, step.slots, count))
        assert added is not None
        residual, added = (torch.index_select(each, 0, step.logit_rows) for each in (residual, added))
        return add_norm(added, residual, self._weights.final_norm, self.spec.rms_eps, torch.empty_like(residual))

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[logits, vocabulary] in float32."""
        return self._group.gather_columns(logits(hidden, self._weights.head), self.spec.vocab_size)

    def _mlp(self, layer: LayerWeights, x: torch.Tensor, slots: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
        if layer.experts and self.spec.experts:
            return mix(x, layer.experts, self.spec.experts, slots, counts)
        assert layer.gate_up is not None
        assert layer.down is not None
        return linear(gated(x, layer.gate_up), layer.down)

    def _no_counts(self) -> torch.Tensor:
        """[layers, experts]: how many rows went to each so far."""
        num_experts = self.spec.experts.num_experts if self.spec.experts else 0
        return torch.zeros(self.spec.num_layers, num_experts, dtype=torch.int32, device=self._device)

    def _empty(self, *shape: int) -> torch.Tensor:
        return torch.empty(shape, dtype=self._dtype, device=self._device)
