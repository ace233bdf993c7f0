"""An answer coming in, read by read: which reads brought something, and when. Knows no socket and has no clock."""

from dataclasses import dataclass, field

import msgspec

from hotloop.core.errors import RemoteError
from hotloop.doctor.facts import Heard
from hotloop.wire.chat.reader import Completion, Function, Said
from hotloop.wire.sse import EventReader, ServerEvent
from hotloop.wire.usage import Usage, read_usage

_TOGETHER_S = 0.001  # a buffer that is let go at once still takes a moment to be parsed


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
    _usage: Usage | None = None

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
        usage = self._usage
        return Heard(
            text="".join(self._texts),
            calls=calls,
            arrivals_s=tuple(self._arrivals_s),
            total_s=now - self.began_at,
            num_pieces=self.num_pieces,
            num_prompt=usage.num_prompt if usage else None,
            num_cached=usage.num_cached if usage else None,
            num_output=usage.num_output if usage else None,
            client=self.client,
            server=self.server,
            num_refused=self.num_refused,
        )

    def _hear(self, event: ServerEvent) -> None:
        self._has_events = True
        if event.data.strip() != b"[DONE]":
            self._take(_parse(event.data))

    def _take(self, event: Completion) -> None:
        self._usage = read_usage(event.usage) or self._usage
        for choice in event.choices or ():
            said = choice.delta or choice.message or Said()
            calls = said.tool_calls or ()
            self._texts.append(said.text)
            for position, call in enumerate(calls):
                index, function = position if call.index is None else call.index, call.function or Function()
                self._names.setdefault(index, function.name or "")
                self._arguments.setdefault(index, []).append(function.text)
            self.num_pieces += bool(said.text or said.thought or calls)


def _parse(data: bytes) -> Completion:
    try:
        event = msgspec.json.decode(data, type=Completion)
        if event.usage and read_usage(event.usage) is None:
            raise msgspec.ValidationError("a usage without counts")
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        begin = " ".join(data[:200].decode(errors="replace").split())
        raise RemoteError(f"not a chat completion: {begin or 'nothing at all'} ({error})") from None
    if event.error:
        raise RemoteError(f"the answer ended in an error: {str(event.error)[:200]}")
    return event
