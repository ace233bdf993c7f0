"""Blocks to host memory and back: the same bytes whatever happens meanwhile, and an engine that says the same."""

import logging
import random
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.backends.cuda.test_backend import make_backend, reference_answer, tiny_model
from tests.engine.tiny import TOKENIZER, greedy

from hotloop.backends.cuda.memory.hostmemory import CudaHostMemory, Fences, _runs, open_host_memory, wanted_bytes
from hotloop.backends.cuda.runner import BLOCK_SIZE
from hotloop.core.config import EngineConfig
from hotloop.core.errors import ConfigError
from hotloop.engine.engine import Engine
from hotloop.engine.offload.disk.folder import Folder
from hotloop.engine.offload.disk.store import KvStore

SHAPE = (3, 2, 40, 2, 16, 8)  # layers, keys and values, blocks, heads, tokens, dim


def make_kv(device: str, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(SHAPE, device=device).to(dtype)


def wait_for(memory: CudaHostMemory, host_ids: list[int], block_ids: list[int]) -> None:
    copy = memory.restore(host_ids, block_ids)
    assert copy.num_bytes == len(block_ids) * memory.block_bytes
    assert copy.wait() >= 0
    assert copy.is_done


@pytest.mark.parametrize("dtype", [torch.float32, torch.float8_e4m3fn])
def test_blocks_come_back_into_others_as_they_were(dtype: torch.dtype, device: str) -> None:
    kv = make_kv(device, dtype)
    want = kv.float().clone()
    memory = CudaHostMemory(kv, 25)
    block_ids = [7, 3, 39, 0, 12, 13, 14, 15, 1, 2, 30]
    host_ids = [4, 5, 6, 24, 0, 1, 9, 8, 11, 12, 13]
    memory.offload(block_ids, host_ids)
    kv.view(torch.uint8)[:, :, block_ids] = 0
    targets = [20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 31]
    wait_for(memory, host_ids, targets)
    assert torch.equal(kv.float()[:, :, targets], want[:, :, block_ids])
    untouched = [i for i in range(40) if i not in block_ids and i not in targets]
    assert torch.equal(kv.float()[:, :, untouched], want[:, :, untouched])
    memory.close()


def test_a_random_traffic_of_blocks(device: str) -> None:
    rng = random.Random(0)
    kv = make_kv(device)
    memory = CudaHostMemory(kv, 60)
    device_has = {i: kv[:, :, i].clone() for i in range(40)}
    host_has: dict[int, torch.Tensor] = {}
    for _ in range(16):
        block_ids = rng.sample(range(40), rng.randrange(1, 12))
        if rng.random() < 0.5:
            host_ids = rng.sample(range(60), len(block_ids))
            memory.offload(block_ids, host_ids)
            host_has |= {host: device_has[block] for host, block in zip(host_ids, block_ids, strict=True)}
            with memory.step(np.array(block_ids, np.int32)):  # as a step that is given the room writes into it
                kv[:, :, block_ids] = torch.randn((*SHAPE[:2], len(block_ids), *SHAPE[3:]), device=device)
            device_has |= {block: kv[:, :, block].clone() for block in block_ids}
        elif host_has:
            host_ids = rng.sample([*host_has], min(len(block_ids), len(host_has)))
            wait_for(memory, host_ids, block_ids[: len(host_ids)])
            device_has |= {block: host_has[host] for host, block in zip(host_ids, block_ids, strict=False)}
    for block, want in device_has.items():
        assert torch.equal(kv[:, :, block], want)
    memory.close()


class Later:
    """An event that is over when it is told to be."""

    def __init__(self) -> None:
        self.is_over = False

    def query(self) -> bool:
        return self.is_over


def test_who_waits_for_whom_is_known_by_block() -> None:
    fences = Fences(8)
    first, second, third = (Later() for _ in range(3))
    for event, block_ids in ((first, [0, 1]), (second, [1, 2]), (third, [5])):
        fences.mark(np.array(block_ids), event)  # type: ignore[arg-type]
    for block_ids, want in (([0], first), ([0, 1], second), ([7, 5], third), ([3, 4], None), ([], None)):
        assert fences.last(np.array(block_ids, np.int32)) is want
    first.is_over = second.is_over = True
    assert fences.last(np.array([0, 1, 2])) is None
    assert fences.last(np.array([5])) is third
    assert len(fences._pending) == 1


def test_neighbours_are_copied_at_once() -> None:
    assert [*_runs([4, 5, 6, 9, 8, 1])] == [(0, 4, 3), (3, 9, 1), (4, 8, 1), (5, 1, 1)]
    assert [*_runs([])] == []


def trust_copies(engine: Engine) -> None:
    """Copy whatever is there: how long it takes, kernels that are compiled meanwhile included, is nothing to a test."""
    tier = engine._core.host
    assert tier
    tier._is_worth_it = lambda hosted: True  # type: ignore[method-assign]


def test_engines_with_little_room_say_what_the_model_says(device: str, tmp_path: Path) -> None:
    """The first computes and finds it in host memory; the second finds it on disk, and then in host memory."""
    model = tiny_model("llama", max_context=512)
    rng = random.Random(5)
    prompts = [[rng.randrange(250) for _ in range(130)] for _ in range(2)]
    want = [tuple(reference_answer(prompt, 2)) for prompt in prompts]
    config = EngineConfig(debug_checks=True, max_running=2, max_step_tokens=64, max_context=256)
    block_bytes = make_backend(model, device).block_bytes
    found = []
    for _ in range(2):
        backend = make_backend(model, device, kv_bytes=4 * block_bytes, host_kv=str(20 * block_bytes), max_context=256)
        store = KvStore(
            Folder(tmp_path), layout="test", segment_bytes=block_bytes, segment_tokens=BLOCK_SIZE, max_bytes=1 << 30
        )
        with Engine(TOKENIZER, backend, config, store=store) as engine:
            trust_copies(engine)
            for _ in range(2):
                for prompt, token_ids in zip(prompts, want, strict=True):
                    said = engine.generate(prompt, greedy(2))
                    assert said.token_ids == token_ids
                    found.append((said.usage.num_restored, said.usage.num_from_host > 0))
    assert found == [(0, False), (0, False), (0, True), (0, True), (128, False), (128, False), (0, True), (0, True)]


def test_how_much_is_taken(caplog: pytest.LogCaptureFixture) -> None:
    kv = torch.zeros(SHAPE)
    assert wanted_bytes(EngineConfig(), kv.nbytes, is_cuda=False) == 0, "a CPU's memory is the host's"
    assert wanted_bytes(EngineConfig(), 1 << 20, is_cuda=True) == 1 << 20
    assert 0 < wanted_bytes(EngineConfig(), 1 << 60, is_cuda=True) < 1 << 60
    assert wanted_bytes(EngineConfig(host_kv="off"), 1 << 20, is_cuda=True) == 0
    assert wanted_bytes(EngineConfig(host_kv="2MiB", prefix_cache=False), 1 << 20, is_cuda=True) == 0
    assert wanted_bytes(EngineConfig(gpus=2), 1 << 20, is_cuda=True) == 0, "each rank would need its own"
    memory = open_host_memory(kv, EngineConfig(host_kv="1MiB"))
    assert memory
    assert memory.num_blocks == (1 << 20) // (kv.nbytes // 40)
    assert open_host_memory(kv, EngineConfig(host_kv="1KiB")) is None
    with caplog.at_level(logging.WARNING):
        assert open_host_memory(kv, EngineConfig(host_kv="1000000GiB")) is None
    assert "no host memory for KV" in caplog.text
    with pytest.raises(ConfigError, match="not a size"):
        EngineConfig(host_kv="much")
