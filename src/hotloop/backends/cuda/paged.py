"""Attention of a step over the paged KV cache: which kernel does which of its rows."""

import torch

from hotloop.backends.cuda.attention import Workspace, decode_attention, programs_to_fill
from hotloop.backends.cuda.flash import Flash
from hotloop.backends.cuda.groups import Sharing
from hotloop.backends.cuda.prefill import prefill_attention
from hotloop.backends.cuda.shared import shared_attention, tile_rows_for
from hotloop.backends.cuda.splits import Splitting
from hotloop.backends.cuda.step import Shape, Views
from hotloop.models.spec import ModelSpec

_NUM_PARTS = 4096  # of rows of a step that there is room for
MIN_SAVED_BYTES = 160 << 20  # of a layer's KV that sharing must save in a step, to be worth its launches: measured


class PagedAttention:
    """The KV cache [layers, keys and values, blocks, kv heads, block size, head dim], and a workspace.

    Layers with a window may have one of their own, of other blocks.
    """

    def __init__(
        self,
        spec: ModelSpec,
        kv: torch.Tensor,
        flash: Flash | None,
        min_saved_bytes: int,
        window_kv: torch.Tensor | None = None,
    ) -> None:
        self.kv, self.flash = kv, flash
        self._has_own = [window_kv is not None and spec.window(i) is not None for i in range(spec.num_layers)]
        own, others = iter(() if window_kv is None else window_kv), iter(kv)
        self._layers = [next(own if has_own else others) for has_own in self._has_own]
        self._workspace = Workspace.allocate(_NUM_PARTS, spec.num_heads, spec.head_dim, kv.device)
        num_programs = programs_to_fill(kv.device, spec.num_kv_heads)
        self.splitting = Splitting(kv.shape[4], num_programs, _NUM_PARTS)
        self.sharing = Sharing(
            block_size=kv.shape[4],
            tile_rows=tile_rows_for(spec.num_heads, spec.num_kv_heads),
            num_programs=num_programs,
            min_saved=-(-min_saved_bytes // (2 * kv[0, 0, 0].nbytes)),
            split_rows=_NUM_PARTS,
        )

    def place(self, step: Views, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The cache of a layer, and where in it each row goes."""
        return self._layers[layer], step.window_slots if self._has_own[layer] else step.slots

    def attend(
        self,
        step: Views,
        shape: Shape,
        layer: int,
        q: torch.Tensor,
        out: torch.Tensor,
        *,
        scale: float,
        window: int | None,
        sinks: torch.Tensor | None,
        kv_scales: torch.Tensor | None = None,
    ) -> None:
        """From q into `out`, both [rows, heads, head_dim], once keys and values of these rows are in their blocks."""
        kv = self._layers[layer]
        block_begins = step.window_begins if self._has_own[layer] else step.block_begins
        short, long = shape.num_short, shape.num_long
        short_q = q[: shape.num_short_rows]
        if shape.num_items and window is None:  # what sequences share comes first
            shared_attention(
                short_q, kv[0], kv[1], step.block_ids, step.folded, step.items, step.part_begins, self._workspace,
                scale=scale, kv_scales=kv_scales,
            )  # fmt: skip
        if short:
            decode_attention(
                short_q, kv[0], kv[1], step.row_begins, step.lens[:short], step.block_ids, block_begins,
                step.splits, step.part_begins, out, self._workspace, max_rows=shape.max_short_rows,
                usual_rows=shape.usual_rows, scale=scale, kv_scales=kv_scales, window=window, sinks=sinks,
            )  # fmt: skip
        if self.flash and long and window is None and sinks is None:
            self.flash.attend(
                q, kv[0], kv[1], step.row_begins[short + 1 :], step.lens[short:], step.table, out,
                max_rows=shape.max_long_rows, scale=scale,
            )  # fmt: skip
        elif long:
            prefill_attention(
                q, kv[0], kv[1], step.row_begins[short + 1 :], step.lens[short:], step.block_ids,
                block_begins[short:], out, num_sequences=long, max_rows=shape.max_long_rows, scale=scale,
                kv_scales=kv_scales, window=window, sinks=sinks,
            )  # fmt: skip
