import time

import pytest

from hotloop.trace.span import Clock, TraceContext, new_span_id, new_trace_id, parse_traceparent, render_traceparent

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


def test_a_traceparent_goes_there_and_back():
    context = parse_traceparent(f"00-{TRACE}-{PARENT}-01")
    assert context == TraceContext(TRACE, PARENT)
    assert render_traceparent(context) == f"00-{TRACE}-{PARENT}-01"
    assert parse_traceparent(f"00-{TRACE}-{PARENT}-00") == TraceContext(TRACE, PARENT, is_sampled=False)


def test_a_later_version_may_say_more():
    assert parse_traceparent(f"cc-{TRACE}-{PARENT}-01-what-the-future-brings") == TraceContext(TRACE, PARENT)


@pytest.mark.parametrize(
    "header",
    [
        None,
        "",
        "hello",
        f"ff-{TRACE}-{PARENT}-01",
        f"00-{TRACE}-{PARENT}-01-more",
        f"00-{TRACE}-{PARENT}",
        f"00-{'0' * 32}-{PARENT}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE.upper()}-{PARENT}-01",
        f"00-{TRACE[:-1]}-{PARENT}-01",
        f"00-{TRACE}-{PARENT}-0g",
    ],
)
def test_what_is_none_begins_no_trace(header):
    assert parse_traceparent(header) is None


def test_a_child_has_a_span_of_its_own():
    context = TraceContext(new_trace_id(), new_span_id())
    child = context.child()
    assert child.trace_id == context.trace_id
    assert child.span_id != context.span_id
    assert parse_traceparent(render_traceparent(child)) == child


def test_moments_of_one_clock_keep_their_order():
    clock, now = Clock(), time.monotonic()
    assert clock.unix_ns(now) < clock.unix_ns(now + 1e-6) <= clock.unix_ns(now) + 2_000
    assert abs(clock.now_ns() - time.time_ns()) < 60 * 10**9
