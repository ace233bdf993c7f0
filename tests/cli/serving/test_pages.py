"""The page of a server and of a router: it is there, tells what goes on, and asks for the key."""

import asyncio

import httpx
import pytest
from tests.server.serving import Serving, until
from tests.ui.made_up import Run, fill_store

from hotloop.cli.serving.pages import live_of_engine, live_of_router, opened_store, page_of
from hotloop.core.config import RouterConfig, TraceConfig
from hotloop.core.errors import Overloaded
from hotloop.http.keys import ApiKeys, read_keys
from hotloop.http.page import WithPage
from hotloop.router.app import RouterApp
from hotloop.router.config import ReplicaConfig, RoutingConfig
from hotloop.trace.store import StoreTracer


async def test_what_goes_on_in_an_engine() -> None:
    with Serving() as serving:
        serving.chat(max_tokens=3, user="somebody")
        live = await live_of_engine(serving.engine)
    assert live.max_running == 64
    assert live.kv
    assert live.kv.num_blocks == 512
    assert live.totals["num_prompt"] > 0
    assert set(live.waiting) == {"interactive", "workflow", "background"}
    assert [each.session for each in live.kv.sessions] == ["somebody"]
    assert live.kv.sessions[0].num_cached == live.kv.num_cached > 0


async def test_an_engine_that_does_not_come_to_the_end_of_its_step_is_said_so() -> None:
    with Serving() as serving:
        with serving.gate:
            asked = asyncio.create_task(asyncio.to_thread(serving.chat, max_tokens=1))
            await asyncio.to_thread(until, lambda: serving.engine.stats().num_running == 1)
            with pytest.raises(Overloaded, match="has not finished its current step"):
                await live_of_engine(serving.engine, patience_s=0.01)
        await asked
        assert (await live_of_engine(serving.engine)).totals["num_output"] == 1


async def test_what_goes_on_in_a_fleet() -> None:
    replica = ReplicaConfig(url="http://127.0.0.1:9", name="a", kind="vllm")
    live = await live_of_router(RouterApp(RoutingConfig(router=RouterConfig(), replicas=(replica,))))
    assert live.num_running == 0
    assert live.replicas == ()  # nobody was started


async def test_the_page_stands_beside_the_api_and_minds_its_own_key(tmp_path) -> None:
    path = tmp_path / "trace.db"
    StoreTracer(path).close()

    async def api(scope, receive, send) -> None:
        await send({"type": "http.response.start", "status": 418, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    with opened_store(TraceConfig(trace=str(path))) as store:
        assert store
        page = page_of(store, "a title", lambda: None, keys=ApiKeys(read_keys("k", None)))
        transport = httpx.ASGITransport(WithPage(api, page))
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            assert (await client.get("/ui")).headers["content-security-policy"].startswith("default-src 'none'")
            assert (await client.get("/ui/api/runs")).status_code == 401
            assert (await client.get("/ui/api/runs", headers={"authorization": "Bearer k"})).status_code == 200
            assert (await client.get("/uix")).status_code == 418


async def test_money_is_by_the_prices_of_the_file(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "hotloop.toml").write_text("[prices.tiny]\nprompt = 2.0\noutput = 8.0\n")
    spans = Run(1, "triage").agent_run(2)
    path = fill_store(tmp_path / "trace.db", spans)
    with opened_store(TraceConfig(trace=str(path))) as store:
        assert store
        transport = httpx.ASGITransport(page_of(store, "a title", lambda: None))
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            [line] = (await client.get("/ui/api/runs")).json()["runs"]
            run = (await client.get(f"/ui/api/runs/{line['id']}")).json()
    assert line["money"] == pytest.approx(run["money"]) != 0


def test_nothing_recorded_is_no_page() -> None:
    with opened_store(TraceConfig(trace="off")) as store:
        assert store is None
