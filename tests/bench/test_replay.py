"""The replay client against a server on loopback."""

import pytest
from tests.bench.fake_server import FakeServer

from hotloop.bench.client import ChatClient
from hotloop.bench.replay import Progress, Replay, replay
from hotloop.bench.report import summarise
from hotloop.bench.workload import generate_jobs
from hotloop.core.errors import RemoteError

JOBS = generate_jobs(num_jobs=3, num_turns=4, num_output=8, system_chars=2000)


async def run(server: FakeServer, num_agents: int = 2, watch=lambda _: None) -> Replay:
    async with ChatClient(server.url) as client:
        return await replay(client, JOBS, num_agents=num_agents, watch=watch)


async def test_every_turn_is_asked_once_and_in_order():
    with FakeServer() as server:
        result = await run(server)
    assert len(result.steps) == 12
    assert len(result.job_times_s) == 3
    for job in JOBS:
        asked = [body for body, id_ in zip(server.bodies, server.session_ids, strict=True) if id_ == job.id]
        assert [tuple(body["messages"]) for body in asked] == [turn.messages for turn in job.turns]
    body = server.bodies[0]
    assert (body["model"], body["max_tokens"], body["temperature"], body["ignore_eos"]) == ("fake", 8, 0, True)


async def test_usage_is_taken_from_the_server():
    with FakeServer() as server:
        result = await run(server, num_agents=1)
    assert {step.usage.num_output for step in result.steps} == {8}
    first, second = result.steps[:2]
    assert first.usage.num_cached == 0
    assert second.usage.num_cached == first.usage.num_prompt
    assert all(0 < step.ttft_s <= step.latency_s for step in result.steps)


async def test_watchers_see_begin_words_and_end_of_a_turn():
    seen: list[Progress] = []
    with FakeServer() as server:
        await run(server, num_agents=1, watch=seen.append)
    turn = [progress for progress in seen if (progress.job_id, progress.turn) == ("agent-1", 2)]
    assert (turn[0].text, turn[0].step) == ("", None)
    assert [progress.text for progress in turn[1:-1]] == [f" word{i}" for i in range(8)]
    assert turn[-1].step is not None


@pytest.mark.parametrize("fault", ["failing", "breaking"])
async def test_a_failed_turn_is_counted_and_the_job_goes_on(fault: str):
    with FakeServer(**{fault: frozenset({1})}) as server:
        result = await run(server, num_agents=1)
    assert len(server.bodies) == 12
    assert len(result.steps) == 11
    assert len(result.job_times_s) == 2
    assert "out of order" in result.errors[0] or "it broke" in result.errors[0]


async def test_a_server_that_is_not_there_is_named():
    with FakeServer() as server:
        url = server.url
    with pytest.raises(RemoteError, match=f"cannot reach {url}"):
        async with ChatClient(url) as client:
            await replay(client, JOBS, num_agents=1)


@pytest.mark.parametrize("url", ["nonsense", "http://", "http://[", "ftp://127.0.0.1"])
@pytest.mark.parametrize("model", [None, "fake"])
async def test_an_address_that_is_none_is_one_clear_line(url: str, model: str | None):
    async with ChatClient(url, model=model) as client:
        with pytest.raises(RemoteError):
            await anext(client.stream([]))


async def test_the_api_key_is_sent_as_a_bearer_token():
    with FakeServer() as server:
        async with ChatClient(server.url + "/v1/", api_key="secret") as client:
            deltas = [delta async for delta in client.stream([{"role": "user", "content": "Hi"}])]
    assert server.api_keys == ["Bearer secret"]
    assert deltas[-1].usage is not None


async def test_recomputed_tokens_are_those_an_earlier_request_had():
    with FakeServer() as server:
        cached = summarise("cached", await run(server, num_agents=1), JOBS)
    with FakeServer(caches=False) as server:
        naive = summarise("naive", await run(server, num_agents=1), JOBS)
    assert cached.num_prompt_tokens == naive.num_prompt_tokens == naive.num_prefilled_tokens
    assert naive.num_recomputed_tokens > 0.7 * naive.num_prompt_tokens
    assert cached.num_recomputed_tokens < 0.05 * naive.num_recomputed_tokens
    assert cached.cached_share > 0.7
