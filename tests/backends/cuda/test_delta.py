"""Linear attention by the gated delta rule, beside its definition token by token: sequences that begin, that go on
where they were and elsewhere, and those that have no rows at all.
"""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch.nn.functional import silu, softplus

from hotloop.backends.cuda.layers.delta.chunks import recur_chunks
from hotloop.backends.cuda.layers.delta.convolution import convolve
from hotloop.backends.cuda.layers.delta.recurrence import recur
from hotloop.models.spec import LinearSpec

SPEC = LinearSpec((0,), num_key_heads=1, num_value_heads=2, key_dim=24, value_dim=20, conv_width=4)
EPS = 1e-6
FIRST = 3  # rows of others before them
SLOTS = ([-1, 0], [1, 1], [2, 3], [0, 5], [4, 4])  # that a sequence reads and writes


@dataclass
class Step:
    """What goes into a layer, and what it leaves behind."""

    begins: torch.Tensor
    slots: torch.Tensor
    x: torch.Tensor  # queries, keys, values and gates
    rates: torch.Tensor
    taps: torch.Tensor
    a_log: torch.Tensor
    dt_bias: torch.Tensor
    norm: torch.Tensor
    inputs: torch.Tensor
    memories: torch.Tensor

    @property
    def out(self) -> torch.Tensor:
        return torch.zeros(len(self.x), SPEC.value_size, device=self.x.device)


def make_step(rows: list[int], device: str) -> Step:
    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, device=device)

    num_rows, heads = FIRST + sum(rows) + 2, SPEC.num_value_heads
    begins = torch.tensor(np.cumsum([FIRST, *rows]), dtype=torch.int32, device=device)
    slots = torch.tensor(SLOTS[: len(rows)], dtype=torch.int32, device=device)
    return Step(
        begins, slots, draw(num_rows, SPEC.conv_size + SPEC.value_size), draw(num_rows, 2 * heads),
        draw(SPEC.conv_size, SPEC.conv_width), draw(heads), draw(heads), draw(SPEC.value_dim),
        draw(6, SPEC.conv_width - 1, SPEC.conv_size), draw(6, heads, SPEC.key_dim, SPEC.value_dim),
    )  # fmt: skip


def compute(step: Step, max_rows: int | None) -> torch.Tensor:
    """By the kernels, for sequences with few rows if `max_rows` says how many."""
    count, (states, out) = len(step.slots), (step.slots.view(-1), step.out)
    mixed = torch.zeros(len(step.x), SPEC.conv_size, device=step.x.device)
    convolve(
        step.x, step.taps, step.inputs, step.begins, states, mixed, SPEC, num_sequences=count, max_rows=max_rows
    )  # fmt: skip
    rule = recur if max_rows else recur_chunks
    return rule(
        mixed, step.x[:, SPEC.conv_size :], step.rates, step.a_log, step.dt_bias, step.norm, step.memories,
        step.begins, states, out, SPEC, EPS, num_sequences=count,
    )  # fmt: skip


def define(step: Step) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """What comes out, and the inputs and memories of all slots afterwards."""
    inputs, memories, out = step.inputs.clone(), step.memories.clone(), step.out
    for (begin, end), (read, write) in zip(pairwise(step.begins.tolist()), step.slots.tolist(), strict=True):
        if begin == end:
            continue
        fed = torch.cat([inputs[read] * (read >= 0), step.x[begin:end, : SPEC.conv_size]])
        memory = memories[read] * (read >= 0)
        for row in range(begin, end):
            window = fed[row - begin : row - begin + SPEC.conv_width]
            parts = silu((window * step.taps.T).sum(0)).split([SPEC.key_size, SPEC.key_size, SPEC.value_size])
            q, k, v = (part.view(heads, -1) for part, heads in zip(parts, (1, 1, 2), strict=True))
            q, k = (part / (part.square().sum(-1, keepdim=True) + EPS).sqrt() for part in (q, k))
            b, a = step.rates[row].chunk(2)
            memory = memory * torch.exp(-step.a_log.exp() * softplus(a + step.dt_bias))[:, None, None]
            change = torch.sigmoid(b)[:, None] * (v - (k[..., None] * memory).sum(1))
            memory = memory + k[..., None] * change[:, None]
            found = (q[..., None] * memory).sum(1) * SPEC.key_dim**-0.5
            found *= torch.rsqrt(found.square().mean(-1, keepdim=True) + EPS) * step.norm
            out[row] = found.flatten() * silu(step.x[row, SPEC.conv_size :])
        inputs[write], memories[write] = fed[end - begin :], memory
    return out, inputs, memories


def check(step: Step, max_rows: int | None, tolerance: float = 2e-5) -> None:
    wanted = define(step)
    got = compute(step, max_rows)
    for each, other in zip((got, step.inputs, step.memories), wanted, strict=True):
        torch.testing.assert_close(each, other, rtol=tolerance, atol=tolerance)


def test_few_rows_are_computed_one_after_the_other(device: str) -> None:
    check(make_step([1, 2, 5, 0, 1], device), max_rows=8)
    check(make_step([1, 1, 1], device), max_rows=1)


def test_many_rows_are_computed_in_chunks(device: str) -> None:
    check(make_step([70, 2, 64, 0, 130], device), max_rows=None)


def test_rows_that_are_alike_are_no_worse(device: str) -> None:
    """A token that repeats itself, nearly all of which is written while nothing fades: the powers of what is inverted
    would outgrow float32.
    """
    step = make_step([128], device)
    step.x[:] = step.x[0] + step.x / 100
    step.rates[:, : SPEC.num_value_heads], step.rates[:, SPEC.num_value_heads :] = 6, -12
    check(step, max_rows=None, tolerance=1e-3)


def test_memories_may_fade_at_once(device: str) -> None:
    """The sum of a chunk's logs is then so large that differences of it have few digits left."""
    step = make_step([100, 66], device)
    step.rates[::7, SPEC.num_value_heads :] = 90
    check(step, max_rows=None, tolerance=1e-3)
