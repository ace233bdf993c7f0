"""A bounded pool of connections: the one used last is used next, and over the bound a caller waits its turn.

    num_open = idle + taken <= max_connections

Whoever takes a place gives it back with `put`. Nothing here knows HTTP.
"""

import asyncio
from typing import Generic, Protocol, TypeVar

MAX_IDLE_S = 60.0
"""How long a connection is kept unused."""


class Pooled(Protocol):
    idle_since: float
    is_lost: bool

    def abort(self) -> None: ...


T = TypeVar("T", bound=Pooled)


class Pool(Generic[T]):
    def __init__(self, max_connections: int, max_idle_s: float = MAX_IDLE_S) -> None:
        self._max_open = max_connections
        self._max_idle_s = max_idle_s
        self._places = asyncio.Semaphore(max_connections)
        self._num_taken = 0
        self._idle: list[T] = []
        self._is_sweeping = False

    @property
    def num_open(self) -> int:
        return self._num_taken + len(self._idle)

    async def take(self) -> T | None:
        """A place, in order of asking: with an idle connection, or None where one has to be opened."""
        await self._places.acquire()
        self._num_taken += 1
        return self._idle.pop() if self._idle else None

    def put(self, connection: T | None = None) -> None:
        """Give a place back, with its connection unless that is lost."""
        self._num_taken -= 1
        self._places.release()
        if connection is None or connection.is_lost:
            return
        connection.idle_since = asyncio.get_running_loop().time()
        self._idle.append(connection)
        if not self._is_sweeping:
            self._sweep()

    def drop(self, connection: T) -> None:
        """Forget a connection that ended, if it was idle here."""
        if connection in self._idle:
            self._idle.remove(connection)

    def check(self) -> None:
        assert 0 <= self._num_taken <= self.num_open <= self._max_open
        assert not any(connection.is_lost for connection in self._idle)
        assert self._idle == sorted(self._idle, key=lambda connection: connection.idle_since)

    def _sweep(self) -> None:
        """Close what was idle too long. The oldest are first, since the last put is the first taken."""
        loop = asyncio.get_running_loop()
        while self._idle and loop.time() - self._idle[0].idle_since >= self._max_idle_s:
            self._idle.pop(0).abort()
        self._is_sweeping = bool(self._idle)
        if self._idle:
            loop.call_at(self._idle[0].idle_since + self._max_idle_s, self._sweep)
