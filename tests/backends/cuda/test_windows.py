"""Sliding windows and sinks in both kinds of attention, beside their definition."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.backends.batches import batch
from tests.backends.cuda.test_backend import logits_of, make_backend
from tests.engine.tiny import TOKENIZER
from tests.models.tiny import DictWeights, tiny_spec, tiny_weights

from hotloop.backends.cuda.attention import decode as attention
from hotloop.backends.cuda.attention.decode import Workspace, decode_attention
from hotloop.backends.cuda.attention.prefill import prefill_attention
from hotloop.backends.cuda.steps.splits import Splitting
from hotloop.models.model import Model

HEADS, KV_HEADS, HEAD_DIM, BLOCK = 4, 2, 16, 32
SCALE = HEAD_DIM**-0.5


def defined(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, past: int, window: int | None, sinks: torch.Tensor | None
) -> torch.Tensor:
    out = torch.zeros_like(q)
    for row in range(len(q)):
        end = past + row + 1
        seen = slice(max(0, end - (window or end)), end)
        for head in range(HEADS):
            logits = SCALE * (k[seen, head // 2] @ q[row, head])
            weights = (logits if sinks is None else torch.cat([logits, sinks[head : head + 1]])).softmax(0)
            out[row, head] = weights[: len(logits)] @ v[seen, head // 2]
    return out


@pytest.mark.parametrize(("past", "num_rows"), [(0, 5), (95, 3), (190, 2)])
@pytest.mark.parametrize("window", [None, 8, 24, 100])
@pytest.mark.parametrize("has_sinks", [False, True])
def test_attention_within_a_window(
    device: str, past: int, num_rows: int, window: int | None, has_sinks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    length = past + num_rows
    num_blocks = -(-length // BLOCK)
    k, v = torch.randn(2, num_blocks * BLOCK, KV_HEADS, HEAD_DIM, device=device)
    caches = [each.view(num_blocks, BLOCK, KV_HEADS, HEAD_DIM).transpose(1, 2).contiguous() for each in (k, v)]
    q = torch.randn(num_rows, HEADS, HEAD_DIM, device=device)
    sinks = torch.randn(HEADS, device=device) if has_sinks else None
    want = defined(q, k, v, past, window, sinks)

    def ints(values: object) -> torch.Tensor:
        return torch.as_tensor(np.array(values, np.int32), device=device)

    place = ints([0, num_rows]), ints([length]), ints(range(num_blocks)), ints([0, num_blocks])
    out = torch.zeros_like(q)
    prefill_attention(
        q, *caches, *place, out, num_sequences=1, max_rows=num_rows, scale=SCALE, window=window, sinks=sinks
    )
    torch.testing.assert_close(out, want, rtol=1e-4, atol=1e-4)
    for num_programs, max_whole in ((1, 1), (4, 1), (4, 1024)):  # one part, several of which most are empty, a window
        monkeypatch.setattr(attention, "MAX_WHOLE_WINDOW", max_whole)
        plan = Splitting(BLOCK, num_programs, 4096).plan(np.array([length], np.int32), np.array([num_rows], np.int32))
        out = torch.zeros_like(q)
        decode_attention(
            q, *caches, *place, ints(plan.splits.reshape(-1)), ints(plan.part_begins), out,
            Workspace.allocate(64, HEADS, HEAD_DIM, device), max_rows=num_rows, usual_rows=1,
            scale=SCALE, window=window, sinks=sinks,
        )  # fmt: skip
        torch.testing.assert_close(out, want, rtol=1e-4, atol=1e-4)


def test_logits_are_the_same_where_what_is_not_seen_is_gone(device: str) -> None:
    """A window of 24 tokens spans two blocks of 64; the slots of blocks before are given to others."""
    spec = tiny_spec("llama", windows=(24, None))
    tensors = {name: each / 8 if each.ndim == 2 else each for name, each in tiny_weights(spec).items()}
    model = Model("tiny", Path("tiny"), "tiny", spec, TOKENIZER, None, DictWeights(tensors), 0)
    plain, split = (make_backend(model, device, drops_windows=drops, max_step_tokens=64) for drops in (False, True))
    assert split.num_window_blocks
    assert split.num_blocks > plain.num_blocks
    prompt = np.random.default_rng(0).integers(3, 250, 150).tolist()
    for part, past, slot_of in (
        (prompt[:90], 0, {7: 3, 8: 1}),
        (prompt[90:93], 90, {8: 1}),
        (prompt[93:140], 93, {8: 1, 9: 3}),
        (prompt[140:], 140, {8: 1, 9: 3}),
    ):
        step = batch((part, past, [7, 8, 9][: -(-(past + len(part)) // 64)]), ([5, 6], 0, [11]))
        slots = [(slot_of | {11: 2}).get(each, 0) for each in step.block_ids.tolist()]
        own = replace(step, window_ids=np.array(slots, np.int32))
        np.testing.assert_array_equal(logits_of(split, own), logits_of(plain, step))
    plain.close()
    split.close()
