"""Replicas that fail: a request is tried elsewhere until its first byte, a stream ends properly whatever happens."""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import httpx
import pytest
from benchmarks.route.stub import Manner
from tests.router.conftest import MESSAGES, Router, replica_configs, running
from tests.router.faults import Fault
from tests.router.upstream.replicas import OK, Replica, Visit

from hotloop.core.config import RouterConfig
from hotloop.core.errors import ConfigError
from hotloop.router.config import ReplicaConfig, RoutingConfig

CHAT = "/v1/chat/completions"
SLOW = Manner(num_events=40, gap_s=0.02)


def events_of(content: bytes) -> list[bytes]:
    assert content.endswith(b"\n\n")
    return content.removesuffix(b"\n\n").split(b"\n\n")


@pytest.mark.parametrize("kind", ["error", "refuse", "half"])
async def test_a_whole_answer_is_asked_for_elsewhere(stubs, route, kind):
    bad, good = await stubs(2)
    router = await route(replica_configs([bad, good]), policy="round_robin", health_interval_s=60.0)
    await bad.set_fault(Fault(kind, 60.0))
    answers = [await router.chat(f"question {i}") for i in range(6)]
    assert {answer.status_code for answer in answers} == {200}
    assert all(good.name in answer.json()["id"] for answer in answers)


async def test_who_waits_for_a_replica_that_hangs_is_answered_by_another(stubs, route):
    bad, good = await stubs(2)
    router = await route(replica_configs([bad, good]), policy="round_robin")
    await bad.set_fault(Fault("hang", 60.0))
    answers = await asyncio.gather(*(router.chat(f"question {i}") for i in range(8)))
    assert {answer.status_code for answer in answers} == {200}
    assert (await router.states())["s0"] == "down"
    assert any("tried=2" in answer.headers["x-hotloop-route"] for answer in answers)


async def test_a_stream_that_breaks_off_ends_in_an_error_event(stubs, route):
    [stub] = await stubs(1)
    router = await route(replica_configs([stub]), health_interval_s=60.0)
    await stub.set_fault(Fault("half", 60.0))
    answer = await router.chat(stream=True)
    ping, *events = events_of(answer.content)
    assert (answer.status_code, ping) == (200, b": ping")
    assert len(events) > 1
    assert all(json.loads(event.removeprefix(b"data: ")) for event in events)
    assert json.loads(events[-1].removeprefix(b"data: "))["error"]["code"] == "replica_lost"
    page = (await router.client.get("/metrics")).text
    assert 'hotloop_router_broken_streams_total{replica="s0"} 1.0' in page


async def test_a_broken_stream_of_messages_ends_in_anthropics_error_event(stubs, route):
    [stub] = await stubs(1)
    router = await route(replica_configs([stub]), health_interval_s=60.0)
    await stub.set_fault(Fault("half", 60.0))
    body = {"model": "stub", "messages": MESSAGES, "max_tokens": 8, "stream": True}
    last = events_of((await router.client.post("/v1/messages", json=body)).content)[-1]
    assert last.startswith(b"event: error\n")
    assert json.loads(last.partition(b"data: ")[2])["type"] == "error"


async def test_what_the_last_replica_said_reaches_the_client(stubs, route):
    [stub] = await stubs(1)
    router = await route(replica_configs([stub]), max_retries=0)
    await stub.set_fault(Fault("error", 60.0))
    assert (await router.chat()).status_code == 500


async def test_a_replica_is_back_with_its_first_good_probe(stubs, route):
    [stub] = await stubs(1)
    router = await route(replica_configs([stub]), queue_timeout_s=20.0)
    await stub.set_fault(Fault("refuse", 60.0))
    await router.until(lambda: router.replica_set.replicas["s0"].state == "down")
    waiting = asyncio.create_task(router.chat())
    await router.until(lambda: len(router.replica_set.room) == 1)
    await stub.set_fault(None)
    assert (await waiting).status_code == 200


async def test_nobody_up_is_503_with_a_time_to_come_back(stubs, route):
    [stub] = await stubs(1)
    router = await route(replica_configs([stub]), queue_timeout_s=0.1)
    await stub.set_fault(Fault("refuse", 60.0))
    await router.until(lambda: router.replica_set.replicas["s0"].state == "down")
    answer = await router.chat()
    assert answer.status_code == 503
    assert answer.json()["error"]["code"] == "no_replica"
    assert int(answer.headers["retry-after"]) >= 1
    assert (await router.client.get("/ready")).status_code == 503
    assert (await router.client.get("/health")).status_code == 200


