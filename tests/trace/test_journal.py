"""The journals in a store: whose a run is, what is committed, and what becomes of it."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from hotloop.core.errors import ConfigError
from hotloop.trace.journal import Entry, JournalRow, RunTaken
from hotloop.trace.runs import TraceStore
from hotloop.trace.span import new_span_id, new_trace_id
from hotloop.trace.store import Bounds, StoreTracer, bound
from hotloop.trace.tables import open_to_write

ROOT = Path(__file__).parents[2]
OWNER = """
import sys, time
from tests.trace.test_journal import row
from hotloop.trace.journal import Entry
from hotloop.trace.store import StoreTracer
tracer = StoreTracer(sys.argv[1])
tracer.journal.begin(row("run-1"), Entry("began", b"1")).result()
print("begun", flush=True)
time.sleep(600)
"""


def row(run_id: str, **fields: str) -> JournalRow:
    return JournalRow(
        **{"run_id": run_id, "root_id": run_id, "trace_id": new_trace_id(), "span_id": new_span_id()} | fields
    )


@pytest.fixture
def tracer(tmp_path: Path) -> Iterator[StoreTracer]:
    tracer = StoreTracer(tmp_path / "trace.db")
    yield tracer
    tracer.close()


def begin(tracer: StoreTracer, run_id: str = "run-1", **fields: str) -> None:
    tracer.journal.begin(row(run_id, **fields), Entry("began", b"1")).result()


def test_entries_are_kept_in_their_order(tracer: StoreTracer):
    begin(tracer)
    for number in range(20):
        tracer.journal.write(
            "run-1", Entry("called", str(number).encode(), f"call_{number}"), is_synced=number % 2 == 0
        )
    found, entries = tracer.journal.read("run-1").result()
    assert found.state == "running"
    assert [entry.body for entry in entries] == [b"1", *(str(number).encode() for number in range(20))]
    assert entries[3].call_id == "call_2"


def test_a_run_is_one_process_s_until_that_is_killed(tmp_path: Path):
    path = tmp_path / "trace.db"
    command = [sys.executable, "-c", OWNER, str(path)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        assert process.stdout.readline() == "begun\n"
        tracers = [StoreTracer(path) for _ in range(2)]
        for tracer in tracers:
            with pytest.raises(RunTaken, match="another process"):
                tracer.journal.take("run-1").result()
        os.kill(process.pid, signal.SIGKILL)
    [listed] = tracers[0].journal.list(5).result()
    assert (listed.state, listed.owner) == ("interrupted", "")
    assert tracers[0].journal.take("run-1").result().run_id == "run-1"
    with pytest.raises(RunTaken):
        tracers[1].journal.take("run-1").result()
    for tracer in tracers:
        tracer.close()
    assert not list((tmp_path / "trace.db-owners").iterdir()), "nothing is left of those that lived"


def test_who_lost_a_run_writes_no_more_to_it(tracer: StoreTracer, tmp_path: Path):
    begin(tracer)
    tracer.journal.end("run-1", Entry("ended", b"2"), "failed", keeps_entries=True).result()
    other = StoreTracer(tmp_path / "trace.db")
    other.journal.take("run-1").result()
    with pytest.raises(RunTaken, match="now belongs to another process"):
        tracer.journal.write("run-1", Entry("called", b"3")).result()
    other.close()
    assert len(tracer.journal.read("run-1").result()[1]) == 2


def test_what_is_said_goes_with_the_root(tracer: StoreTracer):
    begin(tracer)
    begin(tracer, "run-2", root_id="run-1", caller_id="run-1", call_id="call_1")
    tracer.journal.end("run-2", Entry("ended", b"2"), "done", keeps_entries=False).result()
    assert len(tracer.journal.read("run-2").result()[1]) == 2, "its caller may need it again"
    assert tracer.journal.find("run-1", "call_1").result() == "run-2"
    assert tracer.journal.find("run-1", "call_2").result() == ""
    tracer.journal.end("run-1", Entry("ended", b"2"), "done", keeps_entries=False).result()
    assert [tracer.journal.read(each).result()[1] for each in ("run-1", "run-2")] == [[], []]
    assert [each.run_id for each in tracer.journal.list(5).result()] == ["run-1"]


def test_a_decision_finds_the_run_that_waits(tracer: StoreTracer):
    begin(tracer)
    for run_id in ("run-2", "run-3"):
        begin(tracer, run_id, root_id="run-1", caller_id="run-1", call_id=run_id)
        tracer.journal.write(run_id, Entry("waits", b"2", "call_1"))
    with pytest.raises(ConfigError, match="several runs"):
        tracer.journal.decide("run-1", Entry("decided", b"3", "call_1"), waits="waits").result()
    with pytest.raises(RunTaken):
        tracer.journal.decide("run-2", Entry("decided", b"3", "call_1"), waits="waits").result()
    tracer.journal.end("run-2", Entry("ended", b"4"), "waiting", keeps_entries=True).result()
    tracer.journal.decide("run-2", Entry("decided", b"3", "call_1"), waits="waits").result()
    assert [entry.kind for entry in tracer.journal.read("run-2").result()[1]] == ["began", "waits", "ended", "decided"]


def test_a_name_that_begins_two(tracer: StoreTracer):
    begin(tracer, "run-11")
    begin(tracer, "run-12")
    with pytest.raises(ConfigError, match="several runs"):
        tracer.journal.read("run-1").result()
    assert tracer.journal.read("run-12").result()[0].run_id == "run-12"
    for name in ("", "nothing"):
        with pytest.raises(ConfigError, match="there is no run"):
            tracer.journal.read(name).result()


def test_runs_that_can_be_gone_on_with_are_deleted_last(tmp_path: Path):
    path = tmp_path / "trace.db"
    tracer = StoreTracer(path)
    for run_id, state in (("run-1", "waiting"), ("run-2", "done"), ("run-3", "failed")):
        begin(tracer, run_id)
        tracer.journal.write(run_id, Entry("called", b"x" * 50_000))
        tracer.journal.end(run_id, Entry("ended", b"2"), state, keeps_entries=True).result()  # type: ignore[arg-type]
    tracer.close()
    connection = open_to_write(path)
    sums = ", ".join(["0"] * 18)
    connection.execute(
        f"INSERT INTO runs SELECT trace_id, began_ns, began_ns, '', '', '', '', '', '', {sums} FROM journals"
    )
    bound(connection, Bounds(max_bytes=150_000), 10)
    assert [found[0] for found in connection.execute("SELECT run_id FROM journals")] == ["run-1"]
    assert connection.execute("SELECT count(*) FROM entries").fetchone() == (3,)
    bound(connection, Bounds(max_age_days=1), 2**62)
    assert connection.execute("SELECT count(*) FROM entries").fetchone() == (0,)
    connection.close()


def test_what_cannot_be_written_is_told(tracer: StoreTracer):
    begin(tracer)
    tracer.close()
    with pytest.raises(ConfigError, match="is closed"):
        tracer.journal.write("run-1", Entry("called", b"1")).result()


def test_entries_of_a_kind_are_found_among_many_others(tracer: StoreTracer):
    """A run looks for those of other processes twice a second, in the thread that writes its own."""
    begin(tracer)
    for number in range(1000):
        tracer.journal.write("run-1", Entry("called", b"{}", f"call-{number}"))
    tracer.journal.tell("run-1", Entry("told", b"1"))
    steps: list[int] = []
    tracer.submit(lambda connection: connection.set_progress_handler(lambda: steps.append(1) or 0, 1)).result()
    _, entries = tracer.journal.read("run-1", "told").result()
    assert [entry.body for entry in entries] == [b"1"]
    assert len(steps) < 500, "it does not look at each"


@pytest.mark.parametrize("version", [4, 5, 6])
def test_a_store_of_an_earlier_version_is_given_what_it_lacks(tmp_path: Path, version: int):
    path = tmp_path / "trace.db"
    StoreTracer(path).close()
    connection = open_to_write(path)
    for table in ("journals", "entries") if version == 4 else ():
        connection.execute(f"DROP TABLE {table}")
    if version > 4:
        connection.execute("DROP INDEX entries_by_kind")
    if version < 6:
        connection.execute("ALTER TABLE runs DROP COLUMN tags")
    connection.execute(f"PRAGMA user_version = {version}")
    connection.close()
    with TraceStore(path) as store:  # a reader has it done, too
        assert store.runs() == []
    tracer = StoreTracer(path)
    begin(tracer)
    assert [each.run_id for each in tracer.journal.list(5).result()] == ["run-1"]
    assert tracer.journal.read("run-1", "told").result()[1] == []
    tracer.close()


def test_work_that_is_not_wanted_any_more_stops_nothing(tracer: StoreTracer):
    """Whoever waits for it may be cancelled at any moment, and the future with it."""
    held, go_on = threading.Event(), threading.Event()

    def hold(connection: object) -> None:
        held.set()
        assert go_on.wait(60)

    first = tracer.submit(hold)
    assert held.wait(60)
    unwanted = tracer.submit(lambda connection: 1)
    assert unwanted.cancel()
    assert not first.cancel()
    go_on.set()
    first.result(60)
    assert tracer.submit(lambda connection: 2).result(60) == 2
