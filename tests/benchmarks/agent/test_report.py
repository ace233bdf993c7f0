import io

import pytest
from benchmarks.agent.__main__ import report_json, report_tables
from benchmarks.agent.fleet import FleetRun, ablation
from rich.console import Console

from hotloop.wire.usage import ApiUsage

FLEET = [
    FleetRun("everything", 10.0, [1.0, 2.0, 9.0], [1.0, 1.0, 1.0], ApiUsage(num_prompt=100, num_cached=90)),
    FleetRun("naive loop", 60.0, [20.0, 40.0, 60.0], [20.0, 20.0, 20.0], ApiUsage(num_prompt=100), ["job-1: gone"]),
]


def test_figures() -> None:
    figures = report_json({"precision": 0.9}, FLEET)
    assert [run["relative"] for run in figures["fleet"]] == [1, pytest.approx(1 / 6, abs=0.001)]
    assert [run["p95_s"] for run in figures["fleet"]] == [9.0, 60.0]
    assert figures["fleet"][1]["failures"] == ["job-1: gone"]
    assert (figures["speculation"], FleetRun("nobody").p95_s) == ({"precision": 0.9}, 0.0)


def test_tables() -> None:
    page = io.StringIO()
    Console(file=page, width=200).print(report_tables({"precision": 0.9}, FLEET))
    for words in ("precision", "naive loop", "90%"):
        assert words in page.getvalue()


def test_one_thing_is_off_at_a_time() -> None:
    whole, *others, naive = ablation(8)
    assert len({row.label for row in (whole, *others, naive)}) == len(others) + 2
    for row in others:
        differing = [name for name in row.__dataclass_fields__ if getattr(row, name) != getattr(whole, name)]
        assert len([name for name in differing if name != "label"]) == 1
    assert naive.num_agents == 1
