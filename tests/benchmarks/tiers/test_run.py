"""Three ways to ask, against two servers that are made up."""

import json
from typing import Any

import httpx
import pytest
from benchmarks.tiers.questions import mix
from benchmarks.tiers.run import (
    CASCADE,
    LARGE,
    RULES,
    Measured,
    Terms,
    TierServers,
    WayFigures,
    figures_of,
    measure_tiers,
)
from tests.benchmarks.tiers.test_questions import QUESTIONS

from hotloop.core.errors import RemoteError

URLS = {"small": "http://small/v1", "large": "http://large"}


class Pair:
    """Both servers: the large one is right; the small one makes no calls, and says how sure it is."""

    def __init__(self, *, logprob: float = -0.1, failing: frozenset[str] = frozenset()) -> None:
        self.bodies: list[tuple[str, dict[str, Any]]] = []
        self._logprob, self._failing = logprob, failing

    def __call__(self, request: httpx.Request) -> httpx.Response:
        host = request.url.host
        if request.url.path == "/v1/models":
            return httpx.Response(200, json={"data": [{"id": f"{host}-model"}]})
        body = json.loads(request.content)
        self.bodies.append((host, body))
        if host in self._failing:
            return httpx.Response(503, text="out of order")
        return httpx.Response(200, json=self._answer(host, body))

    def _answer(self, host: str, body: dict[str, Any]) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": "forecast"}
        if host == "large" and "tools" in body:
            call = {"function": {"name": "forecast", "arguments": '{"city": "Rome"}'}}
            message["tool_calls"] = [call] * (2 if body["parallel_tool_calls"] else 1)
        elif "response_format" in body:
            message["content"] = '{"city": "Rome"}'
        elif "choice" not in body:
            message["content"] = "Rome"
        logprobs = {"content": [{"token": "x", "logprob": self._logprob}]} if body.get("logprobs") else None
        choice = {"message": message, "finish_reason": "stop", "logprobs": logprobs}
        return {"choices": [choice], "usage": {"prompt_tokens": 100, "completion_tokens": 0}}


async def run(pair: Pair, num_each: int = 2) -> Measured:
    async with TierServers(URLS, transport=httpx.MockTransport(pair)) as servers:
        config = Terms(price_ratio=10).config(await servers.find_models())
        return await measure_tiers(servers, config, mix(QUESTIONS, num_each))


def by_label(measured: Measured) -> dict[str, WayFigures]:
    return {figures.label: figures for figures in figures_of(measured)}


async def test_ways_are_compared():
    pair = Pair()
    ways = by_label(await run(pair))
    assert [ways[way].num_right for way in (LARGE, RULES, CASCADE)] == [12, 8, 12]
    assert [ways[way].large_share for way in (LARGE, RULES)] == [1, pytest.approx(1 / 6)]
    assert ways[CASCADE].large_share == 0.5, "calls that were not made are asked for again"
    assert (ways[CASCADE].num_discarded, ways[RULES].num_discarded) == (4, 0)
    assert ways[RULES].cost / ways[LARGE].cost == pytest.approx(0.25)
    assert ways[CASCADE].cost / ways[LARGE].cost == pytest.approx((6 * 1 + 10 * 0.1) / 12)
    assert {body["model"] for host, body in pair.bodies if host == "small"} == {"small-model"}


async def test_each_model_is_asked_once_a_question():
    pair = Pair()
    await run(pair)
    hosts = [host for host, _ in pair.bodies]
    assert (hosts.count("large"), hosts.count("small")) == (12, 10), "one of six kinds never goes to the small one"
    assert all(body["logprobs"] == (host == "small") for host, body in pair.bodies if "logprobs" in body)


async def test_an_unsure_small_model_is_not_believed():
    ways = by_label(await run(Pair(logprob=-2.0)))
    assert (ways[CASCADE].large_share, ways[CASCADE].num_discarded, ways[CASCADE].num_right) == (1, 10, 12)


async def test_servers_that_fail():
    with pytest.raises(RemoteError, match=r"large.*answered 503: out of order"):
        await run(Pair(failing=frozenset({"large"})))
    measured = await run(Pair(failing=frozenset({"small"})))
    assert {each.question.kind for each in measured.asked[LARGE]} == {"several calls"}, "the others failed one way"
    assert all("small" in error for error in measured.errors)
    async with TierServers({"small": "http://127.0.0.1:1"}) as servers:
        with pytest.raises(RemoteError, match="does not list its model"):
            await servers.find_models()
