"""What an engine publishes of its prefix tree is what the tree keeps."""

import subprocess
import sys
import time
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import hypothesis.strategies as st
import msgspec
import pytest
import zmq
from hypothesis import given
from tests.engine.kvcache.test_radix import BLOCK, Life, tokens
from tests.engine.tiny import BLOCK_SIZE, greedy, make_engine, make_request, until_idle

from hotloop.core.config import EngineConfig
from hotloop.core.errors import BackendError, ConfigError
from hotloop.engine.kvcache.changes import Change, Emptied
from hotloop.engine.kvcache.kv_events import EventEncoder, KvPublisher
from hotloop.engine.kvcache.radix import RadixTree

ANYWHERE = "tcp://127.0.0.1:0"


class Reader:
    """Builds from events what they say: the prompts whose KV is held, by the name of their last block."""

    def __init__(self) -> None:
        self.held: dict[int, tuple[int, ...]] = {}

    def read(self, event: list[Any]) -> None:
        kind, *fields = event
        if kind == "AllBlocksCleared":
            self.held.clear()
        elif kind == "BlockRemoved":
            for name in fields[0]:
                del self.held[name]
        else:
            names, parent, token_ids, size, lora_id, medium = fields
            assert (kind, lora_id, medium, len(token_ids)) == ("BlockStored", None, None, size * len(names))
            above = () if parent is None else self.held[parent]
            for i, name in enumerate(names):
                assert name not in self.held
                above = self.held[name] = (*above, *token_ids[i * size : (i + 1) * size])

    @property
    def prompts(self) -> set[tuple[int, ...]]:
        return set(self.held.values())


def kept_prompts(tree: RadixTree, block_size: int) -> set[tuple[int, ...]]:
    """What a tree keeps without a salt, prefix by prefix."""
    ends: dict[int | None, tuple[int, ...]] = {None: ()}
    for kept in tree.kept():
        above = ends[kept.parent_id]
        for i, block_id in enumerate(kept.block_ids):
            above = ends[block_id] = (*above, *array("i", kept.key)[i * block_size : (i + 1) * block_size])
    del ends[None]
    return set(ends.values())


class Told(Life):
    """A tree that somebody hears of."""

    def __init__(self) -> None:
        super().__init__()
        self.changes: list[Change] = []
        self.wording, self.reader = EventEncoder(BLOCK), Reader()
        self.tree = RadixTree(self.pool, BLOCK, changes=self.changes)

    def tell(self) -> None:
        for event in map(self.wording.render, self.changes):
            if event:
                self.reader.read(event)
        self.changes.clear()
        assert self.reader.prompts == kept_prompts(self.tree, BLOCK)


prompts = st.lists(st.integers(0, 2), min_size=1, max_size=6).map(lambda blocks: [b for b in blocks for _ in range(2)])


