"""The rows for people, for programs, and for a page: a table there, with a picture, between two marks."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from benchmarks.claims.plot import draw, draw_growth
from benchmarks.claims.row import Row
from hotloop.core.errors import ConfigError

BEGIN = "<!-- claims: begin; written by `python -m benchmarks.claims --out` -->"
END = "<!-- claims: end -->"
PICTURE = "claims.svg"
GROWTH = "claims-loop.svg"

_INTRODUCTION = """## What the field claims, and what comes out here
```bash
python -m benchmarks.claims --out docs/benchmarks.md
```
Claims are as they were published, on other machines and with other models; the figures beside them are of this machine,
with the default model on its CPU, from one run. *Times* is how many times better it is with the trick than without.
Recorded runs are those of `--data`, or generated ones; `tiers` needs two models, `--small` and `--large`."""
_HEAD = "| claim | claimed | measured | times | what was measured |\n|---|---|---|---|---|"


def claims_table(rows: Sequence[Row]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for title in ("claim", "claimed", "measured here", "times", "what was measured"):
        table.add_column(title, overflow="fold")
    for row in rows:
        table.add_row(*map(Text, _cells(row)))
    return table


def claims_json(rows: Sequence[Row]) -> dict[str, Any]:
    return {"claims": [row.to_json() for row in rows]}


def write_page(path: Path, rows: Sequence[Row]) -> None:
    """Rewrite the section between the marks, or add it at the end; the picture goes beside the page."""
    try:
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        path.write_text(replace_section(text, render_section(rows)), encoding="utf-8")
        path.with_name(PICTURE).write_text(draw(rows), encoding="utf-8")
        if (growing := _growing(rows)) is not None:
            path.with_name(GROWTH).write_text(draw_growth(growing), encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}") from None


def render_section(rows: Sequence[Row]) -> str:
    lines = [f"| {' | '.join(map(_cell, _cells(row)))} |" for row in rows]
    pictures = [f"![How many times better, claimed and measured]({PICTURE})"]
    if (growing := _growing(rows)) is not None:
        pictures.append(f"![{growing.what}]({GROWTH})")
    return "\n".join([BEGIN, _INTRODUCTION, "", _HEAD, *lines, "", "\n\n".join(pictures), END])


def _growing(rows: Sequence[Row]) -> Row | None:
    """The longest of those that grow."""
    return max(
        (row for row in rows if row.growth), key=lambda row: len(row.growth[0]) if row.growth else 0, default=None
    )


def replace_section(text: str, section: str) -> str:
    if (BEGIN in text) != (END in text) or text.count(BEGIN) > 1:
        raise ConfigError(f"the page must have {BEGIN} and {END} once each, or neither")
    if BEGIN in text:
        return re.sub(f"{re.escape(BEGIN)}.*{re.escape(END)}", lambda _: section, text, count=1, flags=re.DOTALL)
    return f"{text.rstrip()}\n\n{section}\n".lstrip()


def _cells(row: Row) -> tuple[str, ...]:
    return row.name, _claimed(row), row.measured, _times(row), _details(row)


def _claimed(row: Row) -> str:
    return f"{row.claim.text} ({row.claim.source})" if row.claim.source else row.claim.text


def _times(row: Row) -> str:
    return "" if row.times is None else f"{row.times:.2f}"


def _details(row: Row) -> str:
    return "; ".join(filter(None, (row.what, row.note)))


def _cell(text: str) -> str:
    """A pipe would end the cell, and what stands in a failure's words is not ours."""
    return text.replace("|", "\\|").replace("<", "&lt;")
