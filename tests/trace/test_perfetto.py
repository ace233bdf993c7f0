"""A trace as trace events: what Perfetto's importer asks of them holds for any spans."""

import json
from itertools import groupby
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from hotloop.trace import names
from hotloop.trace.perfetto import render_perfetto
from hotloop.trace.span import Span

TRACE_ID = "ab" * 16


def span(name: str, number: int, start_us: int, end_us: int, parent: int | None = None, **more: Any) -> Span:
    service = more.pop("service", "agent")
    parent_id = None if parent is None else f"{parent:016x}"
    return Span(
        trace_id=TRACE_ID, span_id=f"{number:016x}", parent_id=parent_id, name=name, service=service,
        start_ns=10**18 + start_us * 1000, end_ns=10**18 + end_us * 1000, **more,
    )  # fmt: skip


RUN = [
    span(names.RUN, 1, 0, 1000, attributes={names.AGENT: "clerk", names.END: "done"}, session="s-1"),
    span(names.TURN, 2, 10, 900, 1, attributes={names.INDEX: 1}),
    span(names.CHAT, 3, 10, 500, 2),
    span(names.ROUTE, 4, 20, 490, 3, service="router", attributes={names.REPLICA: "east"}),
    span(names.REQUEST, 5, 30, 480, 4, service="server:tiny@1", attributes={names.NUM_PROMPT: 12}),
    span(names.QUEUE, 6, 30, 40, 5, service="server:tiny@1"),
    span(names.PREFILL, 7, 40, 100, 5, service="server:tiny@1"),
    span(names.DECODE, 8, 100, 480, 5, service="server:tiny@1"),
    span(names.TOOL, 9, 200, 700, 2, attributes={names.TOOL_NAME: "look"}),
    span(names.TOOL, 10, 300, 800, 2, attributes={names.TOOL_NAME: "ask"}, error="it is shut"),
]


def events(spans: list[Span], phase: str) -> list[dict[str, Any]]:
    return [event for event in render_perfetto(spans)["traceEvents"] if event["ph"] == phase]


def named(spans: list[Span], what: str) -> dict[int, str]:
    field = "pid" if what == "process_name" else "tid"
    return {event[field]: event["args"]["name"] for event in events(spans, "M") if event["name"] == what}


def test_a_service_is_a_process_and_a_lane_a_thread():
    assert list(named(RUN, "process_name").values()) == ["agent", "router", "server:tiny@1"]
    assert list(named(RUN, "thread_name").values()) == ["run", "requests", "requests", "tools", "tools 2"]


def test_a_span_is_a_slice_with_its_times_and_what_is_known_of_it():
    slices = {event["name"]: event for event in events(RUN, "X")}
    assert slices.keys() >= {"run clerk", "turn 1", "chat", "route east", "tool look", "tool ask"}
    ask = slices["tool ask"]
    assert (ask["ts"], ask["dur"], ask["cat"]) == (300, 500, "tool")
    assert ask["args"] == {"tool": "ask", "trace_id": TRACE_ID, "span_id": f"{10:016x}", "error": "it is shut"}
    assert slices["run clerk"]["args"]["session"] == "s-1"


def test_arrows_go_from_process_to_process():
    starts, ends = events(RUN, "s"), events(RUN, "f")
    assert [event["id"] for event in starts] == [event["id"] for event in ends]
    assert [(event["pid"], event["ts"]) for event in starts] == [(1, 10), (2, 20)]
    assert [(event["pid"], event["ts"], event["bp"]) for event in ends] == [(2, 20, "e"), (3, 30, "e")]


def test_no_arrow_points_back_in_time():
    early = span(names.REQUEST, 2, -5, 80, 1, service="server")
    assert events([span(names.CHAT, 1, 0, 100), early], "s") == []


def test_nothing_is_a_document_too():
    assert render_perfetto([])["traceEvents"] == []


TIMES = st.tuples(st.integers(0, 60), st.integers(0, 30))
NAMES = st.sampled_from([names.TURN, names.CHAT, names.TOOL, names.REQUEST, names.DECODE])
ANY_SPANS = st.lists(st.tuples(NAMES, TIMES, st.sampled_from(["agent", "router", "server"])), max_size=30)


@given(ANY_SPANS)
def test_slices_of_a_thread_nest_whatever_the_spans(drawn: list[tuple[str, tuple[int, int], str]]):
    spans = [
        span(name, number, start, start + length, service=service)
        for number, (name, (start, length), service) in enumerate(drawn)
    ]
    document = render_perfetto(spans)
    assert json.loads(json.dumps(document)) == document
    slices = sorted((e for e in document["traceEvents"] if e["ph"] == "X"), key=lambda e: (e["pid"], e["tid"]))
    assert len(slices) == len(spans)
    for _, lane in groupby(slices, key=lambda e: (e["pid"], e["tid"])):
        assert_nested([(e["ts"], e["ts"] + e["dur"]) for e in lane])


def assert_nested(ranges: list[tuple[int, int]]) -> None:
    for first, second in ((a, b) for a in ranges for b in ranges if a[0] < b[0]):
        assert second[0] >= first[1] or second[1] <= first[1], f"{second} sticks out of {first}"


def test_a_run_that_goes_on_is_as_long_as_what_is_known_of_it():
    begun = span(names.RUN, 1, 0, 0, attributes={names.AGENT: "clerk"})
    [run] = [event for event in events([begun, *RUN[1:]], "X") if event["name"] == "run clerk"]
    assert (run["ts"], run["dur"]) == (0, 900)
    [run] = [event for event in events([*RUN, begun], "X") if event["name"] == "run clerk"]
    assert run["dur"] == 1000, "it is over: what tells of its beginning is no other run"
