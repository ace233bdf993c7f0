"""What chaos asks and how it judges; the trouble itself takes minutes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.chaos import MARK, ChaosReport, marked_processes, said_by, write_model

from hotloop.models.model import load_model


def test_the_model_can_be_loaded_ends_its_answers_and_knows_calls(tmp_path: Path) -> None:
    model = load_model(str(write_model(tmp_path / "tiny")), "dummy")
    [end] = model.tokenizer.eos_ids
    assert model.tokenizer.token_text(end) == "<|im_end|>"
    assert model.template
    assert end < model.spec.vocab_size


def test_an_answer_is_its_words_and_its_calls_but_not_their_ids() -> None:
    calls = [{"id": "1", "function": {"name": "look", "arguments": "{}"}}, {"id": "2", "function": {"arguments": "x"}}]
    assert said_by({"content": None, "tool_calls": calls}) == "look{}x"
    assert said_by({"content": "words"}) == "words"


@pytest.mark.parametrize("outcome", ["wrong", "cut", "lost", "late"])
def test_one_request_that_does_not_end_rightly_is_one_too_many(outcome: str) -> None:
    report = ChaosReport()
    assert not report.is_good, "nothing was answered"
    report.outcomes.update({"right": 5, "refused": 2, "left": 1})
    assert report.is_good
    report.outcomes[outcome] += 1  # type: ignore[index]
    assert not report.is_good


def test_a_report_is_json() -> None:
    report = ChaosReport(duration_s=1.0)
    report.outcomes["right"] += 2
    report.troubles["disk full"] += 1
    told = json.loads(json.dumps(report.to_json()))
    assert told["outcomes"] == {"right": 2}
    assert told["troubles"] == {"disk full": 1}
    assert told["is_good"] is True


@pytest.mark.skipif(not Path("/proc").exists(), reason="processes are looked for in /proc")
def test_what_is_left_behind_is_found() -> None:
    command, pipe = [sys.executable, "-c", "print('begun', flush=True); input()"], subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, env=os.environ | {MARK: "x"}) as child:
        assert child.stdout
        assert child.stdout.readline() == b"begun\n"  # at first a process has no environment to be seen
        assert marked_processes("x") == [child.pid]
        assert not marked_processes("y")
        child.communicate(b"\n")
    assert not marked_processes("x")
