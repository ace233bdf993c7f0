"""One model on two ranks, a process each, over gloo: the same logits and tokens as one alone, and an end when one ends.

Both are on the one card where there is one. NCCL wants a card for each rank, so it is tried with one rank alone.
"""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from tests.backends.batches import batch
from tests.backends.cuda.test_backend import logits_of, make_backend
from tests.engine.tiny import TOKENIZER, Listener, greedy, make_request
from tests.models.tiny import tiny_spec, tiny_weights, write_folder

from hotloop.backends.cuda.decoder import MIN_SAVED_BYTES
from hotloop.backends.cuda.parallel.ranks import SharedGroup
from hotloop.backends.cuda.parallel.workers import Plan, Workers
from hotloop.backends.cuda.runner import CudaBackend, open_cuda, open_ranks
from hotloop.core.config import EngineConfig, KvPrecision
from hotloop.core.errors import ConfigError, DeviceLost
from hotloop.engine.drafting.drafter import Drafter
from hotloop.engine.drafting.model import ModelDrafter
from hotloop.engine.engine import Engine
from hotloop.models.model import Model, load_model
from hotloop.models.spec import Family

SETTINGS: dict[str, Any] = {"max_running": 4, "max_step_tokens": 64}
PROMPTS = [[5, 6, 7, 8], [9, 8, 7, 6, 5, 4], [200, 100]]


def tiny_model(folder: Path, family: Family, **changes: Any) -> Model:
    """In a folder, for each rank reads it by itself. Its vocabulary does not come out even."""
    spec = tiny_spec(family, max_context=256, **changes)
    assert spec.vocab_size % 2
    tensors = {name: tensor / 8 if tensor.ndim == 2 else tensor for name, tensor in tiny_weights(spec).items()}
    return load_model(str(write_folder(folder / family, spec, tensors)))


def open_two(
    model: Model,
    device: str,
    kv_precision: KvPrecision = "auto",
    *,
    has_fp8_weights: bool = False,
    min_saved_bytes: int = MIN_SAVED_BYTES,
) -> tuple[CudaBackend, Workers]:
    workers = Workers(2, "cuda:0" if device == "cuda" else device, "gloo")
    config = EngineConfig(gpus=2, kv_precision=kv_precision, **SETTINGS)
    plan = Plan(config, torch.float32, has_fp8_weights, has_graphs=False)
    return open_ranks(model, 4 << 20, plan, workers, min_saved_bytes=min_saved_bytes), workers


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_two_ranks_compute_what_one_does(tmp_path: Path, family: Family, device: str) -> None:
    """A prompt in two chunks, one of them beside another prompt; a token beside one with drafts; blocks copied."""
    model = tiny_model(tmp_path, family, num_layers=2 if family == "llama" else 1)
    alone = make_backend(model, device)
    two, _ = open_two(model, device)
    assert (two.num_blocks, two.block_bytes) == (alone.num_blocks, alone.block_bytes)
    assert two.kv_layout != alone.kv_layout
    prompt, other = [i * 7 % 250 for i in range(36)], [i * 11 % 250 for i in range(6)]

    def check(*parts: tuple[list[int], int, list[int]], wanted: list[int]) -> None:
        step = batch(*parts, wanted=wanted)
        np.testing.assert_allclose(logits_of(two, step), logits_of(alone, step), rtol=1e-4, atol=1e-4)

    check((prompt[:2], 0, [3]), wanted=[1])
    check((prompt[2:35], 2, [3]), (other[:3], 0, [5]), wanted=[32, 33, 35])
    check((prompt[35:], 35, [3]), (other[3:], 3, [5]), wanted=[0, 1, 2, 3])
    want = logits_of(two, batch((prompt[35:], 35, [3]), (other[5:], 5, [5])))
    kept = two.read_blocks([3, 5]).wait()
    assert kept.nbytes == 2 * two.block_bytes
    two.write_blocks([7], kept[two.block_bytes :])
    two.write_blocks([4], kept[: two.block_bytes])
    np.testing.assert_array_equal(logits_of(two, batch((prompt[35:], 35, [4]), (other[5:], 5, [7]))), want)
    two.close()


@pytest.mark.parametrize(("is_fp8", "most"), [(False, 1e-5), (True, 0.1)])
def test_two_ranks_share_prefixes(tmp_path: Path, is_fp8: bool, most: float, device: str) -> None:
    """Three sequences begin with the same block, which a chunk wrote that nobody wanted a token of. With weights
    and KV in fp8 the logits are as far from those of the file as with one rank.
    """
    model = tiny_model(tmp_path, "llama", num_layers=1, hidden_size=64, intermediate_size=96)
    alone = make_backend(model, device, shared_attention=False)
    kv_precision: KvPrecision = "fp8" if is_fp8 else "auto"
    two, _ = open_two(model, device, kv_precision, has_fp8_weights=is_fp8, min_saved_bytes=1)
    head = [i * 7 % 250 for i in range(64)]
    for backend in (two, alone):
        assert logits_of(backend, batch((head, 0, [3]), wanted=[])).shape == (0, model.spec.vocab_size)
    step = batch(([5], 64, [3, 4]), ([6, 7], 64, [3, 5]), ([8], 64, [3, 6]))
    assert two._pack(step).shape.num_items
    got, want = logits_of(two, step), logits_of(alone, step)
    assert np.linalg.norm(got - want) / np.linalg.norm(want) < most
    two.write_blocks([9], two.read_blocks([3]).wait())
    moved = batch(([5], 64, [9, 4]), ([6, 7], 64, [9, 5]), ([8], 64, [9, 6]))
    np.testing.assert_array_equal(logits_of(two, moved), got)
    two.close()


