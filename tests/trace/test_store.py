import sqlite3
import stat
import threading

import pytest
from msgspec.structs import replace
from tests.trace.spans import DAWN_NS, TRACE, span

from hotloop.core.errors import ConfigError
from hotloop.trace import names, store
from hotloop.trace.content import Content
from hotloop.trace.runs import RunSummary, TraceStore
from hotloop.trace.span import Span, new_trace_id
from hotloop.trace.store import Bounds, StoreTracer, add_spans, bound
from hotloop.trace.tables import open_to_write
from hotloop.trace.tracer import Losses

DAY_MS = 24 * 3600 * 1000


@pytest.fixture
def path(tmp_path):
    return tmp_path / "folder" / "trace.db"


def a_run(start_ms: int = 0, *, session: str = "s", agent: str = "", error: str = "", turns: int = 1) -> list[Span]:
    told = {"session": session, "error": error, "agent": agent, "end": "done"}
    run = span(names.RUN, start_ms, start_ms + 10, trace_id=new_trace_id(), **told)
    spans = [run]
    for number in range(turns):
        turn = span(names.TURN, start_ms, start_ms + 9, run, session=session, turn=number + 1)
        usage = {"num_prompt": 100, "num_cached": 60, "num_output": 7}
        chat = span(names.CHAT, start_ms, start_ms + 8, turn, session=session, model="m", **usage)
        request = span(names.REQUEST, start_ms, start_ms + 7, chat, service="server:m", **usage)
        spans += [turn, chat, request]
    return spans


def test_what_was_recorded_is_there(path):
    tracer = StoreTracer(path)
    spans = a_run(turns=3, agent="scout")
    for each in reversed(spans):  # the outermost ends last
        tracer.record(each)
    tracer.close()
    with TraceStore(path) as reader:
        assert sorted(reader.spans(spans[0].trace_id), key=lambda each: each.span_id) == spans
        assert reader.num_runs() == 1
        [run] = reader.runs()
    assert (run.agent, run.end, run.session, run.model) == ("scout", "done", "s", "m")
    assert (run.num_turns, run.num_spans, run.num_errors) == (3, 10, 0)
    assert (run.num_prompt, run.num_cached, run.num_output) == (300, 180, 21), "each token once, whoever tells of it"
    assert run.wall_s == 0.010


def begin(run: Span) -> Span:
    """The same run when it began."""
    told = {name: value for name, value in run.attributes.items() if name != names.END}
    return replace(run, end_ns=run.start_ns, error="", attributes=told)


def test_a_run_is_there_from_its_beginning(path):
    spans = a_run(agent="scout", turns=2)
    tracer = StoreTracer(path)
    tracer.record(begin(spans[0]))
    assert tracer.flush()
    reader = TraceStore(path)
    [run] = reader.runs()
    assert (run.agent, run.session, run.end, run.is_running, run.num_spans) == ("scout", "s", "", True, 1)
    for each in reversed(spans):
        tracer.record(each)
    tracer.close()
    [run] = reader.runs()
    assert (run.end, run.is_running, run.num_spans, run.wall_s) == ("done", False, 7, 0.010)
    assert len(reader.spans(run.trace_id)) == 7
    reader.close()


def test_however_a_run_and_its_beginning_come_in_the_sums_are_the_same(path):
    spans = a_run(agent="scout", turns=2, error="it failed")
    spans[0] = replace(spans[0], attributes={**spans[0].attributes, names.MONEY: 0.5})
    begun = begin(spans[0])
    orders = [
        [[begun], spans],
        [[begun, *spans]],
        [[*spans, begun]],
        [spans, [begun]],
        [[begun], [begun], spans, spans, [begun]],
        [[begun, begun, *spans, *spans, begun]],
    ]
    add_spans(path, spans)
    with TraceStore(path) as reader:
        [right] = reader.runs()
    for number, batches in enumerate(orders):
        other = path.with_name(f"{number}.db")
        num_new = sum(add_spans(other, batch) for batch in batches)
        assert num_new == len(spans)
        with TraceStore(other) as reader:
            assert reader.runs() == [right]
            assert sorted(reader.spans(right.trace_id), key=lambda each: each.span_id) == spans


def test_a_run_within_another_does_not_name_it(path):
    outer, *rest = a_run(agent="outer")
    inner = span(names.RUN, 1, 5, rest[0], agent="inner", end="failed")
    add_spans(path, [begin(outer)])
    add_spans(path, [inner])
    add_spans(path, [outer, *rest])
    with TraceStore(path) as reader:
        [run] = reader.runs()
    assert (run.agent, run.end, run.is_running) == ("outer", "done", False)


