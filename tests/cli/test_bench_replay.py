"""`hotloop bench replay`, as a program would call it."""

import json
from pathlib import Path

import pytest
from tests.bench.fake_server import FakeServer

from hotloop.cli.main import run

SMALL = ("--agents", "2", "--jobs", "2", "--turns", "2", "--max-out", "4", "--gap", "0")


def test_one_server(capsys: pytest.CaptureFixture[str]):
    with FakeServer() as server:
        assert run(["bench", "replay", "--url", server.url, *SMALL, "--json"]) == 0
    (summary,) = json.loads(capsys.readouterr().out)["runs"]
    assert (summary["num_jobs"], summary["num_steps"], summary["num_output_tokens"]) == (2, 4, 16)
    assert summary["label"] == server.url


def test_two_servers_in_turn(capsys: pytest.CaptureFixture[str]):
    with FakeServer(caches=False) as first, FakeServer() as second:
        argv = ["bench", "replay", "--url", first.url, "--compare", second.url, "--rounds", "2", *SMALL]
        assert run([*argv, "--json"]) == 0
        values = json.loads(capsys.readouterr().out)
        assert run(argv) == 0
        table = capsys.readouterr().out
    assert [run["num_steps"] for run in values["runs"]] == [8, 8]
    assert values["times_better"]["num_prefilled_tokens"] > 2
    assert len(first.bodies) == len(second.bodies) == 16
    assert "times better" in table


def test_recorded_transcripts(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    messages = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hello to you."}]
    (tmp_path / "runs.jsonl").write_text(
        json.dumps({"id": "a", "system": "Be kind.", "tools": [], "messages": messages})
    )
    with FakeServer() as server:
        assert (
            run(["bench", "replay", "--url", server.url, "--data", str(tmp_path / "runs.jsonl"), "--model", "m"]) == 0
        )
    assert server.bodies[0]["model"] == "m"
    assert server.bodies[0]["messages"][0]["content"].startswith("Be kind.")


def test_errors_are_counted_and_a_run_without_any_answer_fails(capsys: pytest.CaptureFixture[str]):
    with FakeServer(failing=frozenset({0})) as server:
        assert run(["bench", "replay", "--url", server.url, *SMALL, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["runs"][0]["num_errors"] == 1
    with FakeServer(failing=frozenset(range(4))) as server:
        assert run(["bench", "replay", "--url", server.url, *SMALL]) == 1
    assert "answered 503: out of order" in capsys.readouterr().err
