"""What a client says is worth keeping: `cache_control`, and the breakpoints it stands for.

A breakpoint is a place in the conversation as the prompt is made from it, not in the body: blocks are joined there.
"""

from dataclasses import dataclass
from typing import Literal

import msgspec

Ttl = Literal["5m", "1h"]
Part = Literal["tools", "messages"]


class CacheControlBody(msgspec.Struct, kw_only=True):
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


def tool_hint(control: CacheControlBody, index: int) -> CacheHint:
    return CacheHint("tools", index, None, control.ttl or "5m")


def message_hint(control: CacheControlBody, index: int, num_chars: int) -> CacheHint:
    return CacheHint("messages", index, num_chars, control.ttl or "5m")
