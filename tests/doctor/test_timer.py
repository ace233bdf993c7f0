"""Answers as they come in, on a clock of the test's own."""

import json
from typing import Any

import pytest

from hotloop.core.errors import RemoteError
from hotloop.doctor.timer import AnswerTimer, read_retry_after_s


def event(delta: dict[str, Any], **rest: Any) -> bytes:
    return f"data: {json.dumps({'choices': [{'index': 0, 'delta': delta}], **rest})}\n\n".encode()


def test_a_stream_is_timed_arrival_by_arrival():
    timer = AnswerTimer(10.0)
    timer.add(event({"role": "assistant", "content": ""}), 10.1)
    timer.add(event({"content": "one"}) + event({"content": " two"}), 10.5)
    timer.add(event({"content": " three"})[:20], 10.6)
    timer.add(event({"content": " three"})[20:], 10.7)
    usage = {"prompt_tokens": 20, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 16}}
    timer.add(event({}, usage=usage) + b"data: [DONE]\n\n", 10.8)
    heard = timer.end(11.0)
    assert heard.text == "one two three"
    assert (heard.num_pieces, heard.num_tokens) == (3, 3)
    assert heard.arrivals_s == pytest.approx((0.5, 0.7))
    assert heard.spread == pytest.approx(0.2)
    assert heard.cached_share == 0.8


def test_what_comes_within_a_millisecond_is_one_arrival():
    timer = AnswerTimer(0.0)
    for i in range(5):
        timer.add(event({"content": "x"}), 1.0 + i * 0.0001)
    heard = timer.end(1.001)
    assert (heard.num_pieces, len(heard.arrivals_s), heard.spread) == (5, 1, 0.0)


def test_nothing_told_is_none():
    timer = AnswerTimer(0.0)
    timer.add(event({"reasoning_content": "hm"}), 1.0)
    heard = timer.end(2.0)
    assert (heard.num_prompt, heard.num_cached, heard.cached_share) == (None, None, None)
    assert (heard.text, heard.num_tokens, heard.first_s) == ("", 1, 1.0)


def test_calls_come_together_from_their_pieces():
    timer = AnswerTimer(0.0)
    timer.add(event({"tool_calls": [{"index": 0, "function": {"name": "set_lamp", "arguments": ""}}]}), 1.0)
    timer.add(event({"tool_calls": [{"index": 0, "function": {"arguments": '{"a"'}}]}), 1.1)
    timer.add(event({"tool_calls": [{"index": 0, "function": {"arguments": ": 1}"}}]}), 1.2)
    assert timer.end(2.0).calls == (("set_lamp", '{"a": 1}'),)


def test_a_whole_answer_arrives_at_its_end():
    timer = AnswerTimer(0.0)
    calls = [{"function": {"name": name, "arguments": "{}"}} for name in ("a", "b")]
    body = json.dumps({"choices": [{"message": {"content": "hello", "tool_calls": calls}}]}).encode()
    timer.add(body[:10], 1.0)
    timer.add(body[10:], 2.0)
    heard = timer.end(2.5)
    assert (heard.text, heard.calls, heard.arrivals_s) == ("hello", (("a", "{}"), ("b", "{}")), (2.5,))


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"data: nonsense\n\n", "invalid response"),
        (b'data: {"choices": ["x"]}\n\n', "invalid response"),
        (b'data: {"error": {"message": "broken"}}\n\n', "broken"),
    ],
)
def test_what_is_no_answer_is_said(data: bytes, said: str):
    with pytest.raises(RemoteError, match=said):
        AnswerTimer(0.0).add(data, 1.0)


@pytest.mark.parametrize(("given", "after_s"), [("3", 3.0), ("-1", 0.0), ("nan", 1.0), ("inf", 1.0), ("soon", 1.0)])
def test_when_to_come_back_is_a_time(given: str, after_s: float):
    assert read_retry_after_s(given) == after_s
