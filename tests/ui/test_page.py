"""Every view of the dashboard, in Chromium."""

from collections.abc import Callable
from datetime import datetime

import pytest
from msgspec.structs import replace
from tests.ui.conftest import NUM_RUNS, Browsing, PageServer
from tests.ui.made_up import SCRIPT, START_NS, TOOLS, Run, hostile_run, long_run

from hotloop.trace import names

pytest.importorskip("playwright", reason="the dashboard is tested with playwright: pip install it")
LONG, HOSTILE = long_run()[0].trace_id, hostile_run()[0].trace_id
NUM_FAILED = sum(i % 9 == 4 and i % 7 != 3 for i in range(NUM_RUNS - 2))  # as `make_runs` has it
DAY_NS = 24 * 3600 * 10**9
FEW = [Run(i, "flight desk", "session-01").agent_run(6) for i in range(3)]


def open_run(tab: Browsing, server: PageServer, run_id: str) -> None:
    tab.open(f"{server.url}#/runs/{run_id}").wait_for_selector(".waterfall svg .column")


def chosen_row(tab: Browsing) -> str:
    return tab.page.locator(".run-row.chosen").get_attribute("href").removeprefix("#/runs/")


def background(tab: Browsing) -> str:
    return tab.page.evaluate("getComputedStyle(document.body).backgroundColor")


class TestOverview:
    def test_it_shows_what_goes_on_and_goes_on_showing_it(self, tab: Browsing, full_server: PageServer):
        page = tab.open(full_server.url)
        page.wait_for_selector("text=KV memory by session")
        for words in ("Running", "Cache hits", "Output tokens/s", "Waiting", "Replicas", "Requests", "Latest runs"):
            assert page.get_by_text(words, exact=True).count(), words
        assert page.locator("#place").text_content() == "made up · tiny"
        assert page.locator(".cells .group").count() > 10
        assert page.get_by_text("1 of 2 up").count() == 1
        assert page.locator("td.why", has_text="connection refused").is_visible()
        first = page.locator(".tile").first.text_content()
        page.wait_for_function("was => document.querySelector('.tile').textContent !== was", arg=first)
        page.wait_for_selector(".tile polyline.line", state="attached")
        assert page.locator("#pulse").text_content() == "live"

    def test_sessions_stand_below_those_they_work_for(self, tab: Browsing, full_server: PageServer):
        page = tab.open(full_server.url)
        page.wait_for_selector("table.requests tbody tr")
        cells = [text.replace("\u00a0", " ") for text in page.locator("table.requests td.mono").all_text_contents()]
        assert cells[0] == "session-00"
        assert cells[2:] == ["session-02", "└ session-04", "main", "└ session-03", "  └ session-05"]
        rows = page.locator("table.requests tbody tr")
        assert rows.count() == 7
        assert rows.nth(4).locator("td").nth(1).text_content() == "between requests"
        assert rows.get_by_label("session-05, works for main → session-03").count() == 1

    def test_a_store_tells_where_to_look_instead(self, tab: Browsing, serve: Callable[..., PageServer]):
        page = tab.open(serve(*FEW).url)
        page.wait_for_selector("text=These are recorded runs.")
        page.wait_for_selector(".latest .run-row")  # all of them come at once, after that
        assert page.locator(".latest .run-row").count() == len(FEW)

    def test_without_runs_it_tells_how_to_make_some(self, tab: Browsing, serve: Callable[..., PageServer]):
        server = serve()
        tab.open(server.url).wait_for_selector("text=No runs are recorded yet.")
        tab.open(f"{server.url}#/runs").wait_for_selector("text=No runs are recorded yet.")


