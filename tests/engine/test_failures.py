"""Whatever fails ends those it concerns, exactly once, and nobody else."""

from array import array
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.backends.device import NullDevice
from tests.engine.tiny import BLOCK_SIZE, SIZE, Listener, greedy, make_engine, make_request, run_alone, until_idle

from hotloop.backends.backend import Batch
from hotloop.core.errors import BackendError, DeviceLost, EngineClosed
from hotloop.core.request import FinishReason, TokenEvent
from hotloop.engine.core import StepReport


class FailingBackend(NullDevice):
    """Fails in the given way whenever `failure` is set."""

    failure: Callable[[NDArray[np.float32]], NDArray[np.float32]] | None = None

    def run(self, batch: Batch) -> NDArray[np.float32]:
        logits = super().run(batch)
        return self.failure(logits) if self.failure else logits


def hardware_failure(logits: NDArray[np.float32]) -> NDArray[np.float32]:
    raise BackendError("the hardware is on fire")


def unforeseen_failure(logits: NDArray[np.float32]) -> NDArray[np.float32]:
    raise ZeroDivisionError("nobody thought of this")


def numeric_failure(logits: NDArray[np.float32]) -> NDArray[np.float32]:
    return logits * np.nan


@pytest.mark.parametrize(
    ("failure", "message"),
    [(hardware_failure, "on fire"), (unforeseen_failure, "nobody thought"), (numeric_failure, "not numbers")],
)
def test_a_failed_step_ends_its_requests_and_the_next_one_works(failure: Any, message: str) -> None:
    backend = FailingBackend(**SIZE, num_blocks=64)
    prompt = list(range(20))
    with make_engine(backend=backend) as engine:
        before = engine.generate(prompt, greedy())
        backend.failure = failure
        with pytest.raises(BackendError, match=message):
            engine.generate(prompt, greedy())
        backend.failure = None
        after = engine.generate(prompt, greedy())
        assert engine.stats().num_finished[FinishReason.ERROR] == 1
    assert after.token_ids == before.token_ids
    assert after.usage.num_cached == 0, "nothing computed before the failure is trusted"


def test_a_device_that_is_gone_ends_everything_with_its_error() -> None:
    def lose(logits: NDArray[np.float32]) -> NDArray[np.float32]:
        raise DeviceLost("the GPU failed: an illegal memory access was encountered")

    backend = FailingBackend(**SIZE, num_blocks=64)
    backend.failure = lose
    listener = Listener()
    with make_engine(backend=backend, max_running=1) as engine:
        engine.submit([make_request([1, 2], "runs"), make_request([3, 4], "waits")], listener)
        listener.wait("runs", "waits")
        assert isinstance(listener.last("runs").error, DeviceLost)
        assert isinstance(listener.last("waits").error, DeviceLost)
        engine._thread.join(30)
        assert engine.failure
        with pytest.raises(EngineClosed, match="has failed"):
            engine.generate([1, 2], greedy())


POISON = 255


class PoisonedBackend(NullDevice):
    """Computes no numbers for whoever has the token POISON in its KV."""

    def run(self, batch: Batch) -> NDArray[np.float32]:
        logits = super().run(batch).copy()
        owners = np.searchsorted(batch.query_starts, batch.logit_rows, side="right") - 1
        for row, (wanted, owner) in enumerate(zip(batch.logit_rows, owners, strict=True)):
            table = batch.block_ids[batch.block_begins[owner] : batch.block_begins[owner + 1]]
            if POISON in self._kv[table].ravel()[: batch.positions[wanted] + 1]:
                logits[row] = np.nan
        return logits


@pytest.mark.sampled(2)
@pytest.mark.parametrize("max_step_tokens", [8, 1000])
def test_a_request_without_numbers_ends_alone_and_leaves_nothing_in_the_cache(max_step_tokens: int) -> None:
    backend = PoisonedBackend(**SIZE, num_blocks=256)
    trunk = list(range(30))
    poisoned = [*trunk, POISON, *range(20)]
    good = {f"good{i}": [*trunk, 100 + i] for i in range(5)}
    expected = {name: run_alone(prompt, greedy(60)).token_ids for name, prompt in good.items()}
    listener = Listener()
    requests = [make_request(prompt, name, sampling=greedy(60)) for name, prompt in good.items()]
    requests.insert(2, make_request(poisoned, "bad"))
    with make_engine(backend=backend, max_step_tokens=max_step_tokens) as engine:
        engine.submit(requests, listener)
        listener.wait("bad", *good)
        until_idle(engine)
        known = engine._core.scheduler.tree.match(array("i", poisoned))
        assert engine.stats().num_finished[FinishReason.ERROR] == 1
    assert isinstance(listener.last("bad").error, BackendError)
    assert {name: tuple(listener.token_ids(name)) for name in good} == expected
    assert len(known) == len(trunk) // BLOCK_SIZE, "what the others use stays, what only the bad one computed goes"


def test_poisoned_blocks_go_with_the_last_who_read_them() -> None:
    backend = PoisonedBackend(**SIZE, num_blocks=256)
    with make_engine(backend=backend, max_step_tokens=BLOCK_SIZE) as engine:
        for ending in range(3):
            with pytest.raises(BackendError, match="not numbers"):
                engine.generate([POISON, *range(20), ending], greedy())
        until_idle(engine)
        assert engine.stats().num_blocks_cached == 0


def test_a_watcher_that_fails_stops_nothing() -> None:
    def fail(report: StepReport) -> None:
        raise RuntimeError("the watcher has gone")

    with make_engine() as engine:
        engine.on_step = fail
        assert engine.generate([1, 2], greedy(5)).usage.num_output == 5
        assert engine.is_running
    assert not engine.is_running
    assert not engine.failure


def test_a_bug_in_the_loop_leaves_nobody_waiting() -> None:
    listener = Listener()
    with make_engine(max_running=1) as engine:
        engine._core.scheduler.pool.num_idle += 1  # the check between two requests finds it
        engine.submit([make_request([1], "a")], listener)
        listener.wait("a")
        engine._thread.join(30)
        assert engine.failure
        assert not engine.is_running
        with pytest.raises(EngineClosed, match="has failed"):
            engine.generate([1])


def test_a_listener_that_fails_ends_its_own_request_only() -> None:
    def fail(events: Sequence[TokenEvent]) -> None:
        raise RuntimeError("the caller has gone")

    listener = Listener()
    with make_engine() as engine:
        engine.submit([make_request([1, 2], "bad", sampling=greedy(500))], fail)
        engine.submit([make_request([1, 2], "good")], listener)
        listener.wait("good")
        until_idle(engine)
        assert engine.stats().num_finished[FinishReason.ABORT] == 1
    assert listener.last("good").finish_reason is FinishReason.LENGTH


def test_a_command_that_fails_does_not_end_the_engine(caplog: pytest.LogCaptureFixture) -> None:
    def fail() -> None:
        raise MemoryError

    with make_engine() as engine:
        engine._post(fail)
        assert engine.generate([1, 2, 3], greedy(3)).token_ids
        assert not engine.failure
    assert "a command failed" in caplog.text
