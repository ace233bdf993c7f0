"""What the hub of several fronts keeps for one that starts later, and of one that is gone."""

import asyncio
from typing import Any

from tests.server.fronts.test_remote import make_engine

from hotloop.core.errors import EngineClosed
from hotloop.server.fronts.hub import Hub
from hotloop.server.metrics import Counts


def counts(num: float) -> Counts:
    return [("asked", "How often.", "counter", [("asked_total", {"by": "a"}, num)])]


class Front:
    """A `Host` whose front counts, unless it stands still or is gone."""

    def __init__(self, num: float = 0, *, is_still: bool = False, is_gone: bool = False) -> None:
        self.frames: list[bytes] = []
        self.num_read = 0
        self.failure: Exception | None = None
        self._num, self._is_still, self._is_gone = num, is_still, is_gone

    def tell(self, what: str, value: Any = None) -> None:
        raise AssertionError

    async def ask(self, what: str) -> Counts:
        if self._is_gone:
            raise EngineClosed("gone")
        if self._is_still:
            await asyncio.Event().wait()
        return counts(self._num)

    def send_frame(self, body: bytes) -> None:
        self.frames.append(body)

    def read_sent(self) -> None:
        self.num_read += 1

    def fail(self, error: Exception) -> None:
        self.failure = error


def test_a_change_reaches_all_others_and_those_who_come_later_as_far_as_it_is_kept() -> None:
    hub = Hub(make_engine(), "tiny", num_fronts=3, max_kept_bytes=10)
    a, b, late = Front(), Front(), Front()
    hub.join(a)
    hub.join(b)
    for frame in (b"one1", b"two2", b"thre"):
        hub.pass_on(frame, a)
    hub.join(late)
    assert (a.frames, b.frames, late.frames) == ([], [b"one1", b"two2", b"thre"], [b"two2", b"thre"])
    assert hub.num_kept_bytes == 8
    hub.pass_on(b"longer than all may be", b)
    assert hub.num_kept_bytes == 0


def test_who_catches_up_has_the_others_read() -> None:
    hub = Hub(make_engine(), "tiny", num_fronts=2)
    a, b = Front(), Front()
    hub.join(a)
    hub.join(b)
    hub.read_sent(a)
    assert (a.num_read, b.num_read) == (0, 1)


async def test_what_was_counted_never_becomes_less() -> None:
    hub = Hub(make_engine(), "tiny", num_fronts=2)
    a, b = Front(), Front(5)
    hub.join(a)
    hub.join(b)
    assert await hub.count(a, counts(1)) == counts(5)
    hub.leave(b)
    assert await hub.count(a, counts(1)) == counts(5)
    for front in (Front(7, is_still=True), Front(7, is_gone=True), Front(2)):
        hub.join(front)
    assert await hub.count(a, counts(1)) == counts(7), "of those who say nothing nothing is known"


async def test_a_front_that_has_ended_since_it_asked_is_counted_once() -> None:
    hub = Hub(make_engine(), "tiny", num_fronts=2)
    a, b = Front(), Front(5)
    hub.join(a)
    hub.join(b)
    await hub.count(a, counts(1))
    hub.leave(b)
    await hub.count(b, counts(5))
    assert hub.hosts == (a,)
    assert await hub.count(a, counts(1)) == counts(5)


def test_all_hear_that_the_engine_has_failed() -> None:
    engine = make_engine()
    hub = Hub(engine, "tiny", num_fronts=2)
    fronts = [Front(), Front()]
    for front in fronts:
        hub.join(front)
    assert engine.on_failure
    engine.on_failure(error := RuntimeError("lost"))
    assert [front.failure for front in fronts] == [error] * 2
