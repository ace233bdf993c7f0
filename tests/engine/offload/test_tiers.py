"""Device, host memory and disk under one tree: whatever goes wrong in one of them, what is said never changes, no block
has two owners, and nothing is left behind.
"""

import random
import tempfile
from array import array
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings
from tests.backends.device import NullDevice
from tests.engine.offload.disk.fakes import PatientWorker, WornFolder, make_store
from tests.engine.test_flights import SAMPLINGS, SHAPES, Turned, alone, tokens_of
from tests.engine.tiny import BLOCK_SIZE
from tests.properties import examples, seeds

from hotloop.core.errors import BackendError
from hotloop.core.request import FinishReason, Priority
from hotloop.engine.offload.disk.store import KvStore
from hotloop.engine.offload.disk.tier import PATIENCE_S

Job = tuple[tuple[int, ...], int, int, int]


@dataclass(frozen=True)
class Troubles:
    """How often, a turn or a call, something goes wrong."""

    abort: float = 0.0
    step: float = 0.0
    copy: float = 0.0
    disk: float = 0.0
    stall: float = 0.0


@dataclass
class Tiers:
    """An engine over all three, its clock, its disk and its copies in the test's hands."""

    rng: random.Random
    folder: Path
    num_blocks: int
    num_host_blocks: int
    troubles: Troubles = Troubles()
    max_bytes: int = 1 << 20
    num_states: int = 0
    num_host_states: int = 0
    now: float = 0.0
    inbox: list[Any] = field(default_factory=list)
    aborted: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.worn = WornFolder(self.folder, self.rng, self.troubles.disk)
        probe = NullDevice(block_size=BLOCK_SIZE)
        self.store = make_store(self.worn, probe, max_bytes=self.max_bytes, make_worker=PatientWorker)
        self.engine = Turned(
            self.rng,
            num_blocks=self.num_blocks,
            num_host_blocks=self.num_host_blocks,
            num_states=self.num_states,
            num_host_states=self.num_host_states,
            store=self.store,
            post=self.inbox.append,
            clock=lambda: self.now,
        )
        lateness = self.rng.choice([0.3, 0.7, 0.95])
        self.engine.backend.is_late = lambda: self.rng.random() < lateness
        assert self.engine.backend.host_memory
        self._restore = self.engine.backend.host_memory.restore
        self.engine.backend.host_memory.restore = self._restore_perhaps  # type: ignore[method-assign]

    def _restore_perhaps(self, *ids: Any) -> Any:
        def fail() -> float:
            copy.arrive()
            raise BackendError("the bus is broken")

        if self.rng.random() < self.troubles.copy:
            raise BackendError("the bus is busy")
        copy = self._restore(*ids)
        if self.rng.random() < self.troubles.copy:
            copy.wait = fail  # type: ignore[method-assign]
        return copy

    def turn(self) -> None:
        """The disk gets on a little or not at all, and then the engine does."""
        rng, troubles = self.rng, self.troubles
        workers(self.store)[0].work(rng.randrange(4))
        workers(self.store)[1].work(rng.randrange(4))
        for _ in range(rng.randrange(4)):
            if self.inbox:
                self.inbox.pop(0)()
                self.engine.core.check()
        self.now += PATIENCE_S + 1 if rng.random() < troubles.stall else 0.001
        if rng.random() < 0.1:
            self.store._paused_until = 0.0  # somebody made room on the disk
        if self.engine.said and rng.random() < troubles.abort:
            self.aborted.add(name := rng.choice([*self.engine.said]))
            self.engine.core.abort(name)
            self.engine.core.check()
        self.engine.is_broken = rng.random() < troubles.step
        self.engine.turn()

    def serve(self, jobs: dict[str, Job]) -> None:
        waiting = list(jobs)
        while waiting or not self.engine.core.is_idle:
            if waiting and self.rng.random() < 0.3:
                self.engine.add(name := waiting.pop(), *jobs[name])
                self.engine.core.check()
            self.turn()
        self._check_answers(jobs)

    def finish(self) -> None:
        while not self.engine.core.is_idle:
            self.turn()

    def close(self) -> None:
        for worker in workers(self.store):
            worker.is_prompt = True
            worker.work()
        while self.inbox:
            self.inbox.pop(0)()
        self.engine.core.check()
        self.engine.finish()
        assert self.engine.core.disk
        assert not self.engine.core.scheduler.waiting
        assert self.engine.core.disk._num_ahead == 0
        assert not self.engine.core.disk._loading
        assert self.engine.core.scheduler.tree.host_pool.num_used == 0
        slots = self.engine.core.scheduler.tree.states
        assert slots.pool.num_used == slots.host_pool.num_used == 0
        assert self.engine.backend._host
        assert not [copy for copy in self.engine.backend._host._coming if not copy.is_over]
        self.engine.core.close()

    def _check_answers(self, jobs: dict[str, Job]) -> None:
        for name, events in self.engine.said.items():
            assert [event.finish_reason for event in events if event.finish_reason] == [events[-1].finish_reason]
            usage, expected = events[-1].usage, alone(*jobs[name], num_states=min(1, self.num_states))
            assert usage.num_restored + usage.num_from_host <= usage.num_cached
            if events[-1].finish_reason in (FinishReason.STOP, FinishReason.LENGTH):
                assert tokens_of(events) == expected
            else:
                is_aborted = events[-1].finish_reason is FinishReason.ABORT
                assert name in self.aborted if is_aborted else self.engine.num_failed
                assert tokens_of(events) == expected[: len(tokens_of(events))]


