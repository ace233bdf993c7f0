from benchmarks.agent.fleet import FleetRun


def test_figures() -> None:
    run = FleetRun("everything", 10.0, [1.0, 2.0, 9.0], [1.0, 1.0, 1.0])
    assert (run.jobs_per_min, run.p95_s, run.mean_run_s) == (18.0, 9.0, 1.0)
    nobody = FleetRun("nobody")
    assert (nobody.jobs_per_min, nobody.p95_s, nobody.mean_run_s) == (0.0, 0.0, 0.0)
