"""How many tokens an answer took, read from and written in the words of all three APIs.

chat       prompt_tokens                                     cached_tokens and cache_write_tokens are parts of it
responses  input_tokens                                      the same
messages   input_tokens | cache_creation... | cache_read...  each token of the prompt is in one of them
"""

from dataclasses import dataclass, replace
from typing import Any

from hotloop.wire.field import Json, present


@dataclass(frozen=True, slots=True)
class ApiUsage:
    num_prompt: int = 0
    """All of the prompt: cached, written to the cache, and neither."""
    num_cached: int | None = None
    """None if the server does not tell."""
    num_output: int = 0
    num_written: int = 0
    num_reasoning: int = 0
    hotloop: Any = None
    """What a hotloop server tells beyond the API."""

    def __add__(self, other: "ApiUsage") -> "ApiUsage":
        return ApiUsage(
            self.num_prompt + other.num_prompt,
            (self.num_cached or 0) + (other.num_cached or 0),
            self.num_output + other.num_output,
            self.num_written + other.num_written,
            self.num_reasoning + other.num_reasoning,
        )

    @property
    def num_tokens(self) -> int:
        return self.num_prompt + self.num_output

    def count_as_output(self, num: int) -> "ApiUsage":
        """With so many tokens at the end of the prompt counted as output."""
        num_prompt = max(0, self.num_prompt - num)
        num_cached = None if self.num_cached is None else min(self.num_cached, num_prompt)
        num_written = min(self.num_written, num_prompt - (num_cached or 0))
        num_output = self.num_output + self.num_prompt - num_prompt
        return replace(
            self, num_prompt=num_prompt, num_cached=num_cached, num_written=num_written, num_output=num_output
        )

    def render_chat(self) -> Json:
        return {
            "prompt_tokens": self.num_prompt,
            "completion_tokens": self.num_output,
            "total_tokens": self.num_tokens,
            "prompt_tokens_details": self._prompt_details,
            **self._thoughts("completion_tokens_details", "reasoning_tokens"),
            **present(hotloop=self.hotloop),
        }

    def render_response(self) -> Json:
        return {
            "input_tokens": self.num_prompt,
            "input_tokens_details": self._prompt_details,
            "output_tokens": self.num_output,
            "output_tokens_details": {"reasoning_tokens": self.num_reasoning},
            "total_tokens": self.num_tokens,
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
        return {details: {name: self.num_reasoning}} if self.num_reasoning else {}


def read_usage(given: object) -> ApiUsage | None:
    """The usage of an answer of any API; None if it tells nothing. What has the wrong type was not told."""
    usage, counts = _mapping(given), _counts(given)
    is_chat = not counts.keys().isdisjoint(("prompt_tokens", "completion_tokens"))
    prompt, output = ("prompt", "completion") if is_chat else ("input", "output")
    if not counts.keys() & {f"{prompt}_tokens", f"{output}_tokens"}:
        return None
    of_prompt, of_output = (_counts(usage.get(f"{part}_tokens_details")) for part in (prompt, output))
    num_cached, num_written = of_prompt.get("cached_tokens"), of_prompt.get("cache_write_tokens", 0)
    num_prompt = counts.get(f"{prompt}_tokens", 0)
    if prompt == "input" and "input_tokens_details" not in usage:  # Anthropic's
        num_cached, num_written = counts.get("cache_read_input_tokens"), counts.get("cache_creation_input_tokens", 0)
        num_prompt += (num_cached or 0) + num_written
    num_reasoning = of_output.get("reasoning_tokens") or of_output.get("thinking_tokens") or 0
    num_output = counts.get(f"{output}_tokens", 0)
    return ApiUsage(num_prompt, num_cached, num_output, num_written, num_reasoning, usage.get("hotloop"))


def merge_usage(earlier: Json, later: object) -> Json:
    """Anthropic's `message_delta` repeats some of the counts, as they are at the end; what it leaves out stays."""
    return {**earlier, **{name: value for name, value in _mapping(later).items() if value is not None}}


def _mapping(value: object) -> Json:
    return value if isinstance(value, dict) else {}


def _counts(value: object) -> dict[str, int]:
    return {name: count for name, count in _mapping(value).items() if type(count) is int}
