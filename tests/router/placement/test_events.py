"""KV events as vLLM and SGLang write them, and a follower that loses some."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
from tests.router.placement.publishing import CLEARED, FakePublisher, removed, stored, until

from hotloop.core.errors import ConfigError
from hotloop.router.placement.events import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    Event,
    KvEvents,
    ReplayLimits,
    parse_batch,
    parse_event,
)
from hotloop.router.placement.exact import HeldBlocks, match

PROMPT = list(range(65))


def read(raw: Any) -> Event | None:
    return parse_event(msgspec.msgpack.encode(raw))


def fields_of(raw: Any) -> tuple[Any, ...]:
    event = read(raw)
    assert isinstance(event, BlockStored)
    return event.block_hashes, event.parent_block_hash, event.token_ids, event.block_size, event.medium


def test_both_shapes_of_an_event() -> None:
    tagged = {"type": "BlockStored", "block_hashes": [b"x"], "parent_block_hash": b"y", "token_ids": [1, 2]}
    tagged |= {"block_size": 2, "lora_id": None, "medium": "GPU", "group_idx": 0, "new": 1}
    assert fields_of(tagged) == ([b"x"], b"y", [1, 2], 2, "GPU")
    assert fields_of(["BlockStored", [7], None, [1, 2], 2, None]) == ([7], None, [1, 2], 2, None)
    assert read(["BlockStored", [7], None, [1, 2], 2, None, "GPU", None, [None], 0, "new"])
    assert read({"type": "BlockRemoved", "block_hashes": [b"x"], "medium": None}) == BlockRemoved([b"x"])
    ordered = read(["BlockRemoved", [-7], "GPU"])
    assert isinstance(ordered, BlockRemoved)
    assert (ordered.block_hashes, ordered.medium) == ([-7], "GPU")
    assert read({"type": "AllBlocksCleared"}) == AllBlocksCleared()
    assert isinstance(read(["AllBlocksCleared"]), AllBlocksCleared)


@pytest.mark.parametrize(
    "fields",
    [
        {"lora_id": 1},
        {"lora_name": "adapter"},
        {"extra_keys": [["salt"], None]},
        {"extra_keys": [None] * 20 + ["salt"]},
        {"extra_keys": "salt"},
        {"lora_name": {"cache_salt": "tenant"}},  # where SGLang has it
    ],
)
def test_what_not_every_prompt_may_use(fields: dict[str, Any]) -> None:
    plain = {"type": "BlockStored", "block_hashes": [1], "parent_block_hash": None, "token_ids": [1], "block_size": 1}
    for keys in (None, [], [None], [None, []] * 20):
        event = read({**plain, "lora_id": None, "lora_name": None, "extra_keys": keys})
        assert isinstance(event, BlockStored)
        assert [*event.parts()] == [event]
    event = read({**plain, **fields})
    assert isinstance(event, BlockStored)
    assert [*event.parts()] == []


@pytest.mark.parametrize(
    "raw",
    [
        ["BlockMoved", [1]],
        {"block_hashes": [1]},
        ["BlockRemoved"],
        ["BlockRemoved", [[1]]],
        ["BlockRemoved", [1], None, 1],
        ["BlockRemoved", [b"x" * 65]],
        ["BlockRemoved", [1], "x" * 33],
        ["BlockStored", [1], None, [(1, 2)], 1, None],
        ["BlockStored", [1], None, [2**31], 1, None],
        ["BlockStored", list(range(300_000)), None, [], 1, None],
        [["BlockStored"]],
        "BlockStored",
        7,
        None,
        [],
        {},
    ],
)
def test_events_that_are_of_no_use(raw: Any) -> None:
    assert read(raw) is None


NUMBER = bytes(8)
EMPTY = msgspec.msgpack.encode([1.0, []])


@pytest.mark.parametrize(
    "frames",
    [
        [],
        [NUMBER],
        [NUMBER, b"\xc1"],
        [NUMBER, b""],
        [NUMBER, msgspec.msgpack.encode([1.0, 7])],
        [NUMBER, msgspec.msgpack.encode([1.0, [[]] * 300_000])],
        [NUMBER, b"\x92\xc0" + b"\x91" * 100_000 + b"\xc0"],
        [b"", EMPTY],
        [b"1", EMPTY],
        [b"\x7f" * 1000, EMPTY],  # a number that no replay could be asked for
        [b"\xff" * 8, EMPTY],
    ],
)
def test_messages_that_are_no_batches(frames: list[bytes]) -> None:
    assert parse_batch(frames) is None


def test_a_batch_is_a_beginning_if_it_is_the_first_or_clears_all() -> None:
    def is_beginning(number: int, *events: Any) -> bool:
        batch = parse_batch([number.to_bytes(8, "big"), msgspec.msgpack.encode([1.0, events])])
        assert batch
        return batch.is_beginning

    assert is_beginning(0)
    assert is_beginning(7, removed(1), CLEARED)
    assert is_beginning(7, {"type": "AllBlocksCleared"})
    assert not is_beginning(7, removed(1))
    assert not is_beginning(7, removed(b"AllBlocksCleared"))


@pytest.mark.parametrize("has_tokens", [True, False])
def test_many_blocks_are_taken_in_a_few_at_a_time_to_the_same_end(has_tokens: bool) -> None:
    hashes, token_ids = list(range(1, 2001)), [i % 97 for i in range(2000 * 16)]
    event = read(stored(hashes, token_ids if has_tokens else [], None))
    assert isinstance(event, BlockStored)
    parts = list(event.parts())
    assert max(len(part.block_hashes) for part in parts) <= 512
    at_once, in_parts = HeldBlocks(), HeldBlocks()
    at_once.stored(hashes, event.token_ids, block_size=16)
    for part in parts:
        in_parts.stored(part.block_hashes, part.token_ids, block_size=16, parent=part.parent_block_hash)
    assert at_once.blocks == in_parts.blocks
    assert bool(at_once.blocks) == has_tokens


class Following:
    """A replica, and what is known of it."""

    def __init__(self, publisher: FakePublisher) -> None:
        self.publisher = publisher
        self.held = HeldBlocks()

    async def until_matched(self, num_tokens: int | None) -> None:
        """Known to hold so much of the prompt; None if nothing is known."""
        await until(lambda: match({"r": self.held}, PROMPT).get("r") == num_tokens)
        self.held.check()


@asynccontextmanager
async def following(
    keeps: int | None = 100, num_before: int = 0, limits: ReplayLimits | None = None
) -> AsyncIterator[Following]:
    """Batches before it follows tell of 16 tokens each."""
    with FakePublisher(keeps) as publisher:
        one = Following(publisher)
        for i in range(num_before):
            await publisher.publish(stored([i], PROMPT[i * 16 : i * 16 + 16], i - 1 if i else None))
        events = KvEvents(one.held, "r", publisher.endpoint, publisher.replay_endpoint, limits)
        task = asyncio.create_task(events.run())
        try:
            async with asyncio.timeout(30):
                await publisher.subscribed()
                if keeps is not None:
                    assert await publisher.replay() == 0
            yield one
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        assert one.held.blocks == {}
        assert not one.held.is_complete


async def test_follows_a_replica_from_its_beginning() -> None:
    async with following(keeps=None) as one:
        assert not one.held.is_complete
        await one.publisher.publish(stored([b"x", 2], PROMPT[:32]))
        await one.until_matched(32)
        assert one.held.is_complete
        await one.publisher.publish(removed(2), stored([3], PROMPT[16:32], b"x"), stored([4], PROMPT[32:48], 3))
        await one.until_matched(48)
        await one.publisher.publish(CLEARED)
        await one.until_matched(0)


async def test_who_has_never_said_anything_has_nothing() -> None:
    async with following() as one:
        await one.until_matched(0)


async def test_one_who_comes_late_hears_the_rest() -> None:
    async with following(num_before=3) as one:
        await one.until_matched(48)
        assert one.held.is_complete
        await one.publisher.publish(stored([3], PROMPT[48:64], 2))
        await one.until_matched(64)


async def test_one_who_comes_too_late_knows_what_it_has_heard() -> None:
    async with following(keeps=1, num_before=3) as one:
        await one.publisher.publish(stored([9], PROMPT[:16]))
        await one.until_matched(16)
        assert not one.held.is_complete
        await one.publisher.publish(CLEARED, stored([1], PROMPT[:16]))
        await until(lambda: one.held.is_complete)


async def test_a_batch_that_was_lost_is_asked_for() -> None:
    async with following(num_before=1) as one:
        await one.until_matched(16)
        await one.publisher.publish(stored([1], PROMPT[16:32], 0), is_lost=True)
        await one.publisher.publish(stored([2], PROMPT[32:48], 1))
        assert await one.publisher.replay() == 0  # the last that was heard: it shows that nobody was started anew
        await one.until_matched(48)
        assert one.held.is_complete


async def test_where_a_lost_batch_is_not_to_be_had_everything_is_forgotten() -> None:
    async with following(keeps=None) as one:
        await one.publisher.publish(stored([1], PROMPT[:16]))
        await one.until_matched(16)
        await one.publisher.publish(removed(1), is_lost=True)
        await one.publisher.publish(stored([2], [7] * 16))
        await one.until_matched(None)
        assert match({"r": one.held}, [7] * 17) == {"r": 16}


async def test_a_replica_that_is_started_anew_begins_with_nothing() -> None:
    async with following(keeps=None) as one:
        for _ in range(2):
            await one.publisher.publish(stored([1], PROMPT[:16]))
        await one.until_matched(16)
        one.publisher.start_anew()
        await one.publisher.publish(stored([2], [7] * 16))
        await one.until_matched(0)
        assert match({"r": one.held}, [7] * 17) == {"r": 16}


async def test_what_is_said_by_adapters_tenants_and_strangers_is_passed_over() -> None:
    async with following(keeps=None) as one:
        salted = [*stored([1], PROMPT[:16]), None, [["salt"]]]
        await one.publisher.publish(salted, ["BlockMoved"], stored([2], PROMPT[16:32], 1))
        await one.until_matched(0)
        assert one.held.blocks == {}


@pytest.mark.parametrize("limits", [ReplayLimits(max_batches=2), ReplayLimits(max_bytes=100)])
async def test_a_replay_beyond_its_limits_is_given_up(limits: ReplayLimits, caplog: pytest.LogCaptureFixture) -> None:
    """What it said until then is forgotten; what it publishes is heard."""
    async with following(num_before=4, limits=limits) as one:
        await until(lambda: "did not replay its KV events" in caplog.text)
        await one.until_matched(None)
        await one.publisher.publish(stored([7], [7] * 16))
        await until(lambda: match({"r": one.held}, [7] * 17) == {"r": 16})
        assert not one.held.is_complete


@pytest.mark.parametrize(
    "limits", [ReplayLimits(max_batches=2000), pytest.param(ReplayLimits(max_s=0.5), marks=pytest.mark.long)]
)
async def test_a_replay_without_end_is_given_up(limits: ReplayLimits, caplog: pytest.LogCaptureFixture) -> None:
    """It is taken in as it comes, so that what was heard takes no memory."""
    with FakePublisher() as publisher:
        held = HeldBlocks(max_blocks=100)
        events = KvEvents(held, "r", publisher.endpoint, publisher.replay_endpoint, limits)
        task = asyncio.create_task(events.run())
        async with asyncio.timeout(30):
            await publisher.replay_forever(lambda: "did not replay" in caplog.text)
        assert len(held.blocks) <= 100
        await publisher.publish(CLEARED, stored([1], PROMPT[:16]))
        await until(lambda: match({"r": held}, PROMPT) == {"r": 16})
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_a_message_that_is_too_large_ends_the_connection_not_the_following(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with following(keeps=None) as one:
        await one.publisher.publish(["x" * (5 << 20)])
        await until(lambda: "were cut off" in caplog.text)
        async with asyncio.timeout(30):
            while match({"r": one.held}, PROMPT) != {"r": 16}:
                await one.publisher.publish(CLEARED, stored([1], PROMPT[:16]))
                await asyncio.sleep(0.01)


async def test_others_have_the_loop_while_a_large_batch_is_taken_in() -> None:
    num_turns = 0

    async def live() -> None:
        nonlocal num_turns
        while True:
            await asyncio.sleep(0)
            num_turns += bool(one.held.blocks)

    async with following(keeps=None) as one:
        living = asyncio.create_task(live())
        await one.publisher.publish(stored(list(range(1, 10_001)), [1] * 10_000, size=1))
        await until(lambda: len(one.held.blocks) == 10_000)
        living.cancel()
        assert num_turns >= 10_000 // 512 - 1


def test_an_endpoint_that_is_none() -> None:
    with pytest.raises(ConfigError, match="kv_events of r must be like"):
        KvEvents(HeldBlocks(), "r", "localhost:5557")
