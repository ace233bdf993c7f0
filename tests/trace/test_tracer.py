from msgspec.structs import replace
from tests.trace.spans import span

from hotloop.trace import names
from hotloop.trace.tracer import ListTracer, Losses, NullTracer, TeeTracer


def test_a_run_that_is_told_of_twice_is_there_once():
    tracer = ListTracer()
    begun, turn = span(names.RUN, 0, 0), span(names.TURN, 0, 5)
    over = replace(begun, end_ns=turn.end_ns)
    for each in (begun, turn, over):
        tracer.record(each)
    assert tracer.spans == [turn, over]


def test_losses_of_several_are_added_up():
    class Lossy(NullTracer):
        losses = Losses(num_dropped=2, num_failed=1)

    assert TeeTracer(Lossy(), NullTracer(), Lossy()).losses == Losses(num_dropped=4, num_failed=2)
