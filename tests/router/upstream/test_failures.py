"""Each way a replica can fail, where it is said to have failed, and that nothing is left behind."""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from tests.router.upstream import replicas
from tests.router.upstream.replicas import CHUNKED, HALF, OK, POST, Replica, Visit, body_of, full_queue, saying, silent

from hotloop.http.url import split_url
from hotloop.router.upstream.connection import MAX_HEAD_BYTES, MAX_HEADERS, Http1Response
from hotloop.router.upstream.http1 import Http1Upstream
from hotloop.router.upstream.wire import Timeouts, UpstreamFailed, UpstreamRequest

SHORT = Timeouts(connect_s=0.05, head_s=0.05, idle_s=0.05)


async def half(visit: Visit) -> None:
    """Begin an answer, and never go on."""
    await visit.say(HALF)
    await silent(visit)


async def failure_of(upstream: Http1Upstream, ask: UpstreamRequest = POST) -> UpstreamFailed:
    failure = await replicas.failure_of(upstream, ask)
    upstream.check()
    await upstream.aclose()
    return failure


async def failure_with(answer: Callable[[Visit], Awaitable[None]], timeouts: Timeouts | None = None) -> UpstreamFailed:
    async with Replica(answer) as replica:
        failure = await failure_of(replica.upstream(timeouts=timeouts))
        await replica.until(lambda replica: replica.num_gone == replica.num_connections == 1)
        return failure


async def test_nobody_listens() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = split_url(f"http://127.0.0.1:{taken.getsockname()[1]}")
        failure = await failure_of(Http1Upstream(url, max_connections=1, timeouts=Timeouts()))
    assert (failure.stage, failure.is_timeout) == ("connect", False)
    assert str(failure) == "no connection to the replica: Connection refused"


async def test_nobody_accepts() -> None:
    with full_queue() as port:
        url = split_url(f"http://127.0.0.1:{port}")
        failure = await failure_of(Http1Upstream(url, max_connections=1, timeouts=SHORT))
    assert (failure.stage, failure.is_timeout) == ("connect", True)
    assert str(failure) == "no connection to the replica: it did not accept one in 0.05 s"


async def test_a_name_nobody_has() -> None:
    upstream = Http1Upstream(split_url(f"http://{'a' * 64}.invalid"), max_connections=1, timeouts=Timeouts())
    assert (await failure_of(upstream)).stage == "connect"


async def test_it_never_answers() -> None:
    failure = await failure_with(silent, SHORT)
    assert (failure.stage, failure.is_timeout) == ("head", True)
    assert str(failure) == "the replica did not answer: nothing came for 0.05 s"


async def test_it_takes_only_part_of_the_request() -> None:
    """More than the system buffers, to one who does not read."""
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen()
        url = split_url(f"http://127.0.0.1:{deaf.getsockname()[1]}")
        upstream = Http1Upstream(url, max_connections=1, timeouts=Timeouts(head_s=0.05))
        failure = await failure_of(upstream, UpstreamRequest("POST", "/", [], bytes(50_000_000)))
    assert (failure.stage, failure.is_timeout) == ("send", True)


async def test_it_hangs_up_on_a_request() -> None:
    failure = await failure_with(saying(then_hang_up=True))
    assert (failure.stage, failure.is_timeout) == ("head", False)


async def test_half_a_head() -> None:
    failure = await failure_with(saying(b"HTTP/1.1 200 OK\r\nx: y", then_hang_up=True))
    assert failure.stage == "head"


async def test_half_a_body() -> None:
    for raw in (HALF, CHUNKED + b"4\r\nhalf\r\n", CHUNKED + b"8\r\nhalf"):
        failure = await failure_with(saying(raw, then_hang_up=True))
        assert (failure.stage, failure.is_timeout) == ("body", False)
        assert str(failure) == "the replica's answer broke off: it closed the connection"


async def test_a_body_that_stops() -> None:
    failure = await failure_with(half, SHORT)
    assert (failure.stage, failure.is_timeout) == ("body", True)


