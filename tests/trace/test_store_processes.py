"""Processes that write at once, and processes that are killed while they write."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from hotloop.trace.runs import TraceStore
from hotloop.trace.store import StoreTracer

ROOT = Path(__file__).parents[2]


def start(path: Path, count: int) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "tests.trace.writer", str(path), str(count)]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)


def read_until(process: "subprocess.Popen[str]", number: int) -> None:
    """Until it has said that as many rows are safe."""
    assert process.stdout
    for line in process.stdout:
        if int(line) >= number:
            return


@pytest.mark.sampled(3)
@pytest.mark.parametrize("kill_after", [20, 400, 1000])
def test_a_killed_writer_loses_nothing_it_had_committed(tmp_path, kill_after):
    path = tmp_path / "trace.db"
    with start(path, 1_000_000) as process:
        assert process.stdout
        trace_id = process.stdout.readline().strip()
        read_until(process, kill_after)
        os.kill(process.pid, signal.SIGKILL)
        said = [int(line) for line in process.stdout.read().splitlines() if line.strip()]
    num_safe = max([kill_after, *said])
    with TraceStore(path) as store:
        written = {int(span.attributes["call_id"]) for span in store.spans(trace_id)}
        assert written >= set(range(1, num_safe + 1)), "every row whose commit was told"
        [run] = store.runs()
        assert run.num_spans == len(written), "what is summed up is what is there"
    tracer = StoreTracer(path)  # and it can be written again
    assert tracer.flush()
    tracer.close()


def test_several_processes_write_at_once(tmp_path):
    path = tmp_path / "trace.db"
    processes = [start(path, 400) for _ in range(4)]
    for process in processes:
        assert process.stdout
        *_, last = process.stdout.read().splitlines()
        assert int(last) == 400
        process.stdout.close()
        assert process.wait() == 0
    with TraceStore(path) as store:
        assert [run.num_spans for run in store.runs()] == [400] * 4
