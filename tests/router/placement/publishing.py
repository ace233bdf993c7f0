"""A replica that publishes what a test tells it to, in the old shape of events or the new."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Self

import msgspec
import zmq
import zmq.asyncio

ANYWHERE = "tcp://127.0.0.1:0"

Events = list[Any]


def stored(names: list[Any], token_ids: list[int], parent: Any = None, size: int = 16) -> Events:
    return ["BlockStored", names, parent, token_ids, size, None, None]


def removed(*names: Any) -> Events:
    return ["BlockRemoved", [*names], None]


CLEARED = ["AllBlocksCleared"]


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not is_so():  # noqa: ASYNC110 - nobody tells when an index changes
            await asyncio.sleep(0.001)


class FakePublisher:
    """Its clock counts the batches of all its lives. `keeps`: how many batches it replays; None if it does not."""

    def __init__(self, keeps: int | None = 100, endpoints: tuple[str, str] = (ANYWHERE, ANYWHERE)) -> None:
        self._context = zmq.asyncio.Context()
        self._pub = self._context.socket(zmq.XPUB)
        self._router = self._context.socket(zmq.ROUTER)
        for socket, endpoint in zip((self._pub, self._router), endpoints, strict=True):
            socket.bind(endpoint)
        self._keeps = keeps
        self._batches: list[tuple[bytes, bytes]] = []
        self._clock = 0.0
        self.number = 0

    @property
    def endpoint(self) -> str:
        return str(self._pub.getsockopt_string(zmq.LAST_ENDPOINT))

    @property
    def replay_endpoint(self) -> str | None:
        return None if self._keeps is None else str(self._router.getsockopt_string(zmq.LAST_ENDPOINT))

    async def subscribed(self) -> None:
        """Wait until somebody listens."""
        assert await self._pub.recv() == b"\x01"

    async def publish(self, *events: Events, is_lost: bool = False) -> None:
        self._clock += 1
        frames = (self.number.to_bytes(8, "big"), msgspec.msgpack.encode([self._clock, events]))
        self.number += 1
        self._batches.append(frames)
        if not is_lost:
            await self._pub.send_multipart([b"topic", *frames])

    async def replay(self) -> int:
        """Answer the next who asks; returns from which batch on it was."""
        asker, empty, begin = await self._router.recv_multipart()
        for number, batch in self._batches[len(self._batches) - (self._keeps or 0) :] if self._keeps else ():
            if number >= begin:
                await self._router.send_multipart([asker, empty, number, batch])
        await self._router.send_multipart([asker, empty, b"\xff" * 8, b""])
        return int.from_bytes(begin, "big")

    async def replay_forever(self, is_over: Callable[[], bool]) -> None:
        """Answer the next who asks and never come to the end, until it is over."""
        asker, empty, _ = await self._router.recv_multipart()
        number = 0
        while not is_over():
            batch = msgspec.msgpack.encode([1.0, [stored([number], [number] * 16)]])
            with suppress(zmq.ZMQError):  # it has hung up
                await self._router.send_multipart([asker, empty, number.to_bytes(8, "big"), batch])
            number += 1
            await asyncio.sleep(0)

    def start_anew(self) -> None:
        self.number = 0
        self._batches.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._context.destroy(linger=0)