async def test_each_piece_moves_the_deadline() -> None:
    async def answer(visit: Visit) -> None:
        await visit.say(CHUNKED)
        for _ in range(4):
            await asyncio.sleep(0.2)
            await visit.say(b"1\r\nx\r\n")
        await visit.say(b"0\r\n\r\n")

    async with Replica(answer) as replica:
        upstream = replica.upstream(timeouts=Timeouts(head_s=0.6, idle_s=0.6))
        assert await body_of(await upstream.send(POST)) == b"xxxx"
        await upstream.aclose()


async def test_what_came_before_a_failure_is_delivered() -> None:
    async with Replica(saying(HALF, then_hang_up=True)) as replica:
        upstream = replica.upstream()
        pieces = await upstream.send(POST)
        await replica.until(lambda replica: replica.num_gone == 1)
        assert await anext(pieces) == b"half"
        for _ in range(2):
            with pytest.raises(UpstreamFailed):
                await anext(pieces)
        await upstream.aclose()


async def test_a_connection_reset_within_a_body() -> None:
    async def answer(visit: Visit) -> None:
        await visit.say(HALF)
        visit.writer.transport.get_extra_info("socket").setsockopt(
            socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0"
        )
        visit.writer.transport.abort()

    assert (await failure_with(answer)).stage == "body"


@pytest.mark.parametrize(
    "raw",
    [
        b"SSH-2.0-OpenSSH_9.6\r\n",
        b"HTTP/1.1 two hundred\r\n\r\n",
        b"HTTP/1.1 999 Odd\r\ncontent-length: 0\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: other\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\ncontent-length: 4\r\n\r\nabc",
        b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * (MAX_HEADERS + 1) + b"\r\n",
        b"HTTP/1.1 200 OK\r\na: " + b"b" * (MAX_HEAD_BYTES + 1) + b"\r\n\r\n",
        b"HTTP/1.1 200 OK\r\na: " + b"b" * 10_000_000,
        b"HTTP/1.1 100 Continue\r\n\r\n" * 10_000,
    ],
)
async def test_a_head_that_is_none(raw: bytes) -> None:
    failure = await failure_with(saying(raw))
    assert (failure.stage, failure.is_timeout) == ("head", False)


@pytest.mark.parametrize(
    "raw", [CHUNKED + b"zz\r\n", CHUNKED + b"3\r\nabcdef\r\n", CHUNKED + b"0\r\nx: " + b"y" * 10_000_000]
)
async def test_a_body_that_is_none(raw: bytes) -> None:
    failure = await failure_with(saying(raw))
    assert (failure.stage, failure.is_timeout) == ("body", False)


async def test_a_connection_closed_while_idle_leaves_the_pool() -> None:
    async with Replica(saying(OK)) as replica:
        upstream = replica.upstream()
        assert await body_of(await upstream.send(POST)) == b"ok"
        assert upstream.num_open == 1
        replica.visits[0].hang_up()
        await replica.until(lambda replica: replica.num_gone == 1)
        assert await body_of(await upstream.send(POST)) == b"ok"
        assert (replica.num_connections, upstream.num_open) == (2, 1)
        await upstream.aclose()


async def test_a_stale_connection_is_replaced_once() -> None:
    """The second request of a connection finds it closing, and is sent again on a fresh one."""

    async def answer(visit: Visit) -> None:
        if visit.number == 1:
            visit.hang_up()
        else:
            await visit.say(OK)

    async with Replica(answer) as replica:
        upstream = replica.upstream()
        for _ in range(2):
            assert await body_of(await upstream.send(POST)) == b"ok"
        assert (len(replica.visits), replica.num_connections) == (3, 2)
        await upstream.aclose()


async def test_a_fresh_connection_that_fails_is_not_replaced() -> None:
    async def answer(visit: Visit) -> None:
        if visit.number == 0:
            await visit.say(OK)
        else:
            visit.hang_up()

    async with Replica(answer) as replica:
        upstream = replica.upstream()
        assert await body_of(await upstream.send(POST)) == b"ok"
        assert (await failure_of(upstream)).stage == "head"
        assert (len(replica.visits), replica.num_connections) == (3, 2)


