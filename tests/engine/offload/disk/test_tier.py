"""The engine with a folder: what it says never changes, whatever becomes of the folder, and nobody waits for ever."""

import random
import threading
import time
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.engine.offload.disk.fakes import SEGMENT_TOKENS, FullFolder, GatedFolder, make_store, spoil
from tests.engine.tiny import (
    BLOCK_SIZE,
    TOKENIZER,
    VOCAB_SIZE,
    Listener,
    greedy,
    make_request,
    run_alone,
    run_together,
    until_idle,
)
from tests.properties import seeds

from hotloop.backends.backend import Batch
from hotloop.backends.null import NullBackend
from hotloop.core.config import EngineConfig
from hotloop.core.errors import BackendError, ConfigError, EngineClosed
from hotloop.core.request import FinishReason, Priority, Request
from hotloop.core.retention import Hold, HoldKind
from hotloop.engine.engine import Engine
from hotloop.engine.offload.disk.folder import Folder
from hotloop.engine.offload.disk.tier import PATIENCE_S, DiskTier, open_store
from hotloop.engine.scheduler.scheduler import Scheduler

PROMPT = [i * 7 % 250 for i in range(50)]
NUM_STORED = 48  # of its tokens, in whole segments


def make_backend(num_blocks: int = 256) -> NullBackend:
    return NullBackend(block_size=BLOCK_SIZE, num_blocks=num_blocks, vocab_size=VOCAB_SIZE)


@contextmanager
def disk_engine(
    folder: Folder | Path, backend: NullBackend | None = None, *, max_bytes: int = 1 << 20, **settings: Any
) -> Iterator[Engine]:
    backend = backend or make_backend()
    store = make_store(folder, backend, max_bytes=max_bytes)
    with Engine(TOKENIZER, backend, EngineConfig(debug_checks=True, **settings), store=store) as engine:
        yield engine


def say(engine: Engine, prompt: list[int] = PROMPT, max_tokens: int = 8) -> tuple[tuple[int, ...], int, int]:
    """What the engine says, how much of the prompt it had, and how much of that came from disk."""
    done = engine.generate(prompt, greedy(max_tokens))
    return done.token_ids, done.usage.num_cached, done.usage.num_restored


@pytest.fixture(scope="module")
def alone() -> tuple[int, ...]:
    return run_alone(PROMPT, greedy()).token_ids


@pytest.fixture
def filled(tmp_path: Path) -> Path:
    """A folder with the KV of PROMPT."""
    with disk_engine(tmp_path / "kv") as engine:
        engine.generate(PROMPT, greedy())
    return tmp_path / "kv"


def test_a_prefix_survives_a_restart(filled: Path, alone: tuple[int, ...]) -> None:
    with disk_engine(filled) as engine:
        assert say(engine) == (alone, NUM_STORED, NUM_STORED)
        assert say(engine) == (alone, NUM_STORED, 0), "now it is in memory"
        assert say(engine, [*PROMPT, 1, 2])[2] == 0
        stats = engine.stats()
    assert stats.usage.num_restored == NUM_STORED
    assert stats.disk.num_bytes_read > 0
    assert stats.disk.num_bytes_written == 0 or stats.disk.num_segments > NUM_STORED // SEGMENT_TOKENS


def test_a_prefix_survives_its_eviction(tmp_path: Path, alone: tuple[int, ...]) -> None:
    with disk_engine(tmp_path, make_backend(num_blocks=20)) as engine:
        assert say(engine) == (alone, 0, 0)
        for _ in range(50):  # what is not written in time is not kept, and what is not read in time is computed
            for other in range(3):
                engine.generate([other + 100] * 60, greedy())
            said, *found = say(engine)
            assert said == alone
            if found == [NUM_STORED, NUM_STORED]:
                return
    pytest.fail("it was never found again")


def test_what_the_tree_has_is_not_read_again(filled: Path, alone: tuple[int, ...]) -> None:
    with disk_engine(filled) as engine:
        engine.generate(PROMPT[:20], greedy(1))
        assert say(engine) == (alone, NUM_STORED, NUM_STORED - 20)


