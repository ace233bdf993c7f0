"""The weights of a layer of experts on the device: one tensor of all experts for each product."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

import torch

from hotloop.backends.cuda.quant.fp8 import ScaledMatrix
from hotloop.backends.cuda.quant.mxfp4 import Mxfp4Matrix
from hotloop.models.spec import ExpertsSpec

Matrices: TypeAlias = torch.Tensor | ScaledMatrix | Mxfp4Matrix


@dataclass(frozen=True, slots=True)
class ExpertWeights:
    """Of one layer. Matrices of all experts are below each other; those of the products may be in e4m3 or MXFP4."""

    router: torch.Tensor  # [experts, hidden]
    gate_up: Matrices  # [experts * 2 * size, hidden]: of each all of gate, then up
    down: Matrices  # [experts * hidden, size]
    router_bias: torch.Tensor | None = None  # [experts]
    gate_up_bias: torch.Tensor | None = None  # [experts * 2 * size]
    down_bias: torch.Tensor | None = None  # [experts * hidden]
    shared_gate_up: torch.Tensor | ScaledMatrix | None = None  # [2 * shared size, hidden]
    shared_down: torch.Tensor | ScaledMatrix | None = None  # [hidden, shared size]
    shared_router: torch.Tensor | None = None  # [1, hidden]

    def places(self, spec: ExpertsSpec) -> Iterator[tuple[str, Matrices]]:
        """Where each tensor goes, by its name in the layer."""
        yield "router", self.router
        if self.router_bias is not None:
            yield "router_bias", self.router_bias
        if self.shared_router is not None:
            yield "shared_router", self.shared_router
        if self.shared_gate_up is not None and self.shared_down is not None:
            gate, up = self.shared_gate_up.split([spec.shared_size] * 2)
            yield from (("shared_gate", gate), ("shared_up", up), ("shared_down", self.shared_down))
        for suffix, gate_up, down in (("", self.gate_up, self.down), ("_bias", self.gate_up_bias, self.down_bias)):
            if gate_up is not None and down is not None:
                halves = gate_up.split([spec.size] * (2 * spec.num_experts))
                downs = down.split([len(down) // spec.num_experts] * spec.num_experts)
                for i in range(spec.num_experts):
                    yield f"experts.{i}.gate{suffix}", halves[2 * i]
                    yield f"experts.{i}.up{suffix}", halves[2 * i + 1]
                    yield f"experts.{i}.down{suffix}", downs[i]
