"""The events of a background response, for clients that stream it from the beginning or come back later.

An event's place in the log is its `sequence_number`. Lives on the event loop.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable

from hotloop.wire.sse import COMMENT, PING_S


class EventLog:
    def __init__(self) -> None:
        self._events: list[bytes] = []
        self._is_over = False
        self._news = asyncio.Event()

    @classmethod
    def of(cls, events: Iterable[bytes]) -> "EventLog":
        """One that has ended."""
        log = cls()
        log.add(events)
        log.end()
        return log

    @property
    def events(self) -> tuple[bytes, ...]:
        return tuple(self._events)

    def add(self, events: Iterable[bytes]) -> None:
        self._events += events
        self._wake()

    def end(self) -> None:
        self._is_over = True
        self._wake()

    async def follow(self, begin: int = 0) -> AsyncIterator[bytes]:
        """The events from this one on, until the last; and a sign of life while there is nothing to tell."""
        while True:
            news, is_over = self._news, self._is_over
            if data := b"".join(self._events[begin:]):
                begin = len(self._events)
                yield data
            elif is_over:
                return
            else:
                try:
                    await asyncio.wait_for(news.wait(), PING_S)
                except TimeoutError:
                    yield COMMENT

    def _wake(self) -> None:
        news, self._news = self._news, asyncio.Event()
        news.set()
