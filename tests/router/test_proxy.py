"""Streams cut behind whole events, whatever their line ends and however they arrive."""

import itertools
import json
import time
from collections.abc import AsyncIterator, Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.types import Message

from hotloop.router.client_stream import ClientStream
from hotloop.router.proxy import send_whole, whole_events


async def arriving(chunks: Iterable[bytes]) -> AsyncIterator[bytes]:
    for chunk in chunks:
        yield chunk


async def cut(chunks: Iterable[bytes]) -> list[bytes]:
    return [piece async for piece in whole_events(arriving(chunks))]


async def test_work_grows_with_the_bytes_not_with_their_square():
    """Processor time, and a ceiling some fifty times what is needed: 300 kB took over half a minute before."""
    event = b"data: " + b"x" * 300_000 + b"\n\n"
    begun_s = time.process_time()
    assert await cut(event[i : i + 1] for i in range(len(event))) == [event]
    assert time.process_time() - begun_s < 10


@pytest.mark.parametrize("first", [b"\n", b"\r", b"\r\n"])
@pytest.mark.parametrize("second", [b"\n", b"\r", b"\r\n"])
async def test_any_blank_line_ends_an_event(first, second):
    """LF, CR and CR LF may be mixed. CR and then LF is one line end, so no blank line."""
    event = b"data: x" + first + second
    pieces = await cut([event, b"data: torn"])
    if (first, second) == (b"\r", b"\n"):
        assert pieces == [event + b"data: torn"]
    else:
        assert pieces == [event, b"data: torn"]


async def test_an_event_is_passed_on_with_its_last_byte():
    seen = []

    async def chunks() -> AsyncIterator[bytes]:
        yield b"data: 1\r\r"
        assert seen == [b"data: 1\r\r"]
        yield b"data: 2\r"
        yield b"\n\r"
        assert b"".join(seen) == b"data: 1\r\rdata: 2\r\n\r"
        yield b"\n"

    async for piece in whole_events(chunks()):
        seen.append(piece)  # noqa: PERF401 - what was seen so far is looked at
    assert b"".join(seen) == b"data: 1\r\rdata: 2\r\n\r\n"


@given(st.lists(st.sampled_from([b"\r", b"\n", b"data: x", b":", b"\r\n"]), max_size=30), st.integers(1, 7))
async def test_bytes_stay_the_same_and_every_piece_but_the_last_ends_an_event(parts, size):
    data = b"".join(parts)
    chunks = [data[i : i + size] for i in range(0, len(data), size)]
    pieces = await cut(chunks)
    assert b"".join(pieces) == data
    for so_far in itertools.accumulate(pieces[:-1]):
        assert so_far.endswith((b"\n\n", b"\r\r", b"\n\r", b"\n\r\n", b"\r\r\n"))


@pytest.mark.parametrize(
    "body",
    [
        b'{"error":{"message":"a bad \\x escape"}}',
        b'{"error":{"message":"not UTF-8: \xff"}}',
        b'{"error":{"message":"half a surrogate: \\ud800"}}',
        b'{"error":{"message":"open',
        b"[" * 60_000,
        b"",
    ],
)
async def test_any_error_body_becomes_the_last_event_of_a_stream_that_has_begun(body):
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    client = ClientStream(send, [])
    await client.begin(200, [])
    await send_whole(client, 400, [], body, "chat", "request-1")
    event = sent[-1]["body"]
    assert event.endswith(b"\n\n")
    assert json.loads(event.removeprefix(b"data: "))["error"]["code"] == "replica_failed"
