"""Steps in flight: nothing that happens meanwhile changes a token, loses a block, or ends a request twice or never."""

import random
import threading
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings
from tests.backends.device import NullDevice
from tests.engine.drafting.test_speculation import Oracle
from tests.engine.offload.disk.fakes import make_store
from tests.engine.tiny import BLOCK_SIZE, TOKENIZER, VOCAB_SIZE, greedy, make_engine, make_request
from tests.properties import examples, seeds

from hotloop.backends.backend import Batch
from hotloop.core.config import EngineConfig
from hotloop.core.errors import BackendError, DeviceLost
from hotloop.core.grammar import Grammar, json_schema
from hotloop.core.request import FinishReason, Priority, Request, SamplingParams, TokenEvent
from hotloop.engine.core import EngineCore
from hotloop.engine.drafting.drafter import Drafter
from hotloop.engine.drafting.model import ModelDrafter
from hotloop.engine.grammar.matcher import Grammars

GRAMMARS = Grammars(TOKENIZER, VOCAB_SIZE)
SHAPES: list[Grammar | None] = [
    None,
    json_schema({"type": "object", "properties": {"n": {"enum": ["one", "two"]}}, "required": ["n"]}),
    Grammar("regex", "[a-c]{2,9}"),
]
SAMPLINGS: list[dict[str, Any]] = [
    {"temperature": 0},
    {"temperature": 0, "ignore_eos": True},
    {"temperature": 1, "seed": 5},
    {"temperature": 1.5, "seed": 6, "top_p": 0.9, "frequency_penalty": 0.5},
    {"temperature": 0, "repetition_penalty": 1.2, "min_tokens": 3},
    {"temperature": 1, "seed": 9, "stop": ("a", "e")},
    {"temperature": 0, "logprobs": 2},
    {"temperature": 1, "seed": 2, "logit_bias": {7: 3.0}, "min_p": 0.01},
]


@cache
def alone(prompt: tuple[int, ...], sampling: int, shape: int, max_tokens: int, num_states: int = 0) -> tuple[int, ...]:
    """What is answered where nothing is in flight, shared, drafted or forced."""
    backend = NullDevice(block_size=BLOCK_SIZE, vocab_size=VOCAB_SIZE, num_states=num_states)
    config = EngineConfig(prefix_cache=False, drafts=False, forced_tokens=False)
    core, events = EngineCore(TOKENIZER, backend, config), list[TokenEvent]()
    request = make_request(prompt, sampling=SamplingParams(max_tokens=max_tokens, **SAMPLINGS[sampling]))
    add(core, request, shape, events)
    while not core.is_idle:
        core.step()
    core.check()
    return tokens_of(events)


def add(core: EngineCore, request: Request, shape: int, events: list[TokenEvent]) -> None:
    request.grammar, request.max_tokens = SHAPES[shape], request.sampling.max_tokens or 0
    request.seed = request.sampling.seed or 0
    core.add(request, events.extend, GRAMMARS.matcher(request.grammar) if request.grammar else None)


class Turned:
    """A core turned by hand over a device that takes its time, and what it said to whom."""

    def __init__(
        self,
        rng: random.Random,
        drafter: Drafter | None = None,
        num_blocks: int = 40,
        max_running: int = 6,
        num_host_blocks: int = 0,
        num_states: int = 0,
        num_host_states: int = 0,
        **changes: Any,
    ) -> None:
        self.rng = rng
        self.backend = NullDevice(
            block_size=BLOCK_SIZE,
            num_blocks=num_blocks,
            vocab_size=VOCAB_SIZE,
            depth=2,
            num_host_blocks=num_host_blocks,
            num_states=num_states,
            num_host_states=num_host_states,
            on_run=self._run,
            is_late=lambda: rng.random() < 0.7,
        )
        config = EngineConfig(max_step_tokens=16, max_running=max_running, drafts=False)
        self.core = EngineCore(TOKENIZER, self.backend, config, drafter=drafter, **changes)
        self.said: dict[str, list[TokenEvent]] = {}
        self.priorities = [*Priority]
        self.sessions = ["", "s", "t"]
        self.is_broken = False
        self.num_failed = 0

    def _run(self, batch: Batch) -> None:
        if self.is_broken:
            self.is_broken = False
            raise BackendError("the device is gone")

    def add(self, name: str, prompt: tuple[int, ...], sampling: int, shape: int, max_tokens: int) -> None:
        params = SamplingParams(max_tokens=max_tokens, **SAMPLINGS[sampling])
        request = make_request(prompt, name, sampling=params, priority=self.rng.choice(self.priorities))
        request.session_id = self.rng.choice(self.sessions)
        self.said[name] = []
        add(self.core, request, shape, self.said[name])

    def turn(self) -> None:
        try:
            self.core.step()
        except BackendError as error:
            self.num_failed += 1
            self.core.fail(error)
        self.core.check()

    def finish(self) -> None:
        while not self.core.is_idle:
            self.turn()
        pool = self.core.scheduler.pool
        assert pool.num_used == 0
        assert pool.num_free + pool.num_idle == pool.num_blocks
        assert not any(session.open_ids for session in self.core.scheduler.admission._known.values())


