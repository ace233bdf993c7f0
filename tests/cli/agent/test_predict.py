"""`hotloop predict`."""

import json
from pathlib import Path

import pytest
from tests.agent.predict.talks import clerk

from hotloop.agent.predict.predictor import Predictor, save_predictor
from hotloop.cli.main import run


@pytest.fixture
def path(tmp_path: Path) -> Path:
    predictor = Predictor()
    for number in range(12):
        predictor.learn(clerk(number))
    save_predictor(predictor, tmp_path / "speculation.json")
    return tmp_path / "speculation.json"


def test_a_table(path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", "200")
    assert run(["predict", "show", str(path), "--limit", "5"]) == 0
    out = capsys.readouterr().out
    assert "find_order" in out
    assert "order_id: find_customer → orders[*]" in out
    assert "from 12 runs, 5 of them shown" in out


def test_json(path: Path, capsys: pytest.CaptureFixture[str]):
    assert run(["predict", "show", str(path), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["runs"] == 12
    assert shown["patterns"][0].keys() == {"question", "after", "tool", "arguments", "num_tries", "hit_rate"}


@pytest.mark.parametrize("text", ["", "{", "[]"])
def test_a_damaged_file_is_one_line(text: str, path: Path, capsys: pytest.CaptureFixture[str]):
    path.write_text(text)
    assert run(["predict", "show", str(path)]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_the_file_is_looked_for_here(
    path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.chdir(path.parent)
    assert run(["predict", "show"]) == 0
    path.unlink()
    assert run(["predict", "show"]) == 2
    assert "cannot read speculation.json" in capsys.readouterr().err
