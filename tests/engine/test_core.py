"""The engine's step by itself, on a clock of the test's own."""

import pytest
from tests.engine.tiny import BLOCK_SIZE, TOKENIZER, VOCAB_SIZE, Listener, greedy, make_request

from hotloop.backends.null import NullBackend
from hotloop.core.config import EngineConfig
from hotloop.engine.core import EngineCore


def test_idle_time_says_nothing_about_when_to_come_back() -> None:
    now = [0.0]
    backend = NullBackend(block_size=BLOCK_SIZE, num_blocks=64, vocab_size=VOCAB_SIZE)
    core = EngineCore(TOKENIZER, backend, EngineConfig(), clock=lambda: now[0])
    for i in range(40):
        now[0] += 1000
        request = make_request([1], f"r{i}", sampling=greedy(1))
        request.max_tokens = 1
        core.add(request, Listener())
        now[0] += 2
        core.step()
    assert core.pace.mean_s == pytest.approx(2, abs=0.1)
