"""`python -m benchmarks.agent`, as far as no server is needed."""

import json

import pytest
from benchmarks.agent.__main__ import agent
from benchmarks.command import run
from tests.benchmarks.agent.test_recorded import ROW


@pytest.mark.parametrize(
    ("argv", "complaint"),
    [
        (["--pattern", "magic"], "there is no pattern 'magic'"),
        (["--pattern", "fleet"], "fleet needs --data"),
        (["--pattern", ""], "there is no pattern ''"),
    ],
)
def test_what_cannot_be_measured(argv: list[str], complaint: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(agent, argv) == 2
    assert complaint in capsys.readouterr().err


def test_speculation(tmp_path: object, capsys: pytest.CaptureFixture[str]) -> None:
    path = f"{tmp_path}/runs.jsonl"
    with open(path, "w", encoding="utf-8") as file:
        file.write("\n".join([json.dumps(ROW)] * 6))
    assert run(agent, ["--pattern", "speculation", "--data", path, "--learn", "3", "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert 0 <= figures["speculation"]["precision"] <= 1
    assert figures["fleet"] == []
