"""`hotloop models`."""

import json
from typing import TYPE_CHECKING, Any

from hotloop.cli.settings import Json

if TYPE_CHECKING:
    from hotloop.models.registry import Entry


def models(*, as_json: Json = False) -> None:
    """List the models that can be loaded by name."""
    from rich.console import Console
    from rich.filesize import decimal
    from rich.table import Table

    from hotloop.models.registry import list_models

    entries = list_models()
    if as_json:
        print(json.dumps([describe(entry) for entry in entries]))
        return
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for title in ("NAME", "FAMILY", "CONTEXT", "SIZE", "WHERE"):
        table.add_column(title, justify="right" if title in ("CONTEXT", "SIZE") else "left", overflow="fold")
    for entry in entries:
        where = str(entry.path) if entry.is_pulled else f"not here yet: hotloop pull {entry.name}"
        table.add_row(entry.name, entry.family, f"{entry.max_context:,}", decimal(entry.size_bytes), where)
    Console(highlight=False).print(table)


def describe(entry: "Entry") -> dict[str, Any]:
    return {
        "name": entry.name,
        "kind": entry.kind,
        "family": entry.family,
        "max_context": entry.max_context,
        "size_bytes": entry.size_bytes,
        "path": str(entry.path),
        "is_pulled": entry.is_pulled,
    }
