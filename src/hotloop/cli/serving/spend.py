"""`hotloop spend`: what keys, models and session trees have spent behind a router."""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter
from cyclopts.types import PositiveInt

from hotloop.cli.output import make_table, show
from hotloop.cli.settings import JsonOutput
from hotloop.core.errors import ConfigError

if TYPE_CHECKING:
    from hotloop.router.spending.book import Spent

By = Literal["key", "model", "tree"]
_TITLES = ("month", "", "requests", "prompt", "cached", "output", "money")
_COUNTS = ("requests", "prompt", "cached", "output", "money")


def spend(
    file: Annotated[Path, Parameter(help="The router's --spend-file.")],
    *,
    by: Annotated[By, Parameter(help="Group by key, model, or tree (a session and those that work for it).")] = "key",
    month: Annotated[str | None, Parameter(help="Only this month, such as 2026-11.")] = None,
    limit: Annotated[PositiveInt, Parameter(help="Maximum lines, the most expensive first.")] = 50,
    as_json: JsonOutput = False,
) -> None:
    """Show what was spent behind a router: requests, tokens and money, by key, model or session tree."""
    from hotloop.router.spending.book import read_spent

    if month is not None and not re.fullmatch(r"\d{4}-(0[1-9]|1[0-2])", month):
        raise ConfigError(f"--month is a year and a month, such as 2026-11, not {month!r:.40}")
    rows = sum_up((each for each in read_spent(file) if month in (None, each.month)), by)[:limit]
    table = make_table(*(title or by for title in _TITLES), words=("month", by))
    for row in rows:
        counts = [f"{row[name]:,}" for name in _COUNTS[:-1]]
        table.add_row(row["month"], row[by] or "(none)", *counts, f"{row['money']:,.4f}")
    show(rows, table, as_json)


def sum_up(lines: "Iterable[Spent]", by: By) -> list[dict[str, Any]]:
    """The latest month first; within it what cost most, or else what took most tokens."""
    sums: dict[tuple[str, str], dict[str, Any]] = {}
    for line in lines:
        place = line.month, str(getattr(line, by))
        row = sums.setdefault(place, {"month": place[0], by: place[1], **dict.fromkeys(_COUNTS, 0)})
        for name in _COUNTS:
            row[name] += getattr(line, name)
    rows = sorted(sums.values(), key=lambda row: (row["money"], row["prompt"] + row["output"]), reverse=True)
    return sorted(rows, key=lambda row: str(row["month"]), reverse=True)
