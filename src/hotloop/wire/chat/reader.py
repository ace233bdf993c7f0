"""An answer of chat completions as events, whole or from the chunks of its stream.

Servers take liberties with this format: calls without an id or an index, all with the same index, interleaved, whole in
one chunk, with a name in pieces, or ended with the wrong reason; reasoning as `reasoning_content` or `reasoning`; the
stop string as vLLM's `stop_reason` or SGLang's `matched_stop`; a stream whose choice holds a whole `message`. All of
that is understood; the first choice is the answer.
"""

from collections.abc import Collection, Iterator
from typing import Any

import msgspec

from hotloop.core.errors import RemoteError, RequestError
from hotloop.core.message import Thought
from hotloop.core.stream import TextDelta, ThoughtClosed, ThoughtDelta
from hotloop.wire.arguments import dump
from hotloop.wire.errors import bad_answer, broke_off, read_event_failure
from hotloop.wire.event import EndReason, Event
from hotloop.wire.field import Field
from hotloop.wire.part import parse_block
from hotloop.wire.reader import CUT, NameCall, OpenCall, Reader, decode, name_call
from hotloop.wire.sse import ServerEvent
from hotloop.wire.usage import read_usage

_DONE = "[DONE]"
_REASONS: dict[str, EndReason] = {
    "length": "length",
    "tool_calls": "calls",
    "function_call": "calls",
    "content_filter": "refusal",
}
_FAILURES = {"error": "the answer failed", "abort": "the answer was aborted"}


class Function(msgspec.Struct):
    name: str | None = None
    arguments: Any = None

    @property
    def text(self) -> str:
        """The arguments, which some give as a value."""
        if self.arguments is None or isinstance(self.arguments, str):
            return self.arguments or ""
        return dump(self.arguments)


class CallPiece(msgspec.Struct):
    function: Function | None = None
    index: int | None = None
    id: str | None = None


class Said(msgspec.Struct):
    content: str | list[Any] | None = None
    refusal: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    thinking_blocks: list[dict[str, Any]] | None = None
    tool_calls: list[CallPiece] | None = None

    @property
    def thought(self) -> str:
        return self.reasoning_content or self.reasoning or ""

    @property
    def text(self) -> str:
        if isinstance(self.content, list):
            return "".join(str(part.get("text") or "") for part in self.content if isinstance(part, dict))
        return self.content or self.refusal or ""


class _Choice(msgspec.Struct):
    index: int | None = None
    delta: Said | None = None
    message: Said | None = None
    finish_reason: str | None = None
    stop_reason: Any = None
    matched_stop: Any = None

    @property
    def stop(self) -> str | None:
        """The stop string that ended the answer, if the server tells; token ids are no strings."""
        return next((stop for stop in (self.stop_reason, self.matched_stop) if isinstance(stop, str)), None)


class ChatCompletion(msgspec.Struct):
    id: Any = None
    model: Any = None
    choices: list[_Choice] | None = None
    usage: Any = None
    error: Any = None


_decoder = msgspec.json.Decoder(ChatCompletion)


