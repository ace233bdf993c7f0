"""What comes back over HTTP: answers as they come in, read by read and on the caller's clock, and whole pages.

Everything is read with an end to it: no answer is too long, and none is taken for what it is not.
"""

from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from math import isfinite
from typing import TypeVar

import httpx
import msgspec

from hotloop.core.errors import RemoteError
from hotloop.core.stream import CallDelta, CallOpened, TextDelta, ThoughtDelta
from hotloop.doctor.facts import TimedAnswer
from hotloop.wire.errors import read_failure
from hotloop.wire.event import Event, gather
from hotloop.wire.formats import FORMATS
from hotloop.wire.part import Api
from hotloop.wire.reader import Reader, name_call
from hotloop.wire.sse import EventReader, ServerEvent
from hotloop.wire.usage import ApiUsage

_TOGETHER_S = 0.001  # a buffer that is let go at once still takes a moment to be parsed
_MAX_BYTES = 8 * 2**20  # of a page or an answer: far more than anything that is asked for here
_MAX_SAID = 300  # characters of an error that are quoted
Page = TypeVar("Page")


@dataclass(slots=True)
class AnswerTimer:
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
    _received: list[Event] = field(default_factory=list)
    _arrivals_s: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._reader = FORMATS[self.api].reader(name_call)

    def add(self, data: bytes, now: float) -> None:
        if not self._has_events:
            self._whole += data
        num_before = self.num_pieces
        for event in self._events.push(data):
            self._read(event)
        arrived_s = now - self.began_at
        if self.num_pieces > num_before and not (self._arrivals_s and arrived_s - self._arrivals_s[-1] < _TOGETHER_S):
            self._arrivals_s.append(arrived_s)

    def end(self, now: float) -> TimedAnswer:
        for event in self._events.finish():
            self._read(event)
        if self._has_events:
            with suppress(RemoteError):  # some leave the end of a stream out
                self._received += self._reader.finish()
        else:
            self._read_whole()
            self._arrivals_s.append(now - self.began_at)
        answer, usage = gather(self._received), self._reader.usage or ApiUsage()
        has_usage = self._reader.usage is not None
        return TimedAnswer(
            text=answer.text,
            calls=tuple((call.name, call.arguments) for call in answer.calls),
            arrivals_s=tuple(self._arrivals_s),
            total_s=now - self.began_at,
            num_pieces=self.num_pieces,
            num_prompt=usage.num_prompt if has_usage else None,
            num_cached=usage.num_cached,
            num_output=usage.num_output if has_usage else None,
            client=self.client,
            server=self.server,
            num_refused=self.num_refused,
        )

    def _read(self, event: ServerEvent) -> None:
        self._has_events = True
        self._take([*self._reader.push(event)])

    def _read_whole(self) -> None:
        try:
            self._take([*self._reader.whole(bytes(self._whole))])
        except RemoteError as error:
            begin = " ".join(self._whole[:200].decode(errors="replace").split())
            raise RemoteError(f"not an answer: {begin or 'nothing at all'} ({error})") from None

    def _take(self, events: list[Event]) -> None:
        self._received += events
        self.num_pieces += any(isinstance(each, TextDelta | ThoughtDelta | CallOpened | CallDelta) for each in events)


async def read_bounded(response: httpx.Response) -> AsyncGenerator[bytes, None]:
    num_bytes = 0
    async for data in response.aiter_bytes():
        num_bytes += len(data)
        if num_bytes > _MAX_BYTES:
            raise RemoteError(f"{response.url} sent more than {_MAX_BYTES // 2**20} MiB, far too much")
        yield data


async def read_whole(response: httpx.Response) -> bytes:
    async with aclosing(read_bounded(response)) as pieces:
        return b"".join([data async for data in pieces])


def read_ends(response: httpx.Response) -> tuple[str, str]:
    """The client's end of the connection, which no other has, and the address of the server's."""
    stream = response.extensions["network_stream"]
    client, server = (stream.get_extra_info(name) or ("", "") for name in ("client_addr", "server_addr"))
    return f"{client[0]}:{client[1]}", str(server[0])


def read_retry_after_s(given: str) -> float:
    try:
        after_s = float(given)
    except ValueError:
        return 1.0
    return max(after_s, 0.0) if isfinite(after_s) else 1.0


def parse_page(status: int, body: bytes, page: type[Page]) -> Page | None:
    """None if it is not such a page."""
    try:
        return msgspec.json.decode(body, type=page) if status == 200 else None
    except msgspec.MsgspecError:
        return None


def read_words(status: int, body: bytes) -> str:
    """What an error says, in a line: its message where it has one, else how it begins."""
    return " ".join(str(read_failure(status, body)).split())[:_MAX_SAID]
