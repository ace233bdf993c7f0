"""What every kind of mixing has in common."""

from typing import Protocol

import torch

from hotloop.backends.cuda.layers.layer_weights import LayerWeights
from hotloop.backends.cuda.steps.step import Shape, Views

Buffers = tuple[torch.Tensor, ...]


class TokenMixer(Protocol):
    """The layers of one kind, which number themselves; their caches or states are in here."""

    def buffers(self, shape: Shape) -> Buffers:
        """What a step works in, the same for all layers. Rows that pad are zeros, and stay so."""

    def mix(
        self, index: int, layer: LayerWeights, x: torch.Tensor, step: Views, shape: Shape, buffers: Buffers
    ) -> torch.Tensor:
        """[rows, hidden] of x [rows, hidden], after what every row leaves behind went into its place."""
