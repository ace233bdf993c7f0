"""The layers of a hybrid that have linear attention: their weights, and the recurrent states that they carry on.

A slot holds the state of one sequence at one place: for each layer the last inputs of the convolution, and for each
value head a memory. A step says for each sequence which slot it reads and which it writes; nothing else is copied.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from hotloop.backends.cuda.delta.chunks import CHUNK, recur_chunks
from hotloop.backends.cuda.delta.convolution import convolve
from hotloop.backends.cuda.delta.recurrence import recur
from hotloop.backends.cuda.linear import Matrix, linear
from hotloop.backends.cuda.step import Shape, Views
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


class DeltaNet:
    """The states of all slots. Layers are numbered among themselves."""

    def __init__(self, spec: LinearSpec, eps: float, num_slots: int, device: torch.device) -> None:
        self._spec, self._eps = spec, eps
        count, heads = len(spec.layers), spec.num_value_heads
        self.inputs = torch.zeros(count, num_slots, spec.conv_width - 1, spec.conv_size, device=device)
        self.memories = torch.zeros(count, num_slots, heads, spec.key_dim, spec.value_dim, device=device)

    def run(
        self, index: int, weights: LinearWeights, x: torch.Tensor, step: Views, shape: Shape, out: torch.Tensor
    ) -> torch.Tensor:
        """[rows, hidden] of x [rows, hidden], by way of `out` [rows, values]."""
        spec, inputs, memories = self._spec, self.inputs[index], self.memories[index]
        fused, rates = linear(x, weights.qkvz), linear(x, weights.rates)
        gates = fused[:, spec.conv_size :]
        mixed = x.new_empty(len(x), spec.conv_size)
        short, long = shape.num_short, shape.num_long
        vectors = weights.a_log, weights.dt_bias, weights.norm
        for rule, row_begins, states, count, max_rows in (
            (recur, step.row_begins, step.states, short, shape.max_short_rows),
            (recur_chunks, step.row_begins[short + 1 :], step.states[2 * short :], long, None),
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
