"""The weights of a layer of linear attention on the device."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from hotloop.backends.cuda.layers.linear import Matrix
from hotloop.models.spec import LinearSpec


@dataclass(frozen=True, slots=True)
class LinearWeights:
    """Of one layer. What says how much fades and how much is written is never in e4m3."""

    qkvz: Matrix  # [queries | keys | values | gates, hidden]
    rates: torch.Tensor  # [value heads of b | of a, hidden]
    taps: torch.Tensor  # [channels, width]
    a_log: torch.Tensor  # [value heads] float32
    dt_bias: torch.Tensor  # [value heads] float32
    norm: torch.Tensor  # [value_dim] float32
    o: Matrix  # [hidden, values]

    def places(self, spec: LinearSpec) -> Iterator[tuple[str, Matrix]]:
        """Where each tensor goes, by its name in the layer."""
        qkv, z = self.qkvz.split([spec.conv_size, spec.value_size])
        b, a = self.rates.split([spec.num_value_heads] * 2)
        yield from (("linear_qkv", qkv), ("linear_z", z), ("linear_b", b), ("linear_a", a), ("linear_conv", self.taps))
        yield from (("linear_a_log", self.a_log), ("linear_dt_bias", self.dt_bias), ("linear_norm", self.norm))
        yield "linear_o", self.o
