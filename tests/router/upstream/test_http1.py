"""Plain HTTP/1.1: what goes out, what comes back, and which connections carry it."""

import asyncio
import socket
import time
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.properties import examples
from tests.router.upstream.replicas import CHUNKED, OK, POST, Replica, Visit, body_of, saying
from tests.router.upstream.serving import Uvicorn

from hotloop.core.errors import RequestError
from hotloop.http.url import split_url
from hotloop.router.upstream.connection import MAX_BUFFERED_BYTES
from hotloop.router.upstream.http1 import Http1Upstream
from hotloop.router.upstream.wire import Timeouts, UpstreamRequest


async def echo(visit: Visit) -> None:
    await visit.say(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(visit.body), visit.body))


async def test_a_request_goes_out_as_it_was_given() -> None:
    async with Replica(saying(OK)) as replica:
        upstream = Http1Upstream(split_url(f"{replica.url}/prefix/"), max_connections=1, timeouts=Timeouts())
        answer = await upstream.send(
            UpstreamRequest("POST", "/v1/x?a=%20b", [(b"X-Odd", b"caf\xe9"), (b"a", b"")], b"\0\xffbody")
        )
        assert (answer.status, await body_of(answer)) == (200, b"ok")
        [visit] = replica.visits
        assert visit.head == (
            b"POST /prefix/v1/x?a=%%20b HTTP/1.1\r\nhost: 127.0.0.1:%d\r\n"
            b"X-Odd: caf\xe9\r\na: \r\ncontent-length: 6\r\n\r\n" % replica.port
        )
        assert visit.body == b"\0\xffbody"
        await upstream.aclose()


async def test_a_get_has_no_body_and_an_empty_post_says_so() -> None:
    async with Replica(saying(OK)) as replica:
        upstream = replica.upstream()
        for method in ("GET", "POST"):
            await body_of(await upstream.send(UpstreamRequest(method, "/", [])))
        assert [b"content-length" in visit.head for visit in replica.visits] == [False, True]
        await upstream.aclose()


async def test_an_answer_keeps_its_headers_but_those_of_the_connection() -> None:
    head = (
        b"HTTP/1.1 429 Slow Down\r\nContent-Length: 0\r\nRetry-After: 3\r\nConnection: keep-alive, X-Hop\r\n"
        b"X-Hop: 1\r\nKeep-Alive: timeout=5\r\nSet-Cookie: a\r\nSet-Cookie: b\r\n\r\n"
    )
    async with Replica(saying(head)) as replica:
        upstream = replica.upstream()
        answer = await upstream.send(POST)
        assert answer.status == 429
        assert answer.headers == [(b"retry-after", b"3"), (b"set-cookie", b"a"), (b"set-cookie", b"b")]
        assert await body_of(answer) == b""
        await upstream.aclose()


@pytest.mark.parametrize("size", [0, 1, 64 * 1024, 64 * 1024 + 1, 4_000_000])
async def test_bodies_of_any_size_go_and_come_back(size: int) -> None:
    body = bytes(range(256)) * (size // 256 + 1)
    async with Replica(echo) as replica:
        upstream = replica.upstream()
        for _ in range(2):
            assert await body_of(await upstream.send(UpstreamRequest("POST", "/", [], body[:size]))) == body[:size]
        assert replica.num_connections == 1
        await upstream.aclose()


async def test_a_piece_is_all_that_has_come_and_nothing_is_held_back() -> None:
    goes_on = asyncio.Event()

    async def answer(visit: Visit) -> None:
        await visit.say(CHUNKED + b"3\r\none\r\n")
        await goes_on.wait()
        await visit.say(b"3\r\ntwo\r\n5\r\nthree\r\n0\r\n\r\n")

    async with Replica(answer) as replica:
        upstream = replica.upstream()
        pieces = await upstream.send(POST)
        assert await anext(pieces) == b"one"
        goes_on.set()
        assert [piece async for piece in pieces] == [b"twothree"]
        await upstream.aclose()


@given(
    body=st.binary(max_size=2000),
    cuts=st.lists(st.integers(1, 300), max_size=30),
    splits=st.lists(st.integers(1, 300), max_size=30),
    is_chunked=st.booleans(),
)
@settings(max_examples=examples(60))
def test_a_body_comes_byte_for_byte_however_it_is_cut(
    body: bytes, cuts: list[int], splits: list[int], is_chunked: bool
) -> None:
    """`cuts` are the chunks of HTTP, `splits` the pieces the network carries."""
    if is_chunked:
        chunks = [b"%x;an=extension\r\n%b\r\n" % (len(piece), piece) for piece in pieces_of(body, cuts)]
        raw = CHUNKED + b"".join(chunks) + b"0\r\nx-trailer: 1\r\n\r\n"
    else:
        raw = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)

    async def exchange() -> None:
        async with Replica(saying(*pieces_of(raw, splits))) as replica:
            upstream = replica.upstream()
            for _ in range(2):
                answer = await upstream.send(POST)
                assert await body_of(answer) == body
                assert answer.headers == []
            assert replica.num_connections == 1
            await upstream.aclose()

    asyncio.run(exchange())


def pieces_of(data: bytes, sizes: list[int]) -> list[bytes]:
    pieces = []
    for size in [*sizes, len(data)]:
        pieces.append(data[:size])
        data = data[size:]
    return [piece for piece in pieces if piece]


