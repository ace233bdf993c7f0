"""How many tokens an answer took, in the words of three APIs.

OpenAI     prompt_tokens                                     cached_tokens and cache_write_tokens are parts of it
Anthropic  input_tokens | cache_creation... | cache_read...  each token of the prompt is in one of them
"""

from dataclasses import dataclass
from typing import Any

import msgspec

from hotloop.router.translate.field import Json


class PromptDetails(msgspec.Struct):
    cached_tokens: int | None = None
    cache_write_tokens: int | None = None


class OutputDetails(msgspec.Struct):
    reasoning_tokens: int | None = None
    thinking_tokens: int | None = None


class ChatUsage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: PromptDetails | None = None
    completion_tokens_details: OutputDetails | None = None
    hotloop: Any = None

    @property
    def counts(self) -> "Counts":
        prompt = self.prompt_tokens_details or PromptDetails()
        output = self.completion_tokens_details or OutputDetails()
        return Counts(
            num_prompt=self.prompt_tokens or 0,
            num_read=prompt.cached_tokens or 0,
            num_written=prompt.cache_write_tokens or 0,
            num_output=self.completion_tokens or 0,
            num_thought=output.reasoning_tokens or 0,
            work=self.hotloop,
        )


class MessageUsage(msgspec.Struct):
    """`message_delta` repeats some of the counts, as they are at the end; what it leaves out stays."""

    input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None
    cache_read_input_tokens: int | None = None
    output_tokens: int | None = None
    output_tokens_details: OutputDetails | None = None
    hotloop: Any = None

    def updated(self, later: "MessageUsage | None") -> "MessageUsage":
        if later is None:
            return self
        given = {name: getattr(later, name) for name in later.__struct_fields__ if getattr(later, name) is not None}
        return msgspec.structs.replace(self, **given)

    @property
    def counts(self) -> "Counts":
        num_read, num_written = self.cache_read_input_tokens or 0, self.cache_creation_input_tokens or 0
        return Counts(
            num_prompt=(self.input_tokens or 0) + num_read + num_written,
            num_read=num_read,
            num_written=num_written,
            num_output=self.output_tokens or 0,
            num_thought=(self.output_tokens_details or OutputDetails()).thinking_tokens or 0,
            work=self.hotloop,
        )


@dataclass(frozen=True, slots=True)
class Counts:
    num_prompt: int = 0
    """All of the prompt: read from the cache, written to it, and neither."""
    num_read: int = 0
    num_written: int = 0
    num_output: int = 0
    num_thought: int = 0
    """How much of the output was reasoning."""
    work: Any = None
    """What a hotloop replica tells beyond the API."""

    def render_message(self) -> Json:
        thought = {"output_tokens_details": {"thinking_tokens": self.num_thought}} if self.num_thought else {}
        return {
            "input_tokens": max(self.num_prompt - self.num_read - self.num_written, 0),
            "cache_creation_input_tokens": self.num_written,
            "cache_read_input_tokens": self.num_read,
            "output_tokens": self.num_output,
            **thought,
            **self._own,
        }

    def render_chat(self) -> Json:
        thought = {"completion_tokens_details": {"reasoning_tokens": self.num_thought}} if self.num_thought else {}
        return {
            "prompt_tokens": self.num_prompt,
            "completion_tokens": self.num_output,
            "total_tokens": self.num_prompt + self.num_output,
            "prompt_tokens_details": {"cached_tokens": self.num_read, "cache_write_tokens": self.num_written},
            **thought,
            **self._own,
        }

    def render_response(self) -> Json:
        return {
            "input_tokens": self.num_prompt,
            "input_tokens_details": {"cached_tokens": self.num_read, "cache_write_tokens": self.num_written},
            "output_tokens": self.num_output,
            "output_tokens_details": {"reasoning_tokens": self.num_thought},
            "total_tokens": self.num_prompt + self.num_output,
            **self._own,
        }

    @property
    def _own(self) -> Json:
        return {} if self.work is None else {"hotloop": self.work}
