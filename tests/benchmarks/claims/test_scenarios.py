"""The scenarios against servers and models that are made up: who is asked what, and when. What they measure is not
looked at."""

from collections.abc import AsyncIterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import pytest
from benchmarks.agent.fleet import FleetRun
from benchmarks.agent.recorded import read_agent_jobs
from benchmarks.agent.speculation import read_runs
from benchmarks.claims.batching import WAYS, Served, Way, asker, draw_arrivals, results_of, serve_arrivals
from benchmarks.claims.gathering import WAYS as GATHERING_WAYS
from benchmarks.claims.gathering import Gathered, gather
from benchmarks.claims.gathering import results_of as gathering_results
from benchmarks.claims.loop import Loop, fit_job, prompt_tokens
from benchmarks.claims.loop import results_of as loop_results
from benchmarks.claims.priority import share
from benchmarks.claims.published import (
    CLAIMS,
    CONTINUOUS,
    DYNAMIC,
    FLAT,
    RECOMPUTED,
    SPECULATION,
    STATIC,
    TIERS,
    TOGETHER,
    TOKENS,
)
from benchmarks.claims.run import FULL, QUICK, Supplies, run_claims
from benchmarks.claims.speculation import measure_speculation
from benchmarks.claims.tiers import result_of
from benchmarks.claims.together import HintedModel, run_naive, run_whole
from benchmarks.claims.together import result_of as together_result
from benchmarks.claims.workflows import write_workflows
from benchmarks.tiers.questions import mix
from benchmarks.tiers.run import Terms, TierServers, measure_tiers
from tests.bench.fake_server import FakeServer
from tests.benchmarks.tiers.test_questions import QUESTIONS
from tests.benchmarks.tiers.test_run import URLS, Pair
from tests.server.serving import Serving

from hotloop.agent.model import Ask
from hotloop.agent.scripted import ScriptedCall, ScriptedModel
from hotloop.agent.speculation import SpeculativeTools
from hotloop.bench.client import ChatClient
from hotloop.bench.replay import ReplayedTurn
from hotloop.bench.workload import generate_jobs
from hotloop.core.errors import RemoteError
from hotloop.core.message import Message
from hotloop.core.request import Usage


class CrowdedServer(FakeServer):
    """Knows how many it ever answered at a time."""

    num_now = 0
    num_most = 0

    async def _events(self, body: dict[str, Any], is_breaking: bool) -> AsyncIterator[str]:
        self.num_now += 1
        self.num_most = max(self.num_most, self.num_now)
        async for event in super()._events(body, is_breaking):
            yield event
        self.num_now -= 1


class AgentsServer(FakeServer):
    """Takes what agents send: answers that are calls, and the newer name of the limit."""

    async def _events(self, body: dict[str, Any], is_breaking: bool) -> AsyncIterator[str]:
        messages = [{**message, "content": str(message.get("content"))} for message in body["messages"]]
        plain = {**body, "messages": messages, "max_tokens": body["max_completion_tokens"]}
        async for event in super()._events(plain, is_breaking):
            yield event


@pytest.mark.parametrize("way", WAYS)
async def test_every_way_serves_all_of_them(way: Way):
    arrivals = draw_arrivals(7, rate=1000.0)
    with CrowdedServer() as server:
        async with ChatClient(server.url) as client:
            served = await serve_arrivals(asker(client, "salt"), arrivals, way, size=3)
    assert served.tokens_per_s > 0
    assert sorted(body["max_tokens"] for body in server.bodies) == sorted(each.num_output for each in arrivals)
    assert {body["cache_salt"] for body in server.bodies} == {"salt"}
    assert server.num_most <= {"unbatched": 1, "static": 3, "dynamic": 3, "continuous": 7}[way]


def test_each_batching_is_against_unbatched():
    rates: dict[Way, float] = {"unbatched": 10.0, "static": 20.0, "dynamic": 25.0, "continuous": 40.0}
    results = results_of({way: [Served(rate, 1.0)] * 2 for way, rate in rates.items()}, "some requests")
    assert {each.claim: each.figure("throughput").times[0] for each in results} == {
        STATIC: 2.0,
        DYNAMIC: 2.5,
        CONTINUOUS: 4.0,
    }