class ChatReader(Reader):
    """`offered` are the names of the tools, if known: a name that comes in pieces is whole when it is one of them."""

    def __init__(self, name_call: NameCall = name_call, *, offered: Collection[str] | None = None) -> None:
        super().__init__(name_call)
        self._offered = offered
        self._thought: list[str] = []
        self._ending: _Choice | None = None
        self._places: dict[int, OpenCall] = {}  # by the wire's index

    def push(self, event: ServerEvent) -> Iterator[Event]:
        if self.is_over:
            return
        text = event.text
        if text.strip() == _DONE:
            yield from self._finish()
            return
        if event.name == "error":
            try:
                raise read_event_failure(msgspec.json.decode(text))
            except (msgspec.DecodeError, RecursionError):
                raise read_event_failure(text) from None
        completion = _decode(text)
        yield from self._begin(completion.id, completion.model)
        self.usage = read_usage(completion.usage) or self.usage
        for choice in completion.choices or ():
            if not choice.index:
                yield from self._take(choice)

    def finish(self) -> Iterator[Event]:
        if self._ending is None and not self.is_over:
            raise broke_off()
        yield from self._finish()

    def whole(self, data: bytes) -> Iterator[Event]:
        completion = _decode(data)
        choice = next((choice for choice in completion.choices or () if not choice.index), None)
        if choice is None or choice.message is None:
            raise bad_answer("it has no message")
        for i, call in enumerate(choice.message.tool_calls or ()):
            call.index = i
        yield from self._begin(completion.id, completion.model)
        self.usage = read_usage(completion.usage)
        yield from self._take(choice)
        yield from self._finish()

    def _finish(self) -> Iterator[Event]:
        if self.is_over:
            return
        if not self._has_begun:
            raise broke_off()
        ending = self._ending or _Choice()
        reason = ending.finish_reason or "stop"
        if reason in _FAILURES:
            raise RemoteError(_FAILURES[reason])
        yield from self._close_thought()
        yield from self._end(_REASONS.get(reason, "stop"), ending.stop if reason == "stop" else None)

    def _take(self, choice: _Choice) -> Iterator[Event]:
        said = choice.delta or choice.message or Said()
        if choice.finish_reason:
            self._ending = choice
        is_cut = self._ending is not None and _REASONS.get(self._ending.finish_reason or "") in CUT
        if said.thought and not said.thinking_blocks:
            self._thought.append(said.thought)
            yield ThoughtDelta(said.thought)
        for block in said.thinking_blocks or ():
            yield from self._close_signed(block)
        if (said.text or said.tool_calls) and not is_cut:
            yield from self._settle()
        if said.text:
            yield from self._close_thought()
            yield TextDelta(said.text)
        for piece in said.tool_calls or ():
            yield from self._close_thought()
            yield from self._take_piece(piece)
        if choice.finish_reason and not is_cut and choice.finish_reason not in _FAILURES:
            yield from self._settle()  # no need to wait for the usage

    def _close_thought(self) -> Iterator[Event]:
        if self._thought:
            text, self._thought = "".join(self._thought), []
            yield ThoughtClosed(Thought(text))

    def _close_signed(self, block: dict[str, Any]) -> Iterator[Event]:
        """A block of Anthropic's, behind its text as `reasoning_content` or instead of it."""
        try:
            thought = parse_block(Field(block))
        except RequestError as error:
            raise bad_answer(error) from None
        if not self._thought and thought.shown:
            yield ThoughtDelta(thought.shown)
        self._thought = []
        yield ThoughtClosed(thought)

    def _take_piece(self, piece: CallPiece) -> Iterator[Event]:
        function = piece.function or Function()
        call = self._find(piece, function)
        if call is None:
            for earlier in self._calls:
                if earlier.empty:  # an empty object that nothing has followed
                    yield from earlier.close()
            call = self._begin_call(piece.id)
            self._places[len(self._calls) - 1 if piece.index is None else piece.index] = call
        yield from self._hold(self._grow(call, function))

    def _grow(self, call: OpenCall, function: Function) -> Iterator[Event]:
        if function.name and not call.is_opened and function.name != call.name:
            call.name += function.name
        offered = [name for name in self._offered or () if name.startswith(call.name)]
        if call.name and (self._offered is None or offered == [call.name]):
            yield from call.open()
        yield from call.add(function.text)

    def _find(self, piece: CallPiece, function: Function) -> OpenCall | None:
        last = self._calls[-1] if self._calls else None
        call = last if piece.index is None else self._places.get(piece.index)
        if call is None:
            return None
        is_other = piece.id and function.name and piece.id != call.id  # some give every piece an id of its own
        is_again = not piece.id and function.name and call.has_arguments and piece.index is None
        return None if is_other or is_again else call


def _decode(data: bytes | str) -> ChatCompletion:
    completion = decode(_decoder, data)
    if completion.error:
        raise read_event_failure({"error": completion.error})
    return completion