def test_an_answer_is_kept_too(tmp_path: Path) -> None:
    with disk_engine(tmp_path) as engine:
        answer = engine.generate(PROMPT, greedy(30)).token_ids
    longer = [*PROMPT, *answer, 5]
    with disk_engine(tmp_path) as engine:
        found = say(engine, longer)
    assert found == (run_alone(longer, greedy()).token_ids, 72, 72)


def test_only_whole_segments_and_never_the_last_token(filled: Path) -> None:
    with disk_engine(filled) as engine:
        assert say(engine, PROMPT[:NUM_STORED])[1:] == (NUM_STORED - BLOCK_SIZE, NUM_STORED - BLOCK_SIZE)
        assert say(engine, PROMPT[: SEGMENT_TOKENS - 1])[2] == 0


@pytest.mark.parametrize("salts", [("a", "b"), ("", "b"), ("a", "")])
def test_salts_share_nothing(tmp_path: Path, salts: tuple[str, str]) -> None:
    for salt, num_restored in ((salts[0], 0), (salts[1], 0), (salts[0], NUM_STORED)):
        listener = Listener()
        with disk_engine(tmp_path) as engine:
            engine.submit([make_request(PROMPT, "r", salt=salt)], listener)
            listener.wait("r")
        assert listener.last("r").usage.num_restored == num_restored


def test_another_model_finds_nothing(filled: Path) -> None:
    backend = make_backend()
    backend.kv_layout = "another"
    with disk_engine(filled, backend) as engine:
        assert say(engine)[1:] == (0, 0)


@pytest.mark.parametrize("number", [0, 2, 5])
def test_damage_costs_what_follows_it_and_nothing_else(filled: Path, alone: tuple[int, ...], number: int) -> None:
    backend = make_backend()
    keys = make_store(filled, backend).keys("").first(6, array("i", PROMPT))
    path = filled / f"{keys[number].hex()}.kv"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with disk_engine(filled, backend) as engine:
        assert say(engine) == (alone, number * SEGMENT_TOKENS, number * SEGMENT_TOKENS)
        assert engine.stats().disk.num_damaged == 1
    with disk_engine(filled) as engine:
        assert say(engine) == (alone, NUM_STORED, NUM_STORED), "it was written again"


def test_files_that_vanish(filled: Path, alone: tuple[int, ...]) -> None:
    with disk_engine(filled) as engine:
        for path in filled.iterdir():
            path.unlink()
        filled.rmdir()
        assert say(engine) == (alone, 0, 0)
        assert say(engine) == (alone, NUM_STORED, 0)


def test_a_full_disk_fails_no_request(tmp_path: Path, alone: tuple[int, ...]) -> None:
    with disk_engine(FullFolder(tmp_path)) as engine:
        assert say(engine) == (alone, 0, 0)
        assert engine._core.disk is not None
        assert engine._core.disk.store.flush()
        assert say(engine, [9, *PROMPT])[1:] == (0, 0)
        assert engine.stats().disk.num_dropped == 14
        assert not engine.failure


def test_no_room_in_memory_is_no_reason_to_fail(filled: Path, alone: tuple[int, ...]) -> None:
    with disk_engine(filled, make_backend(num_blocks=15)) as engine:
        assert say(engine)[0] == alone


@pytest.mark.parametrize("aborted", ["a", "b"])  # who has it read, and who waits for that
def test_an_abort_while_the_disk_is_read(filled: Path, alone: tuple[int, ...], aborted: str) -> None:
    folder, listener, others = GatedFolder(filled), Listener(), {*"abc"} - {aborted}
    with disk_engine(folder) as engine:
        engine.submit([make_request(PROMPT, name) for name in "abc"], listener)
        engine.abort(aborted)
        listener.wait(aborted)
        assert not any(map(listener.is_over, others))
        assert sum(engine.stats().num_waiting.values()) == 2
        folder.reads.release(100)
        listener.wait(*others)
        until_idle(engine)
    assert aborted == "a" or folder.num_asked == NUM_STORED // SEGMENT_TOKENS, "one read it for all"
    assert listener.last(aborted).finish_reason is FinishReason.ABORT
    assert {listener.last(name).usage.num_cached for name in others} == {NUM_STORED}
    assert {tuple(listener.token_ids(name)) for name in others} == {alone}