async def test_a_body_may_end_with_its_connection() -> None:
    async with Replica(saying(b"HTTP/1.1 200 OK\r\n\r\n", b"all ", b"of it", then_hang_up=True)) as replica:
        upstream = replica.upstream()
        for _ in range(2):
            assert await body_of(await upstream.send(POST)) == b"all of it"
        assert (replica.num_connections, upstream.num_open) == (2, 0)
        await upstream.aclose()


async def test_what_comes_before_the_answer_is_skipped() -> None:
    early = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n"
    async with Replica(saying(early, OK)) as replica:
        upstream = replica.upstream()
        answer = await upstream.send(POST)
        assert (answer.status, answer.headers, await body_of(answer)) == (200, [], b"ok")
        await upstream.aclose()


async def test_a_head_has_no_body_whatever_it_says() -> None:
    async with Replica(saying(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n")) as replica:
        upstream = replica.upstream()
        assert await body_of(await upstream.send(UpstreamRequest("HEAD", "/", []))) == b""
        await upstream.aclose()


async def test_ipv6_addresses() -> None:
    if not has_ipv6():
        pytest.skip("this machine has no IPv6")
    async with Replica(saying(OK), host="::1") as replica:
        upstream = replica.upstream()
        assert await body_of(await upstream.send(POST)) == b"ok"
        assert b"host: [::1]:%d\r\n" % replica.port in replica.visits[0].head
        await upstream.aclose()


def has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


@pytest.mark.parametrize("header", [(b"a", b"b\r\nc: d"), (b"a\n", b"b"), (b"a", b"\0")])
async def test_a_header_cannot_bring_in_another(header: tuple[bytes, bytes]) -> None:
    async with Replica(saying(OK)) as replica:
        with pytest.raises(RequestError, match="line break"):
            await replica.upstream().send(UpstreamRequest("POST", "/", [header]))
        assert replica.num_connections == 0


@pytest.mark.parametrize("target", ["", "v1", "/a b", "/a\r\nb: c", "/é"])
async def test_a_target_is_one_path(target: str) -> None:
    async with Replica(saying(OK)) as replica:
        with pytest.raises(RequestError, match="target"):
            await replica.upstream().send(UpstreamRequest("POST", target, []))


async def test_a_thousand_at_once_over_eight_connections() -> None:
    async with Replica(echo) as replica:
        upstream = replica.upstream(max_connections=8)

        async def one(number: int) -> bool:
            body = b"%d" % number * 10
            return await body_of(await upstream.send(UpstreamRequest("POST", "/", [], body))) == body

        assert all(await asyncio.gather(*(one(number) for number in range(1000))))
        assert (len(replica.visits), replica.num_connections, upstream.num_open) == (1000, 8, 8)
        upstream.check()
        await upstream.aclose()
        assert upstream.num_open == 0


async def test_a_connection_is_free_before_its_answer_is_read() -> None:
    async with Replica(saying(OK)) as replica:
        upstream = replica.upstream(max_connections=1)
        first = await upstream.send(POST)
        second = await upstream.send(POST)
        assert [await body_of(first), await body_of(second)] == [b"ok", b"ok"]
        assert replica.num_connections == 1
        await upstream.aclose()


async def test_many_tiny_chunks_leave_the_loop_to_others() -> None:
    """No turn of the loop takes much of all the processor time that they cost."""
    num_chunks, turns = 300_000, [time.process_time()]

    async def live() -> None:
        while True:
            await asyncio.sleep(0)
            turns.append(time.process_time())

    async with Replica(saying(CHUNKED + b"1\r\nx\r\n" * num_chunks + b"0\r\n\r\n")) as replica:
        upstream = replica.upstream()
        living = asyncio.create_task(live())
        assert await body_of(await upstream.send(POST)) == b"x" * num_chunks
        living.cancel()
        assert max(after - before for before, after in pairwise(turns)) < (turns[-1] - turns[0]) / 3
        await upstream.aclose()


async def test_a_slow_reader_holds_the_replica_back() -> None:
    piece, num_pieces = b"x" * 65_536, 1000

    async def answer(visit: Visit) -> None:
        await visit.say(CHUNKED, *[b"10000\r\n%b\r\n" % piece] * num_pieces, b"0\r\n\r\n")

    async with Replica(answer) as replica:
        upstream = replica.upstream()
        answer_ = await upstream.send(POST)
        most = 0
        for _ in range(3000):
            await asyncio.sleep(0)
            most = max(most, answer_.num_buffered_bytes)
        assert MAX_BUFFERED_BYTES < most <= MAX_BUFFERED_BYTES + 256 * 1024
        num_bytes = sum([len(piece) async for piece in answer_])
        assert num_bytes == num_pieces * len(piece)
        assert await body_of(await asyncio.wait_for(upstream.send(UpstreamRequest("POST", "/", [])), 30))
        assert replica.num_connections == 1
        await upstream.aclose()


async def test_an_ordinary_server() -> None:
    with Uvicorn() as server:
        upstream = Http1Upstream(split_url(server.url), max_connections=2, timeouts=Timeouts())
        for _ in range(3):
            answer = await upstream.send(UpstreamRequest("POST", "/stream", [], b"hello"))
            assert answer.status == 200
            assert (b"content-type", b"text/event-stream") in answer.headers
            assert await body_of(answer) == b"data: hello\n\ndata: [DONE]\n\n"
            await answer.aclose()
        assert upstream.num_open == 1
        await upstream.aclose()
