"""Hybrids on the CUDA backend: linear attention beside its definition, and whole models beside transformers, however a
prompt is cut and wherever it is gone on from.
"""

from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.backends.cuda.test_backend import logits_of, make_backend
from tests.backends.cuda.test_hostmemory import trust_copies
from tests.engine.tiny import TOKENIZER, greedy
from tests.parity.models import HYBRIDS, read_model, token_ids, write_model
from tests.parity.states import differences, manners, step

from hotloop.backends.cuda.memory.hostmemory import CudaHostMemory
from hotloop.backends.cuda.quant.fp8 import ScaledMatrix
from hotloop.backends.cuda.runner import CudaBackend
from hotloop.backends.cuda.weights import load_weights
from hotloop.core.config import EngineConfig
from hotloop.engine.engine import Engine
from hotloop.engine.kvcache.recurrent import EMPTY
from hotloop.models.model import Model

SMALL = {"num_hidden_layers": 2, "layer_types": ["linear_attention", "full_attention"]}


@pytest.mark.parametrize("name", HYBRIDS)
def test_logits_are_those_of_transformers(name: str, tmp_path: Path, device: str) -> None:
    """Triton's interpreter takes long: there a prompt is read at once, and no more."""
    model = read_model(name, write_model(name, tmp_path / "m"), TOKENIZER)
    backend = make_backend(model, device, max_step_tokens=256)
    num_manners = 1 if device == "cpu" else None
    for manner, off, same in islice(differences(name, lambda step: logits_of(backend, step)), num_manners):
        assert off < 2e-3, manner
        assert same == 1, manner
    backend.close()


@pytest.fixture
def small(tmp_path: Path) -> Model:
    return read_model("qwen3_5", write_model("qwen3_5", tmp_path / "m", **SMALL), TOKENIZER)


def test_a_prompt_comes_to_the_same_in_every_manner(small: Model, device: str) -> None:
    backend = make_backend(small, device, max_step_tokens=256)
    (_, _, plain), *others = manners(lambda step: logits_of(backend, step))
    for manner, begin, got in others:
        np.testing.assert_allclose(got, plain[begin:], atol=2e-3, err_msg=manner)
    backend.close()


def test_padding_touches_no_state(small: Model, device: str) -> None:
    """Steps as CUDA graphs have them: sequences without rows, of either kind, read and write the slot 0."""
    plain, padded = (make_backend(small, device, max_step_tokens=128, has_graphs=each) for each in (False, True))
    prompt, other = token_ids(), token_ids(seed=1, count=41)
    steps = [
        step((prompt[:40], 0, [0, 1], EMPTY, 0), (other[:1], 0, [2, 3], EMPTY, 1)),
        step((prompt[40:41], 40, [0, 1], 0, 0), (other[1:2], 1, [2, 3], 1, 2)),
    ]
    for each in steps:
        assert padded._pack(each).is_graph
        np.testing.assert_allclose(logits_of(padded, each), logits_of(plain, each), atol=1e-4)
    for one, same in zip(_states(padded), _states(plain), strict=True):
        torch.testing.assert_close(one, same, rtol=1e-4, atol=1e-5)
    plain.close()
    padded.close()


def _states(backend: CudaBackend) -> tuple[torch.Tensor, torch.Tensor]:
    deltas = backend._decoder.deltas
    assert deltas is not None
    return deltas.inputs, deltas.memories


def test_states_take_what_was_reckoned(small: Model, device: str) -> None:
    backend = make_backend(small, device)
    assert sum(each.nbytes for each in _states(backend)) == backend.num_states * backend.state_bytes
    taken = backend.num_states * backend.state_bytes + backend.num_blocks * backend.block_bytes
    assert 0.9 * (4 << 20) < taken <= 4 << 20
    backend.close()


def test_a_state_is_read_and_written_as_it_is(small: Model, device: str) -> None:
    backend = make_backend(small, device)
    for each in _states(backend):
        each.copy_(torch.randn_like(each))
    inputs, memories = (each[:, 1].clone() for each in _states(backend))
    data = backend.read_state(1).wait()
    assert len(data) == backend.state_bytes
    backend.write_state(2, data)
    for each, want in zip(_states(backend), (inputs, memories), strict=True):
        assert torch.equal(each[:, 2], want)
        assert not torch.equal(each[:, 0], want)
    backend.close()


