"""Server-sent events, whatever ends their lines and wherever they are cut."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hotloop.core.errors import RemoteError
from hotloop.wire.sse import COMMENT, DONE, MAX_BYTES, EventReader, ServerEvent, is_ping, write_event

GIVEN = "\ufeffevent: a\ndata: größe\n\n: a comment\n\ndata: 1\ndata:2\nid: 7\n\nevent: lonely\n\ndata: last"
EVENTS = [ServerEvent("a", "größe".encode()), ServerEvent("", b"1\n2"), ServerEvent("", b"last")]


@given(st.sampled_from(["\n", "\r", "\r\n"]), st.lists(st.integers(0, 120), max_size=5))
def test_cut_anywhere(line_end: str, cuts: list[int]) -> None:
    data = GIVEN.replace("\n", line_end).encode()
    ends = sorted({*cuts, len(data)})
    reader = EventReader()
    events = [event for begin, end in zip([0, *ends], ends, strict=False) for event in reader.push(data[begin:end])]
    assert [*events, *reader.finish()] == EVENTS


def test_an_event_without_end_is_refused() -> None:
    reader = EventReader()
    for _ in range(MAX_BYTES // 2**20):
        assert not list(reader.push(b"x" * 2**20))
    with pytest.raises(RemoteError, match="too large"):
        list(reader.push(b"x"))


def test_what_is_written_is_read() -> None:
    [event] = EventReader().push(write_event("ping", a="ü\n"))
    assert event == ServerEvent("ping", '{"type":"ping","a":"ü\\n"}'.encode())


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
