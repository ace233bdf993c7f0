"""A link carries whole messages, however the bytes are cut, and never waits for a slow reader."""

import asyncio
import socket
from collections.abc import Iterator

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hotloop.core.errors import EngineClosed
from hotloop.server.fronts import link
from hotloop.server.fronts.link import Frames, Link, read_one
from hotloop.server.fronts.messages import Told


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


def framed(body: bytes) -> bytes:
    return len(body).to_bytes(4, "little") + body


@given(bodies=st.lists(st.binary(max_size=300), max_size=20), size=st.integers(1, 50))
def test_messages_are_whole_however_they_are_cut(bodies: list[bytes], size: int) -> None:
    data, frames = b"".join(map(framed, bodies)), Frames()
    assert [body for i in range(0, len(data), size) for body in frames.feed(data[i : i + size])] == bodies


def test_a_length_that_no_message_has_is_refused() -> None:
    with pytest.raises(ValueError, match="bytes"):
        list(Frames().feed((link.MAX_FRAME + 1).to_bytes(4, "little")))


async def test_everything_arrives_in_order_though_the_reader_is_slow(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    heard: list[int] = []
    is_done = asyncio.Event()

    def hear(frame: bytes) -> None:
        heard.append(len(msgspec.msgpack.decode(frame, type=Told).value))
        if len(heard) == 60:
            is_done.set()

    sender = Link(ours, lambda frame: None, lambda: None)
    sender.start()
    sizes = [i * 5000 for i in range(60)]  # 8.9 MB: far more than a socket holds
    await asyncio.to_thread(lambda: [sender.send(Told("news", bytes(size))) for size in sizes])
    receiver = Link(theirs, hear, lambda: None)
    receiver.start()
    await asyncio.wait_for(is_done.wait(), 60)
    assert heard == sizes
    sender.close()
    receiver.close()


async def test_who_never_reads_is_given_up(
    pair: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link, "MAX_BACKLOG", 1 << 20)
    is_gone = asyncio.Event()
    sender = Link(pair[0], lambda frame: None, is_gone.set)
    sender.start()
    for _ in range(40):
        sender.send(Told("news", bytes(100_000)))
    await asyncio.wait_for(is_gone.wait(), 60)
    assert not sender.is_open
    sender.send(Told("news"))  # goes nowhere, and harms nobody


async def test_an_end_that_closes_is_told_once(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    gone: list[str] = []
    is_gone = asyncio.Event()

    def lose() -> None:
        gone.append("gone")
        is_gone.set()

    receiver = Link(ours, lambda frame: None, lose)
    receiver.start()
    theirs.close()
    await asyncio.wait_for(is_gone.wait(), 60)
    receiver.close()
    assert gone == ["gone"]


async def test_what_is_no_message_ends_the_link(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    is_gone = asyncio.Event()
    receiver = Link(ours, lambda frame: msgspec.msgpack.decode(frame, type=Told), is_gone.set)
    receiver.start()
    theirs.sendall(framed(b"\xc1"))
    await asyncio.wait_for(is_gone.wait(), 60)


async def test_a_mistake_over_one_message_ends_the_link_and_nothing_is_taken_twice(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    ours, theirs = pair
    heard: list[bytes] = []
    is_gone = asyncio.Event()

    def hear(frame: bytes) -> None:
        heard.append(frame)
        if frame == b"bad":
            raise RuntimeError("a mistake")

    Link(ours, hear, is_gone.set).start()
    theirs.sendall(framed(b"good") + framed(b"bad") + framed(b"more"))
    await asyncio.wait_for(is_gone.wait(), 60)
    assert heard == [b"good", b"bad"]


def test_the_first_message_is_read_without_a_loop(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    theirs.sendall(framed(b"begin") + framed(b"rest"))
    assert read_one(ours) == b"begin"
    assert ours.recv(100) == framed(b"rest")
    theirs.close()
    with pytest.raises(EngineClosed):
        read_one(ours)
