"""The table of how far backends are from transformers."""

from pathlib import Path

from tests.parity.table import MANNERS, row


def test_a_row_has_every_manner(tmp_path: Path, empty_home: Path) -> None:
    name, *cells, same, _ = (each.strip() for each in row("gpt_oss", tmp_path, "cpu").split("|")[1:])
    assert (name, len(cells), same) == ("gpt_oss", len(MANNERS), "100%")
    assert all(0 < float(cell) < 1e-3 for cell in cells)
