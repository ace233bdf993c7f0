"""`python -m benchmarks.claims` as a program would call it; with claims that need no model."""

import json
from pathlib import Path

import pytest
from benchmarks.claims.__main__ import claims
from benchmarks.claims.run import Supplies

from hotloop.core.errors import ConfigError


def test_quick_and_for_a_program(capsys: pytest.CaptureFixture[str]):
    assert claims(only="parallel tools,speculative execution", quick=True, as_json=True) == 0
    rows = json.loads(capsys.readouterr().out)["claims"]
    assert [row["name"] for row in rows] == ["parallel tools", "speculative execution"]
    assert all(row["times"] for row in rows)


def test_a_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    page = tmp_path / "benchmarks.md"
    page.write_text("# Benchmarks\n")
    assert claims(only="speculative execution", out=page) == 0
    assert "speculative" in capsys.readouterr().out
    assert page.read_text().startswith("# Benchmarks\n\n<!-- claims: begin")
    assert (tmp_path / "claims.svg").exists()


def test_a_failure_ends_with_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert claims(only="speculative execution", supplies=Supplies(data=tmp_path / "none.jsonl"), as_json=True) == 1
    assert "cannot read" in capsys.readouterr().out


def test_what_cannot_be(tmp_path: Path):
    with pytest.raises(ConfigError, match="no claim 'nonsense'"):
        claims(only="nonsense")
    with pytest.raises(ConfigError, match="--quick"):
        claims(quick=True, out=tmp_path / "page.md")