async def test_more_than_replicas_take_wait_and_too_many_are_refused(stubs, route):
    [stub] = await stubs(1, SLOW)
    router = await route(replica_configs([stub], max_connections=2), max_waiting=2)
    tasks = [asyncio.create_task(router.chat(f"q{i}", stream=True)) for i in range(4)]
    await router.until(lambda: router.replica_set.num_running == 2 and len(router.replica_set.room) == 2)
    refused = await router.chat("one more")
    assert refused.status_code == 429
    assert refused.headers["retry-after"] == "2"  # nothing is known of the pace yet: a second for each who waits
    assert [answer.status_code for answer in await asyncio.gather(*tasks)] == [200] * 4
    assert len(stub.connections) <= 3


async def test_the_urgent_go_first(stubs, route):
    [stub] = await stubs(1, SLOW)
    router = await route(replica_configs([stub], max_connections=1))
    order: list[str] = []

    async def ask(priority: str) -> None:
        await router.chat(priority, priority=priority, stream=True)
        order.append(priority)

    tasks = [asyncio.create_task(ask("interactive"))]
    await router.until(lambda: router.replica_set.num_running == 1)
    for count, priority in enumerate(("background", "workflow", "interactive"), 1):
        tasks.append(asyncio.create_task(ask(priority)))
        await router.until(lambda count=count: len(router.replica_set.room) == count)
    await asyncio.gather(*tasks)
    assert order == ["interactive", "interactive", "workflow", "background"]


async def test_a_client_that_hangs_up_frees_its_place_and_the_replicas(stubs, route):
    [stub] = await stubs(1, Manner(num_events=10_000, gap_s=0.01))
    router = await route(replica_configs([stub]))
    async with httpx.AsyncClient(verify=False) as client:
        body = {"model": "stub", "messages": MESSAGES, "stream": True}
        async with client.stream("POST", router.url + CHAT, json=body) as answer:
            await anext(answer.aiter_bytes())
    await router.until(lambda: router.replica_set.num_running == 0)
    await router.until(lambda: stub.num_running == 0)


async def test_replicas_come_and_go_and_no_stream_is_dropped(stubs, route):
    old, new = await stubs(2, SLOW)
    router = await route(replica_configs([old]))
    stream = asyncio.create_task(router.chat(stream=True))
    await router.until(lambda: router.replica_set.num_running == 1)
    config = router.replica_set.config
    router.replica_set.reload(RoutingConfig(router=config.router, replicas=replica_configs([new])))
    assert (await router.states())["s0"] == "leaving"
    after = await router.chat("now")
    assert new.name in after.json()["id"]
    whole = (await stream).content
    assert whole.endswith(b"data: [DONE]\n\n")
    assert b"error" not in whole
    await router.until(lambda: not router.replica_set.leaving)
    assert await router.states() == {"s1": "up"}


async def test_a_changed_replica_is_another(stubs, route):
    [stub] = await stubs(1)
    router = await route(replica_configs([stub]))
    before = router.replica_set.replicas["s0"]
    [config] = replica_configs([stub])
    router.replica_set.reload(replace(router.replica_set.config, replicas=(replace(config, weight=2.0),)))
    assert router.replica_set.replicas["s0"] is not before
    assert (await router.chat()).status_code == 200


async def test_a_shutdown_lets_what_runs_finish(stubs, route):
    [stub] = await stubs(1, SLOW)
    router = await route(replica_configs([stub]))
    stream = asyncio.create_task(router.chat(stream=True))
    await router.until(lambda: router.replica_set.num_running == 1)
    router.server.stop()
    assert (await stream).content.endswith(b"data: [DONE]\n\n")


async def test_whoever_begins_first_is_heard(stubs, route):
    slow, quick = await stubs(2)
    router = await route(replica_configs([slow, quick]), policy="round_robin", hedge_after_s=0.05)
    await slow.set_fault(Fault("slow", 60.0, delay_s=5.0))
    answers = [await router.chat(f"q{i}") for i in range(4)]
    assert all(quick.name in answer.json()["id"] for answer in answers)
    await router.until(lambda: router.replica_set.num_running == 0)


async def test_a_reload_that_is_refused_leaves_every_replica_as_it_is(stubs, route):
    first, second = await stubs(2)
    router = await route(replica_configs([first, second]))
    before, config = dict(router.replica_set.replicas), router.replica_set.config
    with pytest.raises(ConfigError, match="kv_events"):
        router.server.app.reload(replace(config, replicas=(replace(config.replicas[0], kv_events="tcp://"),)))
    assert router.replica_set.replicas == before
    assert not router.replica_set.leaving
    assert (await router.chat()).status_code == 200


