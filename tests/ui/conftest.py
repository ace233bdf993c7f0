"""The dashboard in a real browser: a store full of made-up runs, served on loopback, and Chromium to look at it."""

import importlib
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from tests.threads import ThreadedServer
from tests.ui.made_up import FINDINGS, Engine, fill_store, hostile_run, long_run, make_runs

from hotloop.http.keys import ApiKeys, read_keys
from hotloop.trace.runs import TraceStore
from hotloop.ui.app import create_ui
from hotloop.ui.store_source import StoreSource

NUM_RUNS = 1000


class PageServer(ThreadedServer):
    """Serves the dashboard."""

    def __init__(self, source: StoreSource, api_key: str | None = None) -> None:
        app = create_ui(source, keys=ApiKeys(read_keys(api_key, None)))
        config = uvicorn.Config(app, ws="none", lifespan="off", log_config=None, timeout_graceful_shutdown=2)
        super().__init__(uvicorn.Server(config))
        self.url += "/ui"


@pytest.fixture(scope="session")
def store_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A thousand runs, a long one among them and a hostile one."""
    path = tmp_path_factory.mktemp("ui") / "trace.db"
    return fill_store(path, *make_runs(NUM_RUNS - 2), long_run(), hostile_run())


@pytest.fixture(scope="session")
def full_server(store_path: Path) -> Iterator[PageServer]:
    with TraceStore(store_path) as store:
        source = StoreSource(store, title="made up", model="tiny", live=Engine().live, lint=lambda spans: FINDINGS)
        with PageServer(source) as server:
            yield server


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., PageServer]]:
    """Serves a store of the given runs, with nothing live."""
    opened: list[Any] = []

    def start(*runs: Any, api_key: str | None = None, tags: Sequence[str] = (), **more: Any) -> PageServer:
        store = TraceStore(fill_store(tmp_path / "trace.db", *runs, tags=tags))
        server = PageServer(StoreSource(store, title="made up", **more), api_key)
        opened.extend((store, server))
        return server.__enter__()

    yield start
    for each in reversed(opened):
        each.__exit__(None, None, None)


@dataclass
class Browsing:
    """A tab, and what went wrong in it."""

    page: Any
    problems: list[str] = field(default_factory=list)
    addresses: list[str] = field(default_factory=list)

    def open(self, address: str) -> Any:
        self.page.goto(address)
        return self.page


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    """For a module of such tests only: while it is there, no other test can have an event loop."""
    sync_api = importlib.import_module("playwright.sync_api")
    path = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if not path:
        pytest.skip("the dashboard is tested in Chromium, and there is none here")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def tab(chromium: Any, serve: Callable[..., PageServer]) -> Iterator[Browsing]:
    """A fresh tab in which nothing may go wrong: no error, no refused script or style, nothing from elsewhere. It is
    closed before what `serve` started: a page that asks a server which is gone tells of an error."""
    context = chromium.new_context(viewport={"width": 1280, "height": 900})
    browsing = Browsing(context.new_page())
    page = browsing.page
    page.set_default_timeout(15_000)
    page.on("pageerror", lambda error: browsing.problems.append(str(error)))
    page.on("console", lambda said: browsing.problems.append(said.text) if said.type in ("error", "warning") else None)
    page.on("dialog", lambda dialog: browsing.problems.append(f"a dialog: {dialog.message}"))
    page.on("request", lambda request: browsing.addresses.append(request.url))
    yield browsing
    shown = page.inner_text("body")
    context.close()
    assert "[object" not in shown
    assert "undefined" not in shown
    assert "NaN" not in shown
    assert not browsing.problems
    assert all(address.startswith("http://127.0.0.1:") for address in browsing.addresses)
