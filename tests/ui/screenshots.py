"""Takes the pictures of docs/ui.md: `python -m tests.ui.screenshots docs`."""

import argparse
import shutil
import tempfile
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright
from tests.ui.conftest import PageServer
from tests.ui.made_up import FINDINGS, Engine, Run, fill_store, make_runs

from hotloop.trace.runs import TraceStore
from hotloop.ui.store_source import StoreSource

RUN = Run(10_014, "flight desk", "session-07").agent_run(14)
TALKING = Run(10_031, "flight desk", "session-07", content=True, is_tame=True).agent_run(14)
PICTURES = {
    "ui-overview": ("#/", ".tile polyline.line", None),
    "ui-run": (f"#/runs/{RUN[0].trace_id}", ".waterfall .column", "Waterfall"),
    "ui-tokens": (f"#/runs/{TALKING[0].trace_id}", ".prefix-row", "Tokens"),
}


def take(folder: Path) -> None:
    with tempfile.TemporaryDirectory() as temporary, sync_playwright() as playwright:
        path = fill_store(Path(temporary) / "trace.db", *make_runs(120), RUN, TALKING)
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        with TraceStore(path) as store:
            live = Engine("session-12").live
            source = StoreSource(store, title="server", model="tiny", live=live, lint=lambda spans: FINDINGS)
            with PageServer(source) as server:
                for scheme in ("light", "dark"):
                    page = browser.new_page(color_scheme=scheme, viewport={"width": 1120, "height": 720})
                    for name, (address, wanted, section) in PICTURES.items():
                        _take_one(page, f"{server.url}{address}", wanted, section, folder / f"{name}-{scheme}.png")
        browser.close()


def _take_one(page: Any, address: str, wanted: str, section: str | None, path: Path) -> None:
    page.goto("about:blank")
    page.goto(address)
    page.wait_for_selector(wanted, state="attached")
    if wanted.startswith(".tile"):  # until there is something to see in its curves
        page.wait_for_function("() => document.querySelector('polyline.line')?.points.length > 12")
    if section:
        for _ in range(4):
            page.keyboard.press("j")
        page.get_by_role("navigation", name="Parts of this page").get_by_text(section).click()
        page.evaluate("() => new Promise(requestAnimationFrame)")
    page.screenshot(path=path)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    take(parser.parse_args().folder)
