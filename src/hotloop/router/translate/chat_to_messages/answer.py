"""A message of content blocks as a chat completion.

Thinking is `reasoning_content`, as engines have it, and `thinking_blocks` with the signatures, which Anthropic wants
back while a turn of calls goes on.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass

from hotloop.router.translate.calls import answer_id, dump
from hotloop.router.translate.field import Json
from hotloop.router.translate.message_shapes import Block, Message
from hotloop.router.translate.usage import MessageUsage

_FINISH_REASONS = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "pause_turn": "stop",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "tool_use": "tool_calls",
    "refusal": "content_filter",
}


@dataclass(frozen=True, slots=True)
class Envelope:
    """What every chunk of an answer repeats."""

    id: str
    model: str
    created: int

    @classmethod
    def of(cls, message: Message, model: str) -> "Envelope":
        return cls(answer_id(message.id, "chatcmpl-"), message.model or model, int(time.time()))

    def render(self, kind: str) -> Json:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}


def render_completion(message: Message, model: str) -> Json:
    choice = {
        "index": 0,
        "message": _render_said(message.content or ()),
        "logprobs": None,
        **render_finish(message.stop_reason, message.stop_sequence),
    }
    usage = (message.usage or MessageUsage()).counts.render_chat()
    return {**Envelope.of(message, model).render("chat.completion"), "choices": [choice], "usage": usage}


def render_finish(stop_reason: str | None, stop_sequence: str | None) -> Json:
    return {"finish_reason": _FINISH_REASONS.get(stop_reason or "", "stop"), "stop_reason": stop_sequence}


def render_call(block: Block, arguments: str) -> Json:
    return {"id": block.id or "", "type": "function", "function": {"name": block.name or "", "arguments": arguments}}


def render_signed(block: Block) -> Json:
    if block.type == "redacted_thinking":
        return {"type": block.type, "data": block.data or ""}
    return {"type": block.type, "thinking": block.thinking or "", "signature": block.signature or ""}


def _render_said(blocks: Sequence[Block]) -> Json:
    text = "".join(block.text or "" for block in blocks if block.type == "text")
    calls = [render_call(block, dump(block.input or {})) for block in blocks if block.type == "tool_use"]
    signed = [render_signed(block) for block in blocks if block.type in ("thinking", "redacted_thinking")]
    thought = "".join(block.thinking or "" for block in blocks if block.type == "thinking")
    message: Json = {"role": "assistant", "content": text or None if calls else text, "refusal": None}
    message |= {"reasoning_content": thought} if thought else {}
    message |= {"thinking_blocks": signed} if signed else {}
    return {**message, "tool_calls": calls} if calls else message
