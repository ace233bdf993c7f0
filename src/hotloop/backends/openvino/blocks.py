"""Backends whose attention is a kernel of ours: its memory, in its own layout, is that of the KV blocks."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from hotloop.backends.host import HostCopy
from hotloop.backends.openvino.attention import BLOCK_SIZE, Kernel
from hotloop.backends.openvino.store import CpuBackend
from hotloop.models.memory import kv_token_bytes, num_states, state_bytes
from hotloop.models.model import Model
from hotloop.models.rope import rotary_table


class KernelBackend(CpuBackend):
    def __init__(self, model: Model, kv_bytes: int, kernel: Kernel, *, kv_layout: str) -> None:
        spec, token_bytes = model.spec, kv_token_bytes(model.spec, kernel.item_bytes)
        if spec.linear:
            self.state_bytes = state_bytes(spec)
            self.num_states = num_states(spec, kv_bytes, kernel.item_bytes)
        super().__init__(model, kv_bytes - self.num_states * self.state_bytes, BLOCK_SIZE * token_bytes, kv_layout)
        angles = rotary_table(spec, min(self.max_context, self.num_blocks * BLOCK_SIZE))
        self._attention = kernel.create(replace(spec, num_layers=len(spec.kv_layers)), self.num_blocks, angles)
        for index, layer in enumerate(spec.kv_layers):
            self._set_up(index, layer, model)

    def read_blocks(self, block_ids: Sequence[int]) -> HostCopy:
        return HostCopy(self._attention.kv.take(np.array(block_ids), axis=1).reshape(-1).data)

    def write_blocks(self, block_ids: Sequence[int], data: memoryview) -> None:
        kv = self._attention.kv
        kv[:, np.array(block_ids)] = np.frombuffer(data, np.uint8).reshape(len(kv), len(block_ids), -1)

    def _set_up(self, index: int, layer: int, model: Model) -> None:
        """What attention has to know of a layer; `index` counts those with KV."""
        spec, name = model.spec, f"layers.{layer}."
        if spec.latent:
            up = model.weights.read(name + "kv_b").reshape(spec.num_heads, -1, spec.latent.kv_rank)
            up_keys, up_values = np.split(up, [spec.latent.nope_dim], axis=1)
            self._attention.set_latent(index, up_keys, up_values.transpose(0, 2, 1))
        if spec.has_qk_norm:
            self._attention.set_norms(index, *(model.weights.read(name + norm) for norm in ("q_norm", "k_norm")))
        window = spec.window(layer)
        if window:
            self._attention.set_window(index, window)
        if spec.has_sinks:
            self._attention.set_sinks(index, model.weights.read(name + "sinks"))