def test_tokens_that_were_recomputed_are_in_the_list(path):
    tokens = {"num_prompt": 100, "num_output": 7, "num_recomputed": 30}
    asked = span(names.REQUEST, 0, 5, service="server:m", **tokens)
    reading = span(names.REQUEST, 6, 7, service="server:m", is_prefill_only=True, **tokens)
    lost = span(names.REQUEST, 8, 9, service="server:m", error="abort", **tokens)
    add_spans(path, [asked, reading, lost])
    with TraceStore(path) as reader:
        [run] = reader.runs()
    assert (run.num_recomputed, run.num_prompt, run.num_turns) == (30, 100, 2), "what nobody got is not counted"


def test_only_its_owner_may_read_it(path):
    StoreTracer(path).close()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_what_was_flushed_can_be_read_at_once(path):
    tracer = StoreTracer(path)
    reader = TraceStore(path)
    assert reader.runs() == []
    for each in a_run():
        tracer.record(each)
    assert tracer.flush()
    assert len(reader.runs()) == 1
    tracer.close()
    tracer.close()
    reader.close()


def test_what_was_said_stays_out_unless_it_is_asked_for(path):
    said = span(names.TOOL, 0, 1, tool="look", **{names.CONTENT_RESULT: "the secret is 42"})
    for number, content in enumerate((Content(), Content.parse(True, ["[0-9]+"]))):
        each = replace(said, span_id=f"{number + 1:016x}")
        tracer = StoreTracer(path, content=content)
        assert tracer.keeps_content == content.is_kept
        tracer.record(each)
        tracer.close()
    assert b"secret is 42" not in path.read_bytes()
    with TraceStore(path) as reader:
        told = [each.attributes for each in reader.spans(TRACE)]
    assert told == [{"tool": "look"}, {"tool": "look", names.CONTENT_RESULT: "the secret is [redacted]"}]


def number_of(run: RunSummary) -> int:
    return (run.start_ns - DAWN_NS) // 10**8


def test_runs_are_listed_newest_first_and_page_by_page(path):
    for number in range(7):
        add_spans(path, a_run(number * 100, session="odd" if number % 2 else "even", error="x" if number == 3 else ""))
    with TraceStore(path) as reader:
        first = reader.runs(3)
        second = reader.runs(3, before=first[-1].trace_id)
        last = reader.runs(3, before=second[-1].trace_id)
        assert [number_of(run) for run in (*first, *second, *last)] == [6, 5, 4, 3, 2, 1, 0]
        assert [number_of(run) for run in reader.runs(session="odd")] == [5, 3, 1]
        assert [number_of(run) for run in reader.runs(has_errors=True)] == [3]
        assert len(reader.runs(since_ns=DAWN_NS + 2 * 10**8)) == len([*reader.runs()]) - 2
        assert reader.runs(session="none") == reader.runs(before="none") == []


def test_a_run_is_found_by_how_its_id_begins(path):
    one, two = a_run(0), a_run(100)
    add_spans(path, one + two)
    with TraceStore(path) as reader:
        assert reader.find(one[0].trace_id[:12]) == one[0].trace_id
        assert reader.find("last") == two[0].trace_id
        for wrong in ("zz", "", "%"):
            with pytest.raises(ConfigError, match=r"there is no run|there are several"):
                reader.find(wrong)
        assert reader.run(one[0].trace_id) == reader.runs()[1]
        assert reader.run("nothing") is None
        assert reader.spans("nothing") == []


def test_a_plain_clients_requests_are_turns(path):
    requests = [
        span(names.REQUEST, i, i + 1, service="server:m", session="s", num_prompt=10, num_cached=4, num_output=2)
        for i in range(3)
    ]
    reading = span(names.REQUEST, 9, 10, service="server:m", num_prompt=50, is_prefill_only=True)
    add_spans(path, [*requests, reading])
    with TraceStore(path) as reader:
        [run] = reader.runs()
    assert (run.num_turns, run.num_prompt, run.num_output) == (3, 30, 6)


def test_the_oldest_go_when_it_is_full(path):
    connection = open_to_write(path)
    for number in range(60):
        spans = a_run(1000 + number)
        heavy = [span(names.TOOL, 1000 + number, 1001 + number, spans[0], note="x" * 20_000) for _ in range(2)]
        store.insert(connection, spans + heavy)
    bound(connection, Bounds(max_bytes=1 << 20), DAWN_NS)
    connection.close()
    with TraceStore(path) as reader:
        left = reader.runs(100)
        assert 5 < len(left) < 60
        assert left[0].start_ns == DAWN_NS + 1059 * 10**6, "the newest are kept"
        assert len(reader.spans(left[-1].trace_id)) == 6, "whole"
    assert path.stat().st_size < 2 << 20


def test_the_old_go_after_their_time(path):
    old, young = a_run(-3 * DAY_MS), a_run(-DAY_MS)
    tracer = StoreTracer(path, bounds=Bounds(max_age_days=2.0))
    for each in old + young:
        tracer.record(each)
    tracer.close()
    with TraceStore(path) as reader:
        assert [run.trace_id for run in reader.runs()] == [young[0].trace_id]
        assert reader.spans(old[0].trace_id) == []


