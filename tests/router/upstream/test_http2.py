"""HTTPS: HTTP/2 where it is offered, HTTP/1.1 where it is not, and the same failures as over plain HTTP."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from tests.router.upstream.http2_replica import Http2Replica, Stream, Trust
from tests.router.upstream.replicas import (
    HALF,
    OK,
    POST,
    Replica,
    Visit,
    body_of,
    failure_of,
    full_queue,
    saying,
    silent,
)

from hotloop.http.url import split_url
from hotloop.router.upstream.http2 import HttpxUpstream
from hotloop.router.upstream.wire import Timeouts, UpstreamFailed, UpstreamRequest


@asynccontextmanager
async def connected(
    replica: Http2Replica | Replica, trust: Trust, timeouts: Timeouts | None = None
) -> AsyncIterator[HttpxUpstream]:
    async with replica:
        url = split_url(f"{replica.url}/prefix")
        upstream = HttpxUpstream(url, max_connections=4, timeouts=timeouts or Timeouts(), trusted=trust.believed)
        yield upstream
        await upstream.aclose()
        assert upstream.num_open == 0


async def test_many_share_one_connection(trust: Trust) -> None:
    def answer(stream: Stream) -> None:
        stream.begin()
        stream.say(stream.headers[b":path"] + b" ")
        stream.say(bytes(stream.body), is_last=True)

    async with connected(replica := Http2Replica(answer, trust), trust) as upstream:

        async def one(number: int) -> bytes:
            answer = await upstream.send(
                UpstreamRequest("POST", f"/%7Ev1?n={number}", [(b"X-A", b"b")], b"%d" % number * 1000)
            )
            assert (answer.status, answer.headers) == (200, [(b"x-from", b"replica")])
            return await body_of(answer)

        bodies = await asyncio.gather(*(one(number) for number in range(20)))
        assert bodies == [b"/prefix/%%7Ev1?n=%d " % number + b"%d" % number * 1000 for number in range(20)]
        assert len(replica.connections) == 1


async def test_nothing_is_added_to_a_request(trust: Trust) -> None:
    streams: list[Stream] = []

    def answer(stream: Stream) -> None:
        streams.append(stream)
        stream.begin()
        stream.say(b"", is_last=True)

    async with connected(Http2Replica(answer, trust), trust) as upstream:
        assert await body_of(await upstream.send(POST)) == b""
    wanted = {b":method", b":authority", b":scheme", b":path", b"content-type", b"content-length"}
    assert streams[0].headers.keys() == wanted


async def test_pieces_come_as_they_are_sent(trust: Trust) -> None:
    streams: list[Stream] = []

    def answer(stream: Stream) -> None:
        streams.append(stream)
        stream.begin()

    async with connected(Http2Replica(answer, trust), trust) as upstream:
        pieces = await upstream.send(POST)
        for piece in (b"one", b"two"):
            streams[0].say(piece)
            assert await anext(pieces) == piece
        streams[0].say(b"three", is_last=True)
        assert [piece async for piece in pieces] == [b"three"]
        assert upstream.num_open == 0


async def test_a_stream_reset_before_and_within_its_answer(trust: Trust) -> None:
    def answer(stream: Stream) -> None:
        if stream.headers[b":path"].endswith(b"/body"):
            stream.begin()
        stream.reset()

    async with connected(Http2Replica(answer, trust), trust) as upstream:
        assert (await failure_of(upstream)).stage == "head"
        with pytest.raises(UpstreamFailed) as caught:
            await body_of(await upstream.send(UpstreamRequest("POST", "/body", [])))
        assert caught.value.stage == "body"


@pytest.mark.parametrize("raw", [bytes(9), b"\0\0\4\0\0\0\0\0\0none"])
async def test_frames_that_are_none(trust: Trust, raw: bytes) -> None:
    def answer(stream: Stream) -> None:
        if stream.headers[b":path"].endswith(b"/body"):
            stream.begin()
        stream.connection.transport.write(raw)

    async with connected(Http2Replica(answer, trust), trust) as upstream:
        assert (await failure_of(upstream)).stage == "head"
        with pytest.raises(UpstreamFailed) as caught:
            await body_of(await upstream.send(UpstreamRequest("POST", "/body", [])))
        assert caught.value.stage in ("head", "body")


async def test_a_connection_that_ends_ends_all_its_answers(trust: Trust) -> None:
    streams: list[Stream] = []

    def answer(stream: Stream) -> None:
        streams.append(stream)
        stream.begin()

    async with connected(replica := Http2Replica(answer, trust), trust) as upstream:
        answers = [await upstream.send(POST) for _ in range(3)]
        replica.connections[0].transport.abort()
        failures = await asyncio.gather(*(body_of(answer) for answer in answers), return_exceptions=True)
        assert [failure.stage for failure in failures if isinstance(failure, UpstreamFailed)] == ["body"] * 3
        assert upstream.num_open == 0
        streams.clear()
        again = await upstream.send(POST)
        streams[0].say(b"ok", is_last=True)
        assert await body_of(again) == b"ok"


async def test_connections_with_a_stream_left_unread_take_no_more(trust: Trust) -> None:
    streams: list[Stream] = []

    def answer(stream: Stream) -> None:
        streams.append(stream)
        stream.begin()
        stream.say(b"some")

    async with connected(replica := Http2Replica(answer, trust), trust) as upstream:
        left, read = await upstream.send(POST), await upstream.send(POST)
        assert await anext(left) == b"some"
        await left.aclose()
        await left.aclose()
        later = await upstream.send(POST)
        assert len(replica.connections) == 2
        assert not replica.connections[0].is_gone.is_set()
        streams[1].say(b" more", is_last=True)
        assert await body_of(read) == b"some more"
        await replica.connections[0].is_gone.wait()
        streams[2].say(b"", is_last=True)
        assert await body_of(later) == b"some"


async def test_cancelled_while_waiting_for_a_head(trust: Trust) -> None:
    asked = asyncio.Event()

    async with connected(replica := Http2Replica(lambda stream: asked.set(), trust), trust) as upstream:
        task = asyncio.create_task(upstream.send(POST))
        await asked.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await replica.connections[0].is_gone.wait()
        assert upstream.num_open == 0


async def test_silence_is_a_timeout(trust: Trust) -> None:
    async with connected(Http2Replica(lambda stream: None, trust), trust, Timeouts(head_s=0.05)) as upstream:
        failure = await failure_of(upstream)
        assert (failure.stage, failure.is_timeout) == ("head", True)
    async with connected(Http2Replica(Stream.begin, trust), trust, Timeouts(idle_s=0.05)) as upstream:
        failure = await failure_of(upstream)
        assert (failure.stage, failure.is_timeout) == ("body", True)


async def test_nobody_accepts() -> None:
    with full_queue() as port:
        url = split_url(f"https://127.0.0.1:{port}")
        upstream = HttpxUpstream(url, max_connections=1, timeouts=Timeouts(connect_s=0.05))
        failure = await failure_of(upstream)
        await upstream.aclose()
    assert (failure.stage, failure.is_timeout) == ("connect", True)
    assert str(failure) == "no connection to the replica: it did not accept one in 0.05 s"


async def test_closing_ends_what_is_under_way_and_turns_away_what_follows(trust: Trust) -> None:
    asked = asyncio.Event()

    def answer(stream: Stream) -> None:
        if stream.headers[b":path"].endswith(b"/body"):
            stream.begin()
        else:
            asked.set()

    async with connected(Http2Replica(answer, trust), trust) as upstream:
        begun = await upstream.send(UpstreamRequest("POST", "/body", []))
        body, head = asyncio.create_task(body_of(begun)), asyncio.create_task(upstream.send(POST))
        await asked.wait()
        await upstream.aclose()
        failures = await asyncio.gather(body, head, upstream.send(POST), return_exceptions=True)
        stages = [failure.stage for failure in failures if isinstance(failure, UpstreamFailed)]
        assert stages[0] == "body"
        assert stages[1] in ("head", "connect")
        assert stages[2] == "connect"


async def test_http1_where_http2_is_not_offered(old_trust: Trust) -> None:
    async with connected(replica := Replica(saying(OK), certificate=old_trust.shown), old_trust) as upstream:
        for _ in range(2):
            assert await body_of(await upstream.send(POST)) == b"ok"
        assert replica.num_connections == 1


@pytest.mark.parametrize(("raw", "stage"), [(b"", "head"), (b"nonsense\r\n", "head"), (HALF, "body")])
async def test_half_an_answer(old_trust: Trust, raw: bytes, stage: str) -> None:
    replica = Replica(saying(raw, then_hang_up=True), certificate=old_trust.shown)
    async with connected(replica, old_trust) as upstream:
        failure = await failure_of(upstream)
        assert (failure.stage, failure.is_timeout) == (stage, False)
        assert len(replica.visits) == 1


async def test_a_stale_connection_is_replaced_once(old_trust: Trust) -> None:
    async def answer(visit: Visit) -> None:
        if visit.number == 1:
            visit.hang_up()
        else:
            await visit.say(OK)

    async with connected(replica := Replica(answer, certificate=old_trust.shown), old_trust) as upstream:
        for _ in range(2):
            assert await body_of(await upstream.send(POST)) == b"ok"
        assert (len(replica.visits), replica.num_connections) == (3, 2)


async def test_a_certificate_nobody_vouches_for(trust: Trust, old_trust: Trust) -> None:
    async with Replica(silent, certificate=trust.shown) as replica:
        url = split_url(replica.url)
        upstream = HttpxUpstream(url, max_connections=1, timeouts=Timeouts(), trusted=old_trust.believed)
        failure = await failure_of(upstream)
        assert (failure.stage, failure.is_timeout) == ("connect", False)
        assert "certificate" in str(failure)
        await upstream.aclose()
        assert (await failure_of(upstream)).stage == "connect"