def workers(store: KvStore) -> tuple[PatientWorker, PatientWorker]:
    assert isinstance(store._writer, PatientWorker)
    assert isinstance(store._reader, PatientWorker)
    return store._writer, store._reader


def make_jobs(rng: random.Random, count: int, length: int = 70) -> dict[str, Job]:
    """Agents that come back with more of the same, or with less."""
    trunks = [tuple(rng.randrange(250) for _ in range(length)) for _ in range(3)]
    jobs = {}
    for i in range(count):
        prompt = (*rng.choice(trunks)[: rng.randrange(8, length + 1)], *(rng.randrange(250) for _ in range(2)))
        jobs[f"r{i}"] = (prompt, rng.randrange(len(SAMPLINGS)), rng.randrange(len(SHAPES)), rng.randrange(4, 16))
    return jobs


def serve_twice(
    seed: int, troubles: Troubles, folder: Path, rooms: tuple[int, int] | None = None, **changes: Any
) -> list[Tiers]:
    """Two servers in turn: the second has nothing in memory, and soon has it in all three places."""
    rng = random.Random(seed)
    jobs = make_jobs(random.Random(seed % 4), 24)  # what they say alone is asked once
    servers = []
    for _ in range(2):
        num_blocks, num_host_blocks = rooms or (rng.randrange(24, 44), rng.choice([3, 10, 30, 60]))
        tiers = Tiers(rng, folder, num_blocks, num_host_blocks, troubles, **changes)
        tiers.serve(jobs)
        tiers.close()
        servers.append(tiers)
    return servers


shares = st.sampled_from([0.0, 0.0, 0.02, 0.2])
seldom = st.sampled_from([0.0, 0.01])
troubles = st.builds(Troubles, abort=shares, step=seldom, copy=shares, disk=shares, stall=seldom)


