"""Real clients, unmodified, against a real server whose model says what a script tells it to: `make test-clients`.

They are installed below the folder that HOTLOOP_CLIENTS names: Python ones in py/, those of Node in npm/. Without it,
or where one is not installed, its tests are skipped. At the end there are tables of what was seen,
in table.md there as well: the engine and what it caches are real, the tokens are bytes, and the model is a script.
What each client sent is beside it, in requests/.
"""

import os
from pathlib import Path

import pytest
from tests.clients.rows import RECOVERIES, ROWS, render_tables

FOLDER = os.environ.get("HOTLOOP_CLIENTS", "")


@pytest.fixture
def clients() -> Path:
    if not FOLDER:
        pytest.skip("HOTLOOP_CLIENTS is not set: make test-clients")
    return Path(FOLDER).resolve()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if not (ROWS or RECOVERIES):
        return
    lines = [*render_tables(ROWS, RECOVERIES)]
    terminalreporter.section("clients")
    for line in lines:
        terminalreporter.line(line)
    (Path(FOLDER) / "table.md").write_text("\n".join(lines) + "\n")
