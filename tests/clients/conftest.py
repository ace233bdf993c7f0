"""Real clients, unmodified, against a real server whose model says what a script tells it to: `make test-clients`.

They are installed below the folder that HOTLOOP_CLIENTS names: Python ones in py/, those of Node in npm/. Without it,
or where one is not installed, its tests are skipped. At the end there is a table of what was seen.
"""

import os
from pathlib import Path

import pytest
from tests.clients.rows import ROWS

FOLDER = os.environ.get("HOTLOOP_CLIENTS", "")


@pytest.fixture
def clients() -> Path:
    if not FOLDER:
        pytest.skip("HOTLOOP_CLIENTS is not set: make test-clients")
    return Path(FOLDER).resolve()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if not ROWS:
        return
    terminalreporter.section("clients")
    for row in sorted(ROWS, key=lambda row: (row.client, row.way)):
        cached = "-" if row.cached is None else f"{row.cached:.3f}"
        terminalreporter.line(
            f"{row.client:28} {row.way:7} {row.num_requests:3} requests, cached on later turns {cached}"
        )
