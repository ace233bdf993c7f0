"""The beginning of a stream: what is heard of it, when that is enough, and what is told in the end."""

import json
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from hotloop.router.tiers.config import CascadeConfig
from hotloop.router.tiers.held import HeldStream, may_stream
from hotloop.wire.sse import DONE, write_data


def chunk(delta: Any, end: str | None = None, logprob: float | None = None) -> bytes:
    logprobs = None if logprob is None else {"content": [{"token": "t", "logprob": logprob, "top_logprobs": []}]}
    choice = {"index": 0, "delta": delta, "finish_reason": end, "logprobs": logprobs}
    return write_data({"id": "c", "object": "chat.completion.chunk", "model": "m", "choices": [choice]})


async def told(pieces: list[bytes], seen: list[bytes] | None = None) -> AsyncGenerator[bytes, None]:
    for piece in pieces:
        (seen if seen is not None else []).append(piece)
        yield piece


TEXT = [chunk({"role": "assistant", "content": ""}), *(chunk({"content": word}) for word in "abcdef")]
END = [chunk({}, "stop"), write_data({"choices": [], "usage": {"completion_tokens": 6}}), DONE]


async def test_enough_text_is_told_and_the_rest_as_it_comes() -> None:
    seen = list[bytes]()
    held = HeldStream(told(TEXT + END, seen), hides_logprobs=True)
    assert not await held.hear(3)
    assert seen == TEXT[:4]
    assert held.answer
    assert held.answer["choices"][0]["message"]["content"] == "abc"
    assert [piece async for piece in held.tell()] == TEXT + END


async def test_a_short_answer_is_heard_to_its_end() -> None:
    held = HeldStream(told([b"".join(TEXT + END)]), hides_logprobs=True)
    assert not await held.hear(6), "all came at once, and is enough"
    held = HeldStream(told(TEXT + END), hides_logprobs=True)
    assert await held.hear(7)
    assert held.answer == {
        "id": "c",
        "object": "chat.completion",
        "model": "m",
        "usage": {"completion_tokens": 6},
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "abcdef"},
                "finish_reason": "stop",
                "logprobs": None,
            }
        ],
    }


async def test_calls_are_heard_to_their_end() -> None:
    begin = {"index": 0, "id": "x", "function": {"name": "f", "arguments": ""}}
    parts = [begin, *({"index": 0, "function": {"arguments": part}} for part in ('{"a"', ": 1}"))]
    pieces = [chunk({"tool_calls": [part], "content": "abc"}) for part in parts]
    held = HeldStream(told([*pieces, *END]), hides_logprobs=True)
    assert await held.hear(1)
    assert held.answer
    [call] = held.answer["choices"][0]["message"]["tool_calls"]
    assert call == {"id": "x", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}


async def test_probabilities_are_heard_and_told_to_who_asked_for_them() -> None:
    pieces = [chunk({"content": "a"}, logprob=-1.5), chunk({"content": "b"}, logprob=-2.0)]
    for hides_logprobs in (True, False):
        held = HeldStream(told([*pieces, *END]), hides_logprobs=hides_logprobs)
        assert not await held.hear(1)
        assert held.answer
        assert held.answer["choices"][0]["logprobs"]["content"][0]["logprob"] == -1.5
        shown = b"".join([piece async for piece in held.tell()])
        assert (b"-2.0" in shown) is not hides_logprobs
        assert json.loads(shown.split(b"\n\n")[1].removeprefix(b"data: "))["choices"][0]["delta"] == {"content": "b"}


@pytest.mark.parametrize(
    "piece",
    [
        write_data({"error": {"message": "no"}}),
        DONE,
        b"data: [1]\n\n",
        b"data: \xff\n\n",
        b"data: " + b"[" * 5000 + b"\n\n",
    ],
)
async def test_a_stream_that_fails_or_says_nothing_is_no_answer(piece: bytes) -> None:
    held = HeldStream(told([piece]), hides_logprobs=True)
    assert await held.hear(1)
    assert held.answer is None


@pytest.mark.parametrize(
    "delta", [{"tool_calls": 3}, {"tool_calls": [3]}, {"tool_calls": [{"index": "x"}]}, {"content": 3}, {}]
)
async def test_strange_pieces_are_told_as_they_came(delta: Any) -> None:
    odd = [{"choices": [3]}, {"choices": "x"}, {"choices": 3, "logprobs": 1}]
    pieces = [chunk(delta), *map(write_data, odd), *TEXT]
    held = HeldStream(told(pieces), hides_logprobs=True)
    assert not await held.hear(2)
    assert b"".join([piece async for piece in held.tell()]).count(b"data:") == len(pieces)


@pytest.mark.parametrize(
    ("request_", "hold_tokens", "may"),
    [
        ({"stream": True}, 32, True),
        ({"stream": True, "tools": [{}], "tool_choice": "auto"}, 32, True),
        ({"stream": True}, 0, False),
        ({}, 32, False),
        ({"stream": True, "tools": [{}], "tool_choice": "required"}, 32, False),
        ({"stream": True, "response_format": {"type": "json_object"}}, 32, False),
    ],
)
def test_free_text_may_be_told_before_its_end(request_: dict[str, Any], hold_tokens: int, may: bool) -> None:
    assert may_stream(request_, CascadeConfig(hold_tokens=hold_tokens)) is may
