"""Snapshots of the engine: counts that move with every step and never back, and whose each block is."""

import random
import threading
from array import array
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from tests.engine.kvcache.test_radix import BLOCK, Life, tokens
from tests.engine.tiny import BLOCK_SIZE, TOKENIZER, VOCAB_SIZE, Listener, greedy, make_engine, make_request, until_idle
from tests.properties import seeds

from hotloop.backends.backend import Batch
from hotloop.backends.null import NullBackend
from hotloop.core.config import EngineConfig
from hotloop.engine.core import EngineCore
from hotloop.engine.engine import Engine
from hotloop.engine.grammar.matcher import Grammars
from hotloop.engine.snapshot import BlockCount, EngineSnapshot, Snapshotter, count_up


class Turned:
    """An engine that is stepped by hand, with snapshots."""

    def __init__(self, num_blocks: int = 64, **settings: int | bool) -> None:
        backend = NullBackend(block_size=BLOCK_SIZE, num_blocks=num_blocks, vocab_size=VOCAB_SIZE)
        self.core = EngineCore(TOKENIZER, backend, EngineConfig(**settings))
        grammars = Grammars(TOKENIZER, VOCAB_SIZE, 1)
        self._snapshotter = Snapshotter(self.core, lambda: count_up(self.core, grammars))

    def ask(self, name: str, prompt: list[int], *, session: str = "", parent: str = "", max_tokens: int = 4) -> None:
        request = make_request(prompt, name, sampling=greedy(max_tokens), session_id=session)
        request.parent_id = parent
        request.max_tokens = max_tokens
        self.core.add(request, Listener())

    def snapshot(self) -> EngineSnapshot:
        snapshot = self._snapshotter.take()
        counts = snapshot.blocks.values()
        assert sum(count.num_used for count in counts) == snapshot.stats.num_blocks_used
        assert sum(count.num_kept for count in counts) == snapshot.stats.num_blocks_cached
        return snapshot

    def finish(self) -> EngineSnapshot:
        while not self.core.is_idle:
            self.core.step()
        return self.snapshot()


def test_it_tells_which_sessions_those_of_its_requests_work_for():
    engine = Turned()
    engine.ask("a", [1, 2, 3], session="agent", parent="main")
    engine.finish()
    engine.ask("b", [1, 2, 3], session="deep", parent="agent")
    engine.ask("c", [1, 2, 3], parent="agent")
    engine.ask("d", [1, 2, 3], session="other")
    engine.ask("e", [1, 2, 3])
    assert engine.snapshot().above == {"b": ("main", "agent"), "c": ("main", "agent"), "d": (), "e": ()}


class TestTotals:
    def test_they_move_with_every_step_of_a_request(self):
        engine = Turned(max_step_tokens=8)
        engine.ask("r", list(range(20)), max_tokens=6)
        seen = []
        while engine.core.scheduler.has_work:
            engine.core.step()
            totals = engine.snapshot().totals
            seen.append((totals.num_prompt, totals.num_output))
        assert seen == [(8, 0), (16, 0), *((20, i + 1) for i in range(6))]
        assert engine.snapshot().stats.usage.num_output == 6

    def test_what_was_found_in_the_cache_is_counted_when_it_is_found(self):
        engine = Turned()
        engine.ask("first", list(range(20)))
        engine.finish()
        engine.ask("second", list(range(20)))
        engine.core.step()
        assert engine.snapshot().totals.num_cached == 16

    @pytest.mark.parametrize("seed", seeds(6))
    def test_they_never_go_back(self, seed: int):
        """Whoever comes, ends, gives way or is broken off meanwhile."""
        rng = random.Random(seed)
        engine = Turned(num_blocks=16, max_step_tokens=12, max_running=6, admission=False)
        before = engine.snapshot().totals
        for i in range(150):
            if rng.random() < 0.4:
                prompt = [rng.randrange(3) for _ in range(rng.randrange(1, 40))]
                engine.ask(f"r{i}", prompt, session=f"s{i % 4}", max_tokens=rng.randrange(1, 24))
            if rng.random() < 0.1:
                engine.core.abort(f"r{rng.randrange(i + 1)}")
            engine.core.step()
            totals = engine.snapshot().totals
            assert all(was <= now for was, now in zip(before, totals, strict=True))
            before = totals
        snapshot = engine.finish()
        assert engine.core.scheduler.num_preemptions > 0
        assert snapshot.totals.num_prompt == snapshot.stats.usage.num_prompt
        assert snapshot.totals.num_cached == snapshot.stats.usage.num_cached
        assert snapshot.totals.num_output == snapshot.stats.usage.num_output


