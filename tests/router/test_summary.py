"""What answers say about themselves, in the words of several engines."""

import pytest

from hotloop.router.summary import read_id, summarize

ENDS = [
    (b'"usage":{"prompt_tokens":100,"completion_tokens":7,"prompt_tokens_details":{"cached_tokens":64}}', 100, 64, 7),
    (b'"usage": {"input_tokens": 90, "output_tokens": 5, "input_tokens_details": {"cached_tokens": 10}}', 90, 10, 5),
    (b'"usage":{"prompt_tokens":100,"completion_tokens":7}', 100, None, 7),
    (b"data: [DONE]\n\n", None, None, None),
]


@pytest.mark.parametrize(("end", "prompt", "cached", "output"), ENDS)
def test_usage_is_read_where_there_is_one(end, prompt, cached, output):
    summary = summarize(None, end, is_messages=False)
    assert (summary.num_prompt, summary.num_cached, summary.num_output) == (prompt, cached, output)


def test_in_anthropics_shape_what_was_cached_is_not_input():
    summary = summarize(
        None, b'"usage":{"input_tokens":20,"cache_read_input_tokens":80,"output_tokens":3}', is_messages=True
    )
    assert (summary.num_prompt, summary.num_cached) == (100, 80)


def test_in_anthropics_shape_what_was_written_to_the_cache_is_not_input_either():
    end = b'"usage":{"input_tokens":12,"cache_creation_input_tokens":5000,"cache_read_input_tokens":300}'
    summary = summarize(None, end, is_messages=True)
    assert (summary.num_prompt, summary.num_cached) == (5312, 300)


@pytest.mark.parametrize(
    "end", [b'"finish_reason":"tool_calls"', b'"stop_reason":"tool_use"', b'"type":"function_call"']
)
def test_calls_are_noticed(end):
    summary = summarize(None, end, is_messages=False)
    assert summary.has_calls


def test_an_answers_own_id_is_the_first():
    assert read_id(b'data: {"id":"chatcmpl-1","x":{"id":"other"}}') == "chatcmpl-1"
    assert read_id(b'{"a": 1}') is None
    assert read_id(b'{"id": "' + b"x" * 500 + b'"}') is None


def test_what_share_of_a_prompt_was_cached():
    shares = [summarize(None, end).cached_share for end, *_ in ENDS]
    assert shares == [0.64, 10 / 90, None, None]
