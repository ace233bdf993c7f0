"""The CPU backend beside transformers, on tiny models of every family."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.backends.batches import batch
from tests.engine.tiny import PROMPTS, TOKENIZER, greedy, run_together
from tests.models.tiny import DictWeights, tiny_spec, tiny_weights
from tests.parity.manners import differences
from tests.parity.models import CONFIGS, read_model, token_ids, write_model

from hotloop.backends.cpu.opening import open_cpu
from hotloop.core.config import EngineConfig
from hotloop.engine.engine import Engine
from hotloop.models.model import Model
from hotloop.models.spec import Family


@pytest.mark.parametrize("name", CONFIGS)
def test_logits_are_those_of_transformers(name: str, tmp_path: Path, empty_home: Path) -> None:
    model = read_model(name, write_model(name, tmp_path / "m"), TOKENIZER)
    backend = open_cpu(model, EngineConfig(kv_memory="8MiB"), weight_format="f32", precision="exact")
    for manner, off, same in differences(name, lambda step: backend.run(step).copy(), backend.block_size):
        assert off < 1e-3, manner
        assert same == 1, manner
    backend.close()


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", CONFIGS)
def test_in_bytes_they_are_near(name: str, tmp_path: Path, empty_home: Path) -> None:
    model = read_model(name, write_model(name, tmp_path / "m"), TOKENIZER)
    backends = [
        open_cpu(model, EngineConfig(kv_memory="8MiB"), weight_format=weights, precision=precision)
        for weights, precision in (("f32", "exact"), ("auto", "fast"))
    ]
    step = batch((token_ids(), 0, [0, 1, 2]))
    exact, near = (backend.run(step).copy() for backend in backends)  # type: ignore[attr-defined]
    assert np.corrcoef(exact.ravel(), near.ravel())[0, 1] > 0.98
    for backend in backends:
        backend.close()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("family", ["qwen3moe", "gptoss", "glm4moe", "deepseek3"])
def test_the_engine_gives_each_request_the_tokens_it_gets_alone(family: Family, empty_home: Path) -> None:
    """Batched, in chunks, over cached blocks, and with drafts of what was said before."""
    spec = tiny_spec(family, vocab_size=TOKENIZER.vocab_size)
    model = Model("tiny", Path("tiny"), family, spec, TOKENIZER, None, DictWeights(tiny_weights(spec)), 0)

    def run(prompts: Sequence[Sequence[int]], num_rounds: int, **settings: Any) -> list[list[int]]:
        config = EngineConfig(kv_memory="8MiB", debug_checks=True, **settings)
        backend = open_cpu(model, config, weight_format="f32", precision="exact")
        with Engine(TOKENIZER, backend, config) as engine:
            return [run_together(engine, prompts, greedy(12)) for _ in range(num_rounds)][-1]

    alone = [run([prompt], 1, prefix_cache=False, drafts=False)[0] for prompt in PROMPTS[:4]]
    assert run(PROMPTS[:4], 2, max_step_tokens=32) == alone
