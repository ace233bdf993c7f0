"""The engine over a backend without a model: sharing, batching, chunks and preemption never change what is said, and
every request ends exactly once, whatever happens.
"""

import asyncio
import gc
import random
import threading
import time
import tracemalloc
import weakref
from array import array
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.engine.tiny import (
    EOS_ID,
    PROMPTS,
    TOKENIZER,
    VOCAB_SIZE,
    Listener,
    greedy,
    make_engine,
    make_request,
    until_idle,
)

from hotloop.backends.host import HostCopy
from hotloop.backends.null import NullBackend
from hotloop.core.config import EngineConfig
from hotloop.core.errors import BackendError, EngineClosed, Overloaded, PromptTooLong, RequestError
from hotloop.core.reasoning import Reasoning
from hotloop.core.request import FinishReason, KvSource, Priority, SamplingParams
from hotloop.engine.core import StepReport
from hotloop.engine.engine import Engine


@contextmanager
def gated_engine(num_blocks: int = 256, **changes: Any) -> Iterator[tuple[Engine, threading.Semaphore]]:
    """An engine that computes a step for each permit it is given, and all it likes at the end."""
    steps = threading.Semaphore(0)
    with make_engine(num_blocks, on_run=lambda batch: steps.acquire(timeout=30) and None, **changes) as engine:
        try:
            yield engine, steps
        finally:
            steps.release(100_000)


def test_an_abort_frees_the_blocks_and_ends_the_request_once() -> None:
    listener = Listener()
    with gated_engine() as (engine, steps):
        engine.submit([make_request(range(50), "a", sampling=greedy(100)), make_request(range(9), "b")], listener)
        steps.release()
        assert listener.next().finish_reason is None
        engine.abort("a", "nobody")
        engine.abort("a")
        steps.release(100)
        listener.wait("a", "b")
        until_idle(engine)
        assert engine.stats().num_blocks_used == 0
    assert listener.last("a").finish_reason is FinishReason.ABORT
    assert listener.last("b").finish_reason is FinishReason.LENGTH


def test_a_request_can_be_aborted_before_it_ever_ran() -> None:
    listener = Listener()
    with gated_engine(max_running=1) as (engine, steps):
        engine.submit([make_request(range(9), "a"), make_request(range(9), "b")], listener)
        engine.abort("b")
        steps.release(100)
        listener.wait("a", "b")
    assert listener.last("b").finish_reason is FinishReason.ABORT
    assert listener.last("b").usage.num_output == 0


def test_a_plain_call_says_how_urgent_it_is() -> None:
    listener = Listener()
    with gated_engine(max_running=1) as (engine, steps):
        engine.submit([make_request(range(9), "a", sampling=greedy(400))], listener)
        ask = partial(engine.generate, range(9), greedy(2), priority=Priority.BACKGROUND)
        with ThreadPoolExecutor(1) as pool:
            answer = pool.submit(ask)
            deadline = time.monotonic() + 30
            while not engine.stats().num_waiting[Priority.BACKGROUND]:
                assert time.monotonic() < deadline, "nobody waits in the background"
                if engine._arriving and steps._value == 0:  # it came while the first step was held up
                    steps.release()
                time.sleep(0.005)
            steps.release(1000)
            assert answer.result(30).usage.num_output == 2


def test_too_much_waiting_is_refused_all_or_none() -> None:
    with gated_engine(max_waiting=2, max_running=1) as (engine, _):
        listener = Listener()
        engine.submit([make_request([1], "first")], listener)
        with pytest.raises(RequestError, match="3 choices at once; at most 2"):
            engine.submit([make_request([1], f"r{i}") for i in range(3)], listener)
        while engine.stats().num_running == 0:  # the step that would end it is held up
            time.sleep(0.001)
        engine.submit([make_request([1], "a"), make_request([1], "b")], listener)
        with pytest.raises(Overloaded, match="at most 2") as refusal:
            engine.submit([make_request([1], "c"), make_request([1], "d")], listener)
        assert refusal.value.retry_after_s > 0
        assert not any(request_id in engine._core.listeners for request_id in "cd")


def test_when_to_come_back_follows_the_queue() -> None:
    with gated_engine(max_waiting=12, max_running=1) as (engine, _):
        listener = Listener()
        engine.submit([make_request([1], "first")], listener)
        while engine.stats().num_running == 0:
            time.sleep(0.001)
        engine.submit([make_request([1], f"r{i}") for i in range(12)], listener)
        with pytest.raises(Overloaded) as refusal:
            engine.submit([make_request([1], "late")], listener)
        assert refusal.value.retry_after_s == 12.0  # nothing has ended yet: a second for each who waits


