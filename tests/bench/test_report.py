"""Figures and how they are shown."""

import io
import json

import pytest
from rich.console import Console

from hotloop.bench.replay import Replay, ReplayedTurn
from hotloop.bench.report import json_of, percentile, ratios, summarise, table_of
from hotloop.bench.workload import AgentJob, WorkloadTurn
from hotloop.core.request import Usage

SYSTEM = {"role": "system", "content": "s" * 80}
USER = {"role": "user", "content": "u" * 20}
JOBS = [AgentJob(name, (WorkloadTurn((SYSTEM, USER), 8), WorkloadTurn((SYSTEM, USER, USER), 8))) for name in ("a", "b")]


def make_run(slow: float, *, num_cached: int = 0) -> Replay:
    steps = [
        ReplayedTurn(job.id, turn, 0.1 * slow, 1.0 * slow, Usage(100 + 50 * turn, num_cached, 8))
        for job in JOBS
        for turn in (0, 1)
    ]
    return Replay(steps=steps, job_times_s=[2.0 * slow, 2.0 * slow], wall_s=4.0 * slow)


@pytest.mark.parametrize(
    ("values", "share", "expected"),
    [([], 0.5, 0.0), ([3.0], 0.95, 3.0), ([1.0, 2.0], 0.5, 1.5), ([float(i) for i in range(101)], 0.95, 95.0)],
)
def test_percentile(values: list[float], share: float, expected: float):
    assert percentile(values, share) == expected


def test_new_tokens_are_counted_once_and_the_rest_is_recomputed():
    # New: 100 and 50 of a, then 20 (the user's share of 100) and 50 of b.
    summary = summarise("x", make_run(1.0), JOBS)
    assert summary.num_prefilled_tokens == 500
    assert summary.num_recomputed_tokens == 500 - 100 - 50 - 20 - 50


def test_a_second_round_prefills_nothing_new():
    run = make_run(1.0)
    run.merge(make_run(1.0))
    summary = summarise("x", run, JOBS)
    assert (summary.num_steps, summary.num_jobs, summary.wall_s) == (8, 4, 8.0)
    assert summary.num_recomputed_tokens == 1000 - 100 - 50 - 20 - 50


def test_ratios_say_how_many_times_better_the_second_is():
    times = ratios(summarise("slow", make_run(2.0), JOBS), summarise("fast", make_run(1.0, num_cached=50), JOBS))
    assert times["ttft_p50_s"] == times["job_mean_s"] == times["output_tokens_per_s"] == 2.0
    assert times["num_prefilled_tokens"] == round(500 / 300, 2)
    assert "num_recomputed_tokens" not in times


def test_an_empty_run_has_figures_too():
    summary = summarise("x", Replay(errors=["no"]), JOBS)
    assert (summary.num_errors, summary.ttft_p95_s, summary.cached_share) == (1, 0.0, 0.0)
    assert set(ratios(summary, summary).values()) == {None}


def test_tables_and_json_have_the_same_figures():
    summaries = [summarise("slow", make_run(2.0), JOBS), summarise("fast", make_run(1.0), JOBS)]
    console = Console(width=100, file=io.StringIO())
    with console.capture() as capture:
        console.print(table_of(summaries))
    text = capture.get()
    assert "slow" in text
    assert "2.00x" in text
    values = json.loads(json.dumps(json_of(summaries)))
    assert [run["label"] for run in values["runs"]] == ["slow", "fast"]
    assert values["times_better"]["job_mean_s"] == 2.0
    assert "times_better" not in json_of(summaries[:1])
