"""An answer of Anthropic's messages as events, whole or from the events of its stream.

    message_start (content_block_start content_block_delta* content_block_stop)* message_delta message_stop

The end of a block does not tell whether its call was cut off; the arguments do, or the reason the answer stopped for.
"""

from collections.abc import Iterator
from typing import Any, TypeVar

import msgspec

from hotloop.core.message import Thought
from hotloop.core.stream import TextDelta
from hotloop.wire.arguments import dump
from hotloop.wire.calls import NameCall, OpenCall, OpenCalls, name_call
from hotloop.wire.errors import bad_answer, broke_off, read_event_failure
from hotloop.wire.event import Begun, Ended, EndReason, Event, ThoughtClosed, ThoughtDelta
from hotloop.wire.field import Json
from hotloop.wire.sse import ServerEvent
from hotloop.wire.thoughts import sign_thought
from hotloop.wire.usage import Usage, merge_usage, read_usage

_REASONS: dict[str, EndReason] = {
    "max_tokens": "length",
    "model_context_window_exceeded": "window",
    "tool_use": "calls",
    "refusal": "refusal",
}
_CUT = ("length", "window")


class Block(msgspec.Struct):
    type: str = ""
    text: str | None = None
    thinking: str | None = None
    signature: str | None = None
    data: str | None = None
    id: str | None = None
    name: str | None = None
    input: Any = None


class Message(msgspec.Struct):
    id: Any = None
    model: Any = None
    content: list[Block] | None = None
    stop_reason: str | None = None
    stop_sequence: str | None = None
    usage: Any = None
    type: str = ""
    error: Any = None


class Delta(msgspec.Struct):
    """Of a block, or of the message."""

    text: str | None = None
    thinking: str | None = None
    signature: str | None = None
    partial_json: str | None = None
    stop_reason: str | None = None
    stop_sequence: str | None = None


class MessageEvent(msgspec.Struct):
    type: str
    index: int = 0
    message: Message | None = None
    content_block: Block | None = None
    delta: Delta | None = None
    usage: Any = None
    error: Any = None


Shape = TypeVar("Shape", Message, MessageEvent)

_message = msgspec.json.Decoder(Message)
_event = msgspec.json.Decoder(MessageEvent)


class MessagesReader:
    """Told the events of a stream. `name_call` makes the ids of calls that come without one."""

    def __init__(self, *, name_call: NameCall = name_call) -> None:
        self.is_over = False
        self._has_begun = False
        self._usage: Json = {}
        self._stop: Delta | None = None
        self._calls = OpenCalls(name_call)
        self._open_calls: dict[int, tuple[OpenCall, Any]] = {}  # by their block, with the input it began with
        self._thoughts: dict[int, Thought] = {}  # by their block

    @property
    def usage(self) -> Usage | None:
        return read_usage(self._usage)

    def push(self, event: ServerEvent) -> Iterator[Event]:
        """Raises RemoteError if it makes no sense, or tells of a failure."""
        if self.is_over:
            return
        heard = _decode(_event, event.text)
        match heard.type:
            case "message_start":
                yield from self._begin(heard.message or Message())
            case "content_block_start" | "content_block_delta" | "content_block_stop" | "message_delta":
                yield from self._begin(Message())
                yield from self._go_on(heard)
            case "message_stop":
                yield from self._end()

    def finish(self) -> Iterator[Event]:
        """There are no more events. Raises RemoteError if the answer is not whole."""
        yield from self._end()

    def whole(self, data: bytes) -> Iterator[Event]:
        """An answer that came at once."""
        message = _decode(_message, data)
        yield from self._begin(message)
        for i, block in enumerate(message.content or ()):
            yield from self._begin_block(i, block)
            yield from self._end_block(i, is_whole=True)
        self._stop = Delta(stop_reason=message.stop_reason or "end_turn", stop_sequence=message.stop_sequence)
        yield from self._end()

    def _begin(self, message: Message) -> Iterator[Event]:
        if self._has_begun:
            return
        self._has_begun = True
        answer_id, model = (value if isinstance(value, str) else "" for value in (message.id, message.model))
        self._calls.answer_id = answer_id
        self._usage = merge_usage(self._usage, message.usage)
        yield Begun(answer_id, model, self.usage or Usage())

    def _go_on(self, heard: MessageEvent) -> Iterator[Event]:
        match heard.type:
            case "content_block_start" if heard.content_block:
                yield from self._begin_block(heard.index, heard.content_block)
            case "content_block_delta" if heard.delta:
                yield from self._grow(heard.index, heard.delta)
            case "content_block_stop":
                yield from self._end_block(heard.index)
            case "message_delta":
                self._usage = merge_usage(self._usage, heard.usage)
                if heard.delta and heard.delta.stop_reason:
                    self._stop = heard.delta

    def _begin_block(self, index: int, block: Block) -> Iterator[Event]:
        yield from self._calls.settle()
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
                call = self._calls.begin(block.id, block.name or "")
                self._open_calls[index] = call, block.input
                yield from call.open()

    def _grow(self, index: int, delta: Delta) -> Iterator[Event]:
        if found := self._open_calls.get(index):
            yield from self._calls.hold(found[0].add(delta.partial_json or ""))
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
            yield from self._calls.hold(call.add(dump(given)))
        elif call and call.is_empty:
            yield from self._calls.hold(call.close())

    def _end(self) -> Iterator[Event]:
        if self.is_over:
            return
        if self._stop is None:
            raise broke_off()
        self.is_over = True
        reason = _REASONS.get(self._stop.stop_reason or "", "stop")
        stop = self._stop.stop_sequence if self._stop.stop_reason == "stop_sequence" else None
        if reason not in _CUT:
            yield from self._calls.finish()
        if reason == "stop" and stop is None and self._calls.all:
            reason = "calls"
        yield Ended(reason, stop, self.usage or Usage())


def _decode(decoder: msgspec.json.Decoder[Shape], data: bytes | str) -> Shape:
    try:
        value = decoder.decode(data)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise bad_answer(error) from None
    if value.type == "error":
        raise read_event_failure({"error": value.error})
    return value
