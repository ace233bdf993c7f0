"""An answer coming in, read by read: which reads brought something, and when. Knows no socket and has no clock."""

from contextlib import suppress
from dataclasses import dataclass, field

from hotloop.core.errors import RemoteError
from hotloop.core.stream import CallDelta, CallOpened, TextDelta
from hotloop.doctor.facts import Heard
from hotloop.wire.answer import gather
from hotloop.wire.calls import name_call
from hotloop.wire.event import Event, ThoughtDelta
from hotloop.wire.formats import FORMATS, Reader
from hotloop.wire.part import Api
from hotloop.wire.sse import EventReader, ServerEvent
from hotloop.wire.usage import Usage

_TOGETHER_S = 0.001  # a buffer that is let go at once still takes a moment to be parsed


@dataclass(slots=True)
class Hearing:
    """Times are of the caller's clock. An answer that is not streamed is looked at when it is whole.

    So is one that should have been streamed and was not: it arrived in one piece.
    """

    began_at: float
    api: Api = "chat"
    client: str = ""
    server: str = ""
    num_refused: int = 0
    num_pieces: int = 0
    _whole: bytearray = field(default_factory=bytearray)
    """All that came, until an event did."""
    _events: EventReader = field(default_factory=EventReader)
    _reader: Reader = field(init=False)
    _has_events: bool = False
    _heard: list[Event] = field(default_factory=list)
    _arrivals_s: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._reader = FORMATS[self.api].reader(name_call)

    def add(self, data: bytes, now: float) -> None:
        if not self._has_events:
            self._whole += data
        num_before = self.num_pieces
        for event in self._events.push(data):
            self._hear(event)
        arrived_s = now - self.began_at
        if self.num_pieces > num_before and not (self._arrivals_s and arrived_s - self._arrivals_s[-1] < _TOGETHER_S):
            self._arrivals_s.append(arrived_s)

    def end(self, now: float) -> Heard:
        for event in self._events.finish():
            self._hear(event)
        if self._has_events:
            with suppress(RemoteError):  # some leave the end of a stream out
                self._heard += self._reader.finish()
        else:
            self._hear_whole()
            self._arrivals_s.append(now - self.began_at)
        answer, usage = gather(self._heard), self._reader.usage or Usage()
        is_told = self._reader.usage is not None
        return Heard(
            text=answer.text,
            calls=tuple((call.name, call.arguments) for call in answer.calls),
            arrivals_s=tuple(self._arrivals_s),
            total_s=now - self.began_at,
            num_pieces=self.num_pieces,
            num_prompt=usage.num_prompt if is_told else None,
            num_cached=usage.num_cached,
            num_output=usage.num_output if is_told else None,
            client=self.client,
            server=self.server,
            num_refused=self.num_refused,
        )

    def _hear(self, event: ServerEvent) -> None:
        self._has_events = True
        self._take([*self._reader.push(event)])

    def _hear_whole(self) -> None:
        try:
            self._take([*self._reader.whole(bytes(self._whole))])
        except RemoteError as error:
            begin = " ".join(self._whole[:200].decode(errors="replace").split())
            raise RemoteError(f"not an answer: {begin or 'nothing at all'} ({error})") from None

    def _take(self, events: list[Event]) -> None:
        self._heard += events
        self.num_pieces += any(isinstance(each, TextDelta | ThoughtDelta | CallOpened | CallDelta) for each in events)
