"""A backend on a CPU but for the decoder: the memory of attention, in its own layout, is that of the KV blocks."""

import hashlib
import platform
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from hotloop.backends.backend import Batch, HostMemory
from hotloop.backends.cpu.attention import BLOCK_SIZE, Attention, Kernel
from hotloop.backends.cpu.build import cpu_features
from hotloop.backends.host import HostCopy, HostFlight
from hotloop.core.errors import ConfigError
from hotloop.models.memory import num_states, split_kv, state_bytes
from hotloop.models.model import Model
from hotloop.models.rope import rotary_table

KV_VERSION = 1
"""Raise it whenever keys and values are computed or stored in another way: KV on disk is then made anew."""


def describe_kv(model: Model, *how: str) -> str:
    """What the bytes of a KV block depend on: the model's files, how they are computed, and what the CPU can do."""
    features = hashlib.sha256(" ".join(sorted(cpu_features())).encode()).hexdigest()[:12]
    return " ".join((model.fingerprint, f"v{KV_VERSION}", platform.machine(), features, *how))


class CpuBackend(ABC):
    """Computes a batch when it is waited for, and leaves the logits on the host."""

    depth = 1
    step_tokens = 512
    max_running = 64
    step_sizes: Sequence[int] = ()
    max_solo_prefill = 16.0
    block_size = BLOCK_SIZE
    host_memory: HostMemory | None = None
    num_states = state_bytes = 0
    num_window_blocks = window = 0

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
        self.vocab_size, self.max_context, self.kv_layout = spec.vocab_size, spec.max_context, kv_layout
        self.block_bytes = BLOCK_SIZE * token_bytes
        self.num_blocks = kv_bytes // self.block_bytes
        if self.num_blocks < 2:
            raise ConfigError(f"kv_memory does not hold two blocks of KV for {model.name}; give it more")
        angles = rotary_table(spec, min(self.max_context, self.num_blocks * BLOCK_SIZE))
        self._attention = kernel.create(replace(spec, num_layers=len(others)), self.num_blocks, angles)
        self._windowed: Attention | None = None
        if own:
            self._windowed = kernel.create(replace(spec, num_layers=len(own)), self.num_window_blocks, angles)
        self.places = {layer: (self._attention, i) for i, layer in enumerate(others)}
        """Of each layer with KV the attention that does it, and its number among the layers of that."""
        if self._windowed:
            self.places |= {layer: (self._windowed, i) for i, layer in enumerate(own)}
        for layer, place in self.places.items():
            self._set_up(*place, layer, model)

    def launch(self, batch: Batch) -> HostFlight:
        return HostFlight(lambda: self.run(batch))

    @abstractmethod
    def run(self, batch: Batch) -> NDArray[np.float32]:
        """Logits [logits, vocabulary], valid until the next call."""

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
        self.places.clear()
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