def test_closing_while_the_disk_is_read_ends_everything_once(filled: Path) -> None:
    folder, listener = GatedFolder(filled), Listener()
    with disk_engine(folder) as engine:
        engine.submit([make_request(PROMPT, name) for name in "ab"], listener)
        while sum(engine.stats().num_waiting.values()) < 2:
            time.sleep(0.001)
    listener.wait("a", "b")
    folder.reads.release(100)
    assert {type(listener.last(name).error) for name in "ab"} == {EngineClosed}


def test_others_go_on_while_the_disk_is_read(filled: Path) -> None:
    folder, listener = GatedFolder(filled), Listener()
    with disk_engine(folder) as engine:
        engine.submit([make_request(PROMPT, "slow")], listener)
        engine.submit([make_request([1, 2, 3], "quick", priority=Priority.BACKGROUND)], listener)
        listener.wait("quick")
        assert not listener.is_over("slow")
        folder.reads.release(100)
        listener.wait("slow")


async def test_draining_waits_for_what_is_being_read(filled: Path) -> None:
    folder, listener = GatedFolder(filled), Listener()
    with disk_engine(folder) as engine:
        engine.submit([make_request(PROMPT, "a")], listener)
        folder.reads.release(100)
        await engine.drain(30)
        listener.wait("a")
    assert listener.last("a").finish_reason is FinishReason.LENGTH


class BrokenBackend(NullBackend):
    """Computes no numbers while it is broken."""

    is_broken = False

    def run(self, batch: Batch) -> NDArray[np.float32]:
        logits = super().run(batch)
        return logits * np.nan if self.is_broken else logits


def test_what_failed_leaves_the_disk_as_well(filled: Path, alone: tuple[int, ...]) -> None:
    backend = BrokenBackend(block_size=BLOCK_SIZE, num_blocks=64, vocab_size=VOCAB_SIZE)
    with disk_engine(filled, backend) as engine:
        backend.is_broken = True
        with pytest.raises(BackendError, match="not numbers"):
            engine.generate(PROMPT, greedy())
        backend.is_broken = False
        assert engine._core.disk is not None
        assert engine._core.disk.store.flush()
        assert len(list(filled.glob("*.kv"))) == 1, "the answer's own, which nothing leads to any more"
        assert say(engine) == (alone, 0, 0)


class Rig:
    """The tier alone, its clock and its disk in the test's hands."""

    def __init__(self, folder: Folder | Path) -> None:
        self.now = 0.0
        self.backend = make_backend()
        self.scheduler = Scheduler(EngineConfig(), block_size=BLOCK_SIZE, num_blocks=self.backend.num_blocks)
        self.posted: list[Any] = []
        self.has_come = threading.Semaphore(0)
        store = make_store(folder, self.backend)
        self.tier = DiskTier(store, self.backend, self.scheduler, self._post, lambda: self.now)

    def _post(self, command: Any) -> None:
        self.posted.append(command)
        self.has_come.release()

    @property
    def loading(self) -> list[Request]:
        return [request for request in self.scheduler.waiting.values() if request.is_loading]

    def hear(self) -> None:
        """Of the next segment that was read."""
        assert self.has_come.acquire(timeout=30)
        self.posted.pop(0)()
        self.tier.check()
        self.scheduler.check()


