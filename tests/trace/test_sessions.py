from hotloop.trace.span import MAX_REQUESTS, MAX_SESSIONS, RecentTraces, TraceContext, render_traceparent

GIVEN = TraceContext("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331")


class Watch:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_who_says_what_it_is_part_of_is_believed():
    context, parent_id = RecentTraces().join(render_traceparent(GIVEN), "session")
    assert (context.trace_id, parent_id) == (GIVEN.trace_id, GIVEN.span_id)
    assert context.span_id != GIVEN.span_id


def test_the_turns_of_a_session_are_one_trace():
    recent = RecentTraces()
    first, parent_id = recent.join(None, "one")
    again, _ = recent.join("nonsense", "one")
    other, _ = recent.join(None, "other")
    assert parent_id is None
    assert first.trace_id == again.trace_id != other.trace_id
    assert first.span_id != again.span_id


def test_without_a_session_each_request_is_alone():
    recent = RecentTraces()
    assert recent.join(None, "")[0].trace_id != recent.join(None, "")[0].trace_id


def test_who_was_away_for_long_begins_anew():
    watch = Watch()
    recent = RecentTraces(max_idle_s=10, clock=watch)
    first, _ = recent.join(None, "one")
    watch.now = 9.0
    assert recent.join(None, "one")[0].trace_id == first.trace_id
    watch.now = 18.0
    assert recent.join(None, "one")[0].trace_id == first.trace_id
    watch.now = 28.5
    assert recent.join(None, "one")[0].trace_id != first.trace_id


def test_only_so_many_are_remembered():
    recent = RecentTraces()
    first, _ = recent.join(None, "first")
    for number in range(MAX_SESSIONS):
        recent.join(None, str(number))
    assert recent.join(None, "first")[0].trace_id != first.trace_id


def test_a_session_that_never_ends_has_traces_of_a_size_that_can_be_drawn():
    recent = RecentTraces()
    trace_ids = [recent.join(None, "everybody")[0].trace_id for _ in range(2 * MAX_REQUESTS)]
    assert [trace_ids.count(trace_id) for trace_id in dict.fromkeys(trace_ids)] == [MAX_REQUESTS, MAX_REQUESTS]