class TestSummary:
    def test_it_sums_up_by_what_is_chosen_and_the_choice_is_in_the_address(
        self, tab: Browsing, serve: Callable[..., PageServer]
    ):
        server = serve(*FEW, clock=lambda: START_NS + 3_000 * 10**9)
        page = tab.open(server.url)
        page.keyboard.press("3")
        page.wait_for_selector("table.summary")
        assert page.locator("table.summary tbody tr").count() == 1
        assert page.locator("table.summary td").first.text_content() == "flight desk"
        assert page.locator("table.summary td").nth(1).text_content() == "3"
        captions = page.locator(".charts figcaption").all_text_contents()
        assert captions == [
            "Time to first token, p95",
            "Queue, interactive, p95",
            "Queue, workflow, p95",
            "Wall time of a run, p95",
            "Cached share of prompts",
            "Tokens recomputed",
            "Output tokens/s",
            "Runs with errors",
            "Cost",
        ]
        assert page.evaluate(
            """() => [...document.querySelectorAll(".charts svg")].every((chart) =>
                [...chart.querySelectorAll("text")].every((text) => text.getBBox().x >= 0))"""
        )
        for i in (0, 1, 2, 3, 4, 6):
            assert page.locator(".charts figure").nth(i).locator(".mark").count(), captions[i]
        page.set_viewport_size({"width": 320, "height": 900})
        assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
        page.select_option("select >> nth=0", "session")
        page.wait_for_selector("td:text('session-01')")
        assert "by=session" in page.url
        page.reload()
        page.wait_for_selector("td:text('session-01')")
        page.select_option("select >> nth=0", "replica")
        page.wait_for_selector("td:text('tiny-1')")
        assert page.locator("table.summary th").nth(1).text_content() == "requests"
        assert page.get_by_text("18 requests").count() == 1

    def test_days_narrow_it_and_the_list_of_runs(self, tab: Browsing, serve: Callable[..., PageServer]):
        early, late = (Run(i, "flight desk", start_ns=START_NS + i * 3 * DAY_NS).agent_run(2) for i in range(2))
        day = datetime.fromtimestamp(START_NS / 1e9).date().isoformat()
        page = tab.open(f"{serve(early, late, clock=lambda: START_NS + 7 * DAY_NS).url}#/summary")
        page.get_by_label("From day").fill(day)
        page.wait_for_selector("text=2 runs")
        page.get_by_label("To day").fill(day)
        page.wait_for_selector("text=1 run")
        page.reload()
        page.wait_for_selector("text=1 run")
        assert page.get_by_label("To day").input_value() == page.get_by_label("From day").input_value() == day
        page.keyboard.press("2")
        page.wait_for_selector("text=2 runs")
        page.get_by_label("From day").fill(day)
        page.get_by_label("To day").fill(day)
        page.wait_for_selector("text=1 run")
        assert page.locator(".run-row").get_attribute("href") == f"#/runs/{early[0].trace_id}"
        assert "from_s=" in page.url
        page.set_viewport_size({"width": 320, "height": 900})
        assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0

    def test_where_nothing_ran_it_says_so(self, tab: Browsing, serve: Callable[..., PageServer]):
        tab.open(f"{serve(*FEW).url}#/summary?since_s=3600").wait_for_selector(
            "text=Nothing was recorded in this time."
        )


