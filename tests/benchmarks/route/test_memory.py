"""Memory over requests: the slope of canned samples, and a run over a stub."""

import os

import pytest
from benchmarks.route.memory import Sample, measure_memory, report_memory
from benchmarks.route.processes import cpu_s_of, rss_bytes_of
from benchmarks.route.prompts import agent_requests
from benchmarks.route.stub import Stub

from hotloop.core.errors import RemoteError


def test_the_slope_is_in_bytes_for_a_thousand_requests():
    samples = [Sample(1000 * number, 5_000_000 + 200 * number) for number in range(1, 9)]
    report = report_memory(samples, 4_000_000, 0)
    assert report.slope_bytes == pytest.approx(200)
    assert (report.num_requests, report.first_bytes, report.last_bytes) == (8000, 5_000_300, 5_001_500)
    assert report.to_table().row_count == 4
    assert report.to_json()["slope_bytes"] == 200
    assert len(report.to_json()["samples"]) == 8


async def test_a_sample_is_taken_after_each_part_of_the_requests():
    stub = Stub("stub-1")
    await stub.start()
    sizes = iter([10, 20, 20, 20, 20])
    seen = []
    report = await measure_memory(
        stub.url,
        lambda: next(sizes),
        agent_requests(system_chars=100),
        count=50,
        warm_up=10,
        num_samples=4,
        on_sample=lambda: seen.append(stub.counts().paths["/v1/chat/completions"]),
    )
    await stub.close()
    assert seen == [22, 35, 47, 60]
    assert (report.num_requests, report.num_failed, report.before_bytes, report.slope_bytes) == (50, 0, 10, 0)


def test_a_process_is_looked_up_by_its_id():
    assert rss_bytes_of(os.getpid()) > 1_000_000
    assert cpu_s_of(os.getpid()) > 0
    with pytest.raises(RemoteError, match="does not tell"):
        rss_bytes_of(2**22 + 1)
