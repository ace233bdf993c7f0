"""The engine's step by itself, on a clock of the test's own."""

import pytest
from tests.backends.device import NullDevice
from tests.engine.tiny import BLOCK_SIZE, TOKENIZER, VOCAB_SIZE, Listener, greedy, make_engine, make_request

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


@pytest.mark.parametrize(("num_tokens", "pause_s"), [(40, 0.038), (100, 0.05), (5, 0.0)])
def test_beside_a_long_step_the_next_one_waits_for_who_may_come(num_tokens: int, pause_s: float) -> None:
    now = [0.0]
    backend = NullDevice(block_size=BLOCK_SIZE, num_blocks=64, vocab_size=VOCAB_SIZE, depth=2)
    core = EngineCore(TOKENIZER, backend, EngineConfig(), clock=lambda: now[0])
    core.scheduler.budget.token_s = 0.001
    long, late = (make_request([i] * num, f"r{i}", sampling=greedy(2)) for i, num in enumerate((num_tokens, 3)))
    for request in (long, late):
        request.max_tokens = 2
    listener = Listener()
    core.add(long, listener)
    assert core.pause_s == 0
    core.step()
    assert core.pause_s == pytest.approx(pause_s)
    core.add(late, listener)
    now[0] += pause_s
    assert core.pause_s == pytest.approx(0)
    core.step()
    assert late.num_computed == 3
    while not core.is_idle:
        now[0] += 1
        core.step()
    listener.wait("r0", "r1")


def test_pauses_change_no_answer() -> None:
    answers = []
    for depth in (1, 2):
        with make_engine(depth=depth) as engine:
            engine._core.scheduler.budget.token_s = 1.0
            answers.append([engine.generate([7] * 30 + [i], greedy(5)).token_ids for i in range(3)])
    assert answers[0] == answers[1]