class TestRuns:
    def test_a_thousand_runs_are_there_and_only_what_is_seen_is_drawn(self, tab: Browsing, full_server: PageServer):
        page = tab.open(f"{full_server.url}#/runs")
        page.wait_for_selector(".run-row")
        for num_seen in range(200, NUM_RUNS, 200):
            page.wait_for_selector(f"text=first {num_seen} runs")
            page.evaluate("document.querySelector('.rows').scrollTop = 1e9")
        page.wait_for_selector(f"text={NUM_RUNS:,} runs")
        page.evaluate("document.querySelector('.rows').scrollTop = 1e9")
        page.wait_for_selector(f".run-row[href='#/runs/{LONG}']")  # the oldest
        assert page.locator(".run-row").count() < 100

    def test_a_filter_narrows_the_list_and_is_part_of_the_address(self, tab: Browsing, full_server: PageServer):
        page = tab.open(f"{full_server.url}#/runs")
        page.wait_for_selector(".run-row")
        page.fill("input[type=search]", "LONG haul")
        page.wait_for_selector("text=1 run")
        assert page.locator(".run-row").get_attribute("href") == f"#/runs/{LONG}"
        assert "q=LONG+haul" in page.url
        page.reload()
        page.wait_for_selector("text=1 run")
        page.fill("input[type=search]", "nobody has this name")
        page.wait_for_selector("text=No run is like that.")
        page.fill("input[type=search]", "")
        page.select_option("select >> nth=0", "failed")
        page.wait_for_selector(f"text={NUM_FAILED} runs")
        assert set(page.locator(".run-row .state").all_text_contents()) == {"failed"}

    def test_the_keys_lead_into_a_run_and_back_to_where_one_was(self, tab: Browsing, full_server: PageServer):
        page = tab.open(f"{full_server.url}#/runs?q=code")
        page.wait_for_selector(".run-row")
        for key in ("j", "j", "j", "k"):
            page.keyboard.press(key)
        chosen = chosen_row(tab)
        page.keyboard.press("Enter")
        page.wait_for_selector(".waterfall svg .column")
        assert page.url.endswith(f"#/runs/{chosen}")
        page.keyboard.press("Escape")
        page.wait_for_selector(".run-row.chosen")
        assert page.url.endswith("#/runs?q=code")
        assert chosen_row(tab) == chosen

    def test_slash_searches_and_question_mark_helps(self, tab: Browsing, full_server: PageServer):
        page = tab.open(full_server.url)
        page.wait_for_selector("text=Latest runs")
        page.keyboard.press("?")
        page.wait_for_selector("dialog[open] >> text=Keys")
        page.keyboard.press("Escape")
        page.wait_for_selector("dialog[open]", state="detached")
        page.keyboard.press("/")
        page.wait_for_selector("input[type=search]:focus")
        page.keyboard.type("triage j")  # a key that is typed is only typed
        assert page.input_value("input[type=search]") == "triage j"


