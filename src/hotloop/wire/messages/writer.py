"""An answer as Anthropic's message, whole or as the events of a stream.

    message_start ping (content_block_start content_block_delta* content_block_stop)* message_delta message_stop

At most one block is open, and it is the last. Counts that are known only at the end come with the end.
"""

from collections.abc import Iterable, Iterator
from typing import Literal

from hotloop.core.errors import RemoteError
from hotloop.core.message import Thought
from hotloop.core.stream import CallDelta, CallOpened, TextDelta, ThoughtClosed, ThoughtDelta
from hotloop.wire.arguments import answer_stem, read_arguments
from hotloop.wire.errors import render_message_failure
from hotloop.wire.event import Begun, CallOrder, Ended, EndReason, Event, gather
from hotloop.wire.field import Json
from hotloop.wire.part import Call, Text, is_signed, omit_text, render_block
from hotloop.wire.sse import write_event

_STOP_REASONS: dict[EndReason, str] = {
    "stop": "end_turn",
    "calls": "tool_use",
    "length": "max_tokens",
    "window": "model_context_window_exceeded",
    "refusal": "refusal",
}

BlockKind = Literal["thinking", "text", "tool_use", "redacted_thinking"]


class MessagesWriter:
    """Told the events of one answer. `model` is what it is called if the answer does not say. `omits_thoughts`: their
    blocks have no text, and a signature that brings it back."""

    def __init__(self, model: str, *, omits_thoughts: bool = False) -> None:
        self._model = model
        self._omits_thoughts = omits_thoughts
        self._order = CallOrder()
        self._open: BlockKind | None = None
        self._num_blocks = 0

    def write(self, event: Event) -> Iterator[bytes]:
        if isinstance(event, TextDelta) and self._open == "text":  # so no call is, and most of an answer is this
            yield self._delta(type="text_delta", text=event.text)
            return
        for each in self._order.push(event):
            yield from self._write(each)

    def fail(self, error: RemoteError) -> bytes:
        return write_event("error", error=render_message_failure(error)[1]["error"])

    def whole(self, events: Iterable[Event]) -> Json:
        answer = gather(events)
        frame = self.render_frame(Begun(answer.id, answer.model, answer.ended.usage))
        return {**frame, "content": [self._render_block(part) for part in answer.parts], **render_stop(answer.ended)}

    def _write(self, event: Event) -> Iterator[bytes]:
        match event:
            case Begun():
                yield write_event("message_start", message=self.render_frame(event))
                yield write_event("ping")
            case TextDelta():
                yield from self._open_block("text", {"type": "text", "text": ""})
                yield self._delta(type="text_delta", text=event.text)
            case ThoughtDelta():
                yield from self._open_block("thinking", {"type": "thinking", "thinking": "", "signature": ""})
                if not self._omits_thoughts:
                    yield self._delta(type="thinking_delta", thinking=event.text)
            case ThoughtClosed():
                yield from self._close_thought(self._shown(event.thought))
            case CallOpened():
                yield from self._open_block("tool_use", _render_call(Call(event.id, event.name, "")))
            case CallDelta():
                yield self._delta(type="input_json_delta", partial_json=event.arguments)
            case Ended():
                yield from self._end_block()
                yield write_event("message_delta", delta=render_stop(event), usage=event.usage.render_message())
                yield write_event("message_stop")
            case _:
                yield from self._end_block()

    def _shown(self, thought: Thought) -> Thought:
        return omit_text(thought) if self._omits_thoughts else thought

    def _close_thought(self, thought: Thought) -> Iterator[bytes]:
        if thought.is_sealed:
            yield from self._open_block("redacted_thinking", render_block(thought))
        elif self._open == "thinking" and is_signed(thought):
            yield self._delta(type="signature_delta", signature=render_block(thought)["signature"])
        if self._open in ("thinking", "redacted_thinking"):
            yield from self._end_block()

    def _open_block(self, kind: BlockKind, block: Json) -> Iterator[bytes]:
        """Texts and thoughts go on where they are; the other blocks are new each time."""
        if self._open == kind in ("text", "thinking"):
            return
        yield from self._end_block()
        yield write_event("content_block_start", index=self._num_blocks, content_block=block)
        self._open = kind
        self._num_blocks += 1

    def _end_block(self) -> Iterator[bytes]:
        if self._open:
            yield write_event("content_block_stop", index=self._num_blocks - 1)
        self._open = None

    def _delta(self, **delta: str) -> bytes:
        return write_event("content_block_delta", index=self._num_blocks - 1, delta=delta)

    def _render_block(self, part: Text | Thought | Call) -> Json:
        match part:
            case Text():
                return {"type": "text", "text": part.text}
            case Call():
                return _render_call(part)
        return render_block(self._shown(part))

    def render_frame(self, begun: Begun) -> Json:
        return {
            "id": f"msg_{answer_stem(begun.id)}",
            "type": "message",
            "role": "assistant",
            "model": begun.model or self._model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": begun.usage.render_message(),
        }


def render_stop(ended: Ended) -> Json:
    if ended.reason == "stop" and ended.stop is not None:
        return {"stop_reason": "stop_sequence", "stop_sequence": ended.stop}
    return {"stop_reason": _STOP_REASONS[ended.reason], "stop_sequence": None}


def _render_call(call: Call) -> Json:
    """Arguments that were cut off, or that the model got wrong, are no value; the stop reason tells the first."""
    value = read_arguments(call.arguments) or {}
    return {"type": "tool_use", "id": call.id, "name": call.name, "input": value}
