"""Who waits, and who is next."""

import asyncio
import time
from collections.abc import Callable

import pytest

from hotloop.core.errors import Overloaded
from hotloop.core.request import Priority
from hotloop.router.replicas.queue import RequestQueue


class Places:
    """So many places, and who has one."""

    def __init__(self, num_free: int = 0, clock: Callable[[], float] = time.monotonic) -> None:
        self.room: RequestQueue[str] = RequestQueue(3, clock)
        self.num_free = num_free
        self.gone: list[str] = []

    def taker(self, name: str) -> Callable[[], str | None]:
        def take() -> str | None:
            if not self.num_free or name == "stuck":
                return None
            self.num_free -= 1
            return name

        return take

    def give_back(self, name: str) -> None:
        self.num_free += 1
        self.room.wake()

    async def start(self, priority: Priority, name: str) -> asyncio.Task[None]:
        async def wait() -> None:
            self.gone.append(await self.room.wait(priority, self.taker(name), self.give_back))

        task = asyncio.create_task(wait())
        await asyncio.sleep(0)
        return task


async def test_urgent_first_then_by_arrival():
    places = Places()
    tasks = [
        await places.start(Priority.BACKGROUND, "late"),
        await places.start(Priority.INTERACTIVE, "first"),
        await places.start(Priority.INTERACTIVE, "second"),
    ]
    for _ in tasks:
        places.give_back("")
        await asyncio.sleep(0)
    await asyncio.gather(*tasks)
    assert places.gone == ["first", "second", "late"]
    assert len(places.room) == 0


async def two_waiting(*names: str) -> "tuple[Places, asyncio.Task[None], asyncio.Task[None]]":
    """Two who wait in this order, and a place given back to them."""
    places = Places()
    first, second = [await places.start(Priority.INTERACTIVE, name) for name in names]
    places.give_back("")
    return places, first, second


async def test_a_place_goes_to_the_first_whom_it_serves():
    places, stuck, served = await two_waiting("stuck", "served")
    await served
    assert places.gone == ["served"]
    stuck.cancel()
    await asyncio.gather(stuck, return_exceptions=True)
    assert len(places.room) == 0


async def test_a_place_taken_for_one_who_leaves_goes_to_the_next():
    places, leaving, staying = await two_waiting("leaving", "staying")
    leaving.cancel()
    await asyncio.wait_for(staying, 5)
    assert places.gone == ["staying"]
    assert places.num_free == 0


async def test_several_places_go_to_several():
    places = Places()
    tasks = [await places.start(Priority.WORKFLOW, name) for name in "abc"]
    places.num_free = 2
    places.room.wake(is_one=False)
    await asyncio.gather(*tasks[:2])
    assert places.gone == ["a", "b"]
    assert places.room.num_waiting(Priority.WORKFLOW) == 1
    places.give_back("")
    await tasks[2]


async def test_too_many_are_refused():
    places = Places()
    tasks = [await places.start(Priority.WORKFLOW, name) for name in "abc"]
    with pytest.raises(Overloaded):
        await places.room.wait(Priority.INTERACTIVE, places.taker("d"), places.give_back)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_when_to_come_back_follows_the_queue():
    """Three who wait, where a place is free every four seconds."""
    now = [100.0]
    places = Places(clock=lambda: now[0])
    for name in "abcdefgh":
        now[0] += 1000.0  # nobody waits meanwhile
        task = await places.start(Priority.WORKFLOW, name)
        now[0] += 4.0
        places.give_back("")
        await task
    tasks = [await places.start(Priority.WORKFLOW, "stuck") for _ in range(3)]
    with pytest.raises(Overloaded) as refusal:
        await places.room.wait(Priority.INTERACTIVE, places.taker("late"), places.give_back)
    assert refusal.value.retry_after_s == pytest.approx(12)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
