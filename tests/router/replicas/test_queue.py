"""Who waits, and who is next."""

import asyncio

import pytest

from hotloop.core.errors import Overloaded
from hotloop.core.request import Priority
from hotloop.router.replicas.queue import WaitingRoom


async def start(room: WaitingRoom, priority: Priority, name: str, gone: list[str], can_go=lambda: True) -> asyncio.Task:
    async def wait() -> None:
        await room.wait(priority, can_go)
        gone.append(name)

    task = asyncio.create_task(wait())
    await asyncio.sleep(0)
    return task


async def test_urgent_first_then_by_arrival():
    room, gone = WaitingRoom(10), []
    tasks = [
        await start(room, Priority.BACKGROUND, "late", gone),
        await start(room, Priority.INTERACTIVE, "first", gone),
        await start(room, Priority.INTERACTIVE, "second", gone),
    ]
    assert room.has_before(Priority.INTERACTIVE)
    for _ in tasks:
        room.wake()
        await asyncio.sleep(0)
    await asyncio.gather(*tasks)
    assert gone == ["first", "second", "late"]
    assert len(room) == 0
    assert not room.has_before(Priority.BACKGROUND)


async def test_a_place_goes_to_the_first_whom_it_serves():
    room, gone = WaitingRoom(10), []
    stuck = await start(room, Priority.INTERACTIVE, "stuck", gone, can_go=lambda: False)
    served = await start(room, Priority.INTERACTIVE, "served", gone)
    room.wake()
    await served
    assert gone == ["served"]
    stuck.cancel()
    await asyncio.gather(stuck, return_exceptions=True)
    assert len(room) == 0


async def test_who_leaves_when_called_passes_it_on():
    room, gone = WaitingRoom(10), []
    leaving = await start(room, Priority.INTERACTIVE, "leaving", gone)
    staying = await start(room, Priority.INTERACTIVE, "staying", gone)
    room.wake()
    leaving.cancel()
    await asyncio.wait_for(staying, 5)
    assert gone == ["staying"]


async def test_who_comes_back_stands_at_the_head_and_is_never_refused():
    room, gone = WaitingRoom(1), []
    waiting = await start(room, Priority.INTERACTIVE, "waiting", gone)

    async def return_to_line() -> None:
        await room.wait(Priority.INTERACTIVE, lambda: True, is_back=True)
        gone.append("back")

    back = asyncio.create_task(return_to_line())
    await asyncio.sleep(0)
    with pytest.raises(Overloaded):
        await room.wait(Priority.INTERACTIVE, lambda: True)
    room.wake_all()
    await asyncio.gather(waiting, back)
    assert gone == ["back", "waiting"]
