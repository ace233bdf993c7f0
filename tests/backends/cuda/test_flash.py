"""FlashAttention's place in a step: an operator with its contract, written in torch, gets what a build would get."""

import logging
import random
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from tests.backends.batches import batch
from tests.backends.cuda.test_backend import logits_of, make_backend, tiny_model
from tests.backends.reference import reference_logits
from tests.models.tiny import tiny_spec

from hotloop.backends.cuda.attention.flash import Build, Flash, find_flash, first_right
from hotloop.backends.cuda.steps.splits import Splitting
from hotloop.backends.cuda.steps.step import pack, shape_of, view_parts

SPLITTING = Splitting(32, num_programs=4, num_slots=4096)
SCHEMA = (
    "fwd(Tensor q, Tensor k, Tensor v, Tensor? k_new, Tensor(out!)? out, Tensor? cu_seqlens_q, Tensor? cu_seqlens_k,"
    " Tensor? seqused_k, int? max_seqlen_q, int? max_seqlen_k, Tensor? page_table, float? softmax_scale,"
    " bool is_causal, int window_size_left, int window_size_right, float softcap, bool is_rotary_interleaved,"
    " int cp_world_size, int num_splits=0, bool? pack_gqa=None) -> Tensor[]"
)
BLOCK_SIZE = 64


class Calls:
    """What the operator was last called with, by the names of its schema."""

    def __init__(self, operator: Any) -> None:
        self._schema = operator._schema
        self.last: dict[str, Any] = {}

    def __call__(self, *arguments: Any) -> list[torch.Tensor]:
        self.last = {each.name: value for each, value in zip(self._schema.arguments, arguments, strict=True)}
        return attend(self.last)


def attend(given: dict[str, Any]) -> list[torch.Tensor]:
    """Causal attention over pages, the last row of a sequence at its last key."""
    assert given["is_causal"]
    assert 1 <= given["num_splits"] <= 16
    assert (given["window_size_left"], given["window_size_right"], given["cp_world_size"]) == (-1, -1, 1)
    assert given["k_new"] is given["cu_seqlens_k"] is given["pack_gqa"] is None
    q, k, v, out = given["q"], given["k"], given["v"], given["out"]
    begins, lens, table = given["cu_seqlens_q"].tolist(), given["seqused_k"].tolist(), given["page_table"]
    assert table.shape[0] == len(lens) == len(begins) - 1
    assert given["max_seqlen_q"] >= max(b - a for a, b in pairwise(begins))
    assert table.shape[1] * k.shape[1] >= given["max_seqlen_k"] >= max(lens)
    group = q.shape[1] // k.shape[2]
    for i, (begin, end) in enumerate(pairwise(begins)):
        keys, values = (x[table[i].long()].flatten(0, 1)[: lens[i]].repeat_interleave(group, 1) for x in (k, v))
        logits = torch.einsum("qhd,khd->hqk", q[begin:end].double(), keys.double()) * given["softmax_scale"]
        is_seen = torch.ones(logits.shape[1:], dtype=torch.bool, device=q.device).tril(lens[i] - (end - begin))
        weights = logits.masked_fill(~is_seen, -torch.inf).softmax(-1)
        out[begin:end] = torch.einsum("hqk,khd->qhd", weights, values.double()).to(out.dtype)
    return [out]


@pytest.fixture(scope="module")
def operator() -> Iterator[Any]:
    """Registered, for its schema."""
    library = torch.library.Library("hotloop_test_flash", "DEF")
    library.define(SCHEMA)
    yield torch.ops.hotloop_test_flash.fwd.default
    library._destroy()


