"""An answer of OpenAI's responses as events, whole or from the events of its stream.

    response.created (output_item.added ... output_item.done)* response.completed

A custom tool's text becomes the arguments of a function that takes one text, and a namespace a part of the name.
"""

from collections.abc import Iterator
from typing import Any, TypeVar

import msgspec

from hotloop.core.stream import TextDelta
from hotloop.wire.arguments import wrap_input
from hotloop.wire.calls import NameCall, OpenCall, OpenCalls, name_call
from hotloop.wire.errors import bad_answer, broke_off, read_event_failure
from hotloop.wire.event import Begun, Ended, EndReason, Event, ThoughtClosed, ThoughtDelta
from hotloop.wire.part import flat_name
from hotloop.wire.sse import ServerEvent
from hotloop.wire.thoughts import open_thought
from hotloop.wire.usage import Usage, read_usage

_REASONS: dict[str, EndReason] = {"max_output_tokens": "length", "content_filter": "refusal"}
_TEXTS = ("response.output_text.delta", "response.refusal.delta")
_THOUGHTS = ("response.reasoning_text.delta", "response.reasoning_summary_text.delta")
_CALLS = ("function_call", "custom_tool_call")


class Piece(msgspec.Struct):
    """Of a message's content, or of a thought's text or summary."""

    text: str | None = None
    refusal: str | None = None


class Item(msgspec.Struct):
    type: str = ""
    content: list[Piece] | None = None
    summary: list[Piece] | None = None
    encrypted_content: str | None = None
    id: str | None = None
    call_id: str | None = None
    name: str | None = None
    namespace: str | None = None
    arguments: str | None = None
    input: str | None = None
    status: str | None = None


class Details(msgspec.Struct):
    reason: str | None = None


class ResponseObject(msgspec.Struct):
    id: Any = None
    model: Any = None
    status: str | None = None
    output: list[Item] | None = None
    usage: Any = None
    error: Any = None
    incomplete_details: Details | None = None


class ResponseEvent(msgspec.Struct):
    type: str
    response: ResponseObject | None = None
    output_index: int = 0
    item: Item | None = None
    delta: Any = None
    message: Any = None
    code: Any = None
    error: Any = None


Shape = TypeVar("Shape", ResponseObject, ResponseEvent)

_response = msgspec.json.Decoder(ResponseObject)
_event = msgspec.json.Decoder(ResponseEvent)


class ResponsesReader:
    """Told the events of a stream. `name_call` makes the ids of calls that come without one."""

    def __init__(self, *, name_call: NameCall = name_call) -> None:
        self.is_over = False
        self.usage: Usage | None = None
        self._has_begun = False
        self._has_items = False
        self._calls = OpenCalls(name_call)
        self._open_calls: dict[int, OpenCall] = {}  # by their place in the output
        self._told: set[int] = set()  # items of which there were deltas

    def push(self, event: ServerEvent) -> Iterator[Event]:
        """Raises RemoteError if it makes no sense, or tells of a failure."""
        if self.is_over or event.text.strip() == "[DONE]":
            return
        heard = _decode(_event, event.text)
        kind = heard.type
        if kind == "error":
            raise read_event_failure({"error": heard.error or {"message": heard.message, "code": heard.code}})
        if not kind.startswith("response."):
            return
        yield from self._begin(heard.response or ResponseObject())
        if kind in ("response.completed", "response.incomplete", "response.failed"):
            yield from self._end(heard.response or ResponseObject(status=kind.removeprefix("response.")))
        elif kind == "response.output_item.added" and heard.item:
            yield from self._begin_item(heard.output_index, heard.item)
        elif kind == "response.output_item.done" and heard.item:
            yield from self._end_item(heard.output_index, heard.item)
        elif isinstance(heard.delta, str) and heard.delta:
            yield from self._grow(kind, heard.output_index, heard.delta)

    def finish(self) -> Iterator[Event]:
        """There are no more events. Raises RemoteError if the answer is not whole."""
        if not self.is_over:
            raise broke_off()
        yield from ()

    def whole(self, data: bytes) -> Iterator[Event]:
        """An answer that came at once."""
        response = _decode(_response, data)
        if response.output is None and not response.error:
            raise bad_answer("it has no output")
        yield from self._begin(response)
        yield from self._end(response)

    def _begin(self, response: ResponseObject) -> Iterator[Event]:
        if self._has_begun:
            return
        self._has_begun = True
        answer_id, model = (value if isinstance(value, str) else "" for value in (response.id, response.model))
        self._calls.answer_id = answer_id
        yield Begun(answer_id, model)

    def _begin_item(self, index: int, item: Item) -> Iterator[Event]:
        self._has_items = True
        yield from self._calls.settle()
        if item.type in _CALLS:
            call = self._calls.begin(item.call_id, flat_name(item.name or "", item.namespace))
            self._open_calls[index] = call
            yield from call.open()

    def _grow(self, kind: str, index: int, text: str) -> Iterator[Event]:
        if kind in _TEXTS:
            yield from self._calls.settle()
            self._told.add(index)
            yield TextDelta(text)
        elif kind in _THOUGHTS:
            self._told.add(index)
            yield ThoughtDelta(text)
        elif kind == "response.function_call_arguments.delta" and index in self._open_calls:
            yield from self._calls.hold(self._open_calls[index].add(text))

    def _end_item(self, index: int, item: Item) -> Iterator[Event]:
        """What there were no deltas of is told now."""
        if call := self._open_calls.get(index):
            arguments = item.arguments or ""
            if item.type == "custom_tool_call" and item.status != "incomplete":
                arguments = wrap_input(item.input or "")
            if not call.has_arguments:
                yield from self._calls.hold(call.add(arguments))
        elif item.type == "reasoning":
            yield from self._close_thought(index, item)
        elif item.type == "message" and index not in self._told:
            text = "".join(piece.text or piece.refusal or "" for piece in item.content or ())
            if text:
                yield TextDelta(text)

    def _close_thought(self, index: int, item: Item) -> Iterator[Event]:
        text = "".join(piece.text or "" for piece in item.content or ())
        summary = "".join(piece.text or "" for piece in item.summary or ())
        thought = open_thought(text, summary, item.encrypted_content or "")
        if index not in self._told and thought.shown:
            yield ThoughtDelta(thought.shown)
        yield ThoughtClosed(thought)

    def _end(self, response: ResponseObject) -> Iterator[Event]:
        if response.error or response.status in ("failed", "cancelled"):
            raise read_event_failure({"error": response.error or f"the response was {response.status}"})
        if not self._has_items:  # all of it comes at the end
            for i, item in enumerate(response.output or ()):
                yield from self._begin_item(i, item)
                yield from self._end_item(i, item)
        self.is_over = True
        self.usage = read_usage(response.usage)
        details = response.incomplete_details or Details()
        is_cut = response.status == "incomplete"
        reason: EndReason = _REASONS.get(details.reason or "", "length") if is_cut else "stop"
        if reason != "length":
            yield from self._calls.finish()
        if reason == "stop" and self._calls.all:
            reason = "calls"
        yield Ended(reason, None, self.usage or Usage())


def _decode(decoder: msgspec.json.Decoder[Shape], data: bytes | str) -> Shape:
    try:
        return decoder.decode(data)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise bad_answer(error) from None
