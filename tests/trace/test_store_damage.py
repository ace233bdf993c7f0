"""A store that is damaged stops nobody."""

import random
import re
import sqlite3
import time
from contextlib import suppress

import pytest
from tests.trace.test_store import a_run

from hotloop.core.errors import ConfigError
from hotloop.trace import store
from hotloop.trace.runs import TraceStore
from hotloop.trace.store import StoreTracer, add_spans


@pytest.fixture
def path(tmp_path):
    return tmp_path / "folder" / "trace.db"


def spoil(path, begin, end):
    data = bytearray(path.read_bytes())
    end = min(end, len(data))
    data[begin:end] = random.Random(begin).randbytes(end - begin)
    path.write_bytes(data)


SPOILT = {
    "the head": lambda path: spoil(path, 0, 100),
    "the tables": lambda path: spoil(path, 100, 4096),
    "all but the head": lambda path: spoil(path, 4096, 1 << 30),
    "cut": lambda path: path.write_bytes(path.read_bytes()[:5000]),
    "another file": lambda path: path.write_bytes(b"hello" * 1000),
}


@pytest.mark.parametrize("name", SPOILT)
def test_a_damaged_store_is_set_aside_and_a_new_one_begun(path, name, caplog, monkeypatch):
    monkeypatch.setattr(store, "_RETRY_S", 0.01)
    add_spans(path, [each for number in range(50) for each in a_run(number, turns=5)])
    SPOILT[name](path)
    spoilt, early = path.read_bytes(), []
    tracer, spans = StoreTracer(path), a_run(turns=2)
    with suppress(ConfigError):  # it may be damaged where nobody has looked yet
        early.append(TraceStore(path))
    for each in spans:
        tracer.record(each)
    deadline = time.monotonic() + 20
    while not tracer.flush() and time.monotonic() < deadline:
        pass
    tracer.close()
    assert tracer.losses.num_dropped == 0
    for reader in (*early, TraceStore(path)):
        assert [run.trace_id for run in reader.runs()] == [spans[0].trace_id]
        reader.close()
    [aside] = [each for each in path.parent.iterdir() if re.search(r"[.]damaged-[0-9-]+$", each.name)]
    assert aside.read_bytes()[4096:5000] == spoilt[4096:5000]
    assert f"it was renamed to {aside}, and a new one is created" in caplog.text


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE spans SET attributes = '{'",
        "UPDATE spans SET attributes = 7",
        "UPDATE spans SET start_ns = 'soon'",
        "UPDATE spans SET name = CAST(x'ff' AS TEXT)",
        "UPDATE runs SET model = CAST(x'ff' AS TEXT)",
        "UPDATE runs SET num_open = 'none'",
        "ALTER TABLE runs RENAME COLUMN num_turns TO num_tunrs",
    ],
)
def test_rows_that_are_damaged_are_one_line(path, damage):
    run = a_run()
    add_spans(path, run)
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute(damage)
    connection.close()
    with TraceStore(path) as reader, pytest.raises(ConfigError, match=r"trace store .* is damaged|cannot read"):
        [reader.runs(), reader.run(run[0].trace_id), reader.spans(run[0].trace_id)]
