"""Server-sent events, whatever ends their lines and wherever they are cut."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hotloop.core.errors import RemoteError
from hotloop.wire.sse import (
    COMMENT,
    DONE,
    MAX_BYTES,
    EventReader,
    ServerEvent,
    ends_event,
    find_event_end,
    is_ping,
    split_events,
    write_event,
)

GIVEN = "\ufeffevent: a\ndata: größe\n\n: a comment\n\ndata: 1\ndata:2\nid: 7\n\nevent: lonely\n\ndata: last"
EVENTS = [ServerEvent("a", "größe".encode()), ServerEvent("", b"1\n2"), ServerEvent("", b"last")]


@given(st.sampled_from(["\n", "\r", "\r\n"]), st.lists(st.integers(0, 120), max_size=5))
def test_cut_anywhere(line_end: str, cuts: list[int]) -> None:
    data = GIVEN.replace("\n", line_end).encode()
    ends = sorted({*cuts, len(data)})
    reader = EventReader()
    events = [event for begin, end in zip([0, *ends], ends, strict=False) for event in reader.push(data[begin:end])]
    assert [*events, *reader.finish()] == EVENTS


def test_a_reader_does_not_wait_for_the_byte_behind_a_carriage_return() -> None:
    reader = EventReader()
    assert [event.data for event in reader.push(b"data: 1\r\r")] == [b"1"]
    assert [event.data for event in reader.push(b"\ndata: 2\r\n")] == []
    assert [event.data for event in reader.push(b"\r")] == [b"2"]
    assert [event.data for event in reader.push(b"\n")] == []
    assert [event.data for event in reader.finish()] == []


def test_an_event_without_end_is_refused() -> None:
    reader = EventReader()
    for _ in range(MAX_BYTES // 2**20):
        assert not list(reader.push(b"x" * 2**20))
    with pytest.raises(RemoteError, match="too large"):
        list(reader.push(b"x"))


@pytest.mark.parametrize(
    ("data", "end"),
    [
        (b"", 0),
        (b"data: 1\n\n", 9),
        (b"data: 1\n\ndata: 2", 9),
        (b"data: 1\r\n\r\nda", 11),
        (b"data: 1\n", 0),
        (b"data: 1\r\n", 0),
        (b"data: 1\r\r\nda", 10),
        (b"data: 1\n\r", 9),
    ],
)
def test_where_the_last_whole_event_ends(data: bytes, end: int) -> None:
    assert find_event_end(data) == end
    assert ends_event(data) == (0 < end == len(data))
    assert split_events(data) == [part for part in (data[:end], data[end:]) if part]


def test_what_is_written_is_read() -> None:
    [event] = EventReader().push(write_event("ping", a="ü\n"))
    assert event == ServerEvent("ping", '{"type":"ping","a":"ü\\n"}'.encode())


@given(st.text() | st.text("a\x85\u2028\u2029é\n", max_size=8))
def test_no_line_ends_within_what_is_written(text: str) -> None:
    data = write_event("ping", a=text)
    assert len(data.decode().splitlines()) == 3  # as clients cut it who take text apart
    [event] = EventReader().push(data)
    assert json.loads(event.data)["a"] == text


@pytest.mark.parametrize(
    ("data", "says_nothing"),
    [
        (COMMENT, True),
        (write_event("ping"), True),
        (b": PROCESSING\r\n\r\n" + COMMENT, True),
        (b'event: ping\ndata: {"type": "ping"}\n\n', True),
        (COMMENT + DONE, False),
        (write_event("ping", model="x"), False),
        (b"", False),
    ],
)
def test_a_ping_says_nothing(data: bytes, says_nothing: bool) -> None:
    assert is_ping(data) == says_nothing