def test_what_cannot_run_is_refused_at_once() -> None:
    refused: list[tuple[type[Exception], str, list[int], dict[str, Any]]] = [
        (PromptTooLong, "context length is 40 tokens: 41 prompt tokens do not fit", [1] * 41, {}),
        (PromptTooLong, "39 prompt tokens and 2 to generate", [1] * 39, {"max_tokens": 2}),
        (RequestError, "empty", [], {}),
        (RequestError, "prompt has a token id outside", [VOCAB_SIZE], {}),
        (RequestError, "prompt has a token id outside", [-1], {}),
        (RequestError, "prompt has a token id outside", [2**40], {}),
        (RequestError, "logit_bias has a token id outside", [1], {"logit_bias": {VOCAB_SIZE: 1.0}}),
        (RequestError, "stop_token_ids has a token id outside", [1], {"stop_token_ids": frozenset({-1})}),
    ]
    with make_engine(num_blocks=10) as engine:
        for kind, message, prompt, params in refused:
            with pytest.raises(kind, match=message):
                engine.generate(prompt, SamplingParams(**params))
        assert engine.generate([1] * 39, SamplingParams(temperature=0)).usage.num_output <= 1


def test_an_id_is_used_once_at_a_time() -> None:
    listener = Listener()
    with gated_engine() as (engine, steps):
        engine.submit([make_request([1], "a")], listener)
        for again in ([make_request([1], "a")], [make_request([1], "b"), make_request([1], "b")]):
            with pytest.raises(RequestError, match="duplicate request id"):
                engine.submit(again, listener)
        steps.release(100)
        listener.wait("a")
        engine.submit([make_request([1], "a")], Listener())


def test_an_engine_that_does_not_run_says_so() -> None:
    engine = make_engine()
    with pytest.raises(EngineClosed, match="start it"):
        engine.generate([1])
    engine.close()
    engine.close()
    with pytest.raises(EngineClosed):
        engine.generate([1])


def test_closing_ends_everything_once() -> None:
    listener = Listener()
    with gated_engine(max_running=1) as (engine, steps):
        engine.submit([make_request([1], name, sampling=greedy(500)) for name in "abc"], listener)
        steps.release()
        listener.next()
        closer = threading.Thread(target=engine.close)
        closer.start()
        steps.release(100_000)
        closer.join()
        listener.wait(*"abc")
        with pytest.raises(EngineClosed):
            engine.submit([make_request([1])], listener)
    assert {type(listener.last(name).error) for name in "abc"} == {EngineClosed}


def test_a_backend_is_closed_once_and_on_the_thread_it_ran_on() -> None:
    class Noting(NullBackend):
        def close(self) -> None:
            closed_on.append(threading.get_ident())
            super().close()

    ran_on: set[int] = set()
    closed_on: list[int] = []
    backend = Noting(block_size=4, vocab_size=VOCAB_SIZE, on_run=lambda batch: ran_on.add(threading.get_ident()))
    with Engine(TOKENIZER, backend) as engine:
        engine.generate([1], greedy())
        engine.close()
    assert [*ran_on] == closed_on
    never_started = Engine(TOKENIZER, Noting(vocab_size=VOCAB_SIZE))
    never_started.close()
    assert closed_on[1:] == [threading.get_ident()]


@pytest.mark.parametrize("is_started", [True, False])
def test_a_closed_engine_needs_no_garbage_collector_to_be_freed(is_started: bool) -> None:
    engine = Engine(TOKENIZER, NullBackend(vocab_size=VOCAB_SIZE))
    gc.disable()
    try:
        if is_started:
            engine.start().generate([1], greedy())
            engine.snapshot().result()
        engine.close()
        parts = [weakref.ref(each) for each in (engine, engine._core, engine._backend)]
        del engine
        assert [part() for part in parts] == [None] * len(parts)
    finally:
        gc.enable()


def test_closing_gives_memory_back_at_once_and_what_comes_later_is_told_so() -> None:
    tracemalloc.start()
    try:
        engine = Engine(TOKENIZER, NullBackend(vocab_size=VOCAB_SIZE), EngineConfig(draft_history_tokens=1_000_000))
        open_bytes, _ = tracemalloc.get_traced_memory()
        engine.close()
        closed_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert open_bytes - closed_bytes > 36_000_000, "what drafts are made from"
    with pytest.raises(EngineClosed):
        engine.generate([1], greedy())
    assert engine.stats().num_blocks_used == 0


