"""A store that records what was said stays as small as it is told to, in memory and on the disk."""

from tests.trace.spans import DAWN_NS, span

from hotloop.trace import names, store
from hotloop.trace.content import Content
from hotloop.trace.runs import TraceStore
from hotloop.trace.span import new_trace_id
from hotloop.trace.store import Bounds, StoreTracer
from hotloop.trace.tracer import Losses


def test_what_waits_is_bounded_in_bytes(tmp_path, caplog):
    """What was said can be as long as a body."""
    path = tmp_path / "trace.db"
    tracer, said = StoreTracer(path, content=Content(is_kept=True)), "x" * (1 << 20)
    num_fitting = store.MAX_PENDING_BYTES // (1 << 20) - 1
    with tracer._lock:  # nothing is written meanwhile, but for what the thread may have taken
        for _ in range(num_fitting + 10):
            tracer.record(span(names.REQUEST, 0, 1, trace_id=new_trace_id(), **{names.CONTENT_REQUEST: said}))
    assert tracer.losses == Losses(num_dropped=10)
    assert caplog.text.count("the oldest are dropped") == 1
    assert tracer.flush()
    tracer.close()
    with TraceStore(path) as reader:
        assert reader.num_runs() == num_fitting


def test_a_store_and_its_log_stay_near_their_bound(tmp_path):
    path, bounds = tmp_path / "trace.db", Bounds(max_bytes=8 << 20)
    tracer, wal = StoreTracer(path, bounds=bounds, content=Content(is_kept=True)), path.with_name(f"{path.name}-wal")
    largest = 0
    for number in range(64):
        said = {names.CONTENT_REQUEST: "x" * (1 << 20)}
        tracer.record(span(names.REQUEST, number, number + 1, trace_id=new_trace_id(), **said))
        if number % 16 == 15:  # also where many have been waiting
            assert tracer.flush()
        largest = max(largest, path.stat().st_size + wal.stat().st_size)
    assert largest < 2 * bounds.max_bytes
    tracer.close()
    with TraceStore(path) as reader:
        assert 4 <= reader.num_runs() <= 8
        assert reader.runs()[0].start_ns == DAWN_NS + 63 * 10**6