async def test_a_user_goes_before_the_fleet():
    user, *jobs = generate_jobs(num_jobs=3, num_turns=2, num_output=4, system_chars=3000)
    with FakeServer() as server:
        async with ChatClient(server.url) as client:
            shared = await share(client, user, list(zip(jobs, ("background", "workflow"), strict=True)))
    assert len(shared.turns_s) == 10
    asked = list(zip(server.session_ids, (body["priority"] for body in server.bodies), strict=True))
    assert {priority for session, priority in asked if session == user.id} == {"interactive"}
    assert {each for each in asked if each[0] != user.id} <= {(jobs[0].id, "background"), (jobs[1].id, "workflow")}


async def test_a_fleet_that_fails_is_no_measurement():
    user, job = generate_jobs(num_jobs=2, num_turns=3, num_output=4, system_chars=3000)
    with FakeServer(failing=frozenset(range(100))) as server:
        async with ChatClient(server.url) as client:
            with pytest.raises(RemoteError, match="out of order"):
                await share(client, user, [(job, "background")])


def test_prompts_of_a_loop_fit():
    with Serving() as serving, httpx.Client(base_url=serving.url) as http:
        job = fit_job(serving.url, 3)
        counts = [http.post("/tokenize", json={"messages": turn.messages}).json()["count"] for turn in job.turns]
    for count, wanted in zip(counts, (200, 500, 800), strict=True):
        assert wanted - len(" and") < count <= wanted
    for before, after in pairwise(job.turns):
        assert after.messages[: len(before.messages)] == before.messages


def test_the_last_step_of_a_loop_fits_the_default_model():
    assert prompt_tokens(FULL.steps[-1]) < 8192 - 100


def test_a_loop_as_it_was_published():
    """A token takes a millisecond to prefill, and an answer 10 ms."""

    def loop(*cached: int) -> Loop:
        numbers = (1, 2, 3, 4, 5, 9)
        prompts = [200 + 300 * (number - 1) for number in numbers]
        costs = [(prompt, found, (prompt - found) / 1000) for prompt, found in zip(prompts, cached, strict=True)]
        return Loop(numbers, [ReplayedTurn("", 0, s, s + 0.01, Usage(prompt, found, 8)) for prompt, found, s in costs])

    results = {each.claim: each for each in loop_results([(loop(*[0] * 6), loop(0, 200, 500, 800, 1100, 2300))])}
    prefilled = results[TOKENS].figure("prefilled")
    assert (prefilled.baseline, prefilled.ours) == ([4000], [1400])
    assert results[TOKENS].growth["without reuse"][-1] == 9 * 200 + 300 * 36, "steps between are interpolated"
    assert results[FLAT].figure("last step over second").ours == [pytest.approx(1.0)]
    assert results[RECOMPUTED].figure("recomputed").ours == [pytest.approx((12.6 - 2.6) / (12.6 + 0.09))]
    assert CLAIMS[FLAT].holds(results[FLAT])
    assert not CLAIMS[RECOMPUTED].holds(results[RECOMPUTED]), "nine steps are no long loop"


CITIES = ("Paris", "Rome", "Oslo")


@pytest.mark.parametrize("way", GATHERING_WAYS)
async def test_calls_and_answers_are_the_models_own(way: str):
    def say(ask: Ask) -> Any:
        num_results = sum(message.role == "tool" for message in ask.messages) - 3
        if ask.choice == "none":
            return "It is warm."
        calls = [ScriptedCall("weather", city=city) for city in CITIES]
        return calls if ask.extra["parallel_tool_calls"] else [calls[num_results]]

    model = ScriptedModel(say)
    found = await gather(model, CITIES, way, 0.01)  # type: ignore[arg-type]
    assert found.cities == CITIES
    num_turns = {"at once": 2, "one by one": 2, "a call a turn": 4}[way]
    assert [ask.choice for ask in model.asks] == ["required"] * (num_turns - 1) + ["none"]
    assert found.wall_s >= found.tools_s >= {"at once": 0.009, "one by one": 0.03, "a call a turn": 0.01}[way]


def test_gathering_at_once_against_each_of_the_others():
    found = {way: [Gathered(2.0, 4.0, ("Vienna", "Prague", "Rome"))] for way in GATHERING_WAYS}
    found["one by one"] = [Gathered(6.0, 8.0, ())]
    found["a call a turn"] = [Gathered(6.0, 12.0, ("Vienna",) * 3)]
    tools, compiler, gathering = gathering_results(found, 2.0)
    assert tools.figure("tools").times == [3.0]
    assert compiler.figure("task").times == [3.0]
    assert gathering.figure("task").saved == [0.5]
    assert gathering.figure("cities called at once").ours == [pytest.approx(2 / 3)]
    assert compiler.figure("cities called a call a turn").ours == [pytest.approx(1 / 3)]


