"""The scenarios against servers and models that are made up: who is asked what, and when. What they measure is not
looked at."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import pytest
from benchmarks.agent.fleet import FleetRun
from benchmarks.agent.recorded import read_agent_jobs
from benchmarks.agent.speculation import read_runs
from benchmarks.claims.batching import WAYS, Served, Way, asker, draw_arrivals, results_of, serve_arrivals
from benchmarks.claims.bench import CARD, FULL, QUICK, Bench, Supplies, open_bench
from benchmarks.claims.drafting import Drafted, Pair, accepted_share, draft_for
from benchmarks.claims.gathering import WAYS as GATHERING_WAYS
from benchmarks.claims.gathering import Gathered, gather, measure_many
from benchmarks.claims.gathering import results_of as gathering_results
from benchmarks.claims.loop import WAYS as WAYS_OF_A_LOOP
from benchmarks.claims.loop import Loop, fit_job, measure_tokens
from benchmarks.claims.loop import results_of as loop_results
from benchmarks.claims.priority import Shared, share
from benchmarks.claims.priority import result_of as priority_result
from benchmarks.claims.published import (
    BY_TASK,
    CLAIMS,
    CLASSIFIER,
    COMBINED,
    COMPILER,
    CONTINUOUS,
    DYNAMIC,
    FLAT,
    GATHER,
    LINEAR,
    PRIORITY,
    RECOMPUTED,
    SAVED,
    SHARE,
    SPECULATION,
    STATIC,
    TEN,
    THREE,
    TIERS,
    TOGETHER,
    TOOLS,
    UNOPTIMISED,
)
from benchmarks.claims.result import Result
from benchmarks.claims.run import run_claims
from benchmarks.claims.speculation import measure_speculation
from benchmarks.claims.tiers import results_of as tiers_results
from benchmarks.claims.together import HintedModel, fitting_turns, run_naive, run_whole, shortened
from benchmarks.claims.together import results_of as together_results
from benchmarks.claims.utilisation import Shape, busy_share
from benchmarks.claims.workflows import write_workflows
from benchmarks.tiers.questions import mix
from benchmarks.tiers.run import TierServers, classify, config_of, measure_tiers
from tests.bench.fake_server import FakeServer
from tests.benchmarks.tiers.test_questions import QUESTIONS
from tests.benchmarks.tiers.test_run import URLS
from tests.benchmarks.tiers.test_run import Pair as PairOfServers
from tests.engine.tiny import TOKENIZER, VOCAB_SIZE
from tests.models.tiny import write_smallest
from tests.server.serving import Serving

from hotloop.agent.model import Ask
from hotloop.agent.scripted import ScriptedCall, ScriptedModel
from hotloop.agent.speculation import SpeculativeTools
from hotloop.backends.null import NullBackend
from hotloop.bench.client import ChatClient
from hotloop.bench.replay import ReplayedTurn
from hotloop.bench.workload import generate_jobs
from hotloop.core.errors import ConfigError, RemoteError
from hotloop.core.message import Message
from hotloop.core.request import SamplingParams, Usage
from hotloop.engine.engine import Completion, Engine


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
    arrivals = draw_arrivals(7, rate=1000.0, outputs=FULL.outputs)
    with CrowdedServer() as server:
        async with ChatClient(server.url) as client:
            served = await serve_arrivals(asker(client, "salt"), arrivals, way, size=3)
    assert served.tokens_per_s > 0
    assert sorted(body["max_tokens"] for body in server.bodies) == sorted(each.num_output for each in arrivals)
    assert {body["cache_salt"] for body in server.bodies} == {"salt"}
    assert server.num_most <= {"unbatched": 1, "continuous": 7}.get(way, 3)


def test_each_batching_is_against_unbatched():
    rates: dict[Way, float] = dict(zip(WAYS, (10.0, 20.0, 25.0, 15.0, 22.0, 40.0), strict=True))
    results = results_of({way: [Served(rate, 1.0)] * 2 for way, rate in rates.items()}, "some requests")
    assert {each.claim: each.figure("throughput").times[0] for each in results} == {
        STATIC: 2.0,
        DYNAMIC: 2.5,
        CONTINUOUS: 4.0,
    }
    assert [figure.name for figure in results[1].figures][::2] == [
        "throughput",
        "throughput, 10 ms",
        "throughput, 500 ms",
    ]


async def test_a_user_goes_before_the_fleet():
    user, *jobs = generate_jobs(num_jobs=3, num_turns=2, num_output=4, system_chars=3000)
    with FakeServer() as server:
        async with ChatClient(server.url) as client:
            shared = await share(client, user, list(zip(jobs, ("background", "workflow"), strict=True)))
    assert len(shared.turns_s) == 2
    asked = list(zip(server.session_ids, (body["priority"] for body in server.bodies), strict=True))
    assert {priority for session, priority in asked if session == user.id} == {"interactive"}
    assert {each for each in asked if each[0] != user.id} <= {(jobs[0].id, "background"), (jobs[1].id, "workflow")}


class CountingLock(asyncio.Lock):
    num_entered = 0

    async def __aenter__(self) -> None:
        await super().__aenter__()
        self.num_entered += 1


async def test_unbatched_is_one_request_at_a_time():
    user, *fleet = generate_jobs(num_jobs=4, num_turns=3, num_output=4, system_chars=3000)
    gate = CountingLock()
    with CrowdedServer() as server:
        async with ChatClient(server.url) as client:
            shared = await share(client, user, [(job, "interactive") for job in fleet], gate=gate)
    assert (len(shared.turns_s), server.num_most) == (3, 1)
    assert {*server.session_ids} >= {user.id, fleet[0].id}
    assert len(server.session_ids) <= gate.num_entered, "everybody's requests wait for the one before"


def test_classes_are_against_unbatched_and_against_the_user_alone():
    ways = {"unbatched": (10, 4.0), "alone": (8, 1.0), "classes": (25, 1.5), "half": (30, 2.0), "one class": (25, 3.0)}
    found = {way: [Shared(1.0, tokens, [turn_s])] * 3 for way, (tokens, turn_s) in ways.items()}
    result = priority_result(found, "a user")
    assert result.figure("throughput").times == [2.5] * 3
    assert result.figure("interactive turn").times == [4.0 / 1.5] * 3
    assert result.figure("throughput, half the time for others").times == [3.0] * 3
    assert result.figure("throughput beside the user alone").times == [25 / 8] * 3
    assert result.figure("interactive turn beside the user alone").times == [1 / 1.5] * 3
    assert CLAIMS[PRIORITY].holds(result)


async def test_a_fleet_that_fails_is_no_measurement():
    user, job = generate_jobs(num_jobs=2, num_turns=3, num_output=4, system_chars=3000)
    with FakeServer(failing=frozenset(range(100))) as server:
        async with ChatClient(server.url) as client:
            with pytest.raises(RemoteError, match="out of order"):
                await share(client, user, [(job, "background")])


def test_prompts_of_a_loop_fit():
    sizes = (200, 500, 800)
    with Serving() as serving, httpx.Client(base_url=serving.url, verify=False) as http:
        job = fit_job(serving.url, sizes)
        counts = [http.post("/tokenize", json={"messages": turn.messages}).json()["count"] for turn in job.turns]
    for count, wanted in zip(counts, sizes, strict=True):
        assert wanted - len(" and") < count <= wanted
    for before, after in pairwise(job.turns):
        assert after.messages[: len(before.messages)] == before.messages


def test_the_last_step_of_a_loop_fits_the_default_model():
    assert 200 + 300 * (FULL.steps[-1] - 1) < 8192 - 100


def test_a_loop_as_it_was_published():
    """A token takes a millisecond to prefill, and an answer 10 ms."""

    def loop(*cached: int) -> Loop:
        numbers = (1, 2, 3, 4, 5, 9)
        prompts = [200 + 300 * (number - 1) for number in numbers]
        costs = [(prompt, found, (prompt - found) / 1000) for prompt, found in zip(prompts, cached, strict=True)]
        turns = [ReplayedTurn("", 0, s, s + 0.01, Usage(prompt, found, 8)) for prompt, found, s in costs]
        slow = ReplayedTurn("", 0, 9.0, 9.0, Usage(200, 0, 8))
        return Loop(numbers, [[turn, turn, *[slow] * (turn is turns[0])] for turn in turns])

    reused = loop(0, 200, 500, 800, 1100, 2300)
    results = {each.claim: each for each in loop_results([(loop(*[0] * 6), reused, reused)] * 3)}
    assert results[FLAT].figure("step 5 over step 2").ours == [pytest.approx(1.0)] * 3
    assert results[FLAT].figure("step 9 over step 2").baseline == [pytest.approx(2.61 / 0.51)] * 3
    assert results[SHARE].figure("prefill").ours == [pytest.approx(12.6 / (12.6 + 0.09))] * 3
    assert results[RECOMPUTED].figure("recomputed").ours == [pytest.approx((12.6 - 2.6) / (12.6 + 0.09))] * 3
    assert all(CLAIMS[claim].holds(results[claim]) for claim in (FLAT, SHARE, RECOMPUTED))


@pytest.fixture
def bench() -> Iterator[Bench]:
    with open_bench("cpu", QUICK, Supplies()) as opened:
        yield opened


@pytest.mark.long
def test_tokens_are_counted_on_a_tiny_model_as_on_any(bench: Bench):
    loop, ten, prefix = measure_tokens(bench)
    prefilled = loop.figure("prefilled")
    assert 3_980 < prefilled.baseline[0] <= 4000
    assert 1_380 < prefilled.ours[0] < 1400 + 5 * 32
    assert [*loop.growth] == ["without reuse", "a prefix cache alone", "all of hotloop"]
    assert {len(turns) for turns in loop.growth.values()} == {5}
    [naive], [ours] = (ten.figure(name).ours for name in ("prefilled naively", "with reuse"))
    assert (ten.claim, prefix.claim) == (TEN, SAVED)
    assert 54_900 < naive <= 55_000
    assert 10_000 - 4 <= ours < 10_000 + 10 * 32
    assert prefix.figure("saved").ours == [9 * (2000 - 2000 % 32)]


@pytest.mark.long
def test_servers_start_once_and_few_are_kept(bench: Bench):
    wanted = [bench.tiny_flags(*disabled) for disabled in WAYS_OF_A_LOOP.values()]
    first, second, third = bench.servers.urls(wanted)
    assert bench.servers.urls(wanted[:2]) == [first, second]
    fourth = bench.servers.urls([bench.tiny_flags("forced_tokens")])[0]
    assert bench.servers.urls(wanted[:2]) == [first, second], "the third was wanted longest ago"
    assert len({first, second, third, fourth}) == 4
    httpx.get(f"{fourth}/health").raise_for_status()
    with pytest.raises(httpx.HTTPError):
        httpx.get(f"{third}/health")


def test_busy_is_what_steps_took_of_the_time():
    jobs = generate_jobs(num_jobs=2, num_turns=2, num_output=4, system_chars=3000)
    with Serving() as serving:
        assert 0.0 < busy_share(serving.url, jobs, Shape(2, 0.0)) <= 1.0


CITIES = ("Paris", "Rome", "Oslo")


@pytest.mark.parametrize("way", GATHERING_WAYS)
async def test_calls_and_answers_are_the_models_own(way: str):
    def say(ask: Ask) -> Any:
        num_results = sum(message.role == "tool" for message in ask.messages) - 3
        if num_results == 3:
            return "It is warm."
        if way == "planned":
            steps = [{"id": "abc"[i], "tool": "weather", "arguments": {"city": city}} for i, city in enumerate(CITIES)]
            return json.dumps({"steps": steps})
        calls = [ScriptedCall("weather", city=city) for city in CITIES]
        return calls if ask.extra["parallel_tool_calls"] else [calls[num_results]]

    model = ScriptedModel(say)
    found = await gather(model, CITIES, way, 0.01)  # type: ignore[arg-type]
    assert (found.cities, found.is_abandoned) == (CITIES, False)
    num_turns = {"at once": 2, "one by one": 2, "a call a turn": 4, "planned": 2}[way]
    choices = [ask.choice for ask in model.asks]
    assert (len(choices), choices[-1]) == (num_turns, "none")
    assert way == "planned" or choices[:-1] == ["required"] * (num_turns - 1)
    assert found.wall_s >= found.tools_s >= {"one by one": 0.03, "a call a turn": 0.01}.get(way, 0.0)


def test_gathering_is_against_what_each_claim_names():
    found = {way: [Gathered(2.0, 4.0, ("Vienna", "Prague", "Rome"))] for way in GATHERING_WAYS}
    found["one by one"] = [Gathered(6.0, 8.0, ())]
    found["a call a turn"] = [Gathered(6.0, 16.0, ("Vienna",) * 3)]
    found["planned"] = [Gathered(2.0, 5.0, ("Vienna", "Prague", "Warsaw"), is_abandoned=True)]
    results = {each.claim: each for each in gathering_results(found, "a tool")}
    assert results[TOOLS].figure("tools").times == [3.0]
    assert results[COMPILER].figure("task").saved == [1 - 5 / 16]
    assert results[COMPILER].figure("plans carried out").ours == [0.0]
    assert not CLAIMS[COMPILER].holds(results[COMPILER]), "whatever the run took that went on without"
    assert results[GATHER].figure("task").times == [4.0], "against a chain that reasons after each call"
    assert results[GATHER].figure("cities called at once").ours == [pytest.approx(2 / 3)]
    assert results[COMPILER].figure("cities called a call a turn").ours == [pytest.approx(1 / 3)]


def test_tools_at_once_from_one_to_eight(bench: Bench):
    result = measure_many(bench)
    assert result.claim == LINEAR
    assert [figure.name for figure in result.figures] == ["1 tool", *(f"{count} tools" for count in range(2, 9))]
    assert {need.figure for need in CLAIMS[LINEAR].needs} <= {*result.by_name}


def drafted(num_drafted: int, num_accepted: int, text: Sequence[int] = (1, 2)) -> Pair:
    plain = Completion("", (1, 2), "stop", Usage(5, 0, 2))
    with_drafts = Completion("", (*text,), "stop", Usage(5, 0, 2, num_drafted=num_drafted, num_accepted=num_accepted))
    return Pair(2.0, plain, 1.0, with_drafts)


def test_none_of_no_drafts_is_no_share():
    none = Drafted([drafted(0, 0)] * 3, [drafted(0, 0)] * 3)
    figures = {figure.name: figure for figure in none.figures()}
    assert "accepted of these" not in figures
    assert figures["drafted in prose"].ours == [0]


def test_drafts_are_against_none():
    some = Drafted([drafted(8, 4)] * 3, [drafted(8, 6), drafted(8, 6), drafted(8, 6, [1, 3])])
    figures = {figure.name: figure for figure in some.figures()}
    assert figures["prose"].times == [2.0] * 3
    assert figures["accepted of these"].ours == [0.75]
    assert figures["same output"].ours == [1.0, 1.0, 0.5]


def test_a_draft_model_has_the_vocabulary_of_the_large_one(tmp_path: Path):
    large, other, same = (str(write_smallest(tmp_path / name)) for name in ("large", "other", "same"))
    path = tmp_path / "other" / "tokenizer.json"
    plain = json.loads(path.read_text("utf-8"))
    vocabulary = plain["model"]["vocab"]
    vocabulary["a"], vocabulary["b"] = vocabulary["b"], vocabulary["a"]
    path.write_text(json.dumps(plain), "utf-8")
    assert draft_for(large, (None, other, same)) == same
    assert draft_for(large, (other, None)) is None


def test_what_is_accepted_is_what_the_draft_model_has_as_its_likeliest():
    with Engine(TOKENIZER, NullBackend(vocab_size=VOCAB_SIZE)) as engine:
        prompt = [5, 6, 7]
        said = engine.generate(prompt, SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)).token_ids
        assert accepted_share(engine, prompt, said) == 1.0
        assert accepted_share(engine, prompt, [*said[:3], said[3] + 1]) == 0.75


async def test_tiers_against_the_large_model_in_parts():
    questions = mix(QUESTIONS, 2)
    async with TierServers(URLS, transport=httpx.MockTransport(PairOfServers())) as servers:
        config = config_of(await servers.find_models())
        measured = await measure_tiers(servers, config, questions)
        told = [question for question in questions if question.task]
        tasks = await classify(servers, config.tiers[0], told)
    sizes = {"small": "1M", "large": "2M"}
    found = tiers_results({TIERS: measured, THREE: measured}, ["extraction"] * len(told), 2, sizes, questions)
    results = {each.claim: each for each in found}
    cost, right = results[TIERS].figure("cost"), results[TIERS].figure("right")
    assert [len(cost.ours), len(cost.baseline)] == [2, 2]
    assert sum(cost.ours) / sum(cost.baseline) == pytest.approx((6 * 1 + 10 * 0.1) / 12)
    assert right.ours == right.baseline == [1.0, 1.0]
    assert "--medium" in results[THREE].missing
    assert {"intent", "reasoning"} <= set(results[BY_TASK].by_name)
    assert results[CLASSIFIER].figure("told by a model").ours == [0.25, 0.25], "one of four kinds"
    assert tasks == [None] * len(told), "no letter came"


async def test_turns_say_whether_they_are_the_last():
    model = ScriptedModel(["First.", "Second."])
    hinted = HintedModel(model, 1)  # type: ignore[arg-type]
    asked = Message("user", "Go."), Message("assistant", "First."), Message("tool", "done")
    for messages in (asked[:1], asked):
        assert [event async for event in hinted.stream(Ask(messages=messages, extra={"priority": "background"}))]
    assert [ask.extra["metadata"]["task"] for ask in model.asks] == ["extraction", "summary"]
    assert model.asks[0].extra["priority"] == "background"


def test_everything_against_the_naive_loop():
    naive = FleetRun("", 120.0, [60.0, 120.0], [20.0, 30.0])
    whole = FleetRun("", 24.0, [12.0, 24.0], [12.0, 24.0])
    alone = FleetRun("", 8.0, [8.0], [8.0])
    taken = [(naive, whole, alone)] * 3
    results: dict[str, Result] = {each.claim: each for each in together_results(taken, "two agents")}
    assert results[TOGETHER].figure("throughput").baseline == [1.0] * 3
    assert results[TOGETHER].figure("throughput").times == [5.0] * 3
    assert results[TOGETHER].figure("p95 of a job").saved == [0.8] * 3
    assert results[COMBINED].figure("mean job").saved == [0.8] * 3
    assert results[COMBINED].figure("one agent").saved == [0.6] * 3, "its own time, as if nobody had been before it"
    assert results[UNOPTIMISED].figure("naive run").ours == [25.0] * 3
    assert all(CLAIMS[claim].holds(result) for claim, result in results.items())


def test_a_job_that_failed_is_no_measurement():
    done, failed = FleetRun("", 8.0, [8.0], [8.0]), FleetRun("", 9.0, [], [], failures=["job-1: no answer"])
    with pytest.raises(RemoteError, match="no answer"):
        together_results([(failed, done, done)], "two agents")


def test_jobs_have_as_many_turns_as_the_naive_loop_ends_with(tmp_path: Path):
    path = tmp_path / "workflows.jsonl"
    write_workflows(path, num_rounds=1)
    job = next(read_agent_jobs(path, max_chars=26_000))
    assert [fitting_turns(least_s) for least_s in (0.0, 10.0, 36.0, 60.0)] == [3, 18, 5, 3]
    with pytest.raises(ConfigError, match="smaller model"):
        fitting_turns(61.0)
    short = shortened(job, 3)
    assert (short.num_turns, short.num_calls) == (3, 2)
    assert short.episodes[0].answers == (*job.episodes[0].answers[:2], job.episodes[0].answers[-1])
    assert shortened(job, 18) == job


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


@pytest.mark.long
def test_speculation_of_both_kinds_on_a_simulated_clock(bench: Bench, tmp_path: Path):
    path = tmp_path / "workflows.jsonl"
    write_workflows(path)
    both = replace(bench, supplies=Supplies(data=path))
    result = measure_speculation(both)
    assert len(result.figure("workflows: predicted right").ours) == 1
    assert result.figure("workflows: predicted right").ours == result.figure("recorded runs: predicted right").ours
    assert result == measure_speculation(both)
    assert {need.figure for need in CLAIMS[SPECULATION].needs} <= {*measure_speculation(bench).by_name}


def test_a_claim_that_fails_is_a_row_and_the_others_go_on(bench: Bench, tmp_path: Path):
    seen: list[str] = []
    broken = replace(bench, supplies=Supplies(data=tmp_path / "nothing.jsonl", questions=tmp_path))
    results = list(run_claims(broken, only=(SPECULATION, TIERS, TOGETHER), watch=seen.append))
    assert [result.claim for result in results] == seen == [SPECULATION, TIERS, TOGETHER]
    assert "cannot read" in results[0].missing
    assert all("failed: " in result.missing for result in results)
    assert "--small and --large" in results[2].missing


def test_a_card_and_a_cpu_take_the_same_rows(bench: Bench):
    """A server's flags are all that differs, and how much of everything there is."""
    with open_bench("cuda", CARD, Supplies()) as card:
        flags = [each.flags("prefix_cache") for each in (bench, card)]
        sizes = [card.size_of(card.standing), card.size_of(card.shaped("llama-1b"))]
    assert sizes == ["7.5B", "1.2B"]
    assert [words[words.index("--device") + 1] for words in flags] == ["cpu", "cuda"]
    assert ["dummy" in words for words in flags] == [False, True]
    assert all("drafts,prefix_cache" in words for words in flags)
