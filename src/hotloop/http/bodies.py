"""Bounds on request bodies, which server and router share.

A JSON body of a few megabytes can become hundreds of megabytes of Python objects, and the decoder holds the interpreter
lock until the last of them is made. So values are counted in the bytes, piece by piece while they arrive, and a body
with too many is refused before any object exists. `BodyRoom` bounds how many bytes are decoded and parsed at a time.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import TypeVar

from hotloop.core.errors import Overloaded, RequestError

Read = TypeVar("Read")

MAX_CONTAINERS = 50_000
"""Lists and objects in a body: those of a conversation of 10,000 turns."""
MAX_VALUES = 300_000
"""Values and names of fields: a prompt of 262,144 token ids, and more."""

_SMALL_BODY = 64 << 10
_READERS = ThreadPoolExecutor(2, "hotloop-read")


class JsonCounter:
    """Counts the values of a JSON text that is fed in pieces. Of a text that is no JSON it counts at least as many as a
    decoder would make before it stops."""

    def __init__(self) -> None:
        self.num_containers = 0
        self.num_values = 0
        self._is_in_string = False
        self._carry = b""  # a backslash whose escape goes on in the next piece

    def feed(self, piece: bytes) -> None:
        """Raises RequestError once there are too many."""
        text = (self._carry + piece).replace(rb"\\", b"")  # what backslashes are left do escape what follows
        self._carry = b"\\" if text.endswith(b"\\") else b""
        parts = text.removesuffix(self._carry).replace(b'\\"', b"").split(b'"')
        outside = b"".join(parts[self._is_in_string :: 2])
        self._is_in_string ^= len(parts) % 2 == 0
        self.num_containers += outside.count(b"[") + outside.count(b"{")
        self.num_values += outside.count(b",") + outside.count(b":")
        _refuse_above("lists and objects", self.num_containers, MAX_CONTAINERS)
        _refuse_above("values", self.num_values, MAX_VALUES)


def _refuse_above(what: str, num: int, limit: int) -> None:
    if num > limit:
        raise RequestError(f"the body has more than {limit:,} {what}; no more are read")


async def read_aside(num_bytes: int, read: Callable[[], Read]) -> Read:
    """What is made of a body of that size: of a large one in a thread, so that others have the event loop meanwhile.
    One interpreter lock for all makes more threads no quicker, and each holds the objects of a body."""
    return read() if num_bytes <= _SMALL_BODY else await asyncio.get_running_loop().run_in_executor(_READERS, read)


class JsonBody:
    """A body as it arrives. One that has too many values is taken to its end, so that its client can read why it is
    refused, but none of it is kept."""

    def __init__(self) -> None:
        self.num_bytes = 0
        self._data = bytearray()
        self._counter = JsonCounter()
        self._refusal: RequestError | None = None

    def add(self, piece: bytes) -> None:
        self.num_bytes += len(piece)
        if self._refusal:
            return
        try:
            self._counter.feed(piece)
        except RequestError as error:
            self._refusal = error
            self._data.clear()
        else:
            self._data += piece

    def take(self) -> bytes:
        """All of it. Raises RequestError where there is too much in it."""
        if self._refusal:
            raise self._refusal
        data = bytes(self._data)
        self._data.clear()
        return data


class BodyRoom:
    """Lets bodies be decoded and parsed as long as they are small or few; the others wait in line. `on_leave` is told
    the size of each that has been. Lives on the event loop."""

    def __init__(
        self, max_bytes: int, max_waiting_bytes: int, on_leave: Callable[[int], None] = lambda num_bytes: None
    ) -> None:
        self.num_bytes = 0
        self._max_bytes = max_bytes
        self._max_waiting_bytes = max_waiting_bytes
        self._on_leave = on_leave
        self._num_waiting_bytes = 0
        self._line = asyncio.Lock()
        self._has_room = asyncio.Event()

    @property
    def num_held_bytes(self) -> int:
        return self.num_bytes + self._num_waiting_bytes

    @asynccontextmanager
    async def hold(self, num_bytes: int) -> AsyncIterator[None]:
        """Raises Overloaded where too much is waiting already."""
        if num_bytes > _SMALL_BODY:
            await self._wait(num_bytes)
        self.num_bytes += num_bytes
        try:
            yield
        finally:
            self.num_bytes -= num_bytes
            self._has_room.set()
            self._on_leave(num_bytes)

    async def _wait(self, num_bytes: int) -> None:
        if self._num_waiting_bytes and self._num_waiting_bytes + num_bytes > self._max_waiting_bytes:
            raise Overloaded("too many large requests are waiting to be read: try again later")
        self._num_waiting_bytes += num_bytes
        try:
            async with self._line:
                while self.num_bytes and self.num_bytes + num_bytes > self._max_bytes:
                    self._has_room.clear()
                    await self._has_room.wait()
        finally:
            self._num_waiting_bytes -= num_bytes
