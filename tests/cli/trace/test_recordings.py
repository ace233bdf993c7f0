"""Runs of an agent, exported for the commands that read recordings: each of them reads what was written."""

import io
import json
import sys
from pathlib import Path

import pytest

from hotloop.bench.workload import read_jobs
from hotloop.cli.main import run
from hotloop.lint.requests import read_requests
from hotloop.router.simulation.trace import read_trace

CLERK = """
from hotloop import Agent, ScriptedCall, ScriptedModel, tool

@tool(read_only=True)
def order(id: int) -> str:
    return f"order {id}: 3 lamps, to be sent on Monday. " * 20

helper = Agent(ScriptedModel(["It is a lamp."]), instructions="You know lamps.")
script = [ScriptedCall("order", id=7), [ScriptedCall("order", id=8), ScriptedCall("ask", prompt="What?")], "Both are lamps."]
agent = Agent(ScriptedModel(script), [order, helper.as_tool("ask", "Knows.")], "You are the shop's clerk. " * 20)
"""  # noqa: E501


@pytest.fixture
def recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the trace of a run."""
    (tmp_path / "clerk.py").write_text(CLERK)
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    flags = ["--trace", str(tmp_path / "trace.db"), "--trace-content"]
    assert run(["run", str(tmp_path / "clerk.py"), "--agent", "agent", "Where are orders 7 and 8?", *flags]) == 0
    return tmp_path


def export(folder: Path, wanted: str) -> Path:
    path = folder / f"{wanted}.jsonl"
    command = ["trace", "export", "last", "--format", wanted, "--output", str(path)]
    assert run([*command, "--trace", str(folder / "trace.db")]) == 0
    return path


def test_a_transcript_is_what_lint_and_bench_replay_read(recorded: Path, capsys: pytest.CaptureFixture[str]):
    path = export(recorded, "transcript")
    [whole, inner] = [json.loads(line) for line in path.read_text().splitlines()]
    assert [message["role"] for message in whole["messages"]] == [
        "user", "assistant", "tool", "assistant", "tool", "tool", "assistant",
    ]  # fmt: skip
    assert whole["messages"][-1]["content"] == "Both are lamps."
    assert whole["system"].startswith("You are the shop's clerk.")
    assert [tool["function"]["name"] for tool in whole["tools"]] == ["ask", "order"]
    assert inner["system"] == "You know lamps."
    jobs = read_jobs(path, max_jobs=9, max_turns=9, max_output=50, max_chars=100_000)
    assert [len(job.turns) for job in jobs] == [3, 1]
    assert len([*read_requests(path)]) == 4
    capsys.readouterr()
    assert run(["lint", str(path), "--format", "json", "--fail-on", "never"]) == 0
    assert json.loads(capsys.readouterr().out)


def test_traffic_is_what_simulate_reads(recorded: Path, capsys: pytest.CaptureFixture[str]):
    path = export(recorded, "traffic")
    trace = read_trace(path)
    assert [len(session) for session in trace.sessions] == [3, 1]
    first, second, third = trace.sessions[0]
    assert first.num_tokens < second.num_tokens < third.num_tokens
    assert (first.known_tokens, first.is_tool_call, third.is_tool_call) == (0, True, False)
    assert second.known_tokens >= first.num_tokens - trace.block_tokens, "a prompt begins as the one before it did"
    assert "lamp" not in path.read_text()
    capsys.readouterr()
    assert run(["simulate", str(path), "--replicas", "2", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)


def test_a_run_without_what_was_said_has_no_transcript(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    (tmp_path / "clerk.py").write_text(CLERK)
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    flags = ["--trace", str(tmp_path / "trace.db")]
    assert run(["run", str(tmp_path / "clerk.py"), "--agent", "agent", "Where?", *flags]) == 0
    assert run(["trace", "export", "last", "--format", "transcript", *flags]) == 2
    assert "HOTLOOP_TRACE_CONTENT=1" in capsys.readouterr().err
    assert run(["trace", "export", "last", "--format", "traffic", *flags]) == 0
