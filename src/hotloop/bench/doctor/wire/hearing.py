"""An answer coming in, read by read: which reads brought something, and when. Knows no socket and has no clock."""

from dataclasses import dataclass, field
from typing import Any

import msgspec

from hotloop.bench.client import ServerFailed
from hotloop.bench.doctor.facts import Heard
from hotloop.wire.sse import EventReader, ServerEvent

_TOGETHER_S = 0.001  # a buffer that is let go at once still takes a moment to be parsed


class _Function(msgspec.Struct):
    name: str | None = None
    arguments: str | None = None


class _Call(msgspec.Struct):
    function: _Function
    index: int | None = None


class _Message(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[_Call] | None = None


class _Choice(msgspec.Struct):
    """`delta` in a stream, `message` in an answer given at once."""

    delta: _Message | None = None
    message: _Message | None = None


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _Details | None = None


class _Event(msgspec.Struct):
    """A chunk, or a whole completion."""

    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    error: Any = None


@dataclass(slots=True)
class Hearing:
    """Times are of the caller's clock. An answer that is not streamed is looked at when it is whole.

    So is one that should have been streamed and was not: it arrived in one piece.
    """

    began_at: float
    client: str = ""
    server: str = ""
    num_refused: int = 0
    num_pieces: int = 0
    _whole: bytearray = field(default_factory=bytearray)
    """All that came, until an event did."""
    _reader: EventReader = field(default_factory=EventReader)
    _has_events: bool = False
    _texts: list[str] = field(default_factory=list)
    _names: dict[int, str] = field(default_factory=dict)
    _arguments: dict[int, list[str]] = field(default_factory=dict)
    _arrivals_s: list[float] = field(default_factory=list)
    _usage: _Usage = field(default_factory=_Usage)

    def add(self, data: bytes, now: float) -> None:
        if not self._has_events:
            self._whole += data
        num_before = self.num_pieces
        for event in self._reader.push(data):
            self._hear(event)
        arrived_s = now - self.began_at
        if self.num_pieces > num_before and not (self._arrivals_s and arrived_s - self._arrivals_s[-1] < _TOGETHER_S):
            self._arrivals_s.append(arrived_s)

    def end(self, now: float) -> Heard:
        for event in self._reader.finish():
            self._hear(event)
        if not self._has_events:
            self._take(_parse(bytes(self._whole)))
            self._arrivals_s.append(now - self.began_at)
        calls = tuple((self._names.get(i, ""), "".join(parts)) for i, parts in sorted(self._arguments.items()))
        details = self._usage.prompt_tokens_details or _Details()
        return Heard(
            text="".join(self._texts),
            calls=calls,
            arrivals_s=tuple(self._arrivals_s),
            total_s=now - self.began_at,
            num_pieces=self.num_pieces,
            num_prompt=self._usage.prompt_tokens,
            num_cached=details.cached_tokens,
            num_output=self._usage.completion_tokens,
            client=self.client,
            server=self.server,
            num_refused=self.num_refused,
        )

    def _hear(self, event: ServerEvent) -> None:
        self._has_events = True
        if event.data.strip() != b"[DONE]":
            self._take(_parse(event.data))

    def _take(self, event: _Event) -> None:
        self._usage = event.usage or self._usage
        for choice in event.choices or ():
            message = choice.delta or choice.message or _Message()
            calls = message.tool_calls or ()
            self._texts.append(message.content or "")
            for position, call in enumerate(calls):
                index = position if call.index is None else call.index
                self._names.setdefault(index, call.function.name or "")
                self._arguments.setdefault(index, []).append(call.function.arguments or "")
            self.num_pieces += bool(message.content or message.reasoning_content or message.reasoning or calls)


def _parse(data: bytes) -> _Event:
    try:
        event = msgspec.json.decode(data, type=_Event)
    except msgspec.MsgspecError as error:
        begin = " ".join(data[:200].decode(errors="replace").split())
        raise ServerFailed(f"not a chat completion: {begin or 'nothing at all'} ({error})") from None
    if event.error:
        raise ServerFailed(f"the answer ended in an error: {str(event.error)[:200]}")
    return event
