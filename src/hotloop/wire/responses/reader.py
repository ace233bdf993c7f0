"""An answer of OpenAI's responses as events, whole or from the events of its stream.

    response.created (output_item.added ... output_item.done)* response.completed

A custom tool's text becomes the arguments of a function that takes one text, and a namespace a part of the name.
"""

from collections.abc import Iterator
from typing import Any

import msgspec

from hotloop.core.stream import TextDelta, ThoughtClosed, ThoughtDelta
from hotloop.wire.arguments import wrap_input
from hotloop.wire.errors import bad_answer, broke_off, read_event_failure
from hotloop.wire.event import EndReason, Event
from hotloop.wire.part import flat_name, open_thought
from hotloop.wire.reader import NameCall, OpenCall, Reader, decode, name_call
from hotloop.wire.sse import ServerEvent
from hotloop.wire.usage import read_usage

_REASONS: dict[str, EndReason] = {"max_output_tokens": "length", "content_filter": "refusal"}
_TEXTS = ("response.output_text.delta", "response.refusal.delta")
_THOUGHTS = ("response.reasoning_text.delta", "response.reasoning_summary_text.delta")
_CALLS = ("function_call", "custom_tool_call")


class TextPart(msgspec.Struct):
    text: str | None = None
    refusal: str | None = None


class Item(msgspec.Struct):
    type: str = ""
    content: list[TextPart] | None = None
    summary: list[TextPart] | None = None
    encrypted_content: str | None = None
    id: str | None = None
    call_id: str | None = None
    name: str | None = None
    namespace: str | None = None
    arguments: str | None = None
    input: str | None = None
    status: str | None = None


class ResponseObject(msgspec.Struct):
    id: Any = None
    model: Any = None
    status: str | None = None
    output: list[Item] | None = None
    usage: Any = None
    error: Any = None
    incomplete_details: dict[str, Any] | None = None


class ResponseEvent(msgspec.Struct):
    type: str
    response: ResponseObject | None = None
    output_index: int = 0
    item: Item | None = None
    delta: Any = None
    message: Any = None
    code: Any = None
    error: Any = None


_response = msgspec.json.Decoder(ResponseObject)
_event = msgspec.json.Decoder(ResponseEvent)


class ResponsesReader(Reader):
    def __init__(self, name_call: NameCall = name_call) -> None:
        super().__init__(name_call)
        self._has_items = False
        self._open_calls: dict[int, OpenCall] = {}  # by their place in the output
        self._streamed: set[int] = set()  # items of which there were deltas

    def push(self, event: ServerEvent) -> Iterator[Event]:
        if self.is_over or event.text.strip() == "[DONE]":
            return
        data = decode(_event, event.text)
        kind, response = data.type, data.response or ResponseObject()
        if kind == "error":
            raise read_event_failure({"error": data.error or {"message": data.message, "code": data.code}})
        if not kind.startswith("response."):
            return
        yield from self._begin(response.id, response.model)
        if kind in ("response.completed", "response.incomplete", "response.failed"):
            response.status = response.status or kind.removeprefix("response.")
            yield from self._finish(response)
        elif kind == "response.output_item.added" and data.item:
            yield from self._begin_item(data.output_index, data.item)
        elif kind == "response.output_item.done" and data.item:
            yield from self._end_item(data.output_index, data.item)
        elif isinstance(data.delta, str) and data.delta:
            yield from self._grow(kind, data.output_index, data.delta)

    def finish(self) -> Iterator[Event]:
        if not self.is_over:
            raise broke_off()
        yield from ()

    def whole(self, data: bytes) -> Iterator[Event]:
        response = decode(_response, data)
        if response.output is None and not response.error:
            raise bad_answer("it has no output")
        yield from self._begin(response.id, response.model)
        yield from self._finish(response)

    def _begin_item(self, index: int, item: Item) -> Iterator[Event]:
        self._has_items = True
        yield from self._settle()
        if item.type in _CALLS:
            call = self._begin_call(item.call_id, flat_name(item.name or "", item.namespace))
            self._open_calls[index] = call
            yield from call.open()

    def _grow(self, kind: str, index: int, text: str) -> Iterator[Event]:
        if kind in _TEXTS:
            yield from self._settle()
            self._streamed.add(index)
            yield TextDelta(text)
        elif kind in _THOUGHTS:
            self._streamed.add(index)
            yield ThoughtDelta(text)
        elif kind == "response.function_call_arguments.delta" and index in self._open_calls:
            yield from self._hold(self._open_calls[index].add(text))

    def _end_item(self, index: int, item: Item) -> Iterator[Event]:
        """What there were no deltas of is told now."""
        if call := self._open_calls.get(index):
            arguments = item.arguments or ""
            if item.type == "custom_tool_call" and item.status != "incomplete":
                arguments = wrap_input(item.input or "")
            if not call.has_arguments:
                yield from self._hold(call.add(arguments))
        elif item.type == "reasoning":
            yield from self._close_thought(index, item)
        elif item.type == "message" and index not in self._streamed:
            text = "".join(piece.text or piece.refusal or "" for piece in item.content or ())
            if text:
                yield TextDelta(text)

    def _close_thought(self, index: int, item: Item) -> Iterator[Event]:
        text = "".join(piece.text or "" for piece in item.content or ())
        summary = "".join(piece.text or "" for piece in item.summary or ())
        thought = open_thought(text, summary, item.encrypted_content or "")
        if index not in self._streamed and thought.shown:
            yield ThoughtDelta(thought.shown)
        yield ThoughtClosed(thought)

    def _finish(self, response: ResponseObject) -> Iterator[Event]:
        if response.error or response.status in ("failed", "cancelled"):
            raise read_event_failure({"error": response.error or f"the response was {response.status}"})
        if not self._has_items:  # all of it comes at the end
            for i, item in enumerate(response.output or ()):
                yield from self._begin_item(i, item)
                yield from self._end_item(i, item)
        self.usage = read_usage(response.usage)
        why = str((response.incomplete_details or {}).get("reason"))
        yield from self._end(_REASONS.get(why, "length") if response.status == "incomplete" else "stop")
