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
    TierServers,
    config_of,
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
        config = config_of(await servers.find_models())
        return await measure_tiers(servers, config, mix(QUESTIONS, num_each))


def large_share(measured: Measured, way: str) -> float:
    return sum(each.choice.tier == "large" for each in measured.asked[way]) / len(measured.asked[way])


async def test_ways_are_compared():
    pair = Pair()
    measured = await run(pair)
    assert [12 * measured.right(way) for way in (LARGE, RULES, CASCADE)] == [12, pytest.approx(8), 12]
    assert [large_share(measured, way) for way in (LARGE, RULES)] == [1, pytest.approx(1 / 6)]
    assert large_share(measured, CASCADE) == 0.5, "calls that were not made are asked for again"
    assert sum(len(each.spent) - 1 for each in measured.asked[CASCADE]) == 4
    assert measured.cost(RULES) / measured.cost(LARGE) == pytest.approx(0.25)
    assert measured.cost(CASCADE) / measured.cost(LARGE) == pytest.approx((6 * 1 + 10 * 0.1) / 12)
    assert {body["model"] for host, body in pair.bodies if host == "small"} == {"small-model"}
    assert [len(part.asked[RULES]) for part in measured.parts(5)] == [3, 3, 3, 3]


async def test_models_are_asked_alike():
    """Probabilities, for which no token is forced, are asked for where a cascade looks at them and nowhere else."""
    pair = Pair()
    await run(pair)
    hosts = [host for host, _ in pair.bodies]
    assert (hosts.count("large"), hosts.count("small")) == (12, 16), "six of ten are judged by how sure it was"
    assert all("tools" not in body and host == "small" for host, body in pair.bodies if "logprobs" in body)
    plain = [body for host, body in pair.bodies if host == "small" and "logprobs" not in body]
    assert len(plain) == 10, "one of six kinds never goes to the small one"


async def test_three_tiers_at_their_prices():
    urls = {"small": "http://small", "medium": "http://medium", "large": "http://large"}
    async with TierServers(urls, transport=httpx.MockTransport(Pair())) as servers:
        config = config_of(await servers.find_models())
        measured = await measure_tiers(servers, config, mix(QUESTIONS, 2))
    assert [tier.output_price for tier in config.tiers] == [4.0, 40.0, 400.0]
    by_kind = {each.question.kind: each.choice.tier for each in measured.asked[RULES]}
    assert by_kind == {
        "call": "medium",
        "classification": "small",
        "extraction": "small",
        "tool choice": "medium",
        "qa": "medium",
        "several calls": "large",
    }


async def test_an_unsure_small_model_is_not_believed():
    measured = await run(Pair(logprob=-2.0))
    assert (large_share(measured, CASCADE), measured.right(CASCADE)) == (1, 1)


async def test_servers_that_fail():
    with pytest.raises(RemoteError, match=r"large.*answered 503: out of order"):
        await run(Pair(failing=frozenset({"large"})))
    measured = await run(Pair(failing=frozenset({"small"})))
    assert {each.question.kind for each in measured.asked[LARGE]} == {"several calls"}, "the others failed one way"
    assert all("small" in error for error in measured.errors)
    async with TierServers({"small": "http://127.0.0.1:1"}) as servers:
        with pytest.raises(RemoteError, match="does not list its model"):
            await servers.find_models()
