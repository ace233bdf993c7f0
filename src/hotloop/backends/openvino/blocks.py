"""Backends whose attention is a kernel of ours: its memory, in its own layout, is that of the KV blocks."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from hotloop.backends.backend import Batch
from hotloop.backends.host import HostCopy
from hotloop.backends.openvino.attention import BLOCK_SIZE, Attention, Kernel
from hotloop.backends.openvino.store import CpuBackend
from hotloop.models.memory import num_states, split_kv, state_bytes
from hotloop.models.model import Model
from hotloop.models.rope import rotary_table


class KernelBackend(CpuBackend):
    def __init__(
        self, model: Model, kv_bytes: int, kernel: Kernel, *, kv_layout: str, drops_windows: bool = False
    ) -> None:
        spec, token_bytes = model.spec, kernel.token_bytes(model.spec)
        if spec.linear:
            self.state_bytes = state_bytes(spec)
            self.num_states = num_states(spec, kv_bytes, kernel.item_bytes, kernel.scale_bytes)
        kv_bytes -= self.num_states * self.state_bytes
        if drops_windows:
            items = kernel.item_bytes, BLOCK_SIZE, self.step_tokens, kernel.scale_bytes
            num_blocks, self.num_window_blocks = split_kv(spec, kv_bytes, *items)
        own = [layer for layer in spec.kv_layers if self.num_window_blocks and spec.window(layer)]
        others = [layer for layer in spec.kv_layers if layer not in own]
        if own:
            self.window = max(window for window in spec.windows if window)
            token_bytes = token_bytes * len(others) // len(spec.kv_layers)
            kv_bytes = num_blocks * BLOCK_SIZE * token_bytes
        super().__init__(model, kv_bytes, BLOCK_SIZE * token_bytes, kv_layout)
        angles = rotary_table(spec, min(self.max_context, self.num_blocks * BLOCK_SIZE))
        self._attention = kernel.create(replace(spec, num_layers=len(others)), self.num_blocks, angles)
        self._windowed: Attention | None = None
        if own:
            self._windowed = kernel.create(replace(spec, num_layers=len(own)), self.num_window_blocks, angles)
        parts = [(self._attention, others), *([(self._windowed, own)] if self._windowed else [])]
        places = {layer: (part, i) for part, layers in parts for i, layer in enumerate(layers)}
        self._places = [places[layer] for layer in spec.kv_layers]
        for place, layer in zip(self._places, spec.kv_layers, strict=True):
            self._set_up(*place, layer, model)

    def plan(self, batch: Batch) -> None:
        """Tell attention whose tokens come next, and where their KV lies."""
        self._attention.plan(batch)
        if self._windowed:
            ids = batch.block_ids if batch.window_ids is None else batch.window_ids
            self._windowed.plan(replace(batch, block_ids=ids))

    def read_blocks(self, block_ids: Sequence[int]) -> HostCopy:
        return HostCopy(self._attention.kv.take(np.array(block_ids), axis=1).reshape(-1).data)

    def write_blocks(self, block_ids: Sequence[int], data: memoryview) -> None:
        kv = self._attention.kv
        kv[:, np.array(block_ids)] = np.frombuffer(data, np.uint8).reshape(len(kv), len(block_ids), -1)

    def close(self) -> None:
        self._places.clear()
        for attention in (self._attention, self._windowed):
            if attention:
                attention.close()

    def _set_up(self, attention: Attention, index: int, layer: int, model: Model) -> None:
        """What attention has to know of a layer, which is number `index` of those it does."""
        spec, name = model.spec, f"layers.{layer}."
        if spec.latent:
            up = model.weights.read(name + "kv_b").reshape(spec.num_heads, -1, spec.latent.kv_rank)
            up_keys, up_values = np.split(up, [spec.latent.nope_dim], axis=1)
            attention.set_latent(index, up_keys, up_values.transpose(0, 2, 1))
        if spec.has_qk_norm:
            attention.set_norms(index, *(model.weights.read(name + norm) for norm in ("q_norm", "k_norm")))
        window = spec.window(layer)
        if window:
            attention.set_window(index, window)
        if spec.has_sinks:
            attention.set_sinks(index, model.weights.read(name + "sinks"))