@given(st.lists(st.one_of(prompts, st.integers(1, 6), st.just("forget"), st.just("restate")), max_size=30))
def test_a_life_of_a_tree_as_it_is_told(acts: list[list[int] | int | str]) -> None:
    life, last = Told(), [0, 0]
    for act in acts:
        if isinstance(act, list):
            last = act
            life.tree.evict(max(0, len(act) // BLOCK - life.pool.num_free))
            life.remember(*act)
        elif isinstance(act, int):
            life.tree.evict(act)
        elif act == "forget":
            life.tree.forget(tokens(*last))
        else:
            life.changes[:] = [Emptied(), *life.tree.kept()]
        life.tell()


def test_a_prefix_with_a_salt_is_nobody_elses_business() -> None:
    life = Told()
    [block_id] = life.pool.allocate(1) or []
    life.tree.insert(tokens(1, 2), [block_id], "tenant")
    life.pool.release([block_id])
    assert life.changes == []
    life.tree.evict(1)
    life.tell()
    assert [*life.tree.kept()] == []


@contextmanager
def reading(publisher: KvPublisher) -> Iterator[Any]:
    """The way to a replay."""
    with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
        dealer.linger = 0
        dealer.rcvtimeo = 30_000
        dealer.connect(publisher.replay_endpoint)
        yield dealer


Batches = list[tuple[int, list[list[Any]]]]


def replay(dealer: Any, begin: int) -> Batches:
    dealer.send_multipart([b"", begin.to_bytes(8, "big")])
    batches = []
    while (frames := dealer.recv_multipart())[-2] != b"\xff" * 8:
        empty, topic, number, batch = frames
        assert empty == topic == b""
        ts, events, rank = msgspec.msgpack.decode(batch)
        assert (type(ts), rank) == (float, 0)
        batches.append((int.from_bytes(number, "big"), events))
    return batches


def replay_until(dealer: Any, is_all: Callable[[Batches], bool]) -> Batches:
    """A replay of all there is, once it is all there: they are sent on another thread."""
    give_up_at = time.monotonic() + 30
    while not is_all(batches := replay(dealer, 0)):
        assert time.monotonic() < give_up_at, batches
    return batches


def has(batches: Batches, wanted: int) -> bool:
    return any(number == wanted for number, _ in batches)


def read_all(batches: Batches) -> Reader:
    reader = Reader()
    for _, events in batches:
        for event in events:
            reader.read(event)
    return reader


def test_an_engine_tells_what_it_keeps() -> None:
    with make_engine(num_blocks=16, kv_events=ANYWHERE) as engine:
        assert engine.kv_events
        for i in range(12):  # more than there is room for
            engine.generate([*range(10), *range(i, i + 10)], greedy(8))
        until_idle(engine)
        kept = kept_prompts(engine._core.scheduler.tree, BLOCK_SIZE)
        with reading(engine.kv_events) as dealer:
            batches = replay_until(dealer, lambda batches: read_all(batches).prompts == kept)
        assert [number for number, _ in batches] == [*range(len(batches))]
        assert engine.stats().num_evicted_blocks > 0


def test_a_failed_step_empties_the_cache() -> None:
    fails = [False]

    def on_run(batch: object) -> None:
        if fails[0]:
            raise BackendError("no")

    with make_engine(kv_events=ANYWHERE, on_run=on_run) as engine:
        assert engine.kv_events
        engine.generate(list(range(20)), greedy(1))
        fails[0] = True
        with pytest.raises(BackendError):
            engine.generate(list(range(20)), greedy(1))
        fails[0] = False
        engine.generate([9] * 6, greedy(1))
        with reading(engine.kv_events) as dealer:
            batches = replay_until(dealer, lambda batches: read_all(batches).prompts == {(9,) * BLOCK_SIZE})
        assert [event[0] for _, batch in batches for event in batch] == [
            "BlockStored",
            "AllBlocksCleared",
            "BlockStored",
        ]


@contextmanager
def publishing(**limits: int) -> Iterator[tuple[Told, KvPublisher, list[bool]]]:
    """A tree and who publishes it, and each time that the publisher asked to be told everything again."""
    life, asked = Told(), list[bool]()
    publisher = KvPublisher(ANYWHERE, BLOCK, lambda: asked.append(True), **limits)
    publisher.changes = life.changes
    try:
        yield life, publisher, asked
    finally:
        publisher.close()


def test_everything_is_said_again_if_somebody_asks_for_what_is_gone() -> None:
    with publishing(max_replayed=2) as (life, publisher, asked):
        for i in range(4):
            life.remember(i, i)
            publisher.flush()
        with reading(publisher) as dealer:
            assert [number for number, _ in replay_until(dealer, lambda batches: has(batches, 3))] == [2, 3]
            assert asked
            publisher.restate(life.tree.kept())
            publisher.flush()
            events = replay_until(dealer, lambda batches: has(batches, 4))[-1][1]
        assert [event[0] for event in events] == ["AllBlocksCleared", *["BlockStored"] * 4]


def test_too_much_at_once_is_told_as_a_whole() -> None:
    with publishing(max_waiting=0) as (life, publisher, asked):
        for i in (1, 2):
            life.remember(i, i)
            publisher.flush()
        assert asked == [True]
        publisher.close()  # and once more when the context is left


@pytest.mark.parametrize("endpoint", ["5557", "tcp://host", "tcp://host:99999", "ipc:///tmp/x", "http://host:1"])
def test_what_is_no_endpoint(endpoint: str) -> None:
    with pytest.raises(ConfigError, match="kv_events must be like tcp://"):
        EngineConfig(kv_events=endpoint)


def test_events_need_a_cache() -> None:
    with pytest.raises(ConfigError, match="kv_events needs prefix_cache"):
        EngineConfig(kv_events=ANYWHERE, prefix_cache=False)


def test_an_address_that_is_taken() -> None:
    with make_engine(kv_events=ANYWHERE) as engine:
        assert engine.kv_events
        with pytest.raises(ConfigError, match="cannot listen on"):
            make_engine(kv_events=engine.kv_events.endpoint)


def test_without_zeromq_it_is_told_what_to_install() -> None:
    lines = (
        "import sys; sys.modules['zmq'] = None",
        "from hotloop.engine.kvcache.kv_events import KvPublisher; from hotloop.core.errors import ConfigError",
        "from hotloop.router.placement.events import KvEvents; from hotloop.router.placement.exact import HeldBlocks",
        "for opens in (lambda: KvPublisher('tcp://127.0.0.1:0', 16, print), lambda: KvEvents(HeldBlocks(), 'r', 'tcp://h:1')):",
        "    try: opens()",
        "    except ConfigError as error: print(error)",
    )
    answer = subprocess.run([sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True, check=True)
    assert answer.stdout.count("pip install 'hotloop[kv-events]'") == 2


def test_an_engine_without_events_collects_nothing() -> None:
    with make_engine() as engine:
        engine.generate(make_request(range(9)).token_ids, greedy(1))
        assert engine.kv_events is None
