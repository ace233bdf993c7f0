"""gpt-oss's experts as they are published: those of a layer in one tensor, gate and up in turns, in MXFP4 or in floats.

    MXFP4   blocks [experts, out, groups, 16], two numbers a byte, the first in the low half
            scales [experts, out, groups]
    floats  [experts, in, out]

A number of MXFP4 is one of sixteen, times a power of two that 32 neighbours have in common. Rows are handed on as
GGML has them, a group after the other: its scale, then 16 bytes of which the low halves come first.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hotloop.models.spec import FileTensor, ModelSpec, Stored

_GROUP = 32


def is_mxfp4(config: Mapping[str, Any]) -> bool:
    said = config.get("quantization_config")
    return isinstance(said, dict) and said.get("quant_method") == "mxfp4" and config.get("model_type") == "gpt_oss"


class FusedExperts:
    """The experts' tensors of a folder, by our names."""

    def __init__(self, spec: ModelSpec, located: Mapping[str, FileTensor]) -> None:
        assert spec.experts
        self._spec, self._experts, self._located = spec, spec.experts, located
        self._is_packed = spec.experts.is_mxfp4
        self.packed_names = frozenset(name for name in self.wanted() if name.endswith(("_blocks", "_scales")))

    def wanted(self) -> dict[str, tuple[int, ...]]:
        """What the files call them, and the shapes they must have."""
        hidden, size, count = self._spec.hidden_size, self._experts.size, self._experts.num_experts
        wanted: dict[str, tuple[int, ...]] = {}
        for layer in range(self._spec.num_layers):
            for part, num_out, num_in in (("gate_up_proj", 2 * size, hidden), ("down_proj", hidden, size)):
                name = f"model.layers.{layer}.mlp.experts.{part}"
                wanted[f"{name}_bias"] = count, num_out
                if self._is_packed:
                    wanted[f"{name}_blocks"] = count, num_out, num_in // _GROUP, _GROUP // 2
                    wanted[f"{name}_scales"] = count, num_out, num_in // _GROUP
                else:
                    wanted[name] = count, num_in, num_out
        return wanted

    def stored(self, name: str) -> Stored:
        """layers.N.experts.M.PART"""
        _, layer, _, expert, part = name.split(".")
        kind = part.removesuffix("_bias")
        rows = {"gate": slice(0, None, 2), "up": slice(1, None, 2)}.get(kind, slice(None))
        fused = f"model.layers.{layer}.mlp.experts.{'down' if kind == 'down' else 'gate_up'}_proj"
        if part.endswith("_bias"):
            return _stored(self._numbers(f"{fused}_bias", int(expert))[rows])
        if not self._is_packed:
            return _stored(self._numbers(fused, int(expert)).T[rows])
        blocks, scales = (self._located[f"{fused}_{each}"].stored().data[int(expert)] for each in ("blocks", "scales"))
        return _regrouped(blocks[rows], scales[rows])

    def _numbers(self, name: str, expert: int) -> NDArray[np.float32]:
        stored = self._located[name].stored()
        return Stored(stored.data[expert], stored.kind, stored.shape[1:]).floats()


def _regrouped(blocks: NDArray[np.uint8], scales: NDArray[np.uint8]) -> Stored:
    """From blocks [rows, groups, 16], whose bytes hold neighbours, and scales [rows, groups]."""
    codes = np.stack([blocks & 15, blocks >> 4], axis=-1).reshape(*scales.shape, 2, _GROUP // 2)
    values = codes[..., 0, :] | (codes[..., 1, :] << 4)
    rows = np.concatenate([scales[..., None], values], axis=-1)
    return Stored(rows.reshape(len(rows), -1), "MXFP4", (len(rows), scales.shape[1] * _GROUP))


def _stored(numbers: NDArray[np.float32]) -> Stored:
    numbers = np.ascontiguousarray(numbers, np.float32)
    return Stored(numbers.view(np.uint8), "F32", numbers.shape)
