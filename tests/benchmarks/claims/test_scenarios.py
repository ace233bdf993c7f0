"""The scenarios against servers without a model: who is asked what, and when. What they measure is not looked at."""

from collections.abc import AsyncIterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import pytest
from benchmarks.agent.foresight import read_runs
from benchmarks.agent.recorded import read_agent_jobs
from benchmarks.claims.agents import measure_speculation, measure_tools, write_workflows
from benchmarks.claims.batching import WAYS, Way, draw_arrivals, serve_arrivals
from benchmarks.claims.loop_tokens import fit_job
from benchmarks.claims.priority import share
from benchmarks.claims.published import FORESIGHT, TIERS, TOOLS
from benchmarks.claims.run import QUICK, Supplies, run_claims
from tests.bench.fake_server import FakeServer
from tests.server.serving import Serving

from hotloop.bench.client import ChatClient
from hotloop.bench.workload import generate_jobs
from hotloop.core.errors import RemoteError


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


@pytest.mark.parametrize("way", WAYS)
async def test_every_way_serves_all_of_them(way: Way):
    arrivals = draw_arrivals(7, rate=1000.0)
    with CrowdedServer() as server:
        async with ChatClient(server.url) as client:
            served = await serve_arrivals(client, arrivals, way, size=3)
    assert served.num_tokens == sum(arrival.num_output for arrival in arrivals)
    assert len(served.latencies_s) == 7
    assert {body["cache_salt"] for body in server.bodies} == {way}
    assert server.num_most <= {"single": 1, "static": 3, "dynamic": 3, "continuous": 7}[way]


async def test_a_user_goes_before_the_fleet():
    user, *fleet = generate_jobs(num_jobs=3, num_turns=2, num_output=4, system_chars=3000)
    with FakeServer() as server:
        async with ChatClient(server.url) as client:
            shared = await share(client, user, fleet, "background")
    assert len(shared.latencies_s) == 2
    asked = list(zip(server.session_ids, (body["priority"] for body in server.bodies), strict=True))
    assert {priority for session, priority in asked if session == user.id} == {"interactive"}
    assert {priority for session, priority in asked if session != user.id} <= {"background"}


async def test_a_fleet_that_fails_is_no_measurement():
    user, *fleet = generate_jobs(num_jobs=2, num_turns=3, num_output=4, system_chars=3000)
    with FakeServer(failing=frozenset(range(100))) as server:
        async with ChatClient(server.url) as client:
            with pytest.raises(RemoteError, match="out of order"):
                await share(client, user, fleet, "background")


def test_prompts_of_a_loop_fit():
    with Serving() as serving, httpx.Client(base_url=serving.url) as http:
        job = fit_job(serving.url, 3)
        counts = [http.post("/tokenize", json={"messages": turn.messages}).json()["count"] for turn in job.turns]
    for count, wanted in zip(counts, (200, 500, 800), strict=True):
        assert wanted - len(" and") < count <= wanted
    for before, after in pairwise(job.turns):
        assert after.messages[: len(before.messages)] == before.messages


def test_workflows_as_transcripts(tmp_path: Path):
    path = tmp_path / "workflows.jsonl"
    write_workflows(path, num_rounds=2)
    jobs = list(read_agent_jobs(path, max_chars=26_000))
    assert len(jobs) == len(read_runs(path)) == 24
    assert {(job.num_turns, job.num_calls, len(job.episodes)) for job in jobs} == {(5, 4, 1)}


def test_foresight_is_measured_on_a_simulated_clock(tmp_path: Path):
    path = tmp_path / "workflows.jsonl"
    write_workflows(path)
    row = measure_speculation(path)
    assert 0 < row.after < row.before
    assert row == measure_speculation(path)


def test_tools_are_run_both_ways():
    row = measure_tools(0.01)
    assert (row.name, row.unit) == (TOOLS, "s")
    assert row.times


def test_a_claim_that_fails_is_a_row_and_the_others_go_on(tmp_path: Path):
    seen: list[str] = []
    supplies = Supplies(data=tmp_path / "nothing.jsonl")
    rows = list(run_claims(QUICK, supplies, only=(FORESIGHT, TIERS, TOOLS), watch=seen.append))
    assert [row.name for row in rows] == seen == [TOOLS, FORESIGHT, TIERS]
    assert not rows[0].error
    assert "cannot read" in rows[1].error
    assert "--small and --large" in rows[2].skipped