class TestRun:
    def test_it_has_every_view_of_a_run(self, tab: Browsing, serve: Callable[..., PageServer]):
        server = serve(*FEW, lint=lambda spans: ())
        open_run(tab, server, FEW[0][0].trace_id)
        page = tab.page
        titles = page.locator("section h2").all_text_contents()
        assert titles[:3] == ["Where the time went", "Waterfall", "Tokens, turn by turn"]
        assert titles[3:] == ["Prefix map", "Speculation", "Critical path", "Linter"]
        assert page.locator("svg[aria-label='tokens of each turn'] .column").count() == 6
        assert page.locator(".prefix-row").count() == 6
        assert page.locator(".waterfall .tick").count() > 0
        assert any(page.locator(".waterfall svg text", has_text=tool).count() for tool in TOOLS)
        page.wait_for_selector("text=Nothing to find fault with.")

    def test_a_turn_that_is_chosen_is_chosen_everywhere(self, tab: Browsing, serve: Callable[..., PageServer]):
        open_run(tab, serve(*FEW), FEW[1][0].trace_id)
        page = tab.page
        for key in ("j", "j", "j", "k"):
            page.keyboard.press(key)
        page.wait_for_selector(".turn >> text=Turn 2")
        page.wait_for_selector(".waterfall .band.chosen")
        assert page.locator(".prefix-row.chosen span").first.text_content() == "2"
        columns = page.locator("svg[aria-label='tokens of each turn'] .column")
        assert "chosen" in columns.nth(1).get_attribute("class")
        page.keyboard.press("Enter")
        page.wait_for_selector("button[data-mode=whole][aria-pressed=false]")
        page.keyboard.press("Escape")
        page.wait_for_selector("button[data-mode=whole][aria-pressed=true]")
        columns.nth(4).click()
        page.wait_for_selector(".turn >> text=Turn 5")

    def test_what_stable_prompts_saved_is_shown_with_what_was_changed(
        self, tab: Browsing, serve: Callable[..., PageServer]
    ):
        told = {
            names.STABILISED: ["tools: put into one order", f"system: {SCRIPT}"],
            names.NUM_SAVED: 1200,
            names.MONEY_SAVED: 0.5,
        }
        run = [
            replace(span, attributes={**span.attributes, **told}) if span.name == names.ROUTE else span
            for span in FEW[0]
        ]
        open_run(tab, serve(run), run[0].trace_id)
        page = tab.page
        tile = page.locator(".tile", has_text="Stabilised")
        assert "7,200" in tile.text_content(), "of six turns"
        assert "tokens saved, $3.00" in tile.text_content()
        page.wait_for_selector(".turn >> text=1,200 tokens saved")
        assert page.locator(".turn p", has_text="tools: put into one order").is_visible()
        assert page.evaluate("window.hacked") is None

    def test_two_hundred_turns_are_drawn_as_far_as_they_are_seen(self, tab: Browsing, full_server: PageServer):
        open_run(tab, full_server, LONG)
        page = tab.page
        assert page.locator("svg[aria-label='tokens of each turn'] .column").count() == 200
        for _ in range(150):
            page.keyboard.press("j")
        page.wait_for_selector(".turn >> text=Turn 150")
        page.wait_for_selector(".waterfall .band.chosen")
        assert page.locator(".waterfall svg *").count() < 2000
        assert page.locator(".prefix-row").count() < 60
        page.wait_for_selector("button[data-mode=rows][aria-pressed=true]")
        page.evaluate("document.querySelector('.waterfall').scrollTop = 1e9")
        page.wait_for_selector(".waterfall text.strong:text-is('200')", state="attached")

    def test_the_linter_is_heard(self, tab: Browsing, full_server: PageServer):
        open_run(tab, full_server, LONG)
        tab.page.wait_for_selector(".finding >> text=HL001")
        assert tab.page.locator(".finding .severity").all_text_contents() == ["warning", "note"]
        assert tab.page.locator(".finding", has_text="5,120 tokens").count() == 1

    def test_a_plain_clients_request_is_a_run_of_one_turn(self, tab: Browsing, serve: Callable[..., PageServer]):
        spans = Run(5, session="curl").plain_request()
        open_run(tab, serve(spans), spans[0].trace_id)
        assert tab.page.locator(".prefix-row").count() == 1
        assert tab.page.get_by_text("Nothing was begun early.").count() <= 1

    def test_a_run_that_is_not_there_is_said_so(self, tab: Browsing, full_server: PageServer):
        page = tab.open(f"{full_server.url}#/runs/{'0' * 32}")
        page.wait_for_selector("text=there is no such run")
        assert tab.problems == [problem for problem in tab.problems if "404" in problem]
        tab.problems.clear()

    def test_why_it_failed_is_told_in_the_list_and_in_the_run(self, tab: Browsing, full_server: PageServer):
        page = tab.open(f"{full_server.url}#/runs?end=failed")
        page.wait_for_selector(".run-row .why")
        assert page.locator(".run-row .why").first.text_content() == " the model could not be reached"
        page.locator(".run-row").first.click()
        page.wait_for_selector(".troubles")
        assert page.locator("section h2").first.text_content() == "What went wrong"
        reasons = page.locator(".troubles td.why").all_text_contents()
        assert reasons == ["the model could not be reached", "failed; the model was told why"], (
            "the run's, and a tool's"
        )