async def test_tiers_against_the_large_model_in_parts():
    async with TierServers(URLS, transport=httpx.MockTransport(Pair())) as servers:
        config = Terms(price_ratio=10).config(await servers.find_models())
        measured = await measure_tiers(servers, config, mix(QUESTIONS, 2))
    result = result_of(measured, 2, "two models")
    cost, right = result.figure("cost"), result.figure("right")
    assert [len(cost.ours), len(cost.baseline)] == [2, 2]
    assert sum(cost.ours) / sum(cost.baseline) == pytest.approx((6 * 1 + 10 * 0.1) / 12)
    assert right.ours == right.baseline == [1.0, 1.0]


async def test_turns_say_whether_they_are_the_last():
    model = ScriptedModel(["First.", "Second."])
    hinted = HintedModel(model, 1)  # type: ignore[arg-type]
    asked = Message("user", "Go."), Message("assistant", "First."), Message("tool", "done")
    for messages in (asked[:1], asked):
        assert [event async for event in hinted.stream(Ask(messages=messages, extra={"priority": "background"}))]
    assert [ask.extra["metadata"]["task"] for ask in model.asks] == ["extraction", "summary"]
    assert model.asks[0].extra["priority"] == "background"


def test_everything_against_the_naive_loop():
    naive, whole = FleetRun("", 120.0, [60.0, 120.0]), FleetRun("", 24.0, [12.0, 24.0])
    result = together_result([(naive, whole)] * 2, "two agents")
    assert result.figure("throughput").baseline == [1.0, 1.0]
    assert result.figure("throughput").times == [5.0, 5.0]
    assert result.figure("p95 of a job").saved == [0.8, 0.8]
    assert CLAIMS[TOGETHER].holds(result)


async def test_both_ways_do_the_same_jobs(tmp_path: Path):
    path = tmp_path / "workflows.jsonl"
    write_workflows(path, num_rounds=1)
    jobs = [job._replace(tools=job.tools[:3]) for job in read_agent_jobs(path, max_chars=26_000)][:2]
    with AgentsServer() as server:
        naive = await run_naive(server.url, jobs, 8)
        num_asked = len(server.bodies)
        whole = await run_whole(server.url, jobs, 8, SpeculativeTools())
    assert len(naive.job_times_s) == len(whole.job_times_s) == 2
    asked = [body for body in server.bodies[num_asked:] if body.get("stream")]
    assert num_asked == len(asked) == sum(job.num_turns for job in jobs)
    assert {body["model"] for body in asked} == {"auto"}
    tasks = [body["metadata"]["task"] for body in asked]
    assert (tasks.count("extraction"), tasks.count("summary")) == (8, 2)
    assert [body["priority"] for body in asked].count("interactive") == jobs[0].num_turns


def test_workflows_as_transcripts(tmp_path: Path):
    path = tmp_path / "workflows.jsonl"
    write_workflows(path, num_rounds=2)
    jobs = list(read_agent_jobs(path, max_chars=26_000))
    assert len(jobs) == len(read_runs(path)) == 24
    assert {(job.num_turns, job.num_calls, len(job.episodes)) for job in jobs} == {(5, 4, 1)}


def test_speculation_is_measured_on_a_simulated_clock(tmp_path: Path):
    path = tmp_path / "workflows.jsonl"
    write_workflows(path)
    result = measure_speculation(path, "workflows", 30, 2)
    assert len(result.figure("predicted right").ours) == 2
    assert result == measure_speculation(path, "workflows", 30, 2)


def test_a_claim_that_fails_is_a_row_and_the_others_go_on(tmp_path: Path):
    seen: list[str] = []
    supplies = Supplies(data=tmp_path / "nothing.jsonl")
    results = list(run_claims(QUICK, supplies, only=(SPECULATION, TIERS), watch=seen.append))
    assert [result.claim for result in results] == seen == [SPECULATION, TIERS]
    assert "cannot read" in results[0].missing
    assert "--small and --large" in results[1].missing
