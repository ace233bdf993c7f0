"""Stubs and the router as processes, and troubles made of them. What is asserted is that all is counted."""

from collections.abc import Iterator

import httpx
import pytest
from benchmarks.route.answers import CHAT
from benchmarks.route.chaos import run_chaos
from benchmarks.route.processes import RouterProcess, StubProcess, render_fleet
from benchmarks.route.stub import CONTROL, Fault, Manner
from benchmarks.route.troubles import KINDS, Trouble


@pytest.fixture
def stubs() -> Iterator[list[StubProcess]]:
    with StubProcess("stub-1", Manner(4, 0.005)) as first, StubProcess("stub-2", Manner(4, 0.005)) as second:
        yield [first, second]


def test_a_stub_that_was_killed_comes_back_where_it_was(stubs: list[StubProcess]):
    stub = stubs[0]
    url = stub.url
    assert httpx.post(f"{url}{CHAT}", json={}).status_code == 200
    stub.kill()
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{url}/health")
    stub.start()
    assert stub.url == url
    assert httpx.get(f"{url}{CONTROL}").json()["paths"] == {CONTROL: 1}


async def test_a_fault_is_set_from_outside(stubs: list[StubProcess]):
    stub = stubs[1]
    await stub.set_fault(Fault("error", 60))
    async with httpx.AsyncClient(verify=False) as http:
        assert (await http.post(f"{stub.url}{CHAT}", json={})).status_code == 500
        await stub.set_fault(Fault("refuse", 0.01))
        await stub.wait_until_well()
        assert (await http.post(f"{stub.url}{CHAT}", json={})).status_code == 200


def test_a_fleet_is_listed_in_its_file():
    assert render_fleet(["http://a:1", "http://b:2"]).count("[[replicas]]") == 2


async def test_every_request_and_every_trouble_is_counted(stubs: list[StubProcess]):
    troubles = [Trouble(kind, "stub-1", 0.3 * number, 0.3 * number + 0.2) for number, kind in enumerate(KINDS)]
    with RouterProcess([stub.url for stub in stubs]) as router:
        report = await run_chaos(router, stubs, troubles, rate=40, duration_s=2.5, seed=1)
    assert report.num_asked == sum(report.ends.values()) == 100
    assert [recovery.kind for recovery in report.recoveries] == list(KINDS)
    assert report.ends["done"]