def test_a_disk_that_does_not_answer_is_not_waited_for(filled: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = GatedFolder(filled)
    rig = Rig(folder)
    first, second, third = (Request(name, PROMPT, greedy()) for name in "abc")
    rig.tier.add(first)
    rig.tier.add(second)
    rig.tier.poll(PATIENCE_S - 0.1)
    assert rig.loading == [first, second]
    rig.now = PATIENCE_S + 0.1
    rig.tier.poll(rig.now)
    assert list(rig.scheduler.waiting.values()) == [first, second]
    rig.tier.check()
    assert "has not responded for 2 s" in caplog.text
    rig.tier.add(third)
    assert rig.loading == [], "nor by those who come later"
    folder.reads.release(100)
    for _ in range(NUM_STORED // SEGMENT_TOKENS):
        rig.hear()
    fourth = Request("d", PROMPT, greedy())
    rig.tier.add(fourth)
    assert rig.loading == [fourth], "now that it has answered"
    rig.tier.store.close()


def test_the_urgent_are_read_for_first(tmp_path: Path) -> None:
    prompts = {name: [ord(name)] * 400 for name in "abu"}
    with disk_engine(tmp_path) as engine:
        for prompt in prompts.values():
            engine.generate(prompt, greedy(1))
    rig = Rig(tmp_path)
    rig.tier._max_ahead = 2
    for name, priority in (("a", Priority.BACKGROUND), ("b", Priority.BACKGROUND), ("u", Priority.INTERACTIVE)):
        rig.tier.add(Request(name, prompts[name], greedy(), priority))
    loaded: list[str] = []
    while loading := rig.loading:
        rig.hear()
        loaded += [each.id for each in loading if not each.is_loading]
    assert loaded == ["u", "a", "b"]
    rig.tier.store.close()


def test_a_prefix_lost_while_it_is_read_is_let_go(filled: Path) -> None:
    rig = Rig(filled)
    request = Request("a", PROMPT, greedy())
    rig.tier.add(request)
    rig.hear()
    assert rig.scheduler.tree.evict(1000) > 0
    while rig.loading:
        rig.hear()
    assert list(rig.scheduler.waiting.values()) == [request]
    assert rig.scheduler.pool.num_used == 0
    rig.tier.store.close()


@pytest.mark.parametrize("priority", [Priority.INTERACTIVE, Priority.BACKGROUND])
def test_room_of_more_urgent_sessions_in_a_tool_gap_is_left_alone(filled: Path, priority: Priority) -> None:
    rig = Rig(filled)
    pool, tree = rig.scheduler.pool, rig.scheduler.tree
    block_ids = pool.allocate(pool.num_free) or []
    held = array("i", range(1000, 1000 + len(block_ids) * BLOCK_SIZE))
    tree.insert(held, block_ids)
    pool.release(block_ids)
    tree.hold(held, Hold(HoldKind.TOOL_GAP, until=900.0, rank=Priority.INTERACTIVE))
    request = Request("a", PROMPT, greedy(), priority)
    rig.tier.add(request)
    while rig.loading:
        rig.hear()
    num_restored = NUM_STORED if priority is Priority.INTERACTIVE else 0
    assert (request.num_restored, tree.num_evicted * BLOCK_SIZE) == (num_restored, num_restored)
    rig.tier.store.close()


def test_too_small_a_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="too small: one segment takes"):
        open_store(EngineConfig(kv_dir=str(tmp_path), kv_dir_size="1KiB"), make_backend())
    with pytest.raises(ConfigError, match="needs prefix_cache"):
        EngineConfig(kv_dir=str(tmp_path), prefix_cache=False)
    assert open_store(EngineConfig(), make_backend()) is None


@pytest.mark.parametrize("seed", seeds(6))
def test_under_pressure_the_same_is_said_as_without(tmp_path: Path, seed: int) -> None:
    """Few blocks, a small folder, files that vanish and rot: engines that come and go say what one alone says."""
    rng = random.Random(seed)
    trunk = [rng.randrange(250) for _ in range(70)]
    prompts = [
        trunk[: rng.randrange(71)] + [rng.randrange(250) for _ in range(rng.randrange(1, 30))] for _ in range(12)
    ]
    expected = {i: list(run_alone(prompt, greedy(12)).token_ids) for i, prompt in enumerate(prompts)}
    num_restored = 0
    for _ in range(4):
        with disk_engine(
            tmp_path, make_backend(rng.randrange(32, 60)), max_bytes=40 * 160, max_step_tokens=rng.choice([4, 32, 512])
        ) as engine:
            for _ in range(4):
                chosen = rng.choices(range(len(prompts)), k=6)
                outputs = run_together(engine, [prompts[i] for i in chosen], greedy(12))
                assert outputs == [expected[i] for i in chosen]
                spoil(tmp_path, rng)
            until_idle(engine)
            stats = engine.stats()
            assert stats.num_blocks_used == 0
            num_restored += stats.usage.num_restored
        assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 40 * 160
    assert num_restored > 0