class TestBlocks:
    def test_a_session_that_went_away_has_its_blocks_still(self):
        engine = Turned()
        engine.ask("a", [1] * 16, session="one")
        engine.core.step()
        assert engine.snapshot().blocks == {"one": BlockCount(4, 0)}
        blocks = engine.finish().blocks
        assert blocks == {"one": BlockCount(0, 4)}

    def test_what_several_begin_with_is_nobodys_own(self):
        engine = Turned()
        shared = [7] * 12
        for session in ("one", "two"):
            engine.ask(session, [*shared, *([ord(session[0])] * 8)], session=session)
            engine.finish()
        assert engine.snapshot().blocks == {None: BlockCount(0, 3), "one": BlockCount(0, 2), "two": BlockCount(0, 2)}

    def test_sessions_without_a_name_are_counted_as_one(self):
        engine = Turned()
        for first in (1, 2):
            engine.ask(f"r{first}", [first] * 16, max_tokens=1)
            engine.core.step()
        assert engine.finish().blocks == {"": BlockCount(0, 8)}

    def test_who_goes_on_where_another_ended_has_only_what_comes_after(self):
        engine = Turned()
        engine.ask("a", [1] * 16, session="one", max_tokens=1)
        engine.finish()
        engine.ask("b", [1] * 16 + [2] * 8, session="two", max_tokens=1)
        assert engine.finish().blocks == {None: BlockCount(0, 4), "two": BlockCount(0, 2)}

    def test_without_a_cache_they_are_of_the_requests_that_run(self):
        engine = Turned(prefix_cache=False)
        engine.ask("a", [1] * 16, session="one")
        engine.core.step()
        assert engine.snapshot().blocks == {"one": BlockCount(4, 0)}
        assert engine.finish().blocks == {}

    def test_an_edge_that_is_divided_stays_whose_it_was(self):
        life = Life()
        life.tree.insert(tokens(1, 2, 3, 4), _allocate(life, 2), "", "one")
        life.tree.insert(tokens(1, 2, 5, 6), [*life.tree.peek(tokens(1, 2)), *_allocate(life, 1)], "", "two")
        assert life.tree.num_owned == {None: 1, "one": 1, "two": 1}
        life.check()

    def test_a_snapshot_changes_nothing(self):
        life = Life()
        life.tree.insert(tokens(1, 2, 3, 4), _allocate(life, 2), "", "one")
        life.tree.match(tokens(1, 2, 3, 4))
        assert life.tree.num_owned == {"one": 2}

    def test_who_has_nothing_left_is_forgotten(self):
        life = Life()
        block_ids = _allocate(life, 2)
        life.tree.insert(tokens(1, 2, 3, 4), block_ids, "", "one")
        life.pool.release(block_ids)
        assert life.tree.evict(2) == 2
        assert not life.tree.num_owned


def _allocate(life: Life, count: int) -> list[int]:
    block_ids = life.pool.allocate(count)
    assert block_ids is not None
    return block_ids


@contextmanager
def held_step() -> Iterator[tuple[Engine, Listener, threading.Event]]:
    """An engine in the middle of a request's first step, which ends when the event is set."""
    begun, may_end, listener = threading.Event(), threading.Event(), Listener()

    def hold(batch: Batch) -> None:
        begun.set()
        assert may_end.wait(30)

    with make_engine(on_run=hold) as engine:
        engine.submit([make_request([1] * BLOCK, "r")], listener)
        assert begun.wait(30)
        yield engine, listener, may_end


class TestAsking:
    def test_the_answer_comes_after_the_step(self):
        with held_step() as (engine, listener, may_end):
            asked = engine.snapshot()
            assert engine.snapshot() is asked, "several wait for the same one"
            assert not asked.done()
            may_end.set()
            snapshot = asked.result(30)
            assert [request.id for request in snapshot.requests] == ["r"]
            assert snapshot.totals.num_output >= 1
            listener.wait("r")

    def test_who_waits_no_longer_takes_it_from_nobody(self):
        with held_step() as (engine, listener, may_end):
            asked = engine.snapshot()
            assert not asked.cancel()
            may_end.set()
            assert asked.result(30).requests
            listener.wait("r")
            assert listener.events["r"][-1].error is None

    def test_an_engine_that_does_not_run_gives_a_snapshot_as_it_is(self):
        engine = make_engine()
        assert engine.snapshot().result(0).requests == ()
        with engine:
            engine.generate(array("i", [1, 2, 3]), greedy(2))
            until_idle(engine)
        assert engine.snapshot().done()