def test_a_writer_that_is_kept_out_loses_nothing_and_blocks_nobody(path, caplog):
    tracer = StoreTracer(path)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    tracer._connection.execute("PRAGMA busy_timeout = 10")
    for each in a_run():
        tracer.record(each)
    assert not tracer.flush()
    assert not tracer.flush()
    assert sum("cannot be written" in record.message for record in caplog.records) == 1
    other.execute("COMMIT")
    other.close()
    assert tracer.flush()
    tracer.close()
    with TraceStore(path) as reader:
        assert len(reader.runs()) == 1


def test_what_could_not_be_written_to_the_end_is_counted(path, caplog):
    tracer = StoreTracer(path)
    other = sqlite3.connect(path, isolation_level=None)
    tracer._connection.execute("PRAGMA busy_timeout = 10")
    other.execute("BEGIN IMMEDIATE")
    spans = a_run()
    for each in spans:
        tracer.record(each)
    tracer.close()
    other.close()
    assert tracer.losses.num_dropped == len(spans)
    assert tracer.losses.num_failed > 0
    assert "the trace lost 4 spans" in caplog.text


def test_a_full_queue_drops_the_oldest_and_counts_them(path):
    tracer = StoreTracer(path)
    one = a_run()[0]
    with tracer._lock:  # nothing is written meanwhile, but for what the thread may have taken
        for _ in range(store.MAX_PENDING + 10):
            tracer.record(one)
    assert tracer.losses == Losses(num_dropped=10)
    tracer.close()


@pytest.mark.parametrize("said", ["\ud800", {1, 2}, 2**80, b"\xff", float("nan")])
def test_what_no_json_can_say_is_written_somehow(path, said):
    tracer = StoreTracer(path)
    tracer.record(span(names.TOOL, 0, 1, error="half \ud800", session="\udfff", tool=said))
    tracer.close()
    with TraceStore(path) as reader:
        [one] = reader.spans(TRACE)
    assert "tool" in one.attributes


def test_many_threads_may_record(path):
    tracer = StoreTracer(path)
    runs = [a_run(number, turns=10) for number in range(8)]

    def record(spans: list[Span]) -> None:
        for each in spans:
            tracer.record(each)

    threads = [threading.Thread(target=record, args=(spans,)) for spans in runs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    tracer.close()
    with TraceStore(path) as reader:
        assert {run.num_spans for run in reader.runs()} == {31}
        assert reader.num_runs() == 8


def test_what_is_no_store_is_one_line(tmp_path):
    text = tmp_path / "notes.txt"
    text.write_text("not a database at all, whatever its name may be; " * 50)
    newer = tmp_path / "newer.db"
    connection = sqlite3.connect(newer)
    connection.execute("PRAGMA user_version = 99")
    connection.close()
    for path, words in (
        (text, "not a database"),
        (newer, "not a trace store of this version"),
        (tmp_path, "cannot open"),
    ):
        for opener in (StoreTracer, TraceStore):
            with pytest.raises(ConfigError, match=words) as caught:
                opener(path)
            assert "\n" not in str(caught.value)
    with pytest.raises(ConfigError, match="nothing was recorded there yet"):
        TraceStore(tmp_path / "none.db")
    with pytest.raises(ConfigError, match="cannot open the trace store"):
        StoreTracer(text / "inside.db")


def test_another_programs_database_is_left_alone(tmp_path):
    other = tmp_path / "other.db"
    connection = sqlite3.connect(other)
    connection.execute("CREATE TABLE theirs (x)")
    with pytest.raises(ConfigError, match="a database of another program"):
        StoreTracer(other)
    assert connection.execute("SELECT name FROM sqlite_master").fetchall() == [("theirs",)]
    connection.close()


@pytest.mark.parametrize("max_age_days", [1e6, float("inf")])
def test_runs_may_be_kept_for_ever(path, max_age_days):
    tracer = StoreTracer(path, bounds=Bounds(max_age_days=max_age_days))
    for one in a_run(), a_run(100):
        for each in one:
            tracer.record(each)
        assert tracer.flush()
    tracer.close()
    assert tracer.losses == Losses()


def test_a_span_that_is_none_does_not_end_what_others_record(path, caplog):
    tracer = StoreTracer(path)
    tracer.record(replace(span(names.TOOL, 0, 1), session=None))
    assert tracer.flush()
    tracer.record(span(names.TOOL, 0, 1))
    tracer.close()
    assert tracer.losses == Losses(num_dropped=1)
    assert "1 spans could not be recorded" in caplog.text
    with TraceStore(path) as reader:
        assert len(reader.spans(TRACE)) == 1


def test_numbers_beside_what_no_json_can_say_still_count(path):
    tracer = StoreTracer(path)
    tracer.record(span(names.CHAT, 0, 1, num_prompt=7, model="m", **{names.CONTENT_REQUEST: "half \ud800"}))
    tracer.close()
    with TraceStore(path) as reader:
        [one] = reader.spans(TRACE)
    assert one.attributes == {"num_prompt": 7, "model": "m"}
