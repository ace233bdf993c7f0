"""Bodies are refused by what they would become, before anything is made of them."""

import asyncio
import json
from contextlib import AsyncExitStack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hotloop.core.errors import Overloaded, RequestError
from hotloop.http.bodies import MAX_CONTAINERS, MAX_VALUES, BodyRoom, JsonBody, JsonCounter

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(alphabet='a"\\[]{},:é\n'),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(alphabet='a"\\[{,:'), inner),
    max_leaves=30,
)


def count(text: bytes, size: int = 1 << 16) -> JsonCounter:
    counter = JsonCounter()
    for begin in range(0, len(text), size):
        counter.feed(text[begin : begin + size])
    return counter


def made(value: object) -> tuple[int, int]:
    """How many lists and objects there are, and how many commas and colons they are written with."""
    if not isinstance(value, dict | list):
        return 0, 0
    inner = [made(each) for each in (value.values() if isinstance(value, dict) else value)]
    num_marks = max(len(value) - 1, 0) + (len(value) if isinstance(value, dict) else 0)
    return 1 + sum(each[0] for each in inner), num_marks + sum(each[1] for each in inner)


@given(VALUES, st.integers(1, 9), st.booleans())
def test_values_are_counted_however_the_text_is_cut(value: object, size: int, is_ascii: bool) -> None:
    counter = count(json.dumps(value, ensure_ascii=is_ascii).encode(), size)
    assert (counter.num_containers, counter.num_values) == made(value)


@pytest.mark.parametrize(
    "text",
    [
        b'{"x": [' + b"[[]]," * 3_300_000 + b"[]]}",
        b'{"x": [' + b"{}," * MAX_CONTAINERS + b"{}]}",
        b'{"x": [' + b"1," * (MAX_VALUES + 1) + b"1]}",
        b'{"x": [' + b'"",' * (MAX_VALUES + 1) + b"1]}",
        b"{" + b'"":1,' * MAX_VALUES + b'"":1}',
    ],
    ids=["nested lists", "objects", "numbers", "texts", "fields"],
)
def test_a_body_of_too_many_values_is_refused(text: bytes) -> None:
    with pytest.raises(RequestError, match="the body has more than"):
        count(text)


@pytest.mark.parametrize(
    "text",
    [
        b'{"prompt": [' + b"49151," * 290_000 + b"1]}",
        b'{"content": "' + rb"if (a[i] == \"{\") { f(x, y); }\n" * 400_000 + b'"}',
        b'{"content": "' + b"1,2,3,4\\\\" * 1_800_000 + b'"}',
        b'{"url": "data:image/png;base64,' + b"iVBO" * 4_000_000 + b'"}',
        b'{"messages": [' + b'{"role": "user", "content": [{"type": "text", "text": "x"}]},' * 16_000 + b"{}]}",
    ],
    ids=["token ids", "code", "a table", "an image", "16,000 messages"],
)
def test_honest_bodies_pass(text: bytes) -> None:
    count(text)


def test_a_body_that_is_refused_is_read_to_its_end_and_not_kept() -> None:
    body = JsonBody()
    for _ in range(100):
        body.add(b"[" * 10_000)
        assert len(body._data) <= MAX_CONTAINERS
    assert body.num_bytes == 1_000_000
    with pytest.raises(RequestError, match="lists and objects"):
        body.take()


async def test_large_bodies_take_turns_and_small_ones_do_not_wait() -> None:
    room, order = BodyRoom(10 << 20, 100 << 20), list[str]()
    is_done = asyncio.Event()

    async def read(name: str, num_bytes: int) -> None:
        async with room.hold(num_bytes):
            order.append(name)
            assert name == "huge" or room.num_bytes <= 11 << 20
            await is_done.wait()

    async with asyncio.TaskGroup() as tasks:
        for name, size in (("a", 8 << 20), ("huge", 20 << 20), ("b", 8 << 20), ("small", 1000)):
            tasks.create_task(read(name, size))
        while "small" not in order:  # noqa: ASYNC110  nobody tells when it is so
            await asyncio.sleep(0)
        assert order == ["a", "small"]
        is_done.set()
    assert order == ["a", "small", "huge", "b"]
    assert room.num_bytes == 0


async def test_who_would_wait_behind_too_much_is_told_to_come_back() -> None:
    room = BodyRoom(1 << 20, 3 << 20)
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(room.hold(1 << 20))
        waiting = asyncio.create_task(stack.enter_async_context(room.hold(2 << 20)))
        await asyncio.sleep(0)
        assert room.num_held_bytes == 3 << 20
        with pytest.raises(Overloaded, match="try again later"):
            async with room.hold(2 << 20):
                pass
        waiting.cancel()
        await asyncio.wait([waiting])
    async with room.hold(2 << 20):
        assert room.num_bytes == 2 << 20
