"""What a client says is worth keeping: `cache_control`, and the breakpoints it stands for.

A breakpoint is a place in the conversation as the prompt is made from it, not in the body: blocks are joined there.
Before it lies what Anthropic has there, the tools, the system prompt and the messages so far, in whatever order the
model's template words them.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal

import msgspec

from hotloop.chat.assembly.spans import PromptSpan
from hotloop.chat.prompt import Prompt
from hotloop.core.message import Message
from hotloop.models.tokenizer import Tokenizer
from hotloop.server.holds import Pin
from hotloop.server.options import convert
from hotloop.wire.field import Json

MAX_BREAKPOINTS = 4
"""As many as Anthropic takes; of more, the last."""

Ttl = Literal["5m", "1h"]
Part = Literal["tools", "messages"]


class CacheControl(msgspec.Struct, kw_only=True):
    type: Literal["ephemeral"]
    ttl: Ttl | None = None


@dataclass(frozen=True, slots=True)
class CacheHint:
    """The prompt up to the end of this tool, or up to so many characters of this message, is worth keeping so long."""

    part: Part
    index: int
    """Of the tool or the message; the system prompt is the first message."""
    num_chars: int | None
    """How much of the message's content lies before the breakpoint; None for a tool."""
    ttl: Ttl

    @property
    def ttl_s(self) -> int:
        return 300 if self.ttl == "5m" else 3600


def parse_hint(mark: Json, place: str, part: Part, index: int, num_chars: int | None = None) -> CacheHint:
    return CacheHint(part, index, num_chars, convert(mark, CacheControl, place).ttl or "5m")


def find_pins(
    hints: Sequence[CacheHint], messages: Sequence[Message], prompt: Prompt, tokenizer: Tokenizer
) -> tuple[Pin, ...]:
    """Which tokens the breakpoints stand for; one whose place the prompt does not tell is left out."""
    ends = [(_find_end(hint, messages, prompt, tokenizer), hint.ttl_s) for hint in hints[-MAX_BREAKPOINTS:]]
    return tuple(Pin(end, ttl_s) for end, ttl_s in ends if end)


def _find_end(hint: CacheHint, messages: Sequence[Message], prompt: Prompt, tokenizer: Tokenizer) -> int:
    tools = [span for span in prompt.spans if span.kind == "tool"]
    if hint.part == "tools":
        return max((span.end for span in tools if span.index in range(hint.index + 1)), default=0)
    own = [span for span in prompt.spans if span.kind in ("system", "message", "call") and span.index == hint.index]
    if not own:
        return 0
    num_after = len(messages[hint.index].content) - (hint.num_chars or 0)
    end = _find_token(own[0], num_after, prompt, tokenizer) if num_after else own[-1].end
    return max(end, *(span.end for span in tools)) if tools else end


def _find_token(span: PromptSpan, num_after: int, prompt: Prompt, tokenizer: Tokenizer) -> int:
    """Where the last characters of a span begin. Counted from its end: what is moved out of a prompt is at its top."""
    before = prompt.text[span.place.begin : max(span.place.end - num_after, span.place.begin)].encode()
    sizes = (len(tokenizer.token_bytes(token_id)) for token_id in prompt.token_ids[span.begin : span.end])
    return span.begin + bisect_right([*accumulate(sizes)], len(before))
