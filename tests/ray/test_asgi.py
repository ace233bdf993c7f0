"""An application asked without a socket: what it sends arrives as it was sent, and what breaks is told apart."""

import asyncio

import pytest
from starlette.types import Receive, Scope, Send

from hotloop.ray.asgi import MAX_PENDING, ask_app
from hotloop.router.upstream.wire import UpstreamFailed, UpstreamRequest

ASK = UpstreamRequest("POST", "/a%20path?x=1", [(b"X-One", b"1")], b"body")


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    message = await receive()
    headers = [(b"content-length", b"4"), (b"x-path", scope["path"].encode()), (b"x-query", scope["query_string"])]
    await send({"type": "http.response.start", "status": 201, "headers": headers})
    await send({"type": "http.response.body", "body": message["body"], "more_body": True})
    await send({"type": "http.response.body", "body": dict(scope["headers"])[b"x-one"]})


async def fails_at_once(scope: Scope, receive: Receive, send: Send) -> None:
    raise ZeroDivisionError


async def fails_later(scope: Scope, receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"half", "more_body": True})
    raise ZeroDivisionError


async def test_what_is_sent_arrives_piece_by_piece():
    answer = await ask_app(echo, ASK)
    assert answer.status == 201
    assert answer.headers == [(b"x-path", b"/a path"), (b"x-query", b"x=1")]
    assert [piece async for piece in answer] == [b"body", b"1"]
    await answer.aclose()
    await answer.aclose()


async def test_one_that_fails_before_it_answers():
    with pytest.raises(UpstreamFailed) as failure:
        await ask_app(fails_at_once, ASK)
    assert failure.value.stage == "head"


async def test_one_that_breaks_off():
    answer = await ask_app(fails_later, ASK)
    pieces = []
    with pytest.raises(UpstreamFailed) as failure:
        pieces += [piece async for piece in answer]
    assert failure.value.stage == "body"
    await answer.aclose()


async def test_nobody_reads_on_so_the_application_is_stopped():
    has_ended = asyncio.Event()
    num_sent = 0

    async def endless(scope: Scope, receive: Receive, send: Send) -> None:
        nonlocal num_sent
        try:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            while True:
                await send({"type": "http.response.body", "body": b"x", "more_body": True})
                num_sent += 1
        finally:
            has_ended.set()

    answer = await ask_app(endless, ASK)
    chunks = aiter(answer)
    assert await anext(chunks) == b"x"
    await answer.aclose()
    assert has_ended.is_set()
    assert num_sent <= MAX_PENDING + 2
