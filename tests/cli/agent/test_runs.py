"""`hotloop runs`, and `hotloop run --resume`: a run that waits for an approval, decided on and gone on with."""

import io
import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from hotloop.cli.main import run

CLERK = """
from hotloop import Agent, Approval, ScriptedCall, ScriptedModel, tool

@tool(needs_approval=True)
def send(to: str) -> str:
    with open({effects!r}, "a") as file:
        file.write(to + "\\n")
    return "sent"

script = [[ScriptedCall("send", to="Ann"), ScriptedCall("send", to="Bob")], "All is sent."]
agent = Agent(ScriptedModel(script), [send], approve=lambda call: Approval.later())
"""


Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def hotloop(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Command:
    """A command in this process, with a trace of its own and nobody at a terminal."""

    def ran(*argv: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "stdin", io.StringIO())
        return run([*argv, "--trace", str(tmp_path / "trace.db")]), *capsys.readouterr()

    return ran


@pytest.fixture
def clerk(tmp_path: Path) -> str:
    path = tmp_path / "clerk.py"
    path.write_text(CLERK.format(effects=str(tmp_path / "effects")))
    return str(path)


def test_a_run_that_waits_is_decided_on_and_gone_on_with(clerk: str, tmp_path: Path, hotloop: Command):
    code, _, said = hotloop("run", clerk, "Write to both.")
    assert code == 1
    assert "waits for a decision on send" in said
    [row] = json.loads(hotloop("runs", "list", "--json")[1])
    assert (row["state"], row["agent"], row["source"]) == ("waiting", "clerk", clerk)
    run_id = row["run_id"]
    calls = json.loads(hotloop("runs", "show", run_id, "--json")[1])["calls"]
    assert [(call["name"], call["state"]) for call in calls] == [("send", "waits")] * 2
    ann, bob = (call["id"] for call in calls)

    assert hotloop("runs", "approve", run_id, ann)[0] == 0
    assert hotloop("runs", "approve", run_id, bob, "--deny", "not to Bob")[0] == 0
    shown = hotloop("runs", "show", run_id[:9])[1]
    assert "prompt  Write to both." in shown
    assert shown.count("decided") == 2
    code, answer, said = hotloop("runs", "resume", run_id)
    assert (code, answer) == (0, "All is sent.\n"), said
    assert (tmp_path / "effects").read_text() == "Ann\n"

    assert "done" in hotloop("runs", "list")[1]
    assert "done" in hotloop("runs", "show", run_id)[1]
    code, _, said = hotloop("run", clerk, "--resume", run_id)
    assert (code, said) == (2, f"hotloop: the run {run_id} is done\n")


def test_a_run_that_is_given_up(clerk: str, hotloop: Command):
    hotloop("run", clerk, "Write to both.")
    [row] = json.loads(hotloop("runs", "list", "--json")[1])
    assert hotloop("runs", "cancel", row["run_id"]) == (0, f"{row['run_id']}: cancelled\n", "")
    code, _, said = hotloop("runs", "resume", row["run_id"])
    assert code == 2
    assert "it cannot be resumed" in said


def test_a_call_of_a_sub_agent_is_shown_and_decided_on(tmp_path: Path, hotloop: Command):
    lead = tmp_path / "lead.py"
    asks = 'Agent(ScriptedModel([ScriptedCall("ask", prompt="send"), "It is done."]), [clerk.as_tool("ask", "Asks.")])'
    lead.write_text(CLERK.format(effects=str(tmp_path / "effects")) + f"\nclerk = agent\nagent = {asks}\n")
    assert hotloop("run", str(lead), "go")[0] == 1
    [row] = json.loads(hotloop("runs", "list", "--json")[1])
    [ask] = json.loads(hotloop("runs", "show", row["run_id"], "--json")[1])["calls"]
    assert (ask["name"], ask["state"], ask["may_have_run"]) == ("ask", "waiting", False)
    assert ask["run"]["prompt"] == "send"
    ann, bob = ask["run"]["calls"]
    assert [ann["state"], bob["state"]] == ["waits", "waits"]
    assert hotloop("runs", "approve", row["run_id"], ann["id"])[0] == 0
    assert hotloop("runs", "approve", ask["run"]["run_id"], bob["id"])[0] == 0
    shown = hotloop("runs", "show", row["run_id"])[1]
    assert ask["run"]["run_id"] in shown
    assert shown.count("decided") == 2
    assert hotloop("runs", "resume", row["run_id"])[:2] == (0, "It is done.\n")
    assert sorted((tmp_path / "effects").read_text().split()) == ["Ann", "Bob"]


KILLED = """
import os, signal
from hotloop import Agent, Approval, ScriptedCall, ScriptedModel, tool

@tool
def send(to: str) -> str:
    os.kill(os.getpid(), signal.SIGKILL)

model = ScriptedModel([ScriptedCall("send", to="Ann"), "All is sent."])
agent = Agent(model, [send], approve=lambda call: Approval.later())
"""


def test_a_call_that_may_have_run_is_said_to(tmp_path: Path, hotloop: Command):
    file, trace = tmp_path / "killed.py", str(tmp_path / "trace.db")
    file.write_text(KILLED)
    killed = subprocess.run([sys.executable, "-m", "hotloop", "run", str(file), "go", "--trace", trace], check=False)
    assert killed.returncode == -signal.SIGKILL
    [row] = json.loads(hotloop("runs", "list", "--json")[1])
    assert row["state"] == "interrupted"
    run_id = row["run_id"]
    [call] = json.loads(hotloop("runs", "show", run_id, "--json")[1])["calls"]
    assert (call["state"], call["may_have_run"]) == ("cut off", True)

    code, _, said = hotloop("runs", "resume", run_id)
    assert (code, "which may have run before" in said) == (1, True), said
    shown = hotloop("runs", "show", run_id)[1]
    assert "waits" in shown
    assert "(it may have run before)" in shown
    assert hotloop("runs", "approve", run_id, call["id"], "--deny", "it was sent")[0] == 0
    assert hotloop("runs", "resume", run_id)[:2] == (0, "All is sent.\n")


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["runs", "show", "run-1"], "there is no run 'run-1'"),
        (["runs", "resume", "run-1"], "there is no run 'run-1'"),
        (["runs", "approve", "run-1", "call_1"], "there is no run 'run-1'"),
        (["run", "FILE", "--resume", "run-1"], "there is no run 'run-1'"),
        (["run", "FILE", "a prompt", "--resume", "run-1"], "--resume takes no prompt"),
    ],
)
def test_what_was_asked_wrongly(argv: list[str], words: str, clerk: str, hotloop: Command):
    code, _, said = hotloop(*(clerk if word == "FILE" else word for word in argv))
    assert code == 2
    assert words in said


def test_without_a_trace_there_are_no_runs(capsys: pytest.CaptureFixture[str]):
    assert run(["runs", "list", "--trace", "off"]) == 2
    assert "tracing is off" in capsys.readouterr().err
