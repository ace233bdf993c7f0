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
    KvEvents,
    parse_batch,
    parse_event,
)
from hotloop.router.placement.exact import HeldBlocks, match

PROMPT = list(range(65))


def test_both_shapes_of_an_event() -> None:
    tagged = {"type": "BlockStored", "block_hashes": [b"x"], "parent_block_hash": b"y", "token_ids": [1, 2]}
    event = parse_event({**tagged, "block_size": 2, "lora_id": None, "medium": "GPU", "group_idx": 0, "new": 1})
    assert event == BlockStored([b"x"], b"y", [1, 2], 2, medium="GPU", group_idx=0)
    assert parse_event(["BlockStored", [7], None, [1, 2], 2, None]) == BlockStored([7], None, [1, 2], 2)
    assert parse_event(["BlockStored", [7], None, [1, 2], 2, None, "GPU", None, [None], 0, "new"])
    assert parse_event({"type": "BlockRemoved", "block_hashes": [b"x"], "medium": None}) == BlockRemoved([b"x"])
    assert parse_event(["BlockRemoved", [-7], "GPU"]) == BlockRemoved([-7], "GPU")
    assert parse_event(["AllBlocksCleared"]) == parse_event({"type": "AllBlocksCleared"}) == AllBlocksCleared()


@pytest.mark.parametrize(
    "fields",
    [
        {"lora_id": 1},
        {"lora_name": "adapter"},
        {"extra_keys": [["salt"], None]},
        {"lora_name": {"cache_salt": "tenant"}},  # where SGLang has it
    ],
)
def test_what_not_every_prompt_may_use(fields: dict[str, Any]) -> None:
    assert BlockStored([1], None, [1], 1, extra_keys=[None]).is_plain
    assert not BlockStored([1], None, [1], 1, **fields).is_plain


@pytest.mark.parametrize(
    "raw",
    [
        ["BlockMoved", [1]],
        {"block_hashes": [1]},
        ["BlockRemoved"],
        ["BlockRemoved", [[1]]],
        ["BlockRemoved", [1], None, 1],
        ["BlockStored", [1], None, [(1, 2)], 1, None],
        ["BlockStored", [1], None, [2**31], 1, None],
    ],
)
def test_events_that_are_of_no_use(raw: Any) -> None:
    assert parse_event(raw) is None


@pytest.mark.parametrize(
    "frames", [[], [b"1"], [b"1", b"\xc1"], [b"1", msgspec.msgpack.encode([1.0, [[]]])], [b"", b""]]
)
def test_messages_that_are_no_batches(frames: list[bytes]) -> None:
    assert parse_batch(frames) is None


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
async def following(keeps: int | None = 100, num_before: int = 0) -> AsyncIterator[Following]:
    """Batches before it follows tell of 16 tokens each."""
    with FakePublisher(keeps) as publisher:
        one = Following(publisher)
        for i in range(num_before):
            await publisher.publish(stored([i], PROMPT[i * 16 : i * 16 + 16], i - 1 if i else None))
        task = asyncio.create_task(KvEvents(one.held, "r", publisher.endpoint, publisher.replay_endpoint).run())
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


def test_an_endpoint_that_is_none() -> None:
    with pytest.raises(ConfigError, match="kv_events of r must be like"):
        KvEvents(HeldBlocks(), "r", "localhost:5557")
