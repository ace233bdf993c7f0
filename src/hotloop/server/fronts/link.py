"""A stream socket that carries whole messages: four bytes of length, then so many of MessagePack."""

import asyncio
import logging
import socket
import threading
from collections import deque
from collections.abc import Callable, Iterator

import msgspec

from hotloop.core.errors import EngineClosed

log = logging.getLogger("hotloop.fronts")

_HEAD = 4
_READ = 1 << 20
MAX_FRAME = 1 << 30
MAX_BACKLOG = 256 << 20
"""Bytes the other end may be behind with reading before it counts as stuck."""

_encoder = msgspec.msgpack.Encoder()


class Frames:
    """Cuts what is read into messages."""

    def __init__(self) -> None:
        self._data = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Raises ValueError for a length that no message has."""
        self._data += data
        begin = 0
        while len(self._data) - begin >= _HEAD:
            size = int.from_bytes(self._data[begin : begin + _HEAD], "little")
            if size > MAX_FRAME:
                raise ValueError(f"a message of {size:,} bytes")
            if len(self._data) - begin - _HEAD < size:
                break
            yield bytes(self._data[begin + _HEAD : begin + _HEAD + size])
            begin += _HEAD + size
        del self._data[:begin]


class Link:
    """One end of it. Messages are read on the event loop, and sent from any thread; sending never waits: what the other
    end is too slow for is kept, up to a bound, behind which the link is broken off. So it is behind a message that
    cannot be taken: nobody is left waiting for what would have followed."""

    def __init__(self, sock: socket.socket, on_message: Callable[[bytes], None], on_gone: Callable[[], None]) -> None:
        self._sock = sock
        self._sock.setblocking(False)
        self._frames = Frames()
        self._on_message = on_message
        self._on_gone = on_gone
        self._backlog: deque[memoryview] = deque()
        self._num_waiting = 0
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self.is_open = True

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._sock.fileno(), self._read)

    def send(self, message: msgspec.Struct) -> None:
        self.send_frame(_encoder.encode(message))

    def send_frame(self, body: bytes) -> None:
        data = memoryview(len(body).to_bytes(_HEAD, "little") + body)
        with self._lock:
            if not self.is_open:
                return
            if not self._backlog:
                data = data[self._write(data) :]
            if not data:
                return
            is_first = not self._backlog
            self._backlog.append(data)
            self._num_waiting += len(data)
            is_stuck = self._num_waiting > MAX_BACKLOG
        if is_stuck:
            self._call(self.close)
        elif is_first:
            self._call(self._watch)

    def close(self) -> None:
        """On the event loop. Whoever listens is told once."""
        with self._lock:
            was_open, self.is_open = self.is_open, False
            self._backlog.clear()
        if was_open:
            assert self._loop
            self._loop.remove_reader(self._sock.fileno())
            self._loop.remove_writer(self._sock.fileno())
            self._sock.close()
            self._on_gone()

    def _call(self, act: Callable[[], None]) -> None:
        assert self._loop
        self._loop.call_soon_threadsafe(act)

    def _watch(self) -> None:
        if self.is_open:
            assert self._loop
            self._loop.add_writer(self._sock.fileno(), self._flush)

    def _flush(self) -> None:
        with self._lock:
            while self._backlog:
                data = self._backlog[0]
                num_sent = self._write(data)
                self._num_waiting -= num_sent
                if num_sent < len(data):
                    self._backlog[0] = data[num_sent:]
                    return
                self._backlog.popleft()
            if self._loop and self.is_open:
                self._loop.remove_writer(self._sock.fileno())

    def _write(self, data: memoryview) -> int:
        """How many bytes the socket took. An end that is gone is noticed where it is read from."""
        try:
            return self._sock.send(data)
        except (BlockingIOError, InterruptedError):
            return 0
        except OSError:
            return len(data)

    def read_sent(self) -> None:
        """Take all that the other end has sent by now. Not while a message is taken."""
        while self.is_open and self._read():
            pass

    def _read(self) -> bool:
        """Whether there was something."""
        try:
            data = self._sock.recv(_READ)
        except (BlockingIOError, InterruptedError):
            return False
        except OSError:
            data = b""
        try:
            for frame in self._frames.feed(data):
                self._on_message(frame)
        except Exception:  # another version of us, memory gone bad, or a mistake: nothing can follow
            log.exception("what came over a link cannot be taken: it is broken off")
            data = b""
        if not data:
            self.close()
        return bool(data)


def read_one(sock: socket.socket) -> bytes:
    """The first message, before there is an event loop: waits for it. Raises EngineClosed if the other end is gone."""
    size = int.from_bytes(_read_exactly(sock, _HEAD), "little")
    return _read_exactly(sock, size)


def _read_exactly(sock: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = sock.recv(size - len(data))
        if not more:
            raise EngineClosed("the engine's process has ended")
        data += more
    return data
