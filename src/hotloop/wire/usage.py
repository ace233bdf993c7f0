"""How many tokens an answer took, read from and written in the words of all three APIs.

chat       prompt_tokens                                     cached_tokens and cache_write_tokens are parts of it
responses  input_tokens                                      the same
messages   input_tokens | cache_creation... | cache_read...  each token of the prompt is in one of them
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hotloop.wire.field import Json, present


@dataclass(frozen=True, slots=True)
class Usage:
    num_prompt: int = 0
    """All of the prompt: cached, written to the cache, and neither."""
    num_cached: int | None = None
    """None if the server does not tell."""
    num_output: int = 0
    num_written: int = 0
    num_thought: int = 0
    """How much of the output was reasoning."""
    hotloop: Any = None
    """What a hotloop server tells beyond the API."""

    def render_chat(self) -> Json:
        return {
            "prompt_tokens": self.num_prompt,
            "completion_tokens": self.num_output,
            "total_tokens": self.num_prompt + self.num_output,
            "prompt_tokens_details": self._prompt_details,
            **self._thoughts("completion_tokens_details", "reasoning_tokens"),
            **present(hotloop=self.hotloop),
        }

    def render_response(self) -> Json:
        return {
            "input_tokens": self.num_prompt,
            "input_tokens_details": self._prompt_details,
            "output_tokens": self.num_output,
            "output_tokens_details": {"reasoning_tokens": self.num_thought},
            "total_tokens": self.num_prompt + self.num_output,
            **present(hotloop=self.hotloop),
        }

    def render_message(self) -> Json:
        num_cached = self.num_cached or 0
        return {
            "input_tokens": max(self.num_prompt - num_cached - self.num_written, 0),
            "cache_creation_input_tokens": self.num_written,
            "cache_read_input_tokens": num_cached,
            "output_tokens": self.num_output,
            **self._thoughts("output_tokens_details", "thinking_tokens"),
            **present(hotloop=self.hotloop),
        }

    @property
    def _prompt_details(self) -> Json:
        return {"cached_tokens": self.num_cached or 0, "cache_write_tokens": self.num_written}

    def _thoughts(self, details: str, name: str) -> Json:
        return {details: {name: self.num_thought}} if self.num_thought else {}


def read_usage(given: object) -> Usage | None:
    """The usage of an answer of any API; None if it tells nothing. What has the wrong type was not told."""
    usage = _mapping(given)
    if _count(usage.get("prompt_tokens")) is not None or _count(usage.get("completion_tokens")) is not None:
        return _read_parts(usage, "prompt", "completion")
    if _count(usage.get("input_tokens")) is None and _count(usage.get("output_tokens")) is None:
        return None
    if "input_tokens_details" in usage:
        return _read_parts(usage, "input", "output")
    num_cached, num_written = (_count(usage.get(f"cache_{name}_input_tokens")) for name in ("read", "creation"))
    return Usage(
        (_count(usage.get("input_tokens")) or 0) + (num_cached or 0) + (num_written or 0),
        num_cached,
        _count(usage.get("output_tokens")) or 0,
        num_written or 0,
        _count(_mapping(usage.get("output_tokens_details")).get("thinking_tokens")) or 0,
        usage.get("hotloop"),
    )


def merge_usage(earlier: Json, later: object) -> Json:
    """Anthropic's `message_delta` repeats some of the counts, as they are at the end; what it leaves out stays."""
    return {**earlier, **{name: value for name, value in _mapping(later).items() if value is not None}}


def _read_parts(usage: Mapping[str, Any], prompt: str, output: str) -> Usage:
    given, written = _mapping(usage.get(f"{prompt}_tokens_details")), _mapping(usage.get(f"{output}_tokens_details"))
    return Usage(
        _count(usage.get(f"{prompt}_tokens")) or 0,
        _count(given.get("cached_tokens")),
        _count(usage.get(f"{output}_tokens")) or 0,
        _count(given.get("cache_write_tokens")) or 0,
        _count(written.get("reasoning_tokens")) or 0,
        usage.get("hotloop"),
    )


def _mapping(value: object) -> Json:
    return value if isinstance(value, dict) else {}


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