def test_states_come_back_from_host_memory_as_they_were(small: Model, device: str) -> None:
    kv = torch.zeros(1, 2, 8, 1, 16, 8, device=device)
    backend = make_backend(small, device)
    deltas = backend._deltas
    assert deltas is not None
    for each in _states(backend):
        each.copy_(torch.randn_like(each))
    want = [each[:, :3].clone() for each in _states(backend)]
    memory = CudaHostMemory(kv, 4, deltas, 3)
    for slot, host_slot in ((0, 2), (1, 0), (2, 1)):
        memory.offload_state(slot, host_slot)
        for each in _states(backend):
            each[:, slot] = 0
    for host_slot, slot in ((2, 0), (0, 1), (1, 2)):
        copy = memory.restore([], [], (host_slot, slot))
        assert copy.num_bytes == backend.state_bytes
        assert copy.wait() >= 0
    for each, same in zip(_states(backend), want, strict=True):
        assert torch.equal(each[:, :3], same)
    memory.close()
    backend.close()


def test_what_says_how_much_fades_is_not_in_e4m3(small: Model, device: str) -> None:
    plain, scaled = (load_weights(small, device, torch.float32, is_fp8=each) for each in (False, True))
    one, same = plain.layers[0].linear, scaled.layers[0].linear
    assert one is not None
    assert same is not None
    assert torch.equal(one.rates, same.rates)
    assert torch.equal(one.taps, same.taps)
    for part in ("qkvz", "o"):
        matrix = getattr(same, part)
        assert isinstance(matrix, ScaledMatrix)
        torch.testing.assert_close(matrix.dequantised(), getattr(one, part), rtol=0.07, atol=0.01)


def test_an_engine_says_the_same_from_host_memory(small: Model, device: str) -> None:
    """The KV of one prompt and its answer is all that fits, and two states."""
    prompts = [token_ids(seed, 70) for seed in (1, 2)]
    settings = {"max_running": 1, "max_step_tokens": 256, "max_context": 192}
    with Engine(TOKENIZER, make_backend(small, device, **settings), EngineConfig(prefix_cache=False)) as engine:
        want = [engine.generate(each, greedy(2)).token_ids for each in prompts]
    backend = make_backend(small, device, host_kv="4MiB", **settings)
    assert backend.host_memory
    assert backend.host_memory.num_states > 0
    backend.num_blocks, backend.num_states = 3, 2
    found = []
    with Engine(TOKENIZER, backend, EngineConfig(debug_checks=True, retention=False, **settings)) as engine:
        trust_copies(engine)
        for prompt, said in [*zip(prompts, want, strict=True)] * 2:
            done = engine.generate(prompt, greedy(2))
            assert done.token_ids == said
            found.append((done.usage.num_cached, done.usage.num_from_host))
        stats = engine.stats()
    assert found == [(0, 0), (0, 0), (64, 64), (64, 64)]
    assert stats.states.num_offloaded
    assert stats.states.num_used == 0


def test_an_engine_says_the_same_after_a_restart(small: Model, device: str, tmp_path: Path) -> None:
    prompt, said, found = token_ids(1, 70), list[tuple[int, ...]](), list[int]()
    settings = {"max_running": 1, "max_step_tokens": 256, "max_context": 192}
    for _ in range(2):
        config = EngineConfig(debug_checks=True, kv_dir=str(tmp_path), **settings)
        with Engine(TOKENIZER, make_backend(small, device, **settings), config) as engine:
            done = engine.generate(prompt, greedy(2))
            said.append(done.token_ids)
            found.append(done.usage.num_restored)
    assert said[0] == said[1]
    assert found == [0, 64]


def test_an_engine_says_the_same_from_checkpoints(small: Model, device: str) -> None:
    """With two steps in flight: a second session goes on where the prompts part, and the first one from its end."""
    head, said = token_ids(count=64), {False: list[tuple[int, ...]](), True: list[tuple[int, ...]]()}
    for is_cached in said:
        settings = {"prefix_cache": is_cached, "max_running": 2, "max_step_tokens": 256}
        config = EngineConfig(debug_checks=True, **settings)
        with Engine(TOKENIZER, make_backend(small, device, **settings), config) as engine:
            first = engine.generate([*head, *token_ids(1, 3)], greedy(3))
            second = engine.generate([*head, *token_ids(2, 3)], greedy(2))
            again = engine.generate([*head, *token_ids(1, 3), *first.token_ids, 7], greedy(2))
            said[is_cached] = [first.token_ids, second.token_ids, again.token_ids]
            assert engine.stats().usage.num_cached == (2 * 64 if is_cached else 0)
    assert said[True] == said[False]
