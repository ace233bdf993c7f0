"""The page's files and its API, without a browser."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from msgspec.structs import replace
from tests.ui.made_up import FINDINGS, Engine, Run, fill_store, make_runs

from hotloop.http.keys import ApiKeys, Key, Keys, tenant_id
from hotloop.trace.runs import TraceStore
from hotloop.ui.app import HEADERS, create_ui
from hotloop.ui.store_source import StoreSource

STATIC = Path(__file__).parents[2] / "src/hotloop/ui/static"
RUN = Run(10_001, "triage", "session-01").agent_run(3)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[TraceStore]:
    with TraceStore(fill_store(tmp_path / "trace.db", RUN, *make_runs(30))) as store:
        yield store


def client(store: TraceStore, *, keys: tuple[bytes, ...] = (), name: str = "", **more: Any) -> httpx.AsyncClient:
    app = create_ui(StoreSource(store, title="here", **more), keys=ApiKeys(Keys(tuple(map(Key, keys)))), names=(name,))
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1")


class TestFiles:
    async def test_every_file_is_sent_with_the_same_strict_headers(self, store: TraceStore):
        async with client(store, keys=(b"other", b"secret")) as ui:
            for path in STATIC.rglob("*.*"):
                answer = await ui.get(f"/ui/static/{path.relative_to(STATIC).as_posix()}")
                assert answer.status_code == 200
                assert answer.content == path.read_bytes()
                assert HEADERS.items() <= dict(answer.headers).items()
            assert (await ui.get("/ui")).text == (STATIC / "index.html").read_text()

    async def test_nothing_but_its_own_origin_is_allowed(self, store: TraceStore):
        async with client(store) as ui:
            policy = (await ui.get("/ui")).headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'")
        assert "unsafe" not in policy
        assert "http" not in policy

    async def test_only_its_own_files(self, store: TraceStore):
        async with client(store) as ui:
            for name in ("nothing.js", "../app.py", "%2e%2e/app.py", "..%2fapp.py", "/etc/passwd", "run"):
                assert (await ui.get(f"/ui/static/{name}")).status_code == 404

    async def test_a_file_that_has_not_changed_is_not_sent_again(self, store: TraceStore):
        async with client(store) as ui:
            etag = (await ui.get("/ui")).headers["etag"]
            assert (await ui.get("/ui", headers={"if-none-match": etag})).status_code == 304

    async def test_a_slash_too_many_leads_to_the_page(self, store: TraceStore):
        async with client(store) as ui:
            answer = await ui.get("/ui/", follow_redirects=True)
        assert str(answer.url) == "http://127.0.0.1/ui"

    def test_scripts_never_parse_html_and_load_nothing_from_elsewhere(self):
        for path in STATIC.rglob("*.*"):
            text = path.read_text("utf-8").replace("http://www.w3.org/2000/svg", "")
            for word in ("innerHTML", "outerHTML", "AdjacentHTML", "document.write", "eval(", "http://", "https://"):
                assert word not in text, path.name


class TestKey:
    async def test_the_page_is_for_everybody_and_what_it_shows_is_not(self, store: TraceStore):
        asked = ("overview", "live", "runs", f"runs/{RUN[0].trace_id}", f"runs/{RUN[0].trace_id}/lint")
        async with client(store, keys=(b"secret",), live=Engine().live, lint=lambda spans: FINDINGS) as ui:
            assert (await ui.get("/ui")).status_code == 200
            for path in asked:
                assert (await ui.get(f"/ui/api/{path}")).status_code == 401
                assert (await ui.get(f"/ui/api/{path}", headers={"x-api-key": "wrong"})).status_code == 401
                assert (await ui.get(f"/ui/api/{path}", headers={"authorization": "Bearer secret"})).status_code == 200

    async def test_of_several_keys_each_sees_its_own_runs(self, tmp_path: Path):
        ours, theirs = (
            [replace(span, tenant=tenant_id(name)) for span in Run(i, "triage", f"session of {name!r}").agent_run(2)]
            for i, name in enumerate((b"anna", b"bob"), 1)
        )
        keys = Keys((Key(b"anna"), Key(b"bob"), Key(b"root", "admin"), Key(b"scrape", "metrics")))
        with TraceStore(fill_store(tmp_path / "shared.db", ours, theirs, RUN)) as store:
            source = StoreSource(store, title="here", live=Engine().live, lint=lambda spans: FINDINGS)
            transport = httpx.ASGITransport(create_ui(source, keys=ApiKeys(keys)))
            async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1/ui/api/") as ui:

                async def ask(path: str, key: str, **more: Any) -> httpx.Response:
                    return await ui.get(path, headers={"x-api-key": key}, **more)

                own, other = ours[0].trace_id, theirs[0].trace_id
                assert [run["id"] for run in (await ask("runs", "anna")).json()["runs"]] == [own]
                assert len((await ask("runs", "root")).json()["runs"]) == 3
                for path in ("runs/{}", "runs/{}/lint"):
                    assert (await ask(path.format(own), "anna")).status_code == 200
                    assert (await ask(path.format(other), "anna")).status_code == 404
                    assert (await ask(path.format(other), "root")).status_code == 200
                before = {"before": other}
                assert (await ask("runs", "anna", params=before)).json() == {"runs": [], "before": None}
                assert (await ask("runs", "anna", params={"q": "session of"})).text.count('"id"') == 1
                assert not (await ask("overview", "anna")).json()["has_live"]
                assert (await ask("overview", "root")).json()["has_live"]
                assert [(await ask("live", name)).status_code for name in ("anna", "root")] == [404, 200]
                assert (await ask("runs", "scrape")).status_code == 403


class TestName:
    ASKED = ("/ui", "/ui/static/app.js", "/ui/api/runs")

    @pytest.mark.parametrize("called", ["evil.example", "evil.example:8700", ""])
    async def test_without_a_key_a_name_that_anybody_may_have_is_refused(self, store: TraceStore, called: str):
        async with client(store) as ui:
            for path in self.ASKED:
                answer = await ui.get(path, headers={"host": called})
                assert answer.status_code == 403
                assert "\n" not in answer.json()["error"]["message"]

    async def test_the_name_it_is_served_at_is_its_own(self, store: TraceStore):
        async with client(store, name="Desk.example") as ui:
            for path in self.ASKED:
                assert (await ui.get(path, headers={"host": "desk.example:8700"})).status_code == 200

    async def test_with_a_key_any_name_will_do(self, store: TraceStore):
        async with client(store, keys=(b"other", b"secret")) as ui:
            answer = await ui.get("/ui/api/runs", headers={"host": "proxy.example", "x-api-key": "secret"})
        assert answer.status_code == 200


class TestApi:
    async def test_the_overview_says_whose_page_it_is(self, store: TraceStore):
        async with client(store, model="tiny") as ui:
            about = (await ui.get("/ui/api/overview")).json()
        assert about["title"] == "here"
        assert about["model"] == "tiny"
        assert (about["has_live"], about["has_lint"]) == (False, False)

    async def test_what_is_live_is_told_and_not_kept(self, store: TraceStore):
        async with client(store, live=Engine().live) as ui:
            answer = await ui.get("/ui/api/live")
        assert answer.headers["cache-control"] == "no-store"
        assert answer.json()["replicas"][0]["name"] == "tiny-1"
        assert answer.json()["kv"]["num_blocks"] == 900

    async def test_what_is_not_there_is_one_line(self, store: TraceStore):
        async with client(store) as ui:
            for path in ("live", "runs/nothing", f"runs/{RUN[0].trace_id}/lint"):
                answer = await ui.get(f"/ui/api/{path}")
                assert answer.status_code == 404
                assert "\n" not in answer.json()["error"]["message"]

    @pytest.mark.parametrize(
        "query", ["limit=x", "min_wall_s=-1", "min_wall_s=nan", "end=never", "from_s=1e99", "to_s=x"]
    )
    async def test_a_filter_that_is_nonsense_is_refused(self, store: TraceStore, query: str):
        async with client(store) as ui:
            answer = await ui.get(f"/ui/api/runs?{query}")
        assert answer.status_code == 400
        assert answer.json()["error"]["message"].startswith(query.partition("=")[0])

    async def test_a_list_goes_on_where_it_stopped(self, store: TraceStore):
        ids: list[str] = []
        async with client(store) as ui:
            before = ""
            while before is not None:
                page = (await ui.get(f"/ui/api/runs?limit=7&before={before}")).json()
                ids += [run["id"] for run in page["runs"]]
                before = page["before"]
        assert len(ids) == len(set(ids)) == 31

    async def test_a_run_has_its_turns(self, store: TraceStore):
        async with client(store) as ui:
            run = (await ui.get(f"/ui/api/runs/{RUN[0].trace_id}")).json()
        assert [turn["turn"] for turn in run["turns"]] == [1, 2, 3]
        assert run["agent"] == "triage"

    async def test_a_run_is_sent_again_only_if_there_is_more_of_it(self, tmp_path: Path):
        begun, *turns, ended = Run(4, "triage", "session-01", start_ns=time.time_ns()).growing(2)
        path = f"/ui/api/runs/{begun[0].trace_id}"
        with TraceStore(fill_store(tmp_path / "growing.db", begun)) as store:
            async with client(store) as ui:
                etag, num_turns = "", 0
                for spans in (*turns, ended):
                    fill_store(tmp_path / "growing.db", spans)
                    answer = await ui.get(path, headers={"if-none-match": etag})
                    assert answer.status_code == 200
                    etag, num_turns = answer.headers["etag"], len(answer.json()["turns"])
                    again = await ui.get(path, headers={"if-none-match": etag})
                    assert (again.status_code, again.content) == (304, b"")
        assert num_turns == 2
        assert answer.json()["end"] == "done"

    async def test_nothing_is_written(self, store: TraceStore):
        async with client(store) as ui:
            for path in ("/ui", "/ui/api/runs", f"/ui/api/runs/{RUN[0].trace_id}"):
                assert (await ui.post(path)).status_code == 405

    async def test_a_store_that_cannot_be_read_is_said_so(self, store: TraceStore):
        store.close()
        async with client(store) as ui:
            answer = await ui.get("/ui/api/runs")
        assert answer.status_code == 503
        assert "cannot read the trace store" in answer.json()["error"]["message"]
