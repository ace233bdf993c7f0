"""An answer of OpenAI's chat completions, from the chunks of its stream.

Servers take liberties with this wire: calls without an id or an index, all with the same index, whole in one chunk,
with a name in pieces, or ended with the wrong reason. All of that is understood; the first choice is the answer.
"""

import json
from collections.abc import Collection, Iterator
from typing import Any

import msgspec

from hotloop.agent.model import Answered, ModelUsage
from hotloop.agent.wire.calls import Doubt, WireCall
from hotloop.agent.wire.http import RemoteServer
from hotloop.core.stream import StreamEvent, TextDelta
from hotloop.wire.sse import ServerEvent

DONE = "[DONE]"

_FAILURES = {
    "content_filter": "a content filter stopped the answer",
    "error": "the answer failed",
    "abort": "the answer was aborted",
}


class _Function(msgspec.Struct):
    name: str | None = None
    arguments: Any = None


class _CallPiece(msgspec.Struct):
    function: _Function | None = None
    index: int | None = None
    id: str | None = None


class _Delta(msgspec.Struct):
    content: str | None = None
    refusal: str | None = None
    tool_calls: list[_CallPiece] | None = None


class _Choice(msgspec.Struct):
    """`message` is for servers that say everything at once."""

    index: int | None = None
    delta: _Delta | None = None
    message: _Delta | None = None
    finish_reason: str | None = None


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _Details | None = None
    hotloop: Any = None

    @property
    def value(self) -> ModelUsage:
        details = self.prompt_tokens_details or _Details()
        return ModelUsage(
            num_prompt=self.prompt_tokens or 0,
            num_cached=details.cached_tokens or 0,
            num_output=self.completion_tokens or 0,
        )


class _Chunk(msgspec.Struct):
    id: Any = None
    choices: list[_Choice] | None = None
    usage: Usage | None = None
    error: Any = None


_decoder = msgspec.json.Decoder(_Chunk)


class OpenAIAnswer:
    """Told the events of a stream. `offered` are the tools' names; `call_prefix` begins the ids it leaves out."""

    def __init__(self, server: RemoteServer, offered: Collection[str], call_prefix: str = "call") -> None:
        self.is_hotloop = False
        self._server = server
        self._offered = offered
        self._call_prefix = call_prefix
        self._answer_id = ""
        self._usage = Usage()
        self._finish_reason: str | None = None
        self._doubt = Doubt()
        self._calls: list[WireCall] = []
        self._places: dict[int, WireCall] = {}  # by the wire's index

    def push(self, event: ServerEvent) -> Iterator[StreamEvent]:
        if event.text.strip() == DONE:
            return
        try:
            chunk = _decoder.decode(event.text)
        except msgspec.DecodeError as error:
            raise self._server.fail(f"a chunk of the answer makes no sense: {error}") from None
        if chunk.error or event.name == "error":
            raise self._server.fail(chunk.error or event.text)
        if isinstance(chunk.id, str):
            self._answer_id = self._answer_id or chunk.id
        if chunk.usage:
            self._usage = chunk.usage
            self.is_hotloop |= chunk.usage.hotloop is not None
        for choice in chunk.choices or ():
            if not choice.index:
                yield from self._take(choice)

    def finish(self) -> Iterator[StreamEvent | Answered]:
        """The stream is over: what is left to say. Raises RemoteError if it ended too early."""
        reason = self._finish_reason
        if reason is None:
            raise self._server.fail("the answer ended before it was whole")
        if reason in _FAILURES:
            raise self._server.fail(_FAILURES[reason])
        if reason == "length":
            yield Answered("length", self._usage.value, self._answer_id)
            return
        yield from self._doubt.settle()
        for call in self._calls:
            yield from call.close()
        yield Answered("calls" if self._calls else "stop", self._usage.value, self._answer_id)

    def _take(self, choice: _Choice) -> Iterator[StreamEvent]:
        delta = choice.delta or choice.message or _Delta()
        self._finish_reason = choice.finish_reason or self._finish_reason
        text = delta.content or delta.refusal
        if (text or delta.tool_calls) and self._finish_reason != "length":
            yield from self._doubt.settle()
        if text:
            yield TextDelta(text)
        for piece in delta.tool_calls or ():
            function = piece.function or _Function()
            call = self._find(piece, function)
            if call is None:
                for earlier in self._calls:  # the wire's only sign that they are whole
                    yield from earlier.close()
                call = self._begin(piece)
            yield from self._doubt.hold(self._grow(call, function))
        if choice.finish_reason and choice.finish_reason not in ("length", *_FAILURES):  # no need to wait for the usage
            yield from self._doubt.settle()

    def _grow(self, call: WireCall, function: _Function) -> Iterator[StreamEvent]:
        if function.name and not call.is_opened and function.name != call.name:
            call.name += function.name
        if call.name in self._offered and not self._may_go_on(call.name):
            yield from call.open()
        yield from call.add(_as_text(function.arguments))

    def _find(self, piece: _CallPiece, function: _Function) -> WireCall | None:
        """The call that a piece belongs to; None if it begins one."""
        last = self._calls[-1] if self._calls else None
        call = last if piece.index is None else self._places.get(piece.index)
        if call is None:
            return None
        is_other = piece.id and function.name and piece.id != call.id  # some give every piece an id of its own
        is_again = not piece.id and function.name and call.has_arguments and piece.index is None
        return None if is_other or is_again else call

    def _begin(self, piece: _CallPiece) -> WireCall:
        call = WireCall(len(self._calls))
        call.id = piece.id or f"{self._call_prefix}_{len(self._calls)}"
        self._calls.append(call)
        self._places[len(self._calls) - 1 if piece.index is None else piece.index] = call
        return call

    def _may_go_on(self, name: str) -> bool:
        """Whether a name may be the beginning of a longer one."""
        return any(other != name and other.startswith(name) for other in self._offered)


def _as_text(arguments: Any) -> str:
    if arguments is None:
        return ""
    return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)


def read_usage(server: RemoteServer, answer: Any) -> Usage:
    """What an answer that came at once says it cost."""
    try:
        return msgspec.convert(answer, _Chunk).usage or Usage()
    except msgspec.ValidationError as error:
        raise server.fail(f"the answer makes no sense: {error}") from None