async def test_once_anything_was_answered_nothing_is_sent_again() -> None:
    async def answer(visit: Visit) -> None:
        await visit.say(OK if visit.number == 0 else b"HTTP/1.1 2")
        if visit.number:
            visit.hang_up()

    async with Replica(answer) as replica:
        upstream = replica.upstream()
        assert await body_of(await upstream.send(POST)) == b"ok"
        assert (await failure_of(upstream)).stage == "head"
        assert len(replica.visits) == 2


@pytest.mark.parametrize(
    "raw",
    [
        OK + b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nbad",
        OK + b"more",
        OK.replace(b"OK\r", b"OK\r\nconnection: close\r"),
    ],
)
async def test_a_connection_with_something_after_its_answeris_not_used_again(raw: bytes) -> None:
    async with Replica(saying(raw)) as replica:
        upstream = replica.upstream()
        for _ in range(2):
            assert await body_of(await upstream.send(POST)) == b"ok"
        assert (replica.num_connections, upstream.num_open) == (2, 0)
        await upstream.aclose()


async def all_closed(replica: Replica, upstream: Http1Upstream) -> None:
    await replica.until(lambda replica: replica.num_gone == 1)
    assert upstream.num_open == 0
    await upstream.aclose()


async def test_bytes_nobody_asked_for_close_a_connection() -> None:
    async with Replica(saying(OK)) as replica:
        upstream = replica.upstream()
        assert await body_of(await upstream.send(POST)) == b"ok"
        await replica.visits[0].say(b"HTTP/1.1 408 Request Timeout\r\ncontent-length: 0\r\n\r\n")
        await all_closed(replica, upstream)


@asynccontextmanager
async def half_an_answer() -> AsyncIterator[tuple[Replica, Http1Upstream, Http1Response]]:
    async with Replica(half) as replica:
        upstream = replica.upstream()
        answer = await upstream.send(POST)
        assert await anext(answer) == b"half"
        yield replica, upstream, answer


async def test_an_answer_left_unread_closes_its_connection() -> None:
    async with half_an_answer() as (replica, upstream, left):
        await left.aclose()
        await left.aclose()
        await all_closed(replica, upstream)


async def cancelled(task: "asyncio.Task[object]") -> None:
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_cancelled_while_waiting_for_a_head() -> None:
    async with Replica(silent) as replica:
        upstream = replica.upstream()
        task = asyncio.create_task(upstream.send(POST))
        await replica.until(lambda replica: len(replica.visits) == 1)
        await cancelled(task)
        await all_closed(replica, upstream)


async def test_cancelled_within_a_body() -> None:
    async with half_an_answer() as (replica, upstream, answer):
        task = asyncio.create_task(body_of(answer))
        await asyncio.sleep(0)
        await cancelled(task)
        await answer.aclose()
        await replica.until(lambda replica: replica.num_gone == 1)
        await upstream.aclose()


async def test_cancelled_while_connecting_and_while_waiting_for_a_place() -> None:
    async with Replica(silent) as replica:
        upstream = replica.upstream(max_connections=1)
        tasks = [asyncio.create_task(upstream.send(POST)) for _ in range(3)]
        await asyncio.sleep(0)
        assert upstream.num_open == 1
        for task in reversed(tasks):
            await cancelled(task)
        assert upstream.num_open == 0
        await upstream.aclose()


async def test_closing_ends_what_is_under_way_and_turns_away_what_follows() -> None:
    async with Replica(silent) as replica:
        upstream = replica.upstream(max_connections=1)
        tasks = [asyncio.create_task(upstream.send(POST)) for _ in range(2)]
        await replica.until(lambda replica: len(replica.visits) == 1)
        await upstream.aclose()
        await upstream.aclose()
        failures = await asyncio.gather(*tasks, upstream.send(POST), return_exceptions=True)
        assert [failure.stage for failure in failures if isinstance(failure, UpstreamFailed)] == [
            "head",
            "connect",
            "connect",
        ]
        assert upstream.num_open == 0
