"""An answer of Anthropic's messages, from the events of its stream.

    message_start (content_block_start content_block_delta* content_block_stop)* message_delta message_stop

What a model thinks is kept for its next turn, and not part of the answer. The end of a block does not tell whether its
call was cut off; the arguments do, or the reason the answer stopped for.
"""

import json
from collections.abc import Iterator
from typing import Any

import msgspec

from hotloop.agent.model import Answered, ModelUsage
from hotloop.agent.wire.calls import Doubt, WireCall
from hotloop.agent.wire.http import RemoteServer
from hotloop.core.message import Thought
from hotloop.core.stream import StreamEvent, TextDelta
from hotloop.wire.sse import ServerEvent

LAST = "message_stop"

_CUT = ("max_tokens", "model_context_window_exceeded")
_FAILURES = {"refusal": "the model refused to answer"}


class _Block(msgspec.Struct):
    type: str = ""
    text: str | None = None
    thinking: str = ""
    signature: str = ""
    data: str = ""
    id: str | None = None
    name: str | None = None
    input: Any = None


class _Delta(msgspec.Struct):
    """Of a block, or of the message."""

    text: str | None = None
    thinking: str = ""
    signature: str = ""
    partial_json: str | None = None
    stop_reason: str | None = None


class Usage(msgspec.Struct):
    """`message_delta` repeats some of the counts, as they are at the end; what it leaves out stays."""

    input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None
    cache_read_input_tokens: int | None = None
    output_tokens: int | None = None
    hotloop: Any = None

    def updated(self, later: "Usage") -> "Usage":
        counts = msgspec.structs.asdict(self)
        return Usage(**counts | {name: n for name, n in msgspec.structs.asdict(later).items() if n is not None})

    @property
    def value(self) -> ModelUsage:
        num_cached = self.cache_read_input_tokens or 0
        num_new = (self.input_tokens or 0) + (self.cache_creation_input_tokens or 0)
        return ModelUsage(num_prompt=num_new + num_cached, num_cached=num_cached, num_output=self.output_tokens or 0)


class _Message(msgspec.Struct):
    id: Any = None
    usage: Usage | None = None


class _Event(msgspec.Struct):
    type: str
    index: int = 0
    message: _Message | None = None
    content_block: _Block | None = None
    delta: _Delta | None = None
    usage: Usage | None = None
    error: Any = None


_decoder = msgspec.json.Decoder(_Event)


class AnthropicAnswer:
    """Told the events of a stream."""

    def __init__(self, server: RemoteServer, call_prefix: str = "call") -> None:
        self.is_hotloop = False
        self._server = server
        self._call_prefix = call_prefix
        self._answer_id = ""
        self._usage = Usage()
        self._stop_reason: str | None = None
        self._doubt = Doubt()
        self._calls: list[WireCall] = []
        self._blocks: dict[int, WireCall] = {}  # calls by the block they are in
        self._inputs: dict[int, Any] = {}  # given with the beginning of a block
        self._thoughts: dict[int, Thought] = {}  # by the block they are in

    def push(self, event: ServerEvent) -> Iterator[StreamEvent | Thought]:
        try:
            heard = _decoder.decode(event.text)
        except msgspec.DecodeError as error:
            raise self._server.fail(f"an event of the answer makes no sense: {error}") from None
        match heard.type:
            case "error":
                raise self._server.fail(heard.error or event.text)
            case "message_start" if heard.message:
                self._answer_id = heard.message.id if isinstance(heard.message.id, str) else ""
                self._count(heard.message.usage)
            case "content_block_start" if heard.content_block:
                yield from self._doubt.settle()
                yield from self._begin(heard.index, heard.content_block)
            case "content_block_delta" if heard.delta:
                yield from self._doubt.hold(self._go_on(heard.index, heard.delta))
            case "content_block_stop" if heard.index in self._thoughts:
                yield self._thoughts.pop(heard.index)
            case "content_block_stop":
                yield from self._doubt.hold(self._end(heard.index))
            case "message_delta":
                self._count(heard.usage)
                self._stop_reason = (heard.delta and heard.delta.stop_reason) or self._stop_reason

    def finish(self) -> Iterator[StreamEvent | Answered]:
        """The stream is over: what is left to say. Raises RemoteError if it ended too early."""
        reason = self._stop_reason
        if reason is None:
            raise self._server.fail("the answer ended before it was whole")
        if reason in _FAILURES:
            raise self._server.fail(_FAILURES[reason])
        if reason in _CUT:
            yield Answered("length", self._usage.value, self._answer_id)
            return
        yield from self._doubt.settle()
        for call in self._calls:
            yield from call.close()
        yield Answered("calls" if self._calls else "stop", self._usage.value, self._answer_id)

    def _count(self, usage: Usage | None) -> None:
        if usage:
            self._usage = self._usage.updated(usage)
            self.is_hotloop |= usage.hotloop is not None

    def _begin(self, index: int, block: _Block) -> Iterator[StreamEvent]:
        if block.type == "text" and block.text:
            yield TextDelta(block.text)
        if block.type in ("thinking", "redacted_thinking"):
            is_sealed = block.type == "redacted_thinking"
            self._thoughts[index] = Thought(block.data or block.thinking, block.signature, is_sealed)
        if block.type != "tool_use":
            return
        call = WireCall(len(self._calls))
        call.id = block.id or f"{self._call_prefix}_{len(self._calls)}"
        call.name = block.name or ""
        self._calls.append(call)
        self._blocks[index] = call
        self._inputs[index] = block.input
        yield from call.open()

    def _go_on(self, index: int, delta: _Delta) -> Iterator[StreamEvent]:
        if index in self._blocks:
            yield from self._blocks[index].add(delta.partial_json or "")
        elif thought := self._thoughts.get(index):
            more = Thought(thought.text + delta.thinking, thought.signature + delta.signature, thought.is_sealed)
            self._thoughts[index] = more
        elif delta.text:
            yield TextDelta(delta.text)

    def _end(self, index: int) -> Iterator[StreamEvent]:
        call = self._blocks.get(index)
        if call and not call.has_arguments and self._inputs[index]:
            yield from call.add(json.dumps(self._inputs[index], ensure_ascii=False))
        elif call and call.is_empty:
            yield from call.close()
