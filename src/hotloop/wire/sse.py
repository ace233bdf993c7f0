"""Server-sent events from bytes that are cut anywhere, and back.

Knows the format and nothing of what is in it. A line ends with LF, CR or both; an event ends with an empty line. Bytes
become text only when their line is whole, so a cut inside a character does no harm.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from hotloop.core.errors import RemoteError

MAX_BYTES = 64 * 2**20
"""Most that one event may have: whoever sends more means no good."""
DONE = b"data: [DONE]\n\n"
PING_S = 10.0
"""A stream is never silent for longer: clients give up on one that is, and proxies close it."""
COMMENT = b": ping\n\n"
"""What keeps a stream alive where the API has no event for it: readers pass over it."""

_TOKENS = b": tokens "
_TOLD_TOKENS = re.compile(rb"^: tokens ([0-9]{1,10}(?: [0-9]{1,10})*)\n\n", re.M)
_PINGS = re.compile(rb'(?:(?::[^\r\n]*|event: ping|data: \{"type": ?"ping"\})?\r?\n)+')
_LINE_END = re.compile(rb"\r\n|\n|\r")
_BLANK_LINES = (b"\n\n", b"\r\r", b"\n\r")  # two line ends in a row; CR LF is one
_EVENT = re.compile(rb".*?(?:\n\n|[\r\n]\r\n?|\Z)", re.DOTALL)
_OTHER_LINE_ENDS = re.compile("\x85|\u2028|\u2029".encode())
_BOM = b"\xef\xbb\xbf"
_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class ServerEvent:
    name: str
    """Empty if it has none."""
    data: bytes

    @property
    def text(self) -> str:
        try:
            return self.data.decode()
        except UnicodeDecodeError:
            raise RemoteError("the server sent an event that is not UTF-8") from None


class EventReader:
    def __init__(self) -> None:
        self._rest: list[bytes] = []  # of a line that has not ended
        self._has_cr = False  # the last line ended with CR: an LF that follows belongs to it
        self._num_bytes = 0  # of the event so far
        self._name = ""
        self._data: list[bytes] = []
        self._is_first = True

    def push(self, data: bytes) -> Iterator[ServerEvent]:
        self._num_bytes += len(data)
        if self._num_bytes > MAX_BYTES:
            raise RemoteError("the server sent an event that is too large")
        if self._has_cr and data:
            data, self._has_cr = data.removeprefix(b"\n"), False
        self._rest.append(data)
        if b"\n" not in data and b"\r" not in data:
            return
        self._has_cr = data.endswith(b"\r")
        *lines, rest = _LINE_END.split(b"".join(self._rest))
        self._rest = [rest]
        for line in lines:
            yield from self._take(line)

    def finish(self) -> Iterator[ServerEvent]:
        """The last event, if the server forgot the empty line behind it."""
        rest = b"".join(self._rest)
        self._rest = []
        if rest:
            yield from self._take(rest)
        yield from self._take(b"")

    def _take(self, line: bytes) -> Iterator[ServerEvent]:
        if self._is_first:
            line, self._is_first = line.removeprefix(_BOM), False
        if not line:
            if self._data:
                yield ServerEvent(self._name, b"\n".join(self._data))
            self._name, self._data, self._num_bytes = "", [], 0
            return
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if field == b"data":
            self._data.append(value)
        elif field == b"event":
            self._name = value.decode(errors="replace")


def find_event_end(data: bytes | bytearray, begin: int = 0) -> int:
    """Where the last whole event ends, blank line included; 0 if none ends behind `begin`."""
    if data.endswith(b"\n\n") and len(data) >= begin + 2:
        return len(data)
    end = max(data.rfind(blank, begin) for blank in _BLANK_LINES) + 2
    if end < 2:
        return 0
    return end + 1 if data[end - 1 : end + 1] == b"\r\n" else end


def ends_event(data: bytes) -> bool:
    if data.endswith(b"\n\n"):
        return True
    last = data[-3:]
    return 0 < find_event_end(last) == len(last)


def split_events(data: bytes) -> list[bytes]:
    """Whole events one by one, to the byte; what is behind the last is one more."""
    if b"\r" not in data:
        *events, rest = data.split(b"\n\n")
        return [event + b"\n\n" for event in events] + ([rest] if rest else [])
    return [event for event in _EVENT.findall(data) if event]


def is_ping(data: bytes) -> bool:
    """Whether whole events are nothing but pings and comments, which say nothing of an answer."""
    return _PINGS.fullmatch(data) is not None


def write_tokens(token_ids: Iterable[int]) -> bytes:
    """A comment that tells which tokens the events behind it were made of."""
    return _TOKENS + " ".join(map(str, token_ids)).encode() + b"\n\n"


def take_tokens(data: bytes) -> tuple[bytes, list[int]]:
    """Whole events without such comments, and the tokens they told of."""
    if _TOKENS not in data:
        return data, []
    token_ids = [int(number) for told in _TOLD_TOKENS.findall(data) for number in told.split()]
    return _TOLD_TOKENS.sub(b"", data), token_ids


def write_data(value: Any) -> bytes:
    return b"data: " + escape_line_ends(_encode(value)) + b"\n\n"


def escape_line_ends(json: bytes) -> bytes:
    """JSON without the characters, beside the line ends of the format, at which clients such as httpx end a line."""
    return json if json.isascii() else _OTHER_LINE_ENDS.sub(lambda found: b"\\u%04x" % ord(found[0].decode()), json)


def write_event(kind: str, **fields: Any) -> bytes:
    return write_typed({"type": kind, **fields})


def write_typed(event: dict[str, Any]) -> bytes:
    """An event whose name is also the type of its data."""
    return b"event: " + str(event["type"]).encode() + b"\n" + write_data(event)
