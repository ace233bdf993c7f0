"""Usage in the words of every API."""

import pytest

from hotloop.wire.usage import ApiUsage, read_usage


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        (
            {"prompt_tokens": 9, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 4}},
            ApiUsage(9, 4, 2),
        ),
        ({"prompt_tokens": 9}, ApiUsage(9, None, 0)),
        ({"input_tokens": 9, "input_tokens_details": {"cached_tokens": 0}, "output_tokens": 1}, ApiUsage(9, 0, 1)),
        ({"input_tokens": 1, "cache_read_input_tokens": 6, "cache_creation_input_tokens": 2}, ApiUsage(9, 6, 0, 2)),
        ({}, None),
    ],
)
def test_usage_in_everybodys_words(usage, expected):
    assert read_usage(usage) == expected
