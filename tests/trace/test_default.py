"""Runs that nobody said anything about: recorded to the store that `hotloop run` writes, unless that is turned off."""

import logging
import subprocess
import sys
from pathlib import Path

import pytest

from hotloop.agent.agent import Agent
from hotloop.agent.scripted import ScriptedModel
from hotloop.core.errors import ConfigError
from hotloop.trace.default import default_tracer
from hotloop.trace.runs import TraceStore

PROGRAM = """
from hotloop import Agent, ScriptedModel
print(Agent(ScriptedModel(["my secret answer"]), name="clerk").run_sync("my secret").output)
"""


def run_program(home: Path, **environ: str) -> None:
    command = [sys.executable, "-c", PROGRAM]
    env = {"HOTLOOP_HOME": str(home), "PYTHONPATH": ":".join(sys.path), **environ}
    subprocess.run(command, env=env, check=True, stdout=subprocess.DEVNULL)


def test_a_program_s_runs_are_recorded_without_what_was_said(tmp_path: Path):
    run_program(tmp_path)
    with TraceStore(tmp_path / "trace.db") as store:
        [run] = store.runs()
        assert (run.agent, run.end, run.num_turns) == ("clerk", "done", 1)
        spans = store.spans(run.trace_id)
    assert not [name for span in spans for name in span.attributes if name.startswith("content.")]
    assert b"secret" not in (tmp_path / "trace.db").read_bytes()


@pytest.mark.long
def test_what_was_said_is_recorded_where_that_is_asked_for(tmp_path: Path):
    run_program(tmp_path, HOTLOOP_TRACE_CONTENT="1", HOTLOOP_TRACE_REDACT="secret")
    with TraceStore(tmp_path / "trace.db") as store:
        [run] = store.runs()
        said = [span.attributes.get("content.prompt") for span in store.spans(run.trace_id)]
    assert "my [redacted]" in said


def test_one_variable_turns_it_off(tmp_path: Path):
    run_program(tmp_path, HOTLOOP_TRACE="off")
    assert not list(tmp_path.iterdir())


def test_a_home_that_cannot_be_written_stops_nobody(
    empty_home: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.delenv("HOTLOOP_TRACE")
    empty_home.write_text("a file, and no folder")
    with caplog.at_level(logging.WARNING):
        assert not default_tracer().is_on
        assert Agent(ScriptedModel(["ok"])).run_sync("go").output == "ok"
    assert "runs are not recorded" in caplog.text


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [("HOTLOOP_TRACE", "FOLDER", "cannot open"), ("HOTLOOP_TRACE_MAX_AGE_DAYS", "long", "must be a number")],
)
def test_what_was_set_wrongly_is_told(
    name: str, value: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv(name, str(tmp_path) if value == "FOLDER" else value)
    with pytest.raises(ConfigError, match=words):
        default_tracer()