class TestCompare:
    def test_a_run_is_compared_with_one_that_is_chosen_from_the_list(
        self, tab: Browsing, serve: Callable[..., PageServer]
    ):
        short, other = Run(1, "flight desk").agent_run(2), Run(2, "night report").agent_run(5, end="failed")
        open_run(tab, serve(short, other), short[0].trace_id)
        page = tab.page
        page.get_by_text("compare with another run").click()
        page.wait_for_selector(".picking")
        page.fill("input[type=search]", "night")
        page.locator(".run-row", has_text="night report").click()
        page.wait_for_selector("table.compared")
        assert page.url.endswith(f"#/compare/{short[0].trace_id}/{other[0].trace_id}")
        figures = {
            cells[0]: cells[1:]
            for row in page.locator("table.compared").first.locator("tbody tr").all()
            if (cells := row.locator("td").all_text_contents())
        }
        assert figures["turns"] == ["2", "5", "+150%, worse"]
        assert figures["ended"][:2] == ["done", "failed"]
        assert figures["went wrong"] == ["0", "1", "more, worse"]
        assert page.locator(".compared-bar .stack").count() == 2
        assert page.locator("table.compared").last.locator("tbody tr").count() == 5
        assert page.locator("tr.divergence").count() == 1
        page.keyboard.press("Escape")
        page.wait_for_selector(".run-row")

    def test_tags_are_shown_wherever_the_run_is(self, tab: Browsing, serve: Callable[..., PageServer]):
        server = serve(FEW[0], tags=["nightly"])
        page = tab.open(f"{server.url}#/runs?q=nightly")
        page.wait_for_selector(".run-row .tag")
        run_id = FEW[0][0].trace_id
        for address, wanted in {
            f"#/runs/{run_id}": ".run-head .tag",
            f"#/compare/{run_id}/{run_id}": "td .tag",
        }.items():
            page.goto(f"{server.url}{address}")
            page.wait_for_selector(wanted)
            assert page.locator(wanted).first.text_content() == "nightly"

    def test_with_itself_a_run_is_the_same(self, tab: Browsing, serve: Callable[..., PageServer]):
        run_id = FEW[0][0].trace_id
        page = tab.open(f"{serve(*FEW).url}#/compare/{run_id}/{run_id}")
        page.wait_for_selector("text=both called the same tools")
        assert page.locator("tr.divergence").count() == 0
        assert set(page.locator("table.compared").nth(1).locator("td:last-child").all_text_contents()) == {"the same"}


class TestContrast:
    """WCAG 2.2, level AA: text 4.5 to 1 on what is behind it, marks that mean something 3 to 1."""

    TEXT = """() => {
        const pixel = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
        const rgba = (colour) => {
            pixel.clearRect(0, 0, 1, 1);
            pixel.fillStyle = colour;
            pixel.fillRect(0, 0, 1, 1);
            return [...pixel.getImageData(0, 0, 1, 1).data];
        };
        const over = (top, below) => [0, 1, 2].map((i) => (top[i] * top[3] + below[i] * (255 - top[3])) / 255);
        const behind = (node) => {
            const layers = [];
            for (let at = node; at; at = at.parentElement) layers.push(rgba(getComputedStyle(at).backgroundColor));
            return layers.reverse().reduce((below, layer) => over(layer, below), [255, 255, 255]);
        };
        const light = (colour) => [0.2126, 0.7152, 0.0722].reduce((sum, weight, i) => {
            const part = colour[i] / 255;
            return sum + weight * (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
        }, 0);
        const ratio = (a, b) => (Math.max(light(a), light(b)) + 0.05) / (Math.min(light(a), light(b)) + 0.05);
        const found = [];
        const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
        while (walker.nextNode()) {
            const node = walker.currentNode.parentElement;
            if (!walker.currentNode.data.trim() || !node.checkVisibility() || node.closest("noscript")) continue;
            const style = getComputedStyle(node);
            const below = behind(node);
            const colour = rgba(node instanceof SVGElement ? style.fill : style.color);
            found.push([ratio(over(colour, below), below), walker.currentNode.data.trim().slice(0, 40)]);
        }
        const panel = document.querySelector(".panel");
        for (const name of MEANINGS) {
            const swatch = document.createElement("i");
            swatch.className = `swatch ${name}`;
            panel.append(swatch);
            const mark = rgba(getComputedStyle(swatch).backgroundColor);
            found.push([1.5 * ratio(mark, behind(panel)), `mark ${name}`]);
            swatch.remove();
        }
        return found;
    }"""
    MEANINGS = (
        *("cached", "new", "recomputed", "sampled", "forced", "accepted"),
        *("tool", "speculative", "queue", "network", "held"),
    )

    @pytest.mark.parametrize("scheme", ["light", "dark"])
    def test_everything_can_be_read(
        self, tab: Browsing, full_server: PageServer, serve: Callable[..., PageServer], scheme: str
    ):
        recent = serve(*FEW, clock=lambda: START_NS + 3_000 * 10**9)
        page = tab.page
        page.emulate_media(color_scheme=scheme)
        failed = tab.open(f"{full_server.url}#/runs?end=failed").wait_for_selector(".run-row")
        run_id = failed.get_attribute("href").removeprefix("#/runs/")
        views = {
            f"{full_server.url}#/": ".cells .group",
            f"{full_server.url}#/runs?end=failed": ".run-row .why",
            f"{recent.url}#/summary": "table.summary",
            f"{full_server.url}#/runs/{run_id}": ".finding",
            f"{full_server.url}#/compare/{run_id}/{LONG}": "table.compared",
        }
        script = self.TEXT.replace("MEANINGS", repr(list(self.MEANINGS)))
        for address, wanted in views.items():
            page.goto("about:blank")
            page.goto(address)
            page.wait_for_selector(wanted)
            page.keyboard.press("j")
            measured = page.evaluate(script)
            assert len(measured) > 20
            assert [(round(ratio, 2), what) for ratio, what in measured if ratio < 4.5] == [], address


