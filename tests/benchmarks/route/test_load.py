"""The lean client: what it sends, and what it says became of it."""

import math
from collections.abc import AsyncIterator
from itertools import islice, repeat

import pytest
from benchmarks.route.answers import CHAT
from benchmarks.route.load import Exchange, LeanClient, ask_steadily, render_request
from benchmarks.route.prompts import agent_requests
from tests.router.faults import Fault, FaultyStub

REQUEST = render_request(CHAT, {"stream": True})


@pytest.fixture
async def stub() -> AsyncIterator[FaultyStub]:
    stub = FaultyStub("stub-1")
    await stub.start()
    yield stub
    await stub.close()


@pytest.fixture
async def client(stub: FaultyStub) -> AsyncIterator[LeanClient]:
    client = LeanClient(stub.url)
    yield client
    await client.close()


async def test_every_request_due_is_sent_once_and_timed(stub: FaultyStub, client: LeanClient):
    exchanges: list[Exchange] = []
    await ask_steadily(client, repeat(REQUEST), rate=1000, duration_s=0.03, on_end=exchanges.append)
    assert len(exchanges) == stub.paths[CHAT] == 30
    for exchange in exchanges:
        assert exchange.is_whole
        assert exchange.status == 200
        assert exchange.body.endswith(b"data: [DONE]\n\n")
        assert exchange.due_at <= exchange.asked_at < exchange.first_at <= exchange.ended_at


async def test_connections_are_kept(stub: FaultyStub, client: LeanClient):
    for _ in range(20):
        await client.ask(REQUEST).ended
    assert stub.paths[CHAT] == 20
    assert client.num_open == 1


async def test_connections_can_be_there_before(stub: FaultyStub, client: LeanClient):
    await client.open(5)
    await client.ask(REQUEST).ended
    assert client.num_open == 5


async def test_an_answer_that_breaks_off_is_told_from_a_whole_one(stub: FaultyStub, client: LeanClient):
    await stub.set_fault(Fault("half", 60))
    exchange = client.ask(REQUEST)
    await exchange.ended
    assert (exchange.status, exchange.is_whole, exchange.broken) == (200, False, "connection closed")
    assert exchange.first_at < math.inf


async def test_an_answer_that_does_not_come_is_given_up(stub: FaultyStub):
    await stub.set_fault(Fault("hang", 60))
    client = LeanClient(stub.url, timeout_s=1)
    exchange = client.ask(REQUEST)
    await exchange.ended
    assert (exchange.status, exchange.broken, exchange.first_at) == (0, "timeout", math.inf)
    await client.close()


async def test_nobody_there_is_no_answer(stub: FaultyStub, client: LeanClient):
    await stub.set_fault(Fault("refuse", 60))
    exchange = client.ask(REQUEST)
    await exchange.ended
    assert exchange.status == 0
    assert exchange.broken.startswith("cannot connect")


def test_prompts_are_the_same_for_the_same_seed_and_never_end():
    first, again, other = (list(islice(agent_requests(seed=seed, num_agents=2), 40)) for seed in (1, 1, 2))
    assert first == again
    assert not set(first) & set(other)
    assert len({request.partition(b"x-session-id: ")[2].partition(b"\r\n")[0] for request in first}) > 4


def test_an_agent_resends_what_it_said():
    one, two = islice(agent_requests(num_agents=1, system_chars=70), 2)
    body = one.partition(b"\r\n\r\n")[2]
    assert two.partition(b"\r\n\r\n")[2].startswith(body.removesuffix(b"]}"))
