"""Linear attention by the gated delta rule, and the recurrent states that it carries on.

A slot holds the state of one sequence at one place: for each layer the last inputs of the convolution, and for each
value head a memory. A step says for each sequence which slot it reads and which it writes; nothing else is copied.
"""

import torch

from hotloop.backends.cuda.layers.delta.chunks import CHUNK, recur_chunks
from hotloop.backends.cuda.layers.delta.convolution import convolve
from hotloop.backends.cuda.layers.delta.recurrence import recur
from hotloop.backends.cuda.layers.layer_weights import LayerWeights
from hotloop.backends.cuda.layers.linear import linear
from hotloop.backends.cuda.layers.mixing.mixing import Buffers
from hotloop.backends.cuda.steps.step import Shape, Views
from hotloop.models.spec import LinearSpec


class DeltaNet:
    """The states of all slots."""

    def __init__(self, spec: LinearSpec, eps: float, num_slots: int, dtype: torch.dtype, device: torch.device) -> None:
        self._spec, self._eps, self._dtype = spec, eps, dtype
        count, heads = len(spec.layers), spec.num_value_heads
        self.num_slots = num_slots
        self.inputs = torch.zeros(count, num_slots, spec.conv_width - 1, spec.conv_size, device=device)
        self.memories = torch.zeros(count, num_slots, heads, spec.key_dim, spec.value_dim, device=device)
        self.state_items: int = (self.inputs.numel() + self.memories.numel()) // max(
            1, num_slots
        )  # all of them float32

    def read(self, slot: int, state: torch.Tensor) -> None:
        """Copy a state into one piece of memory."""
        for layers, piece in self._pieces(state):
            piece.copy_(layers[:, slot])

    def write(self, slot: int, state: torch.Tensor) -> None:
        for layers, piece in self._pieces(state):
            layers[:, slot] = piece

    def _pieces(self, state: torch.Tensor) -> list[tuple[torch.Tensor, torch.Tensor]]:
        inputs, memories = state.split([self.inputs[:, 0].numel(), self.memories[:, 0].numel()])
        return [
            (self.inputs, inputs.view(self.inputs[:, 0].shape)),
            (self.memories, memories.view(self.memories[:, 0].shape)),
        ]

    def buffers(self, shape: Shape) -> Buffers:
        return (torch.zeros(shape.num_rows, self._spec.value_size, dtype=self._dtype, device=self.inputs.device),)

    def mix(
        self, index: int, layer: LayerWeights, x: torch.Tensor, step: Views, shape: Shape, buffers: Buffers
    ) -> torch.Tensor:
        (out,), weights = buffers, layer.linear
        assert weights is not None
        spec, inputs, memories = self._spec, self.inputs[index], self.memories[index]
        fused, rates = linear(x, weights.qkvz), linear(x, weights.rates)
        gates = fused[:, spec.conv_size :]
        mixed = x.new_empty(len(x), spec.conv_size)
        short, vectors = shape.num_short, (weights.a_log, weights.dt_bias, weights.norm)
        for rule, row_begins, states, count, max_rows in (
            (recur, step.row_begins, step.states, short, shape.max_short_rows),
            (recur_chunks, step.row_begins[short + 1 :], step.states[2 * short :], shape.num_long, None),
        ):
            if count:
                convolve(
                    fused, weights.taps, inputs, row_begins, states, mixed, spec, num_sequences=count, max_rows=max_rows
                )
                rule(
                    mixed, gates, rates, *vectors, memories, row_begins, states, out, spec, self._eps,
                    num_sequences=count,
                )  # fmt: skip
        return linear(out, weights.o)


def scratch_width(spec: LinearSpec) -> int:
    """Numbers that a layer takes for each row of a step while it runs."""
    return (
        2 * spec.conv_size + 4 * spec.value_size + spec.num_value_heads * spec.key_dim * (1 + spec.value_dim // CHUNK)
    )
