"""The soak's load wears the engine as it should, and the engine survives it."""

import io
import json
import subprocess
import sys

from benchmarks.soak import run_soak
from rich.console import Console


def test_a_short_soak_finishes_aborts_evicts_and_leaks_nothing():
    report = run_soak(1.0, num_warming_blocks=1)
    assert report.num_finished > 0
    assert report.num_aborted > 0
    assert (report.num_failed, report.num_leaked_blocks) == (0, 0)
    assert report.first.rss_bytes > 0
    assert json.loads(json.dumps(report.to_json()))["num_steps"] == report.num_steps
    console = Console(file=io.StringIO(), width=200)
    with console.capture() as capture:
        console.print(report.to_table())
    assert "0 leaked" in capture.get()


def test_memory_is_what_a_process_has():
    """One of its own: what a worker of these tests frees meanwhile would count as well."""
    program = """
from benchmarks.soak import rss_bytes
before = rss_bytes()
ballast = bytearray(b"x") * 400_000_000
print(rss_bytes() - before)
"""
    grown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert int(grown.stdout) > 350_000_000