@settings(max_examples=examples(10))
@given(st.integers(0, 1 << 32), troubles, st.sampled_from([1 << 20, 2000]))
def test_an_engine_over_all_three_says_what_it_says_over_one(seed: int, troubles: Troubles, max_bytes: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        serve_twice(seed, troubles, Path(folder), max_bytes=max_bytes)


@settings(max_examples=examples(10))
@given(st.integers(0, 1 << 32), troubles, st.integers(2, 16), st.sampled_from([0, 2, 20]))
@pytest.mark.long
def test_hybrids_too(seed: int, troubles: Troubles, num_states: int, num_host_states: int) -> None:
    slots = {"num_states": num_states, "num_host_states": num_host_states}
    with tempfile.TemporaryDirectory() as folder:
        serve_twice(seed, troubles, Path(folder), **slots)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("slots", [{}, {"num_states": 8, "num_host_states": 30}], ids=["dense", "hybrid"])
@pytest.mark.parametrize("seed", seeds(3))
def test_all_three_are_used(seed: int, slots: dict[str, int], tmp_path: Path) -> None:
    first, second = serve_twice(seed, Troubles(), tmp_path, rooms=(24, 30), **slots)
    assert first.engine.core.usage.num_from_host
    assert second.engine.core.usage.num_from_host
    assert second.engine.core.usage.num_restored


def test_what_the_disk_brings_stays_before_what_is_being_copied_from_host_memory(tmp_path: Path) -> None:
    """Else it is sent to host memory, and whoever comes next copies what is being copied."""
    prompt = tuple(range(64))
    first = Tiers(random.Random(0), tmp_path, 24, 60)
    first.serve({"whole": (prompt, 1, 0, 4)})
    first.close()
    tiers = Tiers(random.Random(0), tmp_path, 24, 60)
    engine, tree = tiers.engine, tiers.engine.core.scheduler.tree
    engine.priorities = [Priority.INTERACTIVE]
    jobs = {"begins": (prompt[:24], 1, 0, 4)}
    engine.add("begins", *jobs["begins"])
    tiers.finish()
    tree.evict(24)
    assert len(tree.peek(array("i", prompt), is_offloaded=True)) == 6
    jobs |= {name: ((*prompt[:24], number), 1, 0, 4) for number, name in enumerate(["copied", "follows"])}
    jobs["read"] = (prompt, 1, 0, 4)
    engine.backend.is_late = lambda: True
    engine.add("read", *jobs["read"])
    engine.add("copied", *jobs["copied"])
    engine.turn()
    assert engine.core.host
    assert engine.core.host.is_busy
    workers(tiers.store)[1].work(1)
    tiers.inbox.pop(0)()
    assert len(tree.peek(array("i", prompt))) == 2, "one segment is there, of three that are being copied"
    tree.evict(24)
    engine.core.check()
    engine.add("follows", *jobs["follows"])
    engine.turn()
    assert len(engine.core.host._loads) == 1
    tiers.finish()
    tiers._check_answers(jobs)
    tiers.close()


@pytest.mark.parametrize(("num_offloaded", "num_restored"), [(56, 0), (36, 0), (32, 64), (8, 64)])
def test_the_disk_is_read_where_it_has_more_than_host_memory(
    num_offloaded: int, num_restored: int, tmp_path: Path
) -> None:
    """And then all of it, since nothing of it can be on the device without what is before it."""
    prompt = tuple(range(65))
    job = (prompt, 1, 0, 4)
    first = Tiers(random.Random(0), tmp_path, 24, 60)
    first.serve({"whole": job})
    first.close()
    tiers = Tiers(random.Random(0), tmp_path, 24, 60)
    assert tiers.engine.core.disk
    tiers.engine.core.disk._is_stalled = True
    tiers.engine.add("begins", prompt[: num_offloaded + 1], 1, 0, 1)
    tiers.engine.finish()
    tiers.engine.core.disk._is_stalled = False
    tiers.engine.core.scheduler.tree.evict(24)
    tiers.engine.add("whole", *job)
    tiers.finish()
    usage = tiers.engine.said["whole"][-1].usage
    assert (usage.num_restored, usage.num_from_host) == (num_restored, 0 if num_restored else num_offloaded)
    assert tokens_of(tiers.engine.said["whole"]) == alone(*job)
    tiers.close()
