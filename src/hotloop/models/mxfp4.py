"""gpt-oss's experts as they are published: those of a layer in one tensor, gate and up in turns, in MXFP4 or in floats.

    MXFP4   blocks [experts, out, groups, 16], two numbers a byte, the first in the low half
            scales [experts, out, groups]
    floats  [experts, in, out]

A number of MXFP4 is one of sixteen, times a power of two that 32 neighbours of a row have in common.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hotloop.models.spec import FileTensor, ModelSpec, Stored

_GROUP = 32
_BIAS = 127  # of a scale's exponent
_VALUES = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)


def is_mxfp4(config: Mapping[str, Any]) -> bool:
    said = config.get("quantization_config")
    return isinstance(said, dict) and said.get("quant_method") == "mxfp4" and config.get("model_type") == "gpt_oss"


class FusedExperts:
    """The experts' tensors of a folder, by our names."""

    def __init__(self, spec: ModelSpec, located: Mapping[str, FileTensor]) -> None:
        assert spec.experts
        self._spec, self._experts, self._located = spec, spec.experts, located
        self._is_packed = "model.layers.0.mlp.experts.gate_up_proj_blocks" in located
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
        return _stored(widen_mxfp4(blocks[rows], scales[rows]))

    def _numbers(self, name: str, expert: int) -> NDArray[np.float32]:
        stored = self._located[name].stored()
        return Stored(stored.data[expert], stored.kind, stored.shape[1:]).floats()


def widen_mxfp4(blocks: NDArray[np.uint8], scales: NDArray[np.uint8]) -> NDArray[np.float32]:
    """[out, in] of blocks [out, groups, 16] and scales [out, groups]."""
    pairs = np.stack([_VALUES[blocks & 15], _VALUES[blocks >> 4]], axis=-1)
    groups = pairs.reshape(*scales.shape, _GROUP)
    widened: NDArray[np.float32] = np.ldexp(groups, scales.astype(np.int32)[..., None] - _BIAS)
    return widened.reshape(len(scales), -1)


def _stored(numbers: NDArray[np.float32]) -> Stored:
    numbers = np.ascontiguousarray(numbers, np.float32)
    return Stored(numbers.view(np.uint8), "F32", numbers.shape)
