"""`hotloop bench tools` as a program would call it."""

import json
from pathlib import Path

import pytest
from tests.bench.fake_tools import FakeToolServer
from tests.bench.test_bfcl import row, write

from hotloop.cli.main import run


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(tmp_path / "simple_python.jsonl.gz", [row(i) for i in range(3)])
    write(tmp_path / "parallel.jsonl.gz", [row(i) for i in range(3)])
    return tmp_path


def test_questions_of_a_folder(folder: Path, capsys: pytest.CaptureFixture[str]):
    with FakeToolServer(lambda _: [("area.of", '{"base": 3}')]) as server:
        argv = ["bench", "tools", "--url", server.url, "--data", str(folder), "--category", "simple, parallel"]
        assert run([*argv, "--questions", "2", "--json"]) == 0
        simple, parallel, total = json.loads(capsys.readouterr().out)["categories"]
        assert run(argv) == 0
        table = capsys.readouterr().out
    assert (simple["label"], parallel["label"], total["label"]) == ("simple", "parallel", "total")
    assert (simple["num_questions"], simple["num_right"], simple["num_valid"], simple["num_calls"]) == (2, 2, 4, 4)
    assert (total["num_questions"], total["num_identical"], total["forced_share"]) == (4, 4, 0.5)
    assert "times faster" in table
    assert [body["parallel_tool_calls"] for body in server.bodies[:8]] == 6 * [False] + 2 * [True]


def test_repeated_workflows_are_learnt_first_and_measured_with_new_values(capsys: pytest.CaptureFixture[str]):
    with FakeToolServer() as server:
        argv = ["bench", "tools", "--url", server.url, "--repeat-workload", "--questions", "1", "--json"]
        assert run(argv) == 0
    (figures,) = json.loads(capsys.readouterr().out)["categories"]
    assert (figures["label"], figures["num_questions"]) == ("workflows", 4)
    assert [body["shortcuts"] for body in server.bodies] == 4 * [True] + 4 * [False] + 4 * [True] + 4 * [False]
    lesson, measured = server.bodies[0], server.bodies[8]
    assert lesson["tools"] == measured["tools"]
    assert lesson["messages"][1] != measured["messages"][1]


def test_errors_are_told_beside_the_figures(folder: Path, capsys: pytest.CaptureFixture[str]):
    with FakeToolServer(failing=frozenset({4})) as server:
        argv = ["bench", "tools", "--url", server.url, "--data", str(folder), "--category", "simple", "--json"]
        assert run(argv) == 0
    told = capsys.readouterr()
    assert json.loads(told.out)["categories"][0]["num_errors"] == 1
    assert told.err.startswith("hotloop: q1: ")


@pytest.mark.parametrize(
    ("argv", "complaint"),
    [
        (["--category", "simple,nonsense"], "there is no category 'nonsense'"),
        (["--data", "nowhere"], "cannot read nowhere"),
        (["--delivery", "slow"], "delivery"),
    ],
)
def test_bad_flags_are_one_clear_line(argv: list[str], complaint: str, capsys: pytest.CaptureFixture[str]):
    assert run(["bench", "tools", "--url", "http://127.0.0.1:1", *argv]) == 2
    error = capsys.readouterr().err
    assert complaint in error
    assert error.count("\n") == 1
