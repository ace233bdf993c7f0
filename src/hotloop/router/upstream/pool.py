"""A bounded pool of connections: the one used last is used next, and over the bound a caller waits its turn.

    num_open = idle + taken <= max_connections        somebody waits only when all are taken

Whoever takes a place holds it until `put` (the connection can be used again) or `free` (it is gone). A place that comes
free goes straight to who has waited longest. Nothing here knows HTTP.
"""

import asyncio
from typing import Generic, Protocol, TypeVar

from hotloop.router.upstream.deadline import Deadline

MAX_IDLE_S = 60.0
"""How long a connection is kept unused."""


class Pooled(Protocol):
    """What a pool keeps."""

    idle_since: float
    is_lost: bool

    def abort(self) -> None: ...


T = TypeVar("T", bound=Pooled)


class Pool(Generic[T]):
    """Places for connections, and the idle connections in some of them."""

    def __init__(self, max_connections: int, max_idle_s: float = MAX_IDLE_S) -> None:
        self.num_open = 0
        self._max_open = max_connections
        self._max_idle_s = max_idle_s
        self._idle: list[T] = []
        self._waiting: dict[asyncio.Future[T | None], None] = {}
        self._is_closed = False
        self._next_sweep = Deadline(self._sweep)

    async def take(self) -> T | None:
        """A place: with the connection that is in it, or None where one has to be opened."""
        if self._idle:
            return self._idle.pop()
        if self.num_open < self._max_open or self._is_closed:
            self.num_open += 1
            return None
        return await self._turn()

    def put(self, connection: T) -> None:
        """Give a place back with its connection, fit for another."""
        if self._is_closed or connection.is_lost:
            connection.abort()
            self.free()
        elif not self._pass_on(connection):
            connection.idle_since = asyncio.get_running_loop().time()
            self._idle.append(connection)
            if len(self._idle) == 1:
                self._next_sweep.set(self._max_idle_s)

    def free(self) -> None:
        """Give a place back without a connection."""
        if not self._pass_on(None):
            self.num_open -= 1

    def drop(self, connection: T) -> None:
        """Forget a connection that ended, if it was idle here."""
        if connection in self._idle:
            self._idle.remove(connection)
            self.num_open -= 1

    def close(self) -> None:
        """Close what is idle; who waits is let through, for the owner to turn away."""
        self._is_closed = True
        self._next_sweep.close()
        while self._idle:
            self._idle.pop().abort()
            self.num_open -= 1
        while self._pass_on(None):
            self.num_open += 1

    def check(self) -> None:
        """What always holds."""
        assert len(self._idle) <= self.num_open
        assert self._is_closed or self.num_open <= self._max_open
        assert not self._waiting or (not self._idle and self.num_open == self._max_open)
        assert self._idle == sorted(self._idle, key=lambda connection: connection.idle_since)

    async def _turn(self) -> T | None:
        turn: asyncio.Future[T | None] = asyncio.get_running_loop().create_future()
        self._waiting[turn] = None
        try:
            return await turn
        except asyncio.CancelledError:
            self._waiting.pop(turn, None)
            if turn.done() and not turn.cancelled():
                self._give_back(turn.result())
            raise

    def _give_back(self, connection: T | None) -> None:
        """The place came, but who waited for it is gone."""
        if connection is None:
            self.free()
        else:
            self.put(connection)

    def _pass_on(self, connection: T | None) -> bool:
        while self._waiting:
            turn = next(iter(self._waiting))
            del self._waiting[turn]
            if not turn.done():
                turn.set_result(connection)
                return True
        return False

    def _sweep(self) -> None:
        """The oldest are first, since the last put is the first taken."""
        now = asyncio.get_running_loop().time()
        while self._idle and now - self._idle[0].idle_since >= self._max_idle_s:
            self._idle.pop(0).abort()
            self.num_open -= 1
        if self._idle:
            self._next_sweep.set(self._idle[0].idle_since + self._max_idle_s - now)
