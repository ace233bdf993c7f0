import io

import pytest
from benchmarks.agent.fleet import FleetRun, ablation
from benchmarks.agent.report import PatternRow, report_json, report_tables
from benchmarks.agent.tools import run_tools
from rich.console import Console

from hotloop.wire.usage import ApiUsage

ROWS = [PatternRow("parallel tools", "three tools", 6.0, 2.0)]
FLEET = [
    FleetRun("everything", 10.0, [1.0, 2.0, 9.0], [1.0, 1.0, 1.0], ApiUsage(num_prompt=100, num_cached=90)),
    FleetRun("naive loop", 60.0, [20.0, 40.0, 60.0], [20.0, 20.0, 20.0], ApiUsage(num_prompt=100), ["job-1: gone"]),
]


def test_figures() -> None:
    figures = report_json(ROWS, {"precision": 0.9}, FLEET)
    assert figures["patterns"][0]["ratio"] == 3
    assert [run["relative"] for run in figures["fleet"]] == [1, pytest.approx(1 / 6, abs=0.001)]
    assert [run["p95_s"] for run in figures["fleet"]] == [9.0, 60.0]
    assert figures["fleet"][1]["failures"] == ["job-1: gone"]
    assert (figures["foresight"], FleetRun("nobody").p95_s) == ({"precision": 0.9}, 0.0)


def test_tables() -> None:
    page = io.StringIO()
    Console(file=page, width=200).print(report_tables(ROWS, {"precision": 0.9}, FLEET))
    for words in ("parallel tools", "3.00x", "precision", "naive loop", "90%"):
        assert words in page.getvalue()


def test_one_thing_is_off_at_a_time() -> None:
    whole, *others, naive = ablation(8)
    assert len({row.label for row in (whole, *others, naive)}) == len(others) + 2
    for row in others:
        differing = [name for name in row.__dataclass_fields__ if getattr(row, name) != getattr(whole, name)]
        assert len([name for name in differing if name != "label"]) == 1
    assert naive.num_agents == 1


async def test_tools_together_begin_while_the_model_writes() -> None:
    run = await run_tools(num_tools=3, tool_s=0.01, pace_s=0.0, is_parallel=True)
    assert run.first_began_s > 0
    assert run.wall_s > 0
