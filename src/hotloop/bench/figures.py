"""Figures as they are shown: a row each, with what it is on the left and numbers on the right; or for a program."""

from collections.abc import Iterable, Mapping
from typing import Any

from rich.table import Table


def figures_table(title: str, columns: Iterable[str]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(title, no_wrap=True)
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    return table


def rounded(values: Mapping[str, Any], digits: int = 4) -> dict[str, Any]:
    return {name: round(value, digits) if isinstance(value, float) else value for name, value in values.items()}
