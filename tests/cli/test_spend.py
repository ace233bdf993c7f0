"""`hotloop spend` sums up what a router has written."""

import json
from pathlib import Path

import pytest

from hotloop.cli.serving.spend import spend
from hotloop.core.errors import ConfigError
from hotloop.router.spending.book import Charge, SpendBook


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "spend.json"
    book = SpendBook(path)
    for month, key, model, tree, money in (
        ("2026-10", "anna", "large", "s1", 9.0),
        ("2026-11", "anna", "large", "s1", 1.0),
        ("2026-11", "anna", "small", "s2", 0.5),
        ("2026-11", "bob", "small", "", 2.0),
    ):
        book.add(month, key, model, tree, Charge(1, 100, 40, 10, money))
    book.write()
    return path


def test_the_latest_month_and_the_largest_sum_come_first(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spend(file, as_json=True)
    rows = json.loads(capsys.readouterr().out)
    assert [(row["month"], row["key"], row["requests"], row["money"]) for row in rows] == [
        ("2026-11", "bob", 1, 2.0),
        ("2026-11", "anna", 2, 1.5),
        ("2026-10", "anna", 1, 9.0),
    ]
    spend(file, by="model", month="2026-11", limit=1, as_json=True)
    [row] = json.loads(capsys.readouterr().out)
    assert (row["model"], row["prompt"], row["cached"], row["output"]) == ("small", 200, 80, 20)


def test_it_is_shown_as_a_table(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spend(file, by="tree")
    shown = capsys.readouterr().out
    assert "s1" in shown
    assert "(none)" in shown


def test_a_file_that_is_none_is_said_to_be_none(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read"):
        spend(tmp_path / "none.json")
    (tmp_path / "odd.json").write_text("[1")
    with pytest.raises(ConfigError, match="holds no spending"):
        spend(tmp_path / "odd.json")


@pytest.mark.parametrize("month", ["2026-13", "2026", "november"])
def test_a_month_that_is_none_is_not_an_empty_one(file: Path, month: str) -> None:
    with pytest.raises(ConfigError, match="such as 2026-11"):
        spend(file, month=month)