def tokens_of(events: list[TokenEvent]) -> tuple[int, ...]:
    return tuple(token_id for event in events for token_id in event.token_ids)


Jobs = dict[str, tuple[tuple[int, ...], int, int, int]]


def run_all(engine: Turned, rng: random.Random, jobs: Jobs, add_rate: float, *, can_fail: bool) -> set[str]:
    """Add all jobs at random turns, and abort some; the names of these."""
    waiting, aborted = list(jobs), set[str]()
    while waiting or not engine.core.is_idle:
        if waiting and rng.random() < add_rate:
            engine.add(name := waiting.pop(), *jobs[name])
        elif engine.said and rng.random() < 0.05:
            aborted.add(name := rng.choice([*engine.said]))
            engine.core.abort(name)
        engine.is_broken = can_fail and rng.random() < 0.01
        engine.turn()
    engine.finish()
    return aborted


def check_answers(engine: Turned, jobs: Jobs, aborted: set[str]) -> None:
    """Each has ended once, with what is answered alone or, if it was broken off, the beginning of that."""
    for name, events in engine.said.items():
        assert [event.finish_reason for event in events if event.finish_reason] == [events[-1].finish_reason]
        expected = alone(*jobs[name], num_states=min(1, engine.backend.num_states))
        if events[-1].finish_reason in (FinishReason.STOP, FinishReason.LENGTH):
            assert tokens_of(events) == expected
        else:
            assert name in aborted if events[-1].finish_reason is FinishReason.ABORT else engine.num_failed
            assert tokens_of(events) == expected[: len(tokens_of(events))]


def make_jobs(seed: int, num_jobs: int = 12, num_trunks: int = 1, num_common: int = 30) -> Jobs:
    """Prompts that begin alike for up to so many tokens. There are four sets of them: each is asked alone once."""
    rng = random.Random(seed % 4)
    trunks = [tuple(rng.randrange(250) for _ in range(num_common)) for _ in range(num_trunks)]
    jobs = {}
    for i in range(num_jobs):
        common = rng.choice(trunks)[: rng.randrange(num_common + 1)]
        prompt = (*common, *(rng.randrange(250) for _ in range(rng.randrange(1, 12))))
        jobs[f"r{i}"] = (prompt, rng.randrange(len(SAMPLINGS)), rng.randrange(len(SHAPES)), rng.randrange(4, 24))
    return jobs


@settings(max_examples=examples(30))
@given(st.integers(0, 1 << 32), st.booleans(), st.booleans())
def test_nothing_is_lost_or_changed_with_steps_in_flight(seed: int, has_drafts: bool, can_fail: bool) -> None:
    rng = random.Random(seed)
    jobs = make_jobs(seed)
    answers = {job[0]: alone(*job) for job in jobs.values()}
    engine = Turned(rng, Oracle(answers, 0.3) if has_drafts else None)
    check_answers(engine, jobs, run_all(engine, rng, jobs, 0.4, can_fail=can_fail))


@settings(max_examples=examples(30))
@given(st.integers(0, 1 << 32), st.integers(2, 24), st.booleans())
def test_no_recurrent_state_is_lost_or_changed_either(seed: int, num_states: int, can_fail: bool) -> None:
    rng = random.Random(seed)
    jobs = make_jobs(seed, num_common=40)
    engine = Turned(rng, num_states=num_states)
    check_answers(engine, jobs, run_all(engine, rng, jobs, 0.4, can_fail=can_fail))
    slots = engine.core.scheduler.states.stats()
    assert slots.num_used == 0


def test_plain_requests_overlap_and_those_that_need_values_do_not() -> None:
    engine = Turned(random.Random(0))
    engine.add("plain", (1, 2, 3), 1, 0, 8)
    engine.core.step()
    engine.core.step()
    assert len(engine.core._flights) == 1, "one was settled, the next is on its way"
    assert engine.core.scheduler.running["plain"].num_pending == 1
    engine.finish()
    engine.add("guided", (1, 2, 3), 0, 1, 30)
    while engine.core.scheduler.has_work:
        engine.core.step()
        assert len(engine.core._flights) <= 1
        assert all(
            len(engine.core._flights) >= request.num_pending for request in engine.core.scheduler.running.values()
        )
    engine.finish()


def test_a_request_launched_beyond_its_end_gives_back_what_it_used() -> None:
    engine = Turned(random.Random(1))
    engine.add("a", (5, 6, 7), 5, 0, 24)
    engine.finish()
    assert tokens_of(engine.said["a"]) == alone((5, 6, 7), 5, 0, 24)


