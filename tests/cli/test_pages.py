"""The page of a server and of a router: it is there, tells what goes on, and asks for the key."""

import httpx
from tests.server.serving import Serving

from hotloop.border.page import WithPage
from hotloop.cli.pages import live_of_engine, live_of_router, opened_store, page_of
from hotloop.core.config import RouterConfig, TraceConfig
from hotloop.router.app import RouterApp
from hotloop.router.config import FleetConfig, ReplicaConfig
from hotloop.trace.store import StoreTracer


def test_what_goes_on_in_an_engine() -> None:
    with Serving() as serving:
        serving.chat(max_tokens=3)
        live = live_of_engine(serving.engine, 64)
    assert live.max_running == 64
    assert live.kv
    assert live.kv.num_blocks == 512
    assert live.totals.num_prompt > 0
    assert set(live.waiting) == {"interactive", "workflow", "background"}


def test_what_goes_on_in_a_fleet() -> None:
    replica = ReplicaConfig(url="http://127.0.0.1:9", name="a", kind="vllm")
    live = live_of_router(RouterApp(FleetConfig(router=RouterConfig(), replicas=(replica,))))
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
        page = page_of(store, "a title", lambda: None, api_key="k")
        transport = httpx.ASGITransport(WithPage(api, page))
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            assert (await client.get("/ui")).headers["content-security-policy"].startswith("default-src 'none'")
            assert (await client.get("/ui/api/runs")).status_code == 401
            assert (await client.get("/ui/api/runs", headers={"authorization": "Bearer k"})).status_code == 200
            assert (await client.get("/uix")).status_code == 418


def test_nothing_recorded_is_no_page() -> None:
    with opened_store(TraceConfig(trace="off")) as store:
        assert store is None
