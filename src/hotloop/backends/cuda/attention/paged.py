"""Attention of a step over the paged KV cache: which kernel does which of its rows, whoever made the queries."""

from collections.abc import Sequence

import torch

from hotloop.backends.cuda.attention.decode import Workspace, decode_attention
from hotloop.backends.cuda.attention.flash import Flash
from hotloop.backends.cuda.attention.hopper import chunk_attention
from hotloop.backends.cuda.attention.prefill import prefill_attention
from hotloop.backends.cuda.attention.shared import shared_attention
from hotloop.backends.cuda.steps.step import Shape, Views
from hotloop.backends.cuda.steps.tiles import Tiling


class PagedAttention:
    """Over a cache [layers, keys and values, blocks, kv heads, block size, head dim]. Layers with a window may have one
    of their own, of other blocks.
    """

    def __init__(
        self,
        kv: torch.Tensor,
        windows: Sequence[int | None],
        workspace: Workspace,
        flash: Flash | None,
        window_kv: torch.Tensor | None = None,
        tiling: Tiling | None = None,
    ) -> None:
        self._windows, self._workspace, self._flash, self._tiling = windows, workspace, flash, tiling
        self._has_own = [window_kv is not None and window is not None for window in windows]
        own, others = iter(() if window_kv is None else window_kv), iter(kv)
        self._layers = [next(own if has_own else others) for has_own in self._has_own]

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
        sinks: torch.Tensor | None,
        kv_scales: torch.Tensor | None = None,
    ) -> None:
        """From q into `out`, both [rows, heads, head_dim], once keys and values of these rows are in their blocks."""
        kv, window = self._layers[layer], self._windows[layer]
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
        if self._flash and long and window is None and sinks is None:
            self._flash.attend(
                q, kv[0], kv[1], step.row_begins[short + 1 :], step.lens[short:], step.table, out,
                max_rows=shape.max_long_rows, scale=scale,
            )  # fmt: skip
        elif self._tiling and long and window is None and sinks is None:
            chunk_attention(q, kv[0], kv[1], step.block_ids, step.tiles, out, tiling=self._tiling, scale=scale)
        elif long:
            prefill_attention(
                q, kv[0], kv[1], step.row_begins[short + 1 :], step.lens[short:], step.block_ids,
                block_begins[short:], out, num_sequences=long, max_rows=shape.max_long_rows, scale=scale,
                kv_scales=kv_scales, window=window, sinks=sinks,
            )  # fmt: skip
