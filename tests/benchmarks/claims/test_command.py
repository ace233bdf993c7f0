"""`python -m benchmarks.claims` as a program would call it; with a claim that needs no model."""

import json
from pathlib import Path

import pytest
from benchmarks.claims.__main__ import _needs_default, _public, claims
from benchmarks.claims.bench import Supplies

from hotloop.core.errors import ConfigError


def test_quick_and_for_a_program(capsys: pytest.CaptureFixture[str]):
    assert claims(only="speculative execution", quick=True, as_json=True) == 0
    [row] = json.loads(capsys.readouterr().out)["claims"]
    assert row["claim"] == "speculative execution"
    assert {figure["name"] for figure in row["figures"]} >= {
        "workflows: predicted right",
        "workflows: off a predicted step",
    }


@pytest.mark.long
def test_a_failure_ends_with_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert claims(only="speculative execution", supplies=Supplies(data=tmp_path / "none.jsonl"), as_json=True) == 1
    assert "cannot read" in capsys.readouterr().out


def test_a_card_needs_the_default_model_for_words_alone():
    named = Supplies(words="/models/a.gguf")
    assert _needs_default(["batching"], "cpu", Supplies())
    assert not _needs_default(["tokens"], "cpu", Supplies())
    assert not _needs_default(["batching", "loop"], "cuda", Supplies())
    assert _needs_default(["loop", "draft model"], "cuda", Supplies())
    assert not _needs_default(["draft model"], "cuda", named)


def test_what_cannot_be():
    with pytest.raises(ConfigError, match="no part 'nonsense'"):
        claims(only="nonsense")
    with pytest.raises(ConfigError, match="--quick"):
        claims(quick=True, keep=True)


def test_the_command_is_kept_without_this_machines_paths():
    flags = ["--only", "tiers", "--small", "/models/a.gguf", "--data", "x/runs.jsonl", "--machine", "a Mac", "--keep"]
    assert _public(flags) == ["--only", "tiers", "--small", "SMALL", "--data", "DATA", "--keep"]


@pytest.mark.long
@pytest.mark.model
def test_a_part_with_a_model_and_quickly(default_model_path: Path, capsys: pytest.CaptureFixture[str]):
    """How long anything takes is not looked at."""
    assert claims(only="first token", quick=True, as_json=True) == 0
    [row] = json.loads(capsys.readouterr().out)["claims"]
    assert [figure["name"] for figure in row["figures"]] == ["first token"]