def test_a_step_hands_over_its_own_tensors(operator: Any, device: str) -> None:
    """Chunks with and without a past, of different lengths, behind a row that decodes and came between them."""
    model = tiny_model("llama")
    rng = random.Random(1)
    first, second, third = ([rng.randrange(250) for _ in range(n)] for n in (150, 90, 70))
    want = [reference_logits(model.spec, model.weights, ids) for ids in (first, second, third)]
    calls = Calls(operator)
    flash = Flash("stub", calls)
    backend = make_backend(model, device, has_graphs=False, max_step_tokens=256, flash=flash)
    check = np.testing.assert_allclose
    got = logits_of(backend, batch((first[:100], 0, [3, 7]), (third[:69], 0, [1, 6])))
    check(got, np.concatenate([want[0][:100], want[2][:69]]), rtol=2e-3, atol=2e-3)
    got = logits_of(backend, batch((first[100:], 100, [3, 7, 2]), (third[69:], 69, [1, 6]), (second, 0, [5, 4])))
    check(got, np.concatenate([want[0][100:], want[2][69:], want[1]]), rtol=2e-3, atol=2e-3)
    assert calls.last["cu_seqlens_q"].tolist() == [1, 51, 141]
    assert calls.last["page_table"].tolist()[0] == [3, 7, 2]
    assert calls.last["page_table"].tolist()[1][:2] == [5, 4]
    cache = backend._decoder.kv
    assert calls.last["k"].untyped_storage().data_ptr() == cache.untyped_storage().data_ptr(), "no copy"
    backend.close()


def test_the_table_is_there_only_for_whoever_wants_it() -> None:
    step = batch((list(range(40)), 0, [1, 2]), ([7], 62, [3, 4]), (list(range(33)), 70, [5, 6, 8, 9]))
    assert shape_of(step, SPLITTING).table_width == 0
    shape = shape_of(step, SPLITTING, has_table=True)
    assert shape.table_width == 4
    for width in (4, 6):
        wide = shape._replace(table_width=width, num_long=3)
        views = view_parts(torch.from_numpy(pack(step, SPLITTING, wide)), wide)
        assert views.table[:, :4].tolist() == [[1, 2, 1, 1], [5, 6, 8, 9], [0] * 4]
        assert views.block_ids.tolist() == [1, 2, 3, 4, 5, 6, 8, 9]


def usable(builds: list[Build], device: str) -> str | None:
    spec = tiny_spec("llama")
    flash = first_right(builds, spec, BLOCK_SIZE, torch.float32, device)
    return flash and flash.name


def test_the_first_build_that_is_right_is_used(operator: Any, device: str, caplog: pytest.LogCaptureFixture) -> None:
    def missing() -> Any:
        raise OSError("undefined symbol: x\nmore of it")

    class Wrong(Calls):
        def __call__(self, *arguments: Any) -> list[torch.Tensor]:
            outs = super().__call__(*arguments)
            outs[0][-1] *= 2
            return outs

    class Failing(Calls):
        def __call__(self, *arguments: Any) -> list[torch.Tensor]:
            raise RuntimeError("no kernel image")

    caplog.set_level(logging.INFO)
    bad: list[Build] = [
        ("A", missing),
        ("B", lambda: Wrong(operator)),
        ("C", lambda: Failing(operator)),
        ("D", lambda: torch.ops.aten.relu.default),
    ]
    assert usable(bad, device) is None
    assert [record.getMessage().split(" is ")[0] for record in caplog.records] == ["A", "B", "C", "D"]
    assert "undefined symbol: x" in caplog.text
    assert "more of it" not in caplog.text
    assert "differ from ours by 0." in caplog.text
    assert usable([*bad, ("E", lambda: Calls(operator))], device) == "E"
    assert "prefill attention backend: E" in caplog.text


def test_what_is_installed_on_the_card_is_right() -> None:
    """find_flash compares by itself; here is what happens where it found one."""
    spec = tiny_spec("llama", head_dim=128)
    assert find_flash(spec, BLOCK_SIZE, torch.float32) is None
    if find_flash(spec, BLOCK_SIZE, torch.bfloat16) is None:
        pytest.skip("no build of FlashAttention 3 for this card")
    flash = find_flash(spec, BLOCK_SIZE, torch.bfloat16)
    model = tiny_model("llama", head_dim=128)
    prompt = [i * 7 % 250 for i in range(200)]
    backends = [make_backend(model, "cuda", max_step_tokens=256, dtype=torch.bfloat16, flash=f) for f in (None, flash)]
    ours, theirs = (logits_of(backend, batch((prompt, 0, [3, 0, 7, 2]))) for backend in backends)
    assert np.linalg.norm(ours - theirs) <= 0.03 * np.linalg.norm(ours)
