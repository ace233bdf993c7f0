"""The pool on its own: whatever is taken, given back, dropped and cancelled, its places add up."""

import asyncio
import random
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.properties import examples

from hotloop.router.upstream.connection import Pool


@dataclass(eq=False)
class Spare:
    """A connection that goes nowhere."""

    idle_since: float = 0.0
    is_lost: bool = False

    def abort(self) -> None:
        self.is_lost = True


async def test_the_last_used_is_used_next() -> None:
    pool = Pool(2)
    first, second = Spare(), Spare()
    assert [await pool.take(), await pool.take()] == [None, None]
    pool.put(first)
    pool.put(second)
    assert [await pool.take(), await pool.take()] == [second, first]
    assert pool.num_open == 2


async def test_who_waited_longest_is_next() -> None:
    pool = Pool(1)
    spare = Spare()
    await pool.take()
    waiting = [asyncio.create_task(pool.take()) for _ in range(3)]
    await asyncio.sleep(0)
    pool.put(spare)
    assert await waiting[0] is spare
    pool.put()
    assert await waiting[1] is None
    assert not waiting[2].done()
    pool.put()
    assert await waiting[2] is None


async def test_a_place_that_comes_as_its_taker_goes_is_passed_on() -> None:
    pool = Pool(1)
    spare = Spare()
    await pool.take()
    gone, waits = asyncio.create_task(pool.take()), asyncio.create_task(pool.take())
    await asyncio.sleep(0)
    pool.put(spare)
    gone.cancel()
    assert await waits is spare
    assert gone.cancelled()
    pool.check()


async def test_what_is_idle_too_long_is_closed() -> None:
    pool = Pool(3, max_idle_s=0.02)
    spares = [Spare() for _ in range(3)]
    for _ in spares:
        await pool.take()
    for spare in spares:
        pool.put(spare)
    async with asyncio.timeout(30):
        while pool.num_open:
            await asyncio.sleep(0.001)
            pool.check()
    assert all(spare.is_lost for spare in spares)


@given(seed=st.integers(0, 2**32), max_open=st.integers(1, 4), num_steps=st.integers(1, 80))
@settings(max_examples=examples(100))
def test_places_add_up(seed: int, max_open: int, num_steps: int) -> None:
    asyncio.run(_wander(random.Random(seed), Pool(max_open), num_steps))


async def _wander(chance: random.Random, pool: Pool, num_steps: int) -> None:
    """Callers come, hold a place, give it back one way or another, or lose patience."""

    async def call() -> None:
        spare = await pool.take() or Spare()
        try:
            for _ in range(chance.randrange(4)):
                await asyncio.sleep(0)
        except asyncio.CancelledError:
            spare.abort()
            raise
        finally:
            if chance.random() < 0.3:
                spare.abort()
                pool.put()
            else:
                pool.put(spare)
                known.append(spare)

    known: list[Spare] = []
    calls: list[asyncio.Task[None]] = []
    for _ in range(num_steps):
        step = chance.choice(["call", "call", "cancel", "drop", "go on"])
        if step == "call":
            calls.append(asyncio.create_task(call()))
        elif step == "cancel" and calls:
            chance.choice(calls).cancel()
        elif step == "drop" and known:
            pool.drop(chance.choice(known))
        else:
            await asyncio.sleep(0)
        pool.check()
    await asyncio.gather(*calls, return_exceptions=True)
    pool.check()
    for spare in known:
        pool.drop(spare)
    assert pool.num_open == 0


@pytest.mark.parametrize("is_loaded", [False, True])
async def test_a_lost_connection_is_not_kept(is_loaded: bool) -> None:
    pool = Pool(1)
    await pool.take()
    waiting = [asyncio.create_task(pool.take())] if is_loaded else []
    await asyncio.sleep(0)
    pool.put(Spare(is_lost=True))
    assert [await task for task in waiting] == [None] * is_loaded
    assert pool.num_open == int(is_loaded)