def test_nccl_is_captured_in_graphs_and_can_be_broken_off(tmp_path: Path, device: str) -> None:
    """With one rank, as there may be only one card."""
    if device == "cpu":
        pytest.skip("NCCL needs a card")
    model = tiny_model(tmp_path, "llama")
    group = SharedGroup(0, 1, torch.device("cuda:0"), "nccl", dist.HashStore())
    config = EngineConfig(**SETTINGS)
    one = CudaBackend(model, 4 << 20, Plan(config, torch.float32), device="cuda:0", group=group)
    alone = make_backend(model, device)
    for step in (batch(([5, 6, 7], 0, [3])), batch(([8], 3, [3]), ([1], 0, [2]))):
        np.testing.assert_allclose(logits_of(one, step), logits_of(alone, step), rtol=1e-4, atol=1e-4)
    one.write_blocks([4], one.read_blocks([3]).wait())
    one.close()
    group.abort()
    group.close()
    assert not dist.is_initialized()


def answers(backend: CudaBackend, drafter: Drafter | None = None) -> list[list[int]]:
    listener = Listener()
    config = EngineConfig(debug_checks=True, drafts=False, **SETTINGS)
    with Engine(TOKENIZER, backend, config, drafter=drafter) as engine:
        requests = [make_request(prompt, f"r{i}", sampling=greedy(5)) for i, prompt in enumerate(PROMPTS)]
        engine.submit(requests, listener)
        listener.wait(*(request.id for request in requests))
    assert bool(drafter) == any(listener.last(request.id).usage.num_accepted for request in requests)
    return [listener.token_ids(request.id) for request in requests]


@pytest.mark.usefixtures("always_drafts")
def test_the_engine_says_the_same_with_steps_in_flight_and_with_drafts(tmp_path: Path, device: str) -> None:
    model = tiny_model(tmp_path, "llama", num_layers=1)
    want = answers(make_backend(model, device))
    assert answers(open_two(model, device)[0]) == want
    drafter = ModelDrafter(make_backend(model, device), TOKENIZER, least_chance=0)
    assert answers(open_two(model, device)[0], drafter) == want


def test_a_rank_that_dies_ends_the_requests_and_the_engine(tmp_path: Path, device: str) -> None:
    two, workers = open_two(tiny_model(tmp_path, "llama", num_layers=1), device)
    listener = Listener()
    with Engine(TOKENIZER, two, EngineConfig(drafts=False, **SETTINGS)) as engine:
        engine.submit([make_request([5, 6, 7], sampling=greedy(200))], listener)
        listener.next()
        [pid] = workers.pids
        os.kill(pid, signal.SIGKILL)
        listener.wait("r")
        error = listener.last("r").error
        assert isinstance(error, DeviceLost)
        assert str(error) == "rank 1 of 2 failed: its process has ended"
    assert engine.failure is error


class Never:
    """An event of a device that waits for a rank that is gone."""

    def query(self) -> bool:
        return False


def test_a_rank_that_fails_says_why(tmp_path: Path, device: str) -> None:
    two, workers = open_two(tiny_model(tmp_path, "llama", num_layers=1), device)
    with workers.mirrored("no_such_method"):
        pass
    with pytest.raises(DeviceLost, match=r"rank 1 of 2 failed: .* no attribute 'no_such_method'"):
        workers.wait(Never())  # type: ignore[arg-type]
    with pytest.raises(DeviceLost, match="no_such_method"):
        two.read_blocks([0])
    two.close()


def test_no_rank_outlives_the_first() -> None:
    """The other has its output too, which ends when both have ended."""
    script = "from hotloop.backends.cuda.parallel.workers import Workers\nw = Workers(2, 'cpu', 'gloo')\n"
    path = os.pathsep.join(filter(None, sys.path))
    command = [sys.executable, "-c", f"{script}print(flush=True)\ninput()"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=os.environ | {"PYTHONPATH": path}
    ) as first:
        assert first.stdout
        assert first.stdout.readline() == b"\n"
        first.kill()
        assert first.communicate(timeout=20)[0] == b""


def test_heads_that_do_not_come_out_even_are_refused(tmp_path: Path) -> None:
    model = tiny_model(tmp_path, "llama")
    with pytest.raises(ConfigError, match="2 heads of keys and values cannot be split over 4 GPUs"):
        open_cuda(model, EngineConfig(gpus=4), weight_format="bf16", precision="fast")
