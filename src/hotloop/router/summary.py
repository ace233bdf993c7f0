"""What an answer says about itself, read from its first and last bytes: no answer is parsed whole for this.

The fields have different names in different APIs and engines, and usage comes last in all of them.
"""

import re
from dataclasses import dataclass

END_BYTES = 4096
"""How much of either end is looked at."""

_ID = re.compile(rb'"id"\s*:\s*"([^"\\]{1,128})"')
_CACHED = re.compile(rb'"(?:cached_tokens|cache_read_input_tokens|cache_n)"\s*:\s*(\d{1,9})')
_WRITTEN = re.compile(rb'"cache_creation_input_tokens"\s*:\s*(\d{1,9})')
_PROMPT = re.compile(rb'"(?:prompt_tokens|input_tokens)"\s*:\s*(\d{1,9})')
_OUTPUT = re.compile(rb'"(?:completion_tokens|output_tokens)"\s*:\s*(\d{1,9})')
_CALLS = (b'"tool_calls"', b'"tool_use"', b'"function_call"')


@dataclass(slots=True)
class AnswerSummary:
    """None where it did not say."""

    answer_id: str | None = None
    num_prompt: int | None = None
    num_cached: int | None = None
    num_output: int | None = None
    has_calls: bool = False
    is_broken: bool = False
    """Whether it broke off."""


def read_id(begin: bytes) -> str | None:
    found = _ID.search(begin, 0, END_BYTES)
    return found[1].decode("ascii", "replace") if found else None


def read_end(end: bytes, summary: AnswerSummary, *, is_messages: bool) -> None:
    """In Anthropic's shape what was cached, or was written to the cache, is not part of the input."""
    summary.num_cached = _last(_CACHED, end)
    summary.num_prompt = _last(_PROMPT, end)
    summary.num_output = _last(_OUTPUT, end)
    summary.has_calls = any(word in end for word in _CALLS)
    if is_messages and summary.num_prompt is not None:
        summary.num_prompt += (summary.num_cached or 0) + (_last(_WRITTEN, end) or 0)


def _last(pattern: re.Pattern[bytes], end: bytes) -> int | None:
    found = pattern.findall(end)
    return int(found[-1]) if found else None
