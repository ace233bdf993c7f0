"""A real fleet, small, and what is counted of it."""

from pathlib import Path

import pytest
from benchmarks.route.fleet import (
    FleetSide,
    ReplicaCount,
    count_replica,
    fleet_json,
    fleet_table,
    run_side,
    size_room,
)
from tests.models.tiny import write_smallest

from hotloop.bench.replay import Replay, ReplayedTurn
from hotloop.bench.report import summarise
from hotloop.bench.workload import generate_jobs
from hotloop.core.config import parse_bytes
from hotloop.core.request import Usage

JOBS = generate_jobs(num_jobs=3, num_turns=2, num_output=4, system_chars=400)


def test_a_replica_is_counted_by_its_metrics():
    page = """# HELP hotloop_requests_total Requests that ended.
hotloop_requests_total{endpoint="chat",finish_reason="length"} 3.0
hotloop_requests_total{endpoint="chat",finish_reason="stop"} 2.0
hotloop_prompt_tokens_total 1000.0
hotloop_cached_prompt_tokens_total 700.0
hotloop_output_tokens_total 50.0
"""
    assert count_replica(page) == ReplicaCount(num_requests=5, num_computed=350)


def side(policy: str, job_s: float, *counts: ReplicaCount) -> FleetSide:
    steps = [ReplayedTurn(JOBS[0].id, number, 0.1, 0.2, Usage(100, 50, 4)) for number in range(2)]
    return FleetSide(summarise(policy, Replay(steps, [job_s], [], job_s), JOBS), counts, ())


def test_sides_are_compared_and_the_busiest_is_named():
    slow = side("round_robin", 6.0, ReplicaCount(2, 10), ReplicaCount(2, 10))
    fast = side("prefix", 3.0, ReplicaCount(3, 10), ReplicaCount(1, 30))
    values = fleet_json([slow, fast])
    assert [run["label"] for run in values["runs"]] == ["round_robin", "prefix"]
    assert [(run["imbalance"], run["computed_imbalance"]) for run in values["runs"]] == [(1, 1), (1.5, 1.5)]
    assert values["times_better"]["job_mean_s"] == 2
    assert fleet_table([slow, fast]).row_count > 5


@pytest.mark.long
def test_a_side_runs_all_jobs_and_its_replicas_have_done_them(tmp_path: Path, home_for_processes: Path):
    model = ("--model", str(write_smallest(tmp_path / "m")))
    room = size_room(JOBS, 3, model)
    assert 0 < parse_bytes(room) < 32 << 20
    flags = (*model, "--kv-memory", room)
    result = run_side("round_robin", JOBS, num_replicas=2, num_agents=3, gap_s=0.0, flags=flags)
    assert result.errors == ()
    assert result.summary.num_steps == sum(replica.num_requests for replica in result.replicas) == 6
