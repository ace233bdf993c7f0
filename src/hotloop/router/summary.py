"""What an answer says about itself, read from its first and last bytes: no answer is parsed whole for this.

The fields have different names in different APIs and engines, and usage comes last in all of them. A chat's stream has
it only where it is asked for: the router does that, and hides it from a client who did not.
"""

import re
from dataclasses import dataclass, replace

import msgspec

from hotloop.core.structs import compiled
from hotloop.router.upstream.wire import parse_json
from hotloop.wire.sse import EventReader, split_events
from hotloop.wire.usage import ApiUsage

END_BYTES = 4096
"""How much of either end is looked at."""

_ID = re.compile(rb'"id"\s*:\s*"([^"\\]{1,128})"')
_COUNT = re.compile(rb'"((?:cache|prompt|input|completion|output)[a-z_]{2,})"\s*:\s*(\d{1,9})')
_COUNTED = (b'tokens"', b'"cache_n"')
_CACHED = (b"cached_tokens", b"cache_read_input_tokens", b"cache_n")
_WRITTEN = (b"cache_creation_input_tokens",)
_PROMPT = (b"prompt_tokens", b"input_tokens")
_OUTPUT = (b"completion_tokens", b"output_tokens")
_NO_USAGE_YET = re.compile(rb',\s*"usage"\s*:\s*null')
_USAGE = re.compile(rb'"usage"\s*:\s*\{')
_CALLS = (b'"tool_calls"', b'"tool_use"', b'"function_call"')


@dataclass(frozen=True, slots=True)
class AnswerSummary:
    """None where it did not say."""

    answer_id: str | None = None
    num_prompt: int | None = None
    num_cached: int | None = None
    num_output: int | None = None
    has_calls: bool = False
    is_broken: bool = False

    def with_usage(self, usage: ApiUsage) -> "AnswerSummary":
        """Of an answer that was made in several places."""
        return replace(self, num_prompt=usage.num_prompt, num_cached=usage.num_cached, num_output=usage.num_output)

    @property
    def cached_share(self) -> float | None:
        """Of the prompt. Replicas count tokens otherwise than the router, so shares are compared."""
        if not self.num_prompt or self.num_cached is None:
            return None
        return min(1.0, self.num_cached / self.num_prompt)


def read_id(begin: bytes) -> str | None:
    found = _ID.search(begin, 0, END_BYTES)
    return found[1].decode("ascii", "replace") if found else None


def summarize(
    answer_id: str | None, end: bytes, *, is_messages: bool = False, is_broken: bool = False
) -> AnswerSummary:
    """In Anthropic's shape what was cached, or was written to the cache, is not part of the input."""
    counts: dict[bytes, int] = {}
    places = [at for word in _COUNTED if (at := end.find(word)) >= 0]
    for found in _COUNT.finditer(end, max(0, min(places) - 32)) if places else ():
        for names in (_PROMPT, _CACHED, _WRITTEN, _OUTPUT):
            if found[1] in names:
                counts[names[0]] = int(found[2])
    num_prompt, num_cached = counts.get(_PROMPT[0]), counts.get(_CACHED[0])
    if is_messages and num_prompt is not None:
        num_prompt += (num_cached or 0) + counts.get(_WRITTEN[0], 0)
    has_calls = any(word in end for word in _CALLS)
    return AnswerSummary(answer_id, num_prompt, num_cached, counts.get(_OUTPUT[0]), has_calls, is_broken)


def hide_usage(piece: bytes) -> bytes:
    """Whole events of a chat as they are for a client who did not ask for usage: without the chunk that has it and no
    choice, and without the `null` that some engines put into the others."""
    if b'"usage"' not in piece:
        return piece
    piece = _NO_USAGE_YET.sub(b"", piece)
    if not _USAGE.search(piece):
        return piece
    return b"".join(event for event in split_events(piece) if not _is_usage_alone(event))


@compiled
class _Chunk(msgspec.Struct):
    choices: list[msgspec.Raw]
    usage: dict[str, msgspec.Raw]


def _is_usage_alone(event: bytes) -> bool:
    chunks = [parse_json(each.data, _Chunk) for each in EventReader().push(event)] if _USAGE.search(event) else []
    return any(chunk is not None and not chunk.choices for chunk in chunks)