async def test_draining_lets_what_runs_finish() -> None:
    listener = Listener()
    with make_engine() as engine:
        engine.submit([make_request([1], "a", sampling=greedy(50))], listener)
        await engine.drain(30)
        listener.wait("a")
        with pytest.raises(EngineClosed):
            engine.submit([make_request([1])], listener)
    assert listener.last("a").finish_reason is FinishReason.LENGTH


async def test_draining_ends_what_takes_too_long() -> None:
    listener = Listener()
    with make_engine(num_blocks=50_000) as engine:
        engine.submit([make_request([1], "a", sampling=greedy(150_000))], listener)
        await engine.drain(0)
        listener.wait("a")
    assert isinstance(listener.last("a").error, EngineClosed)


@pytest.mark.parametrize(
    "ask",
    [
        lambda engine: engine.close_session("s"),
        lambda engine: engine.find_session("s"),
        lambda engine: engine.read_kv("", array("i", [1])),
        lambda engine: engine.take_kv(KvSource("http://127.0.0.1:1", ""), "", [1], "s"),
    ],
)
def test_whoever_asked_may_go_and_what_runs_goes_on(ask: Callable[[Engine], "Future[Any]"]) -> None:
    listener = Listener()
    with gated_engine() as (engine, steps):
        engine.submit([make_request([1, 2, 3], "runs", sampling=greedy(3))], listener)
        asked = ask(engine)
        assert asked.cancel()
        steps.release(100)
        listener.wait("runs")
    assert listener.last("runs").finish_reason is FinishReason.LENGTH


def test_whoever_asks_for_what_fails_is_told() -> None:
    class Unreadable(NullBackend):
        def read_blocks(self, block_ids: Sequence[int]) -> HostCopy:
            raise BackendError("it cannot be read")

    backend = Unreadable(block_size=16, num_blocks=64, vocab_size=VOCAB_SIZE, max_context=1024)
    with make_engine(backend=backend, kv_peers=("http://127.0.0.1:1",)) as engine:
        assert engine.kv_segments
        prompt = [i % 250 for i in range(engine.kv_segments.num_tokens)]
        engine.generate([*prompt, 1], greedy(1))
        until_idle(engine)
        with pytest.raises(BackendError, match="cannot be read"):
            engine.read_kv("", array("i", prompt)).result(30)


def test_what_is_asked_of_an_engine_that_is_closing_waits_for_the_step_under_way() -> None:
    with gated_engine() as (engine, steps):
        engine.submit([make_request([1, 2, 3], "runs", sampling=greedy(3))], Listener())
        closing = threading.Thread(target=engine.close)
        closing.start()
        while not engine._is_stopped:
            time.sleep(0.001)
        asked = engine.find_session("s")
        assert not asked.done(), "two threads at once in what only one may touch"
        steps.release(100)
        assert asked.result(30) is None
        closing.join(30)


def test_a_request_that_cannot_be_added_ends_with_an_error_and_alone(tmp_path: Path) -> None:
    listener = Listener()
    bad = make_request([1, 2], "bad")
    bad.reasoning = Reasoning(("<think>",), ("</think>",), ())  # type: ignore[arg-type]  # texts, and no tokens
    with make_engine(kv_dir=str(tmp_path)) as engine:
        engine.submit([make_request([1, 2], "one"), bad, make_request([1, 2], "other")], listener)
        listener.wait("one", "bad", "other")
        assert [listener.last(name).error is None for name in ("one", "bad", "other")] == [True, False, True]
        assert not engine._arriving
        until_idle(engine)


def test_an_answer_begins_with_tokens_of_the_vocabulary() -> None:
    with make_engine() as engine:
        for token_id in (-1, VOCAB_SIZE, 2**40):
            request = make_request([1, 2], "a")
            request.begun_ids = [token_id]
            with pytest.raises(RequestError, match="vocabulary"):
                engine.submit([request], Listener())