async def test_a_reload_tells_what_it_changed_and_applies_the_policy(stubs, route):
    first, second, third = await stubs(3)
    router = await route(replica_configs([first, second]), policy="prefix")
    changed, added = replica_configs([second, third])
    settings = replace(router.replica_set.config.router, policy="round_robin")
    config = RoutingConfig(router=settings, replicas=(replace(changed, weight=2.0), added))
    told = router.server.app.reload(config)
    assert told == ["replicas added: s2", "replicas changed: s1", "replicas removed: s0"]
    assert router.server.app.reload(config) == []
    await router.until(lambda: all(each.state == "up" for each in router.replica_set.replicas.values()))
    reasons = {(await router.chat("the same")).headers["x-hotloop-route"].split("; ")[1] for _ in range(2)}
    assert reasons == {"reason=its_turn"}


async def test_a_replica_that_closes_its_listener_finishes_its_streams(stubs, route):
    [stub] = await stubs(1, SLOW)
    router = await route(replica_configs([stub]))
    stream = asyncio.create_task(router.chat(stream=True))
    await router.until(lambda: bool(stub.paths.get(CHAT)))  # it has the request, not only a place for it
    await stub.set_fault(Fault("refuse", 60.0))
    await router.until(lambda: router.replica_set.replicas["s0"].state == "down")
    whole = (await stream).content
    assert whole.endswith(b"data: [DONE]\n\n")
    assert b"error" not in whole


async def test_what_happens_to_replicas_and_requests_is_logged(stubs, route, caplog):
    caplog.set_level("INFO", "hotloop.router")
    bad, good = await stubs(2)
    router = await route(replica_configs([bad, good]), policy="round_robin", max_retries=1)
    assert f"replica up: name=s0 kind=hotloop url={bad.url}" in caplog.text
    await bad.set_fault(Fault("error", 60.0))
    for i in range(2):
        assert (await router.chat(f"q{i}")).status_code == 200
    assert re.search(r"retry: request=req_\w+ replica=s0 reason=a replica answered 500", caplog.text)
    await bad.set_fault(None)
    for stub in (bad, good):
        await stub.set_fault(Fault("half", 60.0))
    await router.chat(stream=True)
    lost = r"stream lost: request=req_\w+ replica=s\d after_bytes=\d+ after_s=\d+\.\d reason=the replica's answer broke"
    assert re.search(lost, caplog.text)
    for stub in (bad, good):
        await stub.set_fault(Fault("error", 60.0))
    assert (await router.chat()).status_code == 500
    assert re.search(
        r"request failed: request=req_\w+ status=500 reason=replica_failed: a replica answered", caplog.text
    )
    for stub in (bad, good):
        await stub.set_fault(Fault("refuse", 60.0))
    await router.until(lambda: "replica down: name=s0 running=0 reason=" in caplog.text)


@asynccontextmanager
async def dropping(**settings: Any) -> AsyncIterator[tuple[Router, list[bytes]]]:
    """A router over a replica that runs each request, and closes a kept connection instead of answering on it."""
    runs: list[bytes] = []
    used: set[int] = set()

    async def answer(visit: Visit) -> None:
        if visit.head.startswith(b"POST"):
            runs.append(visit.body)
            if id(visit.writer) in used:
                visit.hang_up()
                return
            used.add(id(visit.writer))
        await visit.say(OK)

    async with Replica(answer) as replica:
        config = ReplicaConfig(url=replica.url, name="r", kind="openai_compatible")
        replica_set = RoutingConfig(router=RouterConfig(health_interval_s=0.05, **settings), replicas=(config,))
        async with running(replica_set) as router:
            await router.until(lambda: router.replica_set.replicas["r"].state == "up")
            yield router, runs


async def test_a_resend_on_a_dropped_connection_is_a_retry():
    async with dropping() as (router, runs):
        saved = router.replica_set.budget.saved
        answers = [await router.chat(f"q{i}") for i in range(6)]
        assert [answer.status_code for answer in answers] == [200] * 6
        assert sum("tried=2" in answer.headers["x-hotloop-route"] for answer in answers) == len(runs) - 6 == 5
        assert router.replica_set.budget.saved == pytest.approx(saved + 6 * router.replica_set.budget.share - 5)


@pytest.mark.parametrize("settings", [{"max_retries": 0}, {"retry_share": 0.0}])
async def test_without_retries_no_request_runs_twice(settings):
    async with dropping(**settings) as (router, runs):
        if "retry_share" in settings:
            router.replica_set.budget.saved = 0.0
        answers = [await router.chat(f"q{i}") for i in range(6)]
        assert len(runs) == 6
        assert {answer.status_code for answer in answers} == {200, 502}
