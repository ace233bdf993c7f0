"""An examination as a table for people and as plain values for programs."""

from dataclasses import asdict
from typing import Any

from rich.table import Table
from rich.text import Text

from hotloop.doctor.examine import Examination
from hotloop.doctor.finding import Verdict

_STYLES = {Verdict.OK: "green", Verdict.WARNING: "yellow", Verdict.FAILURE: "bold red", Verdict.UNKNOWN: "dim"}


def examination_table(examination: Examination) -> Table:
    """Text is the deployment's in part, so none of it is markup, nor moves the cursor."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), title_justify="left")
    table.title = Text(f"{examination.url}: {_plain(examination.model)}, {examination.kind}", style="bold")
    for title in ("", "check"):
        table.add_column(title, no_wrap=True)
    table.add_column("what was measured, and what to do", overflow="fold")
    for each in examination.findings:
        verdict = Text(each.verdict.value, style=_STYLES[each.verdict])
        advice = Text(f"\n→ {each.advice}" if each.advice else "", style="bold")
        table.add_row(verdict, Text(each.check), Text(_plain(each.measured)) + advice)
    return table


def examination_json(examination: Examination) -> dict[str, Any]:
    return {
        "url": examination.url,
        "model": examination.model,
        "kind": examination.kind,
        "failed": examination.has_failed,
        "findings": [asdict(each) for each in examination.findings],
    }


def _plain(text: str) -> str:
    return "".join(char if char.isprintable() else " " for char in text)
