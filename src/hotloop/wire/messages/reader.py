"""An answer of Anthropic's messages as events, whole or from the events of its stream.

    message_start (content_block_start content_block_delta* content_block_stop)* message_delta message_stop

The end of a block does not tell whether its call was cut off; the arguments do, or the reason the answer stopped for.
"""

from collections.abc import Iterator
from typing import Any

import msgspec

from hotloop.core.message import Thought
from hotloop.core.stream import TextDelta, ThoughtClosed, ThoughtDelta
from hotloop.wire.arguments import dump
from hotloop.wire.errors import broke_off, read_event_failure
from hotloop.wire.event import EndReason, Event
from hotloop.wire.field import Json
from hotloop.wire.part import sign_thought
from hotloop.wire.reader import NameCall, OpenCall, Reader, decode, name_call
from hotloop.wire.sse import ServerEvent
from hotloop.wire.usage import merge_usage, read_usage

_REASONS: dict[str, EndReason] = {
    "max_tokens": "length",
    "model_context_window_exceeded": "window",
    "tool_use": "calls",
    "refusal": "refusal",
}


class Block(msgspec.Struct):
    """A block of the content, or what it or the message has gained."""

    type: str = ""
    text: str | None = None
    thinking: str | None = None
    signature: str | None = None
    data: str | None = None
    id: str | None = None
    name: str | None = None
    input: Any = None
    partial_json: str | None = None
    stop_reason: str | None = None
    stop_sequence: str | None = None


class _Message(msgspec.Struct):
    id: Any = None
    model: Any = None
    content: list[Block] | None = None
    stop_reason: str | None = None
    stop_sequence: str | None = None
    usage: Any = None
    type: str = ""
    error: Any = None


class MessageEvent(msgspec.Struct):
    type: str
    index: int = 0
    message: _Message | None = None
    content_block: Block | None = None
    delta: Block | None = None
    usage: Any = None
    error: Any = None


_message = msgspec.json.Decoder(_Message)
_event = msgspec.json.Decoder(MessageEvent)


class MessagesReader(Reader):
    def __init__(self, name_call: NameCall = name_call) -> None:
        super().__init__(name_call)
        self._counts: Json = {}  # of the usage, as far as it was told
        self._stop: Block | None = None
        self._open_calls: dict[int, tuple[OpenCall, Any]] = {}  # by their block, with the input it began with
        self._thoughts: dict[int, Thought] = {}  # by their block

    def push(self, event: ServerEvent) -> Iterator[Event]:
        if self.is_over:
            return
        data = decode(_event, event.text)
        match data.type:
            case "error":
                raise read_event_failure({"error": data.error})
            case "message_start":
                yield from self._start(data.message or _Message())
            case "content_block_start" | "content_block_delta" | "content_block_stop" | "message_delta":
                yield from self._begin()
                yield from self._go_on(data)
            case "message_stop":
                yield from self.finish()

    def finish(self) -> Iterator[Event]:
        if self.is_over:
            return
        if self._stop is None:
            raise broke_off()
        reason = self._stop.stop_reason or ""
        stop = self._stop.stop_sequence if reason == "stop_sequence" else None
        yield from self._end(_REASONS.get(reason, "stop"), stop)

    def whole(self, data: bytes) -> Iterator[Event]:
        message = decode(_message, data)
        if message.type == "error":
            raise read_event_failure({"error": message.error})
        yield from self._start(message)
        for i, block in enumerate(message.content or ()):
            yield from self._begin_block(i, block)
            yield from self._end_block(i, is_whole=True)
        self._stop = Block(stop_reason=message.stop_reason or "end_turn", stop_sequence=message.stop_sequence)
        yield from self.finish()

    def _start(self, message: _Message) -> Iterator[Event]:
        self._count(message.usage)
        yield from self._begin(message.id, message.model)

    def _count(self, usage: Any) -> None:
        self._counts = merge_usage(self._counts, usage)
        self.usage = read_usage(self._counts)

    def _go_on(self, data: MessageEvent) -> Iterator[Event]:
        match data.type:
            case "content_block_start" if data.content_block:
                yield from self._begin_block(data.index, data.content_block)
            case "content_block_delta" if data.delta:
                yield from self._grow(data.index, data.delta)
            case "content_block_stop":
                yield from self._end_block(data.index)
            case "message_delta":
                self._count(data.usage)
                if data.delta and data.delta.stop_reason:
                    self._stop = data.delta

    def _begin_block(self, index: int, block: Block) -> Iterator[Event]:
        yield from self._settle()
        match block.type:
            case "text" if block.text:
                yield TextDelta(block.text)
            case "thinking":
                self._thoughts[index] = Thought(block.thinking or "", block.signature or "")
                if block.thinking:
                    yield ThoughtDelta(block.thinking)
            case "redacted_thinking":
                self._thoughts[index] = Thought(block.data or "", is_sealed=True, maker="messages")
            case "tool_use":
                call = self._begin_call(block.id, block.name or "")
                self._open_calls[index] = call, block.input
                yield from call.open()

    def _grow(self, index: int, delta: Block) -> Iterator[Event]:
        if found := self._open_calls.get(index):
            yield from self._hold(found[0].add(delta.partial_json or ""))
        elif thought := self._thoughts.get(index):
            text, signature = thought.text + (delta.thinking or ""), thought.signature + (delta.signature or "")
            self._thoughts[index] = Thought(text, signature, thought.is_sealed, thought.maker)
            if delta.thinking:
                yield ThoughtDelta(delta.thinking)
        elif delta.text:
            yield TextDelta(delta.text)

    def _end_block(self, index: int, *, is_whole: bool = False) -> Iterator[Event]:
        """A stream begins every call with an empty input, which means nothing there."""
        if thought := self._thoughts.pop(index, None):
            yield ThoughtClosed(thought if thought.is_sealed else sign_thought(thought.text, thought.signature))
        call, given = self._open_calls.get(index, (None, None))
        if call and not call.has_arguments and isinstance(given, dict) and (given or is_whole):
            yield from self._hold(call.add(dump(given)))
        elif call and call.empty:
            yield from self._hold(call.close())
