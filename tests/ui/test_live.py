"""What goes on, in Chromium: it is shown as it comes, and leaves alone whoever looks at it."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.ui.conftest import Browsing, PageServer
from tests.ui.made_up import Engine, Run, fill_store

from hotloop.trace.span import Span
from hotloop.ui.store_source import LOST_S

pytest.importorskip("playwright", reason="the dashboard is tested with playwright: pip install it")
COLUMNS = "svg[aria-label='tokens of each turn'] .column"
OLD_NS = time.time_ns() - int(2 * LOST_S * 1e9)


class Growing:
    """A run that is served while it goes on."""

    def __init__(self, path: Path, num_turns: int = 6) -> None:
        self._path = path
        self._parts: Iterator[list[Span]] = Run(12, "triage", "session-01", start_ns=time.time_ns()).growing(num_turns)
        self.begun = next(self._parts)
        self.id = self.begun[0].trace_id

    def grow(self, num_parts: int = 1) -> None:
        for _ in range(num_parts):
            fill_store(self._path, next(self._parts))

    def end(self) -> None:
        for part in self._parts:
            fill_store(self._path, part)


@pytest.fixture
def growing(tmp_path: Path) -> Growing:
    return Growing(tmp_path / "trace.db")


def num_columns(page: Any, number: int) -> None:
    page.wait_for_function(f'number => document.querySelectorAll("{COLUMNS}").length === number', arg=number)


class TestRun:
    def test_it_grows_while_it_goes_on_and_rests_when_it_has_ended(
        self, tab: Browsing, serve: Callable[..., PageServer], growing: Growing
    ):
        page = tab.open(f"{serve(growing.begun).url}#/runs/{growing.id}")
        page.wait_for_selector("text=No question to a model is recorded yet.")
        assert page.locator(".run-head .state").text_content() == "running"
        growing.grow(2)
        num_columns(page, 2)
        assert page.locator(".waterfall svg .column").count() > 0
        assert page.locator("#pulse").text_content() == "live"
        growing.end()
        num_columns(page, 6)
        page.wait_for_selector(".run-head .state:text-is('done')")
        page.wait_for_selector("#pulse:text-is('')", state="attached")

    def test_whoever_looks_at_it_is_left_alone(self, tab: Browsing, serve: Callable[..., PageServer], growing: Growing):
        server = serve(growing.begun)
        growing.grow(3)
        page = tab.open(f"{server.url}#/runs/{growing.id}")
        num_columns(page, 3)
        page.keyboard.press("j")
        page.keyboard.press("j")
        page.keyboard.press("Enter")
        page.wait_for_selector("button[data-mode=whole][aria-pressed=false]")
        link = page.get_by_role("navigation", name="Parts of this page").get_by_text("Prefix map")
        link.focus()
        page.keyboard.press("Enter")
        page.evaluate("window.wasThere = [...document.querySelectorAll('.waterfall, .turn, .prefix-map')]")
        page.evaluate("window.detail = document.querySelector('.turn').firstChild")
        top = page.locator("section", has_text="Prefix map").last.bounding_box()["y"]
        growing.grow(2)
        num_columns(page, 5)
        assert page.evaluate("wasThere.every((node) => node.isConnected)")
        assert page.evaluate("detail.isConnected"), "a turn that has not changed is not drawn again"
        assert page.evaluate("document.activeElement.textContent") == "Prefix map"
        assert page.locator("section", has_text="Prefix map").last.bounding_box()["y"] == pytest.approx(top, abs=1)
        assert page.locator(".turn h3").first.text_content().startswith("Turn 2")
        assert page.locator("button[data-mode=whole]").get_attribute("aria-pressed") == "false"
        assert page.locator(".prefix-row.chosen span").first.text_content() == "2"

    def test_as_long_as_nothing_happens_nothing_is_sent(
        self, tab: Browsing, serve: Callable[..., PageServer], growing: Growing
    ):
        server = serve(growing.begun)
        growing.grow(1)
        with tab.page.expect_response(lambda response: response.status == 304) as found:
            tab.open(f"{server.url}#/runs/{growing.id}")
        assert found.value.url.endswith(growing.id)
        num_columns(tab.page, 1)

    def test_a_run_that_has_ended_is_asked_for_once(self, tab: Browsing, serve: Callable[..., PageServer]):
        spans = Run(3, "triage").agent_run(3)
        page = tab.open(f"{serve(spans).url}#/runs/{spans[0].trace_id}")
        num_columns(page, 3)
        page.evaluate("location.hash = '#/runs'")
        page.wait_for_selector(".run-row")
        assert sum(address.endswith(spans[0].trace_id) for address in tab.addresses) == 1

    def test_one_that_was_killed_is_said_to_be_lost(self, tab: Browsing, serve: Callable[..., PageServer]):
        begun, turn, *_ = Run(5, "triage", start_ns=OLD_NS).growing(3)
        page = tab.open(f"{serve(begun, turn).url}#/runs/{begun[0].trace_id}")
        page.wait_for_selector(".run-head .state.bad:text-is('lost')")
        num_columns(page, 1)


class TestList:
    def test_what_goes_on_ticks_and_is_found_by_its_state(
        self, tab: Browsing, serve: Callable[..., PageServer], growing: Growing
    ):
        lost, *_ = Run(5, "gone", start_ns=OLD_NS).growing(3)
        page = tab.open(f"{serve(growing.begun, lost, Run(3, 'done').agent_run(1)).url}#/runs")
        page.wait_for_selector(".run-row .state:text-is('running')")
        assert sorted(page.locator(".run-row .state").all_text_contents()) == ["done", "lost", "running"]
        first = page.locator("[data-since]").text_content()
        page.wait_for_function("was => document.querySelector('[data-since]').textContent !== was", arg=first)
        page.locator("select").first.select_option("running")
        page.wait_for_selector("text=1 run")
        growing.end()
        page.wait_for_selector("text=No run is like that.")

    def test_a_row_that_has_the_focus_keeps_it(
        self, tab: Browsing, serve: Callable[..., PageServer], growing: Growing, tmp_path: Path
    ):
        server = serve(growing.begun)
        for address in (server.url, f"{server.url}#/runs"):
            page = tab.open(address)
            page.wait_for_selector(".run-row").focus()
            num_rows = page.locator(".run-row").count()
            fill_store(tmp_path / "trace.db", Run(num_rows, "newer", start_ns=time.time_ns()).agent_run(1))
            page.wait_for_function("was => document.querySelectorAll('.run-row').length > was", arg=num_rows)
            assert page.evaluate("document.activeElement.matches('.run-row')")
            page.goto("about:blank")

    def test_a_filter_that_is_being_typed_does_not_follow_to_the_next_view(
        self, tab: Browsing, serve: Callable[..., PageServer], growing: Growing
    ):
        page = tab.open(f"{serve(growing.begun, live=Engine().live).url}#/runs")
        page.wait_for_selector(".run-row")
        page.locator("input[type=search]").press_sequentially("triage")
        page.get_by_role("link", name="Overview").click()
        page.wait_for_selector(".tile polyline.line", state="attached")  # the second answer, a second later
        assert page.url.endswith("#/")


class TestOverview:
    def test_memory_is_told_by_session(self, tab: Browsing, full_server: PageServer):
        page = tab.open(full_server.url)
        page.wait_for_selector(".cells .group")
        groups = page.get_by_role("list", name="KV memory by session").get_by_role("listitem")
        names = [groups.nth(i).get_attribute("aria-label") for i in range(groups.count())]
        assert names[0] == "shared by several sessions, 20 blocks held, 40 blocks kept"
        assert any(name.startswith("session-03, ") for name in names)
        assert names[-1].startswith("free, ")


class TestEverybody:
    @pytest.mark.parametrize("width", [320, 2560])
    def test_nothing_sticks_out(self, tab: Browsing, serve: Callable[..., PageServer], growing: Growing, width: int):
        server = serve(growing.begun, Run(600_667, "x" * 60, "y" * 90, content=True).agent_run(12), live=Engine().live)
        growing.grow(3)
        page = tab.page
        page.set_viewport_size({"width": width, "height": 900})
        for address, wanted in (
            ("#/", ".cells"),
            ("#/runs", ".run-row"),
            (f"#/runs/{growing.id}", ".waterfall .column"),
        ):
            tab.open(f"{server.url}{address}").wait_for_selector(wanted)
            page.wait_for_selector(".run-row, .prefix-row")
            assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0, address
            page.goto("about:blank")

    def test_charts_have_names(self, tab: Browsing, full_server: PageServer):
        page = tab.open(full_server.url)
        page.wait_for_selector(".cells .group")
        page.locator(".run-row").first.click()
        page.wait_for_selector(".waterfall svg .column")
        assert page.locator("svg[role=img]:not([aria-label])").count() == 0
        assert page.locator("svg[role=img]").count() >= 3

    def test_nothing_moves_for_those_who_do_not_want_it(
        self, tab: Browsing, serve: Callable[..., PageServer], growing: Growing
    ):
        server = serve(growing.begun)
        for wish, num_moving in (("no-preference", 1), ("reduce", 0)):
            tab.page.emulate_media(reduced_motion=wish)
            tab.open(f"{server.url}#/runs").wait_for_selector(".state.busy")
            assert tab.page.evaluate("document.getAnimations().length") == num_moving
            tab.page.goto("about:blank")

    def test_going_from_view_to_view_leaves_nothing_behind(
        self, tab: Browsing, serve: Callable[..., PageServer], growing: Growing
    ):
        page = tab.open(serve(growing.begun, live=Engine().live).url)
        growing.grow(1)
        devtools = page.context.new_cdp_session(page)
        devtools.send("Performance.enable")

        def num_listeners() -> int:
            for address, wanted in (("#/", ".cells"), (f"#/runs/{growing.id}", ".turn h3"), ("#/runs", ".run-row")):
                page.evaluate("address => { location.hash = address; }", address)
                page.locator(wanted).first.wait_for()  # unlike `wait_for_selector` this holds no element itself
            devtools.send("HeapProfiler.collectGarbage")
            metrics = devtools.send("Performance.getMetrics")["metrics"]
            return next(int(each["value"]) for each in metrics if each["name"] == "JSEventListeners")

        num_listeners()
        before = num_listeners()
        for _ in range(8):
            after = num_listeners()
        assert after < before + 8, "one is left behind each time"

    def test_the_keyboard_is_seen(self, tab: Browsing, serve: Callable[..., PageServer], growing: Growing):
        page = tab.open(f"{serve(growing.begun).url}#/runs")
        page.wait_for_selector(".run-row")
        page.keyboard.press("Tab")
        assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