def test_many_threads_submit_and_abort_at_once() -> None:
    listeners = [Listener() for _ in range(8)]

    def work(i: int, engine: Engine) -> None:
        rng = random.Random(i)
        for k in range(20):
            names = [f"{i}.{k}.{n}" for n in range(2)]
            prompts = [rng.choice(PROMPTS) for _ in names]
            requests = [make_request(prompt, name) for prompt, name in zip(prompts, names, strict=True)]
            engine.submit(requests, listeners[i])
            if rng.random() < 0.3:
                engine.abort(names[0])
            listeners[i].wait(*names)

    with make_engine(num_blocks=60) as engine:
        threads = [threading.Thread(target=work, args=(i, engine)) for i in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        until_idle(engine)
        stats = engine.stats()
    assert sum(stats.num_finished.values()) == sum(len(listener.events) for listener in listeners) == 320
    assert not engine._arriving
    assert stats.num_blocks_used == 0


def forcing(text: str, **params: Any) -> SamplingParams:
    """Parameters under which the model says nothing but this character."""
    [token_id] = TOKENIZER.encode(text)
    return SamplingParams(temperature=0, logit_bias={token_id: 100}, **params)


def test_stops() -> None:
    [x] = TOKENIZER.encode("x")
    with make_engine() as engine:
        assert engine.generate("p", forcing("x", max_tokens=3)).text == "xxx"
        stopped = engine.generate("p", forcing("x", stop=("xx",), max_tokens=9))
        assert (stopped.text, len(stopped.token_ids), stopped.finish_reason) == ("", 2, FinishReason.STOP)
        assert engine.generate("p", forcing("x", stop=("xx",), min_tokens=4, max_tokens=9)).text == "xx"
        assert engine.generate("p", forcing("x", stop=("xxxx",), max_tokens=3)).text == "xxx"
        assert engine.generate("p", forcing("x", stop=("xx",), include_stop=True, max_tokens=9)).text == "xx"
        by_id = engine.generate("p", forcing("x", stop_token_ids=frozenset({x}), max_tokens=9))
        assert (by_id.token_ids, by_id.finish_reason) == ((x,), FinishReason.STOP)
        later = engine.generate("p", forcing("x", stop_token_ids=frozenset({x}), min_tokens=2, max_tokens=9))
        assert len(later.token_ids) == 3
        assert x not in later.token_ids[:2]


def test_the_end_of_a_turn_and_how_to_ignore_it() -> None:
    ended = SamplingParams(temperature=0, logit_bias={EOS_ID: 100}, max_tokens=3)
    ignored = SamplingParams(temperature=0, logit_bias={EOS_ID: 100}, max_tokens=3, ignore_eos=True)
    with make_engine() as engine:
        assert engine.generate("p", ended).token_ids == (EOS_ID,)
        assert engine.generate("p", ignored).token_ids == (EOS_ID,) * 3
        assert engine.generate("p", ended).text == ""


def test_without_max_tokens_the_context_is_filled() -> None:
    with make_engine(num_blocks=8) as engine:
        assert engine.max_context == 32
        done = engine.generate([1, 2], SamplingParams(temperature=0, ignore_eos=True))
    assert (done.usage.num_output, done.finish_reason) == (30, FinishReason.LENGTH)


async def test_streaming_and_walking_away() -> None:
    with make_engine() as engine:
        whole = [event async for event in engine.stream([1, 2], greedy(5))]
        assert [event.finish_reason for event in whole] == [None] * 4 + [FinishReason.LENGTH]
        endless = engine.stream([1, 2], greedy(900))
        await anext(endless)
        await endless.aclose()
        await asyncio.to_thread(until_idle, engine)
        assert engine.stats().num_finished[FinishReason.ABORT] == 1
        with pytest.raises(PromptTooLong):
            await anext(engine.stream([1] * 5000))


def test_every_step_is_reported() -> None:
    reports: list[StepReport] = []
    with make_engine(max_step_tokens=8) as engine:
        engine.on_step = reports.append
        engine.generate(list(range(20)), greedy(3))
        until_idle(engine)
    assert [report.num_tokens for report in reports] == [8, 8, 4, 1, 1]
    assert [report.num_output for report in reports] == [0, 0, 1, 1, 1]
    assert all(0 <= report.overhead_s <= report.duration_s for report in reports)


def test_what_the_engine_counts() -> None:
    with make_engine() as engine:
        engine.generate(list(range(20)), greedy(3))
        engine.generate(list(range(20)), greedy(3))
        until_idle(engine)
        stats = engine.stats()
    assert (stats.usage.num_prompt, stats.usage.num_cached, stats.usage.num_output) == (40, 16, 6)
    assert (stats.num_running, sum(stats.num_waiting.values())) == (0, 0)
    assert (stats.num_blocks, stats.num_blocks_used, stats.num_blocks_cached) == (256, 0, 5)
    assert stats.num_finished[FinishReason.LENGTH] == 2