class TestHostileText:
    def test_it_stays_text(self, tab: Browsing, full_server: PageServer):
        open_run(tab, full_server, HOSTILE)
        page = tab.page
        for _ in range(12):
            page.keyboard.press("j")
        page.wait_for_selector(".turn >> text=Turn 12")
        assert page.locator("h1").text_content() == SCRIPT
        page.wait_for_selector(".finding")
        for address in ("#/runs?q=script", "#/"):
            page.goto(f"{full_server.url}{address}")
            page.wait_for_selector(".run-row")
        assert page.evaluate("window.hacked") is None
        assert page.locator("script").count() == 1
        assert page.locator("img").count() == 0

    def test_words_that_changed_are_shown_where_they_are_recorded(self, tab: Browsing, full_server: PageServer):
        open_run(tab, full_server, HOSTILE)
        marks = tab.page.locator(".prefix-row mark")
        assert marks.count() > 0
        assert tab.page.locator(".prefix-row del").first.text_content() == "Monday 10:14"
        assert tab.page.locator(".prefix-row .notch").count() > 0


class TestTheme:
    def test_it_follows_the_system_until_told_otherwise(self, tab: Browsing, serve: Callable[..., PageServer]):
        page = tab.page
        page.emulate_media(color_scheme="light")
        tab.open(serve(*FEW).url).wait_for_selector(".run-row")
        light = background(tab)
        page.emulate_media(color_scheme="dark")
        dark = background(tab)
        assert light != dark
        page.keyboard.press("t")
        assert page.locator("#theme").text_content() == "Light"
        assert background(tab) == light
        page.click("#theme")
        page.emulate_media(color_scheme="light")
        assert background(tab) == dark
        page.reload()
        page.wait_for_selector(".run-row")
        assert page.locator("#theme").text_content() == "Dark"
        assert background(tab) == dark


class TestKey:
    @pytest.fixture
    def locked(self, serve: Callable[..., PageServer]) -> PageServer:
        return serve(*FEW, api_key="secret")

    def test_the_page_asks_for_it_once(self, tab: Browsing, locked: PageServer):
        page = tab.open(f"{locked.url}#/runs")
        page.fill("dialog[open] input", "wrong")
        page.keyboard.press("Enter")
        page.wait_for_selector("text=That key was not taken.")
        page.fill("dialog[open] input", "secret")
        page.keyboard.press("Enter")
        page.wait_for_selector(".run-row")
        page.reload()
        page.wait_for_selector(".run-row")
        assert page.locator("dialog[open]").count() == 0
        assert all("secret" not in address for address in tab.addresses)
        assert page.evaluate("localStorage.getItem('hotloop-key')") is None
        assert all("401" in problem for problem in tab.problems)
        tab.problems.clear()
