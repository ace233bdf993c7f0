import json

import pytest
from msgspec import to_builtins
from tests.trace.spans import span

from hotloop.core.errors import ConfigError
from hotloop.trace import names
from hotloop.trace.runs import TraceStore
from hotloop.trace.span import parse_lines, render_line
from hotloop.trace.store import add_spans

RUN = span(names.RUN, 0, 9, session="s", agent="né", causes=[{"reason": "evicted", "num_tokens": 3}])
TURN = span(names.TURN, 1, 8, RUN, error="it failed", turn=1)


def test_spans_go_there_and_back():
    lines = [render_line(each) for each in (RUN, TURN)]
    assert all(line.count(b"\n") == 1 for line in lines)
    assert list(parse_lines([lines[0], b"  \n", lines[1]])) == [RUN, TURN]


def test_a_run_is_carried_from_store_to_store(tmp_path):
    one, other = tmp_path / "one.db", tmp_path / "other.db"
    assert add_spans(one, [RUN, TURN]) == 2
    with TraceStore(one) as store:
        lines = [render_line(each) for each in store.spans(RUN.trace_id)]
    assert add_spans(other, parse_lines(lines)) == 2
    assert add_spans(other, parse_lines(lines)) == 0, "what is there already is not counted twice"
    with TraceStore(one) as store, TraceStore(other) as copy:
        assert copy.runs() == store.runs()
        assert copy.spans(RUN.trace_id) == store.spans(RUN.trace_id) == [RUN, TURN]


def line_with(**changes: object) -> bytes:
    return json.dumps(to_builtins(RUN) | changes).encode()


@pytest.mark.parametrize(
    "line",
    [
        b"{",
        b"[]",
        b'{"name": "run"}',
        b'{"a": ' * 10_000,
        line_with(trace_id="xyz"),
        line_with(trace_id="0" * 32),
        line_with(span_id="12"),
        line_with(parent_id=""),
        line_with(start_ns="soon"),
        line_with(start_ns=-1),
        line_with(end_ns=2**64),
        line_with(start_ns=RUN.end_ns + 1),
        line_with(attributes=[]),
        line_with(name=None),
    ],
)
def test_what_is_no_span_is_told_with_its_line(line):
    with pytest.raises(ConfigError, match="line 2 is not a span: ") as caught:
        list(parse_lines([render_line(RUN), line]))
    assert "\n" not in str(caught.value)