def test_one_who_gave_way_with_a_token_in_flight_goes_on_where_he_was() -> None:
    engine = Turned(random.Random(2), num_blocks=12)
    jobs = {f"r{i}": (tuple(range(10 * i, 10 * i + 8)), 1, 0, 20) for i in range(3)}
    for name, job in jobs.items():
        engine.add(name, *job)
    engine.finish()
    assert engine.core.scheduler.num_preemptions
    assert {name: tokens_of(events) for name, events in engine.said.items()} == {n: alone(*j) for n, j in jobs.items()}


@pytest.mark.parametrize("seed", seeds(3))
def test_blocks_go_to_disk_and_come_back_with_steps_in_flight(seed: int, tmp_path: Path) -> None:
    prompt = tuple(range(40))
    for is_second in (False, True):
        rng = random.Random(seed)
        inbox: list[Any] = []
        probe = NullDevice(block_size=BLOCK_SIZE)
        engine = Turned(rng, num_blocks=30, store=make_store(tmp_path, probe), post=inbox.append)
        for i in range(4):
            engine.add(f"r{i}", (*prompt, i), 1, 0, 12)
        while not engine.core.is_idle:
            while inbox:
                inbox.pop(0)()
            engine.turn()
        assert {tokens_of(engine.said[f"r{i}"]) for i in range(4)} == {alone((*prompt, i), 1, 0, 12) for i in range(4)}
        assert engine.core.disk
        assert engine.core.disk.store.flush()
        assert bool(engine.core.usage.num_restored) is is_second
        engine.core.close()


def test_an_engine_over_a_device_answers_as_over_a_host() -> None:
    with make_engine() as host, make_engine(depth=2) as device:
        for prompt in range(5):
            wanted = host.generate(list(range(prompt, 40)), greedy(20))
            assert device.generate(list(range(prompt, 40)), greedy(20)).token_ids == wanted.token_ids


def test_those_that_a_step_has_no_room_for_are_not_taken_for_being_computed() -> None:
    """Twelve prompts, of which a step computes a few: all of them decode together soon, not one group after another."""
    engine = Turned(random.Random(0), num_blocks=400, max_running=12)
    engine.priorities = [Priority.INTERACTIVE]
    for i in range(12):
        engine.add(f"r{i}", tuple(range(20 * i, 20 * i + 12)), 1, 0, 80)
    most = 0
    while not engine.core.is_idle:
        engine.core.step()
        most = max(most, sum(bool(request.num_pending) for request in engine.core.scheduler.running.values()))
    assert most == 12


@pytest.mark.parametrize("seed", seeds(25))
def test_one_who_gave_way_is_not_left_with_a_token_nobody_was_told_of(seed: int, tmp_path: Path) -> None:
    """A step that fails after its tokens were taken ends all who were in it, those who gave way meanwhile too."""
    rng, inbox = random.Random(seed), []
    engine = Turned(
        rng, num_blocks=12, store=make_store(tmp_path, NullDevice(block_size=BLOCK_SIZE)), post=inbox.append
    )
    read_blocks = engine.backend.read_blocks

    def fail_at_times(block_ids: Any) -> Any:
        if rng.random() < 0.3:
            raise BackendError("out of memory")
        return read_blocks(block_ids)

    engine.backend.read_blocks = fail_at_times  # type: ignore[method-assign]
    jobs = {f"r{i}": (tuple(range(10 * i, 10 * i + 8)), 1, 0, 20) for i in range(3)}
    for name, job in jobs.items():
        engine.add(name, *job)
    while not engine.core.is_idle:
        while inbox:
            inbox.pop(0)()
        engine.turn()
    engine.core.close()
    for name, events in engine.said.items():
        assert events[-1].error or tokens_of(events) == alone(*jobs[name])


def test_nothing_is_drafted_for_one_who_has_ended() -> None:
    backend = NullDevice(block_size=BLOCK_SIZE, num_blocks=4000, vocab_size=VOCAB_SIZE)
    drafter = ModelDrafter(backend, TOKENIZER, least_chance=1.1)
    engine = Turned(random.Random(0), drafter, num_blocks=400)
    for i in range(20):
        engine.add(f"r{i}", (1, 2, i), 5, 0, 24)
        engine.finish()
    assert not drafter._sequences


def assert_opened(gate: threading.Event) -> None:
    assert gate.wait(30)


def test_a_device_lost_in_a_command_leaves_nobody_waiting() -> None:
    def lose() -> None:
        raise DeviceLost("gone")

    gate, events = threading.Event(), SimpleQueue[Sequence[TokenEvent]]()
    with make_engine(depth=2) as engine:
        engine._post(lambda: assert_opened(gate))
        engine._post(lose)
        engine.submit([make_request([1, 2, 3], "x", sampling=greedy(4))], events.put)
        gate.set()
        assert events.get(timeout=30)[-1].error
        engine._thread.join(30)
        assert engine.failure
