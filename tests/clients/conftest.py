"""Real clients, unmodified, against a real server whose model says what a script tells it to: `make test-clients`.

They are installed below the folder that HOTLOOP_CLIENTS names: Python ones in py/, those of Node in npm/. Without it,
or where one is not installed, its tests are skipped. At the end there is a table of what was seen,
in table.md there as well: the engine and what it caches are real, the tokens are bytes, and the model is a script.
"""

import os
from pathlib import Path

import pytest
from tests.clients.rows import ROWS, render_table

FOLDER = os.environ.get("HOTLOOP_CLIENTS", "")


@pytest.fixture
def clients() -> Path:
    if not FOLDER:
        pytest.skip("HOTLOOP_CLIENTS is not set: make test-clients")
    return Path(FOLDER).resolve()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if not ROWS:
        return
    table = [*render_table(ROWS)]
    terminalreporter.section("clients")
    for line in table:
        terminalreporter.line(line)
    (Path(FOLDER) / "table.md").write_text("\n".join(table) + "\n")
