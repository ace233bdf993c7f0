"""Those who wait for a place: the most urgent class first, and within it who came first. Bounded.

A place is taken for whoever waits the moment it is free, so nobody who comes later can be quicker.
"""

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Generic, TypeVar

from hotloop.core.errors import Overloaded
from hotloop.core.pace import Pace
from hotloop.core.request import Priority

T = TypeVar("T")


class RequestQueue(Generic[T]):
    """Whoever waits says how a place is taken for him, which may fail, and how it is given back should he have left."""

    def __init__(self, max_waiting: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._max_waiting = max_waiting
        self._clock = clock
        self._pace = Pace(clock())
        self._lines: Mapping[Priority, dict[asyncio.Future[T], Callable[[], T | None]]] = {
            priority: {} for priority in Priority
        }

    def __len__(self) -> int:
        return sum(map(len, self._lines.values()))

    def num_waiting(self, priority: Priority) -> int:
        return len(self._lines[priority])

    def overloaded(self, reason: str) -> Overloaded:
        """To come back when those who wait now have a place, at the pace of late."""
        return Overloaded(reason, self._pace.mean_s * len(self))

    async def wait(self, priority: Priority, take: Callable[[], T | None], give_back: Callable[[T], None]) -> T:
        if len(self) >= self._max_waiting:
            raise self.overloaded(f"{len(self)} requests are waiting for a replica already")
        if not len(self):
            self._pace.resume(self._clock())
        turn: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        line = self._lines[priority]
        line[turn] = take
        try:
            return await turn
        except asyncio.CancelledError:
            if not turn.cancelled():  # the place was taken while this one was leaving
                give_back(turn.result())
            raise
        finally:
            line.pop(turn, None)

    def wake(self, *, is_one: bool = True) -> None:
        """There may be a place, or several: they go to the first whom they serve."""
        for line in self._lines.values():
            for turn, take in list(line.items()):
                place = take()
                if place is None:
                    continue
                del line[turn]
                turn.set_result(place)
                self._pace.end_one(self._clock())
                if is_one:
                    return
